"""The queues of B14: claim and acknowledgement of a job beside a Redis list and beside RQ, all synced to disk.

Owns the workloads and figures; the loads are `queue_load` and `rq_load`, the servers are `peers`.
"""

import importlib.util
from dataclasses import dataclass, replace

from bench import generator, peers, queue_load
from bench.peers import FSYNC, Peer, Server
from bench.report import Result, show
from bench.rounds import BUSY_CPU, Settings, alternate, median, ratio, tell

OURS, OURS_DURABLE_LEASES, LIST = "headwater", "headwater_durable_leases", "redis"
RQ, RQ_FORK = "rq", "rq_fork"
AIM_LIST, AIM_RQ = 0.5, 3.0
SATURATED_CPU = 0.95
RQ_JOBS_PER_S = 2_500
FORKING_WORKERS_MAX = 16
# What a forked worker takes of memory that it does not share, with the process that it forks for a job.
RQ_WORKER_BYTES = 40 << 20


@dataclass(frozen=True, slots=True)
class Work:
    workers: int
    batch: int
    jobs_per_s: int
    """More than any peer does on a small machine: a queue holds as many jobs as that makes in a run."""

    @property
    def name(self) -> str:
        return f"{self.workers}_workers" + (f"_by_{self.batch}" if self.batch > 1 else "")


WORKS = (
    Work(1, 1, 6_000),
    Work(16, 1, 20_000),
    Work(100, 1, 40_000),
    Work(1, 10, 20_000),
    Work(16, 10, 60_000),
    Work(100, 10, 80_000),
)


def contenders(work: Work) -> list[Peer]:
    """Who takes part: RQ has no batches; durable leases are compared with single jobs alone. RQ's workers that fork are
    left out where they are many: they are always the slower kind, and take long to start."""
    ours = peers.headwater(FSYNC)
    found = [peers.redis(), ours]
    if work.batch == 1:
        found.append(replace(ours, name=OURS_DURABLE_LEASES))
        if why := why_not_rq(work.workers):
            tell(f"without RQ: {why}")
        else:
            kinds = (RQ, RQ_FORK) if work.workers <= FORKING_WORKERS_MAX else (RQ,)
            found += [replace(peers.redis(), name=name) for name in kinds]
    return found


def why_not_rq(workers: int, available_bytes: int | None = None) -> str | None:
    if importlib.util.find_spec("rq") is None:
        return "not installed: pip install -e .[bench]"
    needed = workers * RQ_WORKER_BYTES
    available = memory_available_bytes() if available_bytes is None else available_bytes
    if available < needed:
        return f"{workers} workers need about {needed >> 20} MiB of memory, {available >> 20} MiB are free"
    return None


def memory_available_bytes() -> int:
    with open("/proc/meminfo") as rows:
        return next(int(row.split()[1]) << 10 for row in rows if row.startswith("MemAvailable:"))


def load_spec(server: Server, settings: Settings, work: Work) -> dict:
    """The fields that `queue_load` and `rq_load` read."""
    of_rq = server.peer.name in (RQ, RQ_FORK)
    run_s = settings.warmup_s + settings.seconds
    spec = {
        "port": server.port,
        "server_pid": server.pid,
        "workers": work.workers,
        "warmup_s": settings.warmup_s,
        "window_s": settings.seconds,
        # Workers may take that many before the window is open, and hold that many when it ends.
        "jobs": int(run_s * (RQ_JOBS_PER_S if of_rq else work.jobs_per_s)) + 2 * work.workers * work.batch,
    }
    if of_rq:
        return spec | {"fork": server.peer.name == RQ_FORK, "job": queue_load.job(0)}
    leases_durable = server.peer.name == OURS_DURABLE_LEASES
    return spec | {
        "door": "list" if server.peer.name == LIST else "topic",
        "batch": work.batch,
        "leases_durable": leases_durable,
    }


