"""HOSTILE: what stalled readers, slow writers and idle subscribers do to everyone else's appends.

Owns the figure (append p99 beside them over p99 alone) and the memory they cost; they are `hostile_clients`.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench import append, generator, peers, proc
from bench.peers import FSYNC, Server
from bench.report import Result, show
from bench.rounds import Settings, brief, median, ratio, tell
from bench.wire import Exchange

ORDINARY_CLIENTS = 16
P99_RATIO_AIM = 1.5
BIG_STREAM_BYTES = 64 << 20
BIG_STREAM_PIECE_BYTES = 1 << 20
IDLE_STREAMS = 50
READY_SECONDS_MAX = 60.0
# A server that buffers for stalled readers without bound is stopped here, before the machine is.
RSS_BYTES_MAX = 6 << 30


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of bad client: how many, what they do (a role of `hostile_clients`), what they need first."""

    name: str
    role: str
    count: int
    prepare: Callable[[Exchange], None]


def fill_big_stream(exchange: Exchange) -> None:
    exchange.create("hostile/big", "application/octet-stream")
    for _ in range(BIG_STREAM_BYTES // BIG_STREAM_PIECE_BYTES):
        exchange.append("hostile/big", "application/octet-stream", b"b" * BIG_STREAM_PIECE_BYTES)


def make_slow_stream(exchange: Exchange) -> None:
    exchange.create("hostile/slow", "application/octet-stream")


def make_idle_streams(exchange: Exchange) -> None:
    for n in range(IDLE_STREAMS):
        exchange.create(f"hostile/idle-{n}", "text/plain")


CASES = (
    Case("stalled_readers", "stall", 50, fill_big_stream),
    Case("slow_writers", "drip", 200, make_slow_stream),
    Case("idle_subscribers", "idle", 5_000, make_idle_streams),
)


def run_hostile(settings: Settings) -> list[Result]:
    make = peers.BY_NAME[settings.only_peer or "headwater"]
    results = []
    for case in CASES:
        tell(f"{case.name}: {case.count} beside {ORDINARY_CLIENTS} ordinary clients")
        with peers.serving(make(FSYNC)) as server:
            with Exchange(server.port) as exchange:
                case.prepare(exchange)
            # Not counted: the first load on a fresh server is slower, and would flatter all that follow it.
            ordinary_load(server, settings, "warm")
            rounds = [one_round(case, server, settings, n) for n in range(settings.rounds)]
        alone, beside = [one["alone"] for one in rounds], [one["beside"] for one in rounds]
        p99_ratio = ratio(median(beside, "p99_ms"), median(alone, "p99_ms"))
        growth_mb = median(rounds, "rss_growth_mb")
        note = f"rss_growth_mb {show(growth_mb)} {append.caveats(alone + beside)}".rstrip()
        details = {"case": case.name, "clients": case.count, "rounds": rounds, "rss_growth_mb": growth_mb}
        results.append(
            Result(
                "HOSTILE", f"{case.name} p99_ratio", p99_ratio, P99_RATIO_AIM,
                aim_is_ceiling=True, note=note, details=details,
            )
        )  # fmt: skip
    return results


def one_round(case: Case, server: Server, settings: Settings, round_index: int) -> dict:
    """The ordinary load alone, then beside the bad clients.

    Ordinary appends take memory too: what they took alone, per append, is taken off the growth beside.
    """
    rss_start = proc.rss_bytes(server.pid)
    alone = ordinary_load(server, settings, f"alone-{round_index}")
    rss_before = proc.rss_bytes(server.pid)
    with bad_clients(case, server) as said, rss_guard(server):
        rss_settled = proc.rss_bytes(server.pid)
        beside = ordinary_load(server, settings, f"beside-{round_index}")
        rss_after = proc.rss_bytes(server.pid)
    taken_by_appends = (rss_before - rss_start) * beside["appends"] / alone["appends"]
    result = {
        "alone": alone,
        "beside": beside,
        "rss_before_mb": mb(rss_before),
        "rss_settled_mb": mb(rss_settled),
        "rss_after_mb": mb(rss_after),
        "rss_growth_mb": mb(rss_after - rss_before - taken_by_appends),
        "clients": said,
    }
    tell(f"round {round_index + 1} alone: {brief(alone)}")
    tell(f"round {round_index + 1} beside: {brief(beside)}")
    tell(f"round {round_index + 1} rss_growth_mb {result['rss_growth_mb']}  clients {said}")
    return result


def ordinary_load(server: Server, settings: Settings, prefix: str) -> dict:
    return append.run_load(append.load_spec(server, settings, connections=ORDINARY_CLIENTS, prefix=prefix))


@contextmanager
def bad_clients(case: Case, server: Server) -> Iterator[dict]:
    """The bad clients, connected and settled; what became of them is in the yielded dict on leaving."""
    spec = {"port": server.port, "role": case.role, "count": case.count, "idle_streams": IDLE_STREAMS}
    process = generator.start("bench.hostile_clients", spec, stderr=None)
    said: dict = {}
    timer = threading.Timer(READY_SECONDS_MAX, process.kill)
    timer.start()
    try:
        if process.stdout.readline().strip() != "ready":
            raise generator.Failed(f"the {case.name} did not all connect")
        timer.cancel()
        yield said
        process.stdin.close()
        said |= json.loads(process.stdout.readline() or "{}")
    finally:
        timer.cancel()
        generator.end(process)


@contextmanager
def rss_guard(server: Server) -> Iterator[None]:
    """While inside, a server above RSS_BYTES_MAX is killed, and leaving raises Failed."""
    done, over = threading.Event(), threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            if proc.rss_bytes(server.pid) > RSS_BYTES_MAX:
                over.set()
                peers.kill(server)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        if over.is_set():
            raise generator.Failed(f"the server grew past {RSS_BYTES_MAX >> 20} MB of memory and was stopped")


def mb(count_bytes: float) -> float:
    return round(count_bytes / 1e6, 1)
