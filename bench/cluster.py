"""B10, appends to a cluster of three nodes on this machine: quorum and fsync, with both logs, beside bare JetStream.

Owns the workload and the figures. The load on nodes is `load`, that on NATS servers `jetstream_load`; all run on the
same cores as the generator, and its CPU time is counted apart.

    bare       the same bytes published to as many streams of the same NATS servers, an answer awaited by each client
    owner      a cluster's clients, each connected to the node that owns its stream
    any        the same, connected to the nodes in turn: two of three requests are sent on
"""

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import append, generator
from bench.generator import Failed
from bench.peers import SCRATCH
from bench.report import Result, show
from bench.rounds import Settings, median, tell

CLIENTS = (1, 64, 512)
LOGS = ("jetstream", "objects")
BARE, OWNER, ANY = "bare", "owner", "any"
GROUPS = 16
RATE_AIM, P50_AIM_MS = 10_000, 5.0

Rounds = dict[tuple[str, str, int], list[dict]]
"""By log, kind of client, and number of clients."""


def run_b10(settings: Settings) -> list[Result]:
    if settings.only_peer not in (None, "headwater"):
        raise Failed(f"{settings.only_peer} has no part in this benchmark")
    rounds: Rounds = {}
    for log in LOGS:
        for _ in range(settings.rounds):
            measure(log, settings, lambda key, result: rounds.setdefault(key, []).append(result))
    details = {
        "groups": GROUPS,
        "body_bytes": append.BODY_BYTES,
        "rounds": {_name(key): found for key, found in rounds.items()},
        "medians": {_name(key): _medians(found) for key, found in rounds.items()},
    }
    caveat = append.caveats([one for found in rounds.values() for one in found])
    results = [_rate(rounds, caveat), _latency(rounds, caveat)]
    results += [_breakdown(rounds, clients) for clients in CLIENTS]
    results[0] = dataclasses.replace(results[0], details=details)
    return results


def measure(log: str, settings: Settings, take: Callable[[tuple[str, str, int], dict], None]) -> None:
    """One round on a freshly made cluster; `take` is given each result."""
    from headwater.cluster_dev.local_cluster import LocalCluster

    SCRATCH.mkdir(exist_ok=True)
    environment = generator.environment()
    with (
        tempfile.TemporaryDirectory(prefix="cluster-", dir=SCRATCH) as name,
        LocalCluster(Path(name), log=log, groups=GROUPS, environment=environment) as cluster,
    ):
        cluster.wait_ready(balanced=True)
        parts = {
            "nodes": [node.pid for node in cluster.nodes],
            "nats": [server.pid for server in cluster.nats],
            "s3": [] if cluster.s3 is None else [cluster.s3.pid],
        }
        ports = [node.port for node in cluster.nodes]
        for clients in CLIENTS:
            common = {
                "connections": clients,
                "body": "x" * append.BODY_BYTES,
                "warmup_s": settings.warmup_s,
                "window_s": settings.seconds,
                "parts": parts,
                "server_pid": [pid for pids in parts.values() for pid in pids],
            }
            if log == "jetstream":
                bare = {**common, "ports": [server.port for server in cluster.nats], "streams": GROUPS}
                result = generator.run("bench.jetstream_load", bare, settings.warmup_s + settings.seconds + 60)
                take((log, BARE, clients), result)
                tell(f"{log} {BARE} {clients}: {_brief(result)}")
            for kind in (OWNER, ANY):
                spec = {
                    **common,
                    "port": ports[0],
                    "ports": ports,
                    "at_owners": kind == OWNER,
                    "mix": False,
                    "prefix": f"bench-{kind}-{clients}",
                    "content_type": "application/octet-stream",
                    "perf_event": None,
                }
                result = append.run_load(spec)
                take((log, kind, clients), result)
                tell(f"{log} {kind} {clients}: {_brief(result)}")
        cluster.stop()


def _name(key: tuple[str, str, int]) -> str:
    return "_".join(map(str, key))


def _medians(rounds: list[dict]) -> dict:
    keys = ("appends_per_s", "p50_ms", "p99_ms", "server_cpu_us_per_append", "generator_cpu", "others_cpu")
    parts = rounds[0]["cpu_us_per_append"]
    return {
        **{key: median(rounds, key) for key in keys},
        "cpu_us_per_append": {part: median([one["cpu_us_per_append"] for one in rounds], part) for part in parts},
    }


def _brief(result: dict) -> str:
    keys = ("appends_per_s", "p50_ms", "p99_ms", "cpu_us_per_append", "generator_cpu", "refused")
    return "  ".join(f"{key} {result[key]}" for key in keys)


def _shown(rounds: Rounds, log: str, kind: str, clients: int) -> str:
    found = rounds.get((log, kind, clients), [])
    rate, p50, p99 = (show(median(found, key)) for key in ("appends_per_s", "p50_ms", "p99_ms"))
    return f"{log} {kind} {rate}/s p50 {p50} p99 {p99}"


def _rate(rounds: Rounds, caveat: str) -> Result:
    most = CLIENTS[-1]
    value = median(rounds["jetstream", OWNER, most], "appends_per_s")
    others = (("jetstream", ANY), ("jetstream", BARE), ("objects", OWNER), ("objects", ANY))
    note = "; ".join(_shown(rounds, log, kind, most) for log, kind in others)
    return Result("B10", f"appends_per_s_{most}_clients", value, RATE_AIM, note=f"{note} {caveat}".rstrip())


def _latency(rounds: Rounds, caveat: str) -> Result:
    value = median(rounds["jetstream", OWNER, 1], "p50_ms")
    others = (("jetstream", ANY), ("jetstream", BARE), ("objects", OWNER), ("objects", ANY))
    note = "; ".join(_shown(rounds, log, kind, 1) for log, kind in others)
    return Result("B10", "p50_ms_1_client", value, P50_AIM_MS, aim_is_ceiling=True, note=f"{note} {caveat}".rstrip())


def _breakdown(rounds: Rounds, clients: int) -> Result:
    """Where an append's time goes, by what it takes without the parts behind it: the servers' quorum write (bare), the
    owner on top of that, being sent on by another node on top of that; and each part's CPU."""
    bare, owner, sent_on = (median(rounds["jetstream", kind, clients], "p50_ms") for kind in (BARE, OWNER, ANY))
    parts = _medians(rounds["jetstream", ANY, clients])["cpu_us_per_append"]
    note = f"owner {show(owner)} any {show(sent_on)}; cpu us " + " ".join(f"{k} {show(v)}" for k, v in parts.items())
    return Result("B10", f"quorum_write_p50_ms_{clients}_clients", bare, note=note)
