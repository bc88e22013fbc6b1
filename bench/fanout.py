"""B4, SSE fan-out: the time from an append to its delivery at the last of many subscribers.

Owns the figure and the subscriber counts; the connections themselves are `subscribers`.
"""

from bench import generator, peers
from bench.peers import FSYNC, MEMORY, Server
from bench.report import Result, show
from bench.rounds import BUSY_CPU, Settings, alternate, median, ratio

SUBSCRIBER_COUNTS = (50, 200, 1_000)
FIGURE_COUNT = 1_000
INTERVAL_MS = 20
P99 = f"p99_ms_{FIGURE_COUNT}"
AIM = 1.0


def run_b4(settings: Settings) -> list[Result]:
    """The figure compares equal promises (fsync); the same in memory, at the figure's count, is its note."""

    def measure(server: Server, counts: tuple[int, ...]) -> dict:
        result: dict = {}
        for count in counts:
            # The smaller counts are context for the figure and get half its time.
            window_s = settings.seconds if count == FIGURE_COUNT else settings.seconds / 2
            spec = {
                "port": server.port,
                "server_pid": server.pid,
                "stream": f"bench/fanout-{count}",
                "subscribers": count,
                "interval_ms": INTERVAL_MS,
                "warmup_s": settings.warmup_s,
                "window_s": window_s,
            }
            one = generator.run("bench.subscribers", spec, timeout_s=window_s + 120)
            result |= {f"{key}_{count}": value for key, value in one.items()}
        return result

    def compare(mode: str, counts: tuple[int, ...]) -> dict:
        pair = (peers.reference(mode), peers.headwater(mode))
        results = alternate(settings, pair, lambda server: measure(server, counts))
        medians = {name: {key: median(rounds, key) for key in rounds[0]} for name, rounds in results.items()}
        return {"rounds": results, "medians": medians}

    durable, in_memory = compare(FSYNC, SUBSCRIBER_COUNTS), compare(MEMORY, (FIGURE_COUNT,))
    details = {"interval_ms": INTERVAL_MS, FSYNC: durable, MEMORY: in_memory}
    measured = [one for part in (durable, in_memory) for rounds in part["rounds"].values() for one in rounds]
    caveat = caveats(measured)
    if settings.only_peer is not None:
        (durable_p99,), (memory_p99,) = p99_of(durable), p99_of(in_memory)
        note = f"memory {show(memory_p99)} {caveat}".rstrip()
        return [Result("B4", f"{settings.only_peer} {P99}", durable_p99, note=note, details=details)]
    theirs, ours = p99_of(durable)
    memory_ratio = ratio(*p99_of(in_memory))
    note = f"p99_ms {show(ours)} reference {show(theirs)} memory_ratio {show(memory_ratio)} {caveat}".rstrip()
    return [Result("B4", "ratio", ratio(theirs, ours), AIM, note=note, details=details)]


def caveats(rounds: list[dict]) -> str:
    """What a reader of the final line must know: deliveries that never came, a busy machine."""

    def values(of: str) -> list[float]:
        return [value for one in rounds for key, value in one.items() if key.startswith(of)]

    missing = sum(values("missing_"))
    said = [f"{missing} deliveries missing"] if missing else []
    said += ["machine busy"] if max(values("others_cpu_")) > BUSY_CPU else []
    return f"({', '.join(said)})" if said else ""


def p99_of(compared: dict) -> list[float | None]:
    """The figure's p99 of each peer, the reference first."""
    return [medians[P99] for medians in compared["medians"].values()]