def measure(server: Server, settings: Settings, work: Work) -> dict:
    module = "bench.rq_load" if server.peer.name in (RQ, RQ_FORK) else "bench.queue_load"
    spec = load_spec(server, settings, work)
    result = generator.run(module, spec, timeout_s=spec["warmup_s"] + spec["window_s"] + 180)
    if not result["pairs"]:
        raise generator.Failed(f"no job was done: {result}")
    return result


def run_pairs(settings: Settings) -> list[Result]:
    """Pairs of a claim and its acknowledgement a second, for each number of workers."""
    if settings.only_peer not in (None, OURS):
        raise generator.Failed(f"{settings.only_peer} has no part in this benchmark")
    figures: list[Result] = []
    for work in WORKS:
        tell(f"{work.workers} workers, {work.batch} jobs a claim")
        rounds = alternate(settings, contenders(work), lambda server, work=work: measure(server, settings, work))
        figures += figures_of(work, rounds)
    return figures


def figures_of(work: Work, rounds: dict[str, list[dict]]) -> list[Result]:
    """Ours over the list's, and over those of the faster kind of RQ worker; only our rate when nobody else ran."""
    rates = {name: median(found, "pairs_per_s") for name, found in rounds.items()}
    ours = rates[OURS]
    shown = " ".join(f"{name} {show(rate)}" for name, rate in rates.items())
    turns = f"p50_ms {show(median(rounds[OURS], 'p50_ms'))} p99_ms {show(median(rounds[OURS], 'p99_ms'))}"
    turns += f" cpu_us_per_pair {show(median(rounds[OURS], 'server_cpu_us_per_pair'))}"
    note = f"pairs_per_s {shown}; {turns} {caveats([one for found in rounds.values() for one in found])}".rstrip()
    details = {"workers": work.workers, "batch": work.batch, "pairs_per_s": rates, "rounds": rounds}
    if LIST not in rounds:
        return [Result("B14", f"pairs_per_s_{work.name}", ours, note=note, details=details)]
    figures = [Result("B14", f"list_ratio_{work.name}", ratio(ours, rates[LIST]), AIM_LIST, note=note, details=details)]
    if durable := ratio(rates.get(OURS_DURABLE_LEASES), rates[LIST]):
        turns = f"p50_ms {show(median(rounds[OURS_DURABLE_LEASES], 'p50_ms'))}"
        cpu = f"cpu_us_per_pair {show(median(rounds[OURS_DURABLE_LEASES], 'server_cpu_us_per_pair'))}"
        name = f"durable_leases_list_ratio_{work.name}"
        figures.append(Result("B14", name, durable, AIM_LIST, note=f"{turns} {cpu}"))
    if of_rq := [rates[name] for name in (RQ, RQ_FORK) if rates.get(name) is not None]:
        value = ratio(ours, max(of_rq))
        figures.append(Result("B14", f"rq_ratio_{work.name}", value, AIM_RQ, note=_rq_note(rounds)))
    return figures


def _rq_note(rounds: dict[str, list[dict]]) -> str:
    """Both kinds of worker, and the share of a core that Redis had in it."""
    return "; ".join(
        f"{name} {show(median(rounds[name], 'pairs_per_s'))} redis_cpu {show(median(rounds[name], 'redis_cpu'))}"
        for name in (RQ, RQ_FORK)
        if name in rounds
    )


def caveats(rounds: list[dict]) -> str:
    lost = sum(one.get("connections_lost", 0) for one in rounds)
    empty = sum(one.get("empty_claims", 0) for one in rounds)
    said = [f"{lost} connections lost"] if lost else []
    said += [f"{empty} empty claims"] if empty else []
    said += ["machine busy"] if any(one.get("others_cpu", 0) > BUSY_CPU for one in rounds) else []
    said += ["generator saturated"] if any(one.get("generator_cpu", 0) > SATURATED_CPU for one in rounds) else []
    return f"({', '.join(said)})" if said else ""
