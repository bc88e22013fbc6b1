"""B14, topics and queues: delivery of a write to a live tail, claims and acknowledgements, deletes by tag, memory.

Owns the first part and `python -m bench.topics`, which runs some of the parts with any number of records; the others
are `queues` and `tagged_records`.
"""

import argparse
import sys

from bench import generator, peers, proc, queues, tagged_records
from bench.peers import FSYNC, MEMORY, Server
from bench.report import Result, record, show
from bench.rounds import BUSY_CPU, Settings, median, tell
from bench.wire import Malformed

INTERVAL_MS = 5.0
# About what the log writes for one record of `subscribers.MESSAGE_BYTES`.
SYNC_BYTES = 200
AIM_P50_MS, AIM_P99_MS = 1.0, 5.0
DELIVERY, PAIRS, TAGS = "delivery", "pairs", "tags"


def run_b14(settings: Settings) -> list[Result]:
    return run_parts(settings, (DELIVERY, PAIRS, TAGS))


def run_parts(settings: Settings, parts: tuple[str, ...], records: int | None = None) -> list[Result]:
    if settings.only_peer not in (None, queues.OURS):
        raise generator.Failed(f"{settings.only_peer} has no part in this benchmark")
    figures: list[Result] = []
    if DELIVERY in parts:
        figures += run_delivery(settings)
    if PAIRS in parts:
        figures += queues.run_pairs(settings)
    if TAGS in parts:
        figures += tagged_records.run_tagged(settings, records)
    return figures


def run_delivery(settings: Settings) -> list[Result]:
    """200 writes a second, one at a time, to one live tail; memory and fsync on the same node, one after the other."""
    found: dict[str, list[dict]] = {MEMORY: [], "sync": [], FSYNC: []}
    for number in range(settings.rounds):
        with peers.serving(peers.headwater(FSYNC)) as server:
            found[MEMORY].append(_deliver(server, settings, MEMORY))
            # The bare disk, between the two: the aim with fsync is that of memory and what the disk takes.
            found["sync"].append(_sync(server, settings))
            found[FSYNC].append(_deliver(server, settings, FSYNC))
        for name, rounds in found.items():
            tell(f"round {number + 1} {name}: {rounds[-1]}")
    return [one for durability in (MEMORY, FSYNC) for one in _figures(found, durability)]


def _deliver(server: Server, settings: Settings, durability: str) -> dict:
    spec = {"work": "deliver", "port": server.port, "server_pid": server.pid, "durability": durability}
    spec |= {"stream": f"bench-{durability}", "subscribers": 1, "interval_ms": INTERVAL_MS}
    spec |= {"warmup_s": settings.warmup_s, "window_s": settings.seconds}
    return generator.run("bench.topic_load", spec, timeout_s=settings.warmup_s + settings.seconds + 90)


def _sync(server: Server, settings: Settings) -> dict:
    spec = {"work": "sync", "directory": str(server.directory), "bytes": SYNC_BYTES, "interval_ms": INTERVAL_MS}
    return generator.run("bench.topic_load", spec | {"window_s": settings.seconds}, settings.seconds + 60)


def _figures(found: dict[str, list[dict]], durability: str) -> list[Result]:
    rounds, figures = found[durability], []
    busy = " (machine busy)" if any(one["others_cpu"] > BUSY_CPU for one in rounds) else ""
    for quantile, aim in (("p50_ms", AIM_P50_MS), ("p99_ms", AIM_P99_MS)):
        note = f"max_ms {show(median(rounds, 'max_ms'))}" if quantile == "p99_ms" else ""
        if durability == FSYNC:
            disk = median(found["sync"], quantile) or 0.0
            aim += disk
            note = f"bare_sync {show(disk)} {note}".rstrip()
        name = f"delivery_{durability}_{quantile}"
        details = {"rounds": rounds, "sync": found["sync"]} if quantile == "p50_ms" else {}
        figures.append(Result("B14", name, median(rounds, quantile), aim, True, f"{note}{busy}".strip(), details))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.topics", description="Parts of B14.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{DELIVERY}, {PAIRS} or {TAGS}; default: all")
    parser.add_argument("--records", type=int, help=f"of {TAGS} (default {tagged_records.RECORDS})")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each timed window")
    parser.add_argument("--keep", action="store_true", help="append the figures to bench/history.jsonl")
    given = parser.parse_args()
    if unknown := set(given.parts) - {DELIVERY, PAIRS, TAGS}:
        parser.error(f"no part named {', '.join(sorted(unknown))}")
    fewest = 2 * len(tagged_records.STATES) * tagged_records.DELETES * tagged_records.SET_RECORDS
    if given.records is not None and given.records < fewest:
        parser.error(f"--records: at least {fewest}, or most of them are deleted")
    proc.raise_descriptor_limit()
    settings = Settings(given.rounds, given.seconds, warmup_s=min(1.0, given.seconds), quick=False, only_peer=None)
    try:
        peers.claim_scratch()
        results = run_parts(settings, tuple(given.parts) or (DELIVERY, PAIRS, TAGS), given.records)
    except (generator.Failed, Malformed, OSError) as failure:
        print(failure, file=sys.stderr)
        return 1
    for result in results:
        print(result.line, flush=True)
        if given.keep:
            record(result, settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
