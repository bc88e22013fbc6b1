"""B6, many clients that replay: a thousand at once, each reads a stream of 1 MB from its beginning to its end.

Owns the figure and the shape of the streams; the connections themselves are `replayers`.
"""

from bench import generator, peers
from bench.peers import FSYNC, Server
from bench.report import Result, show
from bench.rounds import BUSY_CPU, Settings, alternate, median, ratio

CLIENTS = 1_000
STREAMS = 100
"""Ten clients share a stream: 100 MB in all, which both servers keep in memory or in the page cache."""
POSTS_PER_STREAM = 10
MESSAGES_PER_POST = 100
MESSAGE_BYTES = 1_000
AIM = 1.0
PATIENCE_S = 180


def run_b6(settings: Settings) -> list[Result]:
    """Ours over theirs in MB/s; the p99 of one replay stands beside it."""

    def measure(server: Server) -> dict:
        spec = {
            "port": server.port,
            "server_pid": server.pid,
            "clients": CLIENTS,
            "streams": STREAMS,
            "posts": POSTS_PER_STREAM,
            "messages": MESSAGES_PER_POST,
            "message_bytes": MESSAGE_BYTES,
            "window_s": settings.seconds,
        }
        return generator.run("bench.replayers", spec, timeout_s=settings.seconds + PATIENCE_S)

    pair = (peers.reference(FSYNC), peers.headwater(FSYNC))
    results = alternate(settings, pair, measure)
    medians = {name: {key: median(rounds, key) for key in rounds[0]} for name, rounds in results.items()}
    details = {"mode": FSYNC, "rounds": results, "medians": medians}
    busy = any(one["others_cpu"] > BUSY_CPU for rounds in results.values() for one in rounds)
    caveat = "(machine busy)" if busy else ""
    if settings.only_peer is not None:
        (alone,) = medians.values()
        note = f"p99_ms {show(alone['p99_ms'])} {caveat}".rstrip()
        return [Result("B6", f"{settings.only_peer} mb_per_s", alone["mb_per_s"], note=note, details=details)]
    theirs, ours = medians["reference"], medians["headwater"]
    note = f"mb_per_s {show(ours['mb_per_s'])} reference {show(theirs['mb_per_s'])}"
    note += f" p99_ms {show(ours['p99_ms'])} reference {show(theirs['p99_ms'])} {caveat}"
    value = ratio(ours["mb_per_s"], theirs["mb_per_s"])
    return [Result("B6", "ratio", value, AIM, note=note.rstrip(), details=details)]
