"""The append benchmarks: B1 (fsync), B2 (memory), B3 (JSON batches), and SKETCH (beside a bare sketch).

Owns their workloads and figures; the load itself is `load`, the servers are `peers`.
"""

import dataclasses
import json

from bench import generator, peers
from bench.peers import FSYNC, MEMORY, Peer, Server
from bench.report import Result, show
from bench.rounds import BUSY_CPU, Settings, alternate, median, ratio

CONNECTIONS = 64
BODY_BYTES = 100
BATCH_MESSAGES = 100
# Above this share of a core the generator, not the server, may be what sets the rate.
SATURATED_CPU = 0.95


def load_spec(server: Server, settings: Settings, **changes: object) -> dict:
    """The fields that `load` reads; `changes` replace the B1 defaults."""
    return {
        "port": server.port,
        "server_pid": server.pid,
        "connections": CONNECTIONS,
        "mix": False,
        "prefix": "bench",
        "content_type": "application/octet-stream",
        "body": "x" * BODY_BYTES,
        "warmup_s": settings.warmup_s,
        "window_s": settings.seconds,
        "perf_event": None,
        **changes,
    }


def run_load(spec: dict) -> dict:
    result = generator.run("bench.load", spec, timeout_s=spec["warmup_s"] + spec["window_s"] + 60)
    if not result["appends"]:
        raise generator.Failed(f"no append was acknowledged: {result}")
    return result


def caveats(rounds: list[dict]) -> str:
    """What a reader of the final line must know: refusals, a busy machine, a generator at its limit."""
    refused = sum(sum(one["refused"].values()) for one in rounds)
    lost = sum(one["connections_lost"] for one in rounds)
    said = [f"{refused} refused"] if refused else []
    said += [f"{lost} connections lost"] if lost else []
    said += ["machine busy"] if any(one["others_cpu"] > BUSY_CPU for one in rounds) else []
    said += ["generator saturated"] if any(one["generator_cpu"] > SATURATED_CPU for one in rounds) else []
    return f"({', '.join(said)})" if said else ""


def compare(
    name: str, settings: Settings, pair: tuple[Peer, Peer], key: str, aim: float | None, **changes: object
) -> Result:
    """Ours over theirs, as a ratio of medians of `key`; with one peer alone, just its median."""
    theirs, ours = pair
    results = alternate(settings, pair, lambda server: run_load(load_spec(server, settings, **changes)))
    details: dict = {"mode": ours.mode, "rounds": results, "medians": summary(results)}
    note = caveats([one for rounds in results.values() for one in rounds])
    if settings.only_peer is not None:
        (alone,) = results.values()
        return Result(name, f"{settings.only_peer} {key}", median(alone, key), note=note, details=details)
    value = ratio(median(results[ours.name], key), median(results[theirs.name], key))
    return Result(name, "ratio", value, aim, note=note, details=details)


def summary(results: dict[str, list[dict]]) -> dict:
    keys = (
        "appends_per_s",
        "p50_ms",
        "p99_ms",
        "server_cpu",
        "server_cpu_us_per_append",
        "generator_cpu",
        "others_cpu",
    )
    return {name: {key: median(rounds, key) for key in keys} for name, rounds in results.items()}


def run_b1(settings: Settings) -> list[Result]:
    pair = (peers.reference(FSYNC), peers.headwater(FSYNC))
    return [compare("B1", settings, pair, "appends_per_s", aim=15)]


def run_b2(settings: Settings) -> list[Result]:
    pair = (peers.reference(MEMORY), peers.headwater(MEMORY))
    return [compare("B2", settings, pair, "appends_per_s", aim=3)]


def run_b3(settings: Settings) -> list[Result]:
    messages = ({"id": 10**6 + n, "kind": "click", "ms": 176 * 10**10 + n} for n in range(BATCH_MESSAGES))
    body = json.dumps(list(messages), separators=(",", ":"))
    pair = (peers.reference(FSYNC), peers.headwater(FSYNC))
    compared = compare("B3", settings, pair, "appends_per_s", aim=None, content_type="application/json", body=body)
    details = {**compared.details, "ratio": compared.value if settings.only_peer is None else None}
    details["messages_per_append"], details["body_bytes"] = BATCH_MESSAGES, len(body)
    for median_of in details["medians"].values():
        median_of["records_per_s"] = median_of["appends_per_s"] * BATCH_MESSAGES
        median_of["mb_per_s"] = round(median_of["appends_per_s"] * len(body) / 1e6, 2)
    shown = details["medians"].get("headwater") or next(iter(details["medians"].values()))
    notes = [f"mb_per_s {show(shown['mb_per_s'])}"]
    if details["ratio"] is not None:
        notes.append(f"ratio {show(details['ratio'])}")
    note = " ".join([*notes, compared.note]).rstrip()
    if settings.only_peer not in (None, "headwater"):
        measure, aim = f"{settings.only_peer} records_per_s", None
    else:
        measure, aim = "records_per_s", 300_000.0
    return [Result("B3", measure, shown["records_per_s"], aim, note=note, details=details)]


def run_sketch(settings: Settings) -> list[Result]:
    results = []
    for mode in (FSYNC, MEMORY):
        pair = (peers.sketch(mode), peers.headwater(mode))
        compared = compare("SKETCH", settings, pair, "appends_per_s", aim=None)
        results.append(dataclasses.replace(compared, measure=f"{mode} {compared.measure}"))
    return results
