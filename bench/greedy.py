"""GREEDY: what 1,000 connections that append as fast as they can do to a client that asks for little.

Owns the figure (p99 of the modest client's appends beside them over its p99 alone) with limits and without. The greedy
ones come from an address of their own and keep appends in flight on each connection, whatever they are answered; they
are `hostile_clients`. The limits are the same for both: the modest client never comes near them.
"""

from bench import generator, peers
from bench.generator import Failed
from bench.hostile import Case, bad_clients
from bench.peers import FSYNC, Server
from bench.report import Result, show
from bench.rounds import Settings, brief, median, ratio, tell
from bench.wire import Exchange

P99_RATIO_AIM = 2.0
REQUESTS_PER_S = 2_000
MODEST_CONNECTIONS, MODEST_INTERVAL_S = 4, 0.02
TIMEOUT_S = 30
"""How long a new connection waits for its first answer; a client that had none counts with that."""
LIMITS = {"HEADWATER_ADDRESS_REQUESTS_PER_S": str(REQUESTS_PER_S)}
WITH, WITHOUT = "limits", "no_limits"


def make_greedy_stream(exchange: Exchange) -> None:
    exchange.create("hostile/greedy", "application/octet-stream")


CASE = Case("greedy", "greedy", 1_000, make_greedy_stream)


def run_greedy(settings: Settings) -> list[Result]:
    make = peers.BY_NAME[settings.only_peer or "headwater"]
    found: dict[str, list[dict]] = {WITHOUT: [], WITH: []}
    for n in range(settings.rounds):
        for name, environment in ((WITHOUT, {}), (WITH, LIMITS)):
            with peers.serving(make(FSYNC), environment) as server:
                with Exchange(server.port) as exchange:
                    CASE.prepare(exchange)
                one = one_round(server, settings)
            tell(f"round {n + 1} {name} alone: {brief(one['alone'])}")
            tell(f"round {n + 1} {name} beside: {brief(one['beside'])}  {one['clients']}")
            found[name].append(one)
    results = []
    for name, rounds in found.items():
        alone, beside = [one["alone"] for one in rounds], [one["beside"] for one in rounds]
        alone_ms, beside_ms = median(alone, "p99_ms"), median(beside, "p99_ms")
        note = f"p99_ms {show(beside_ms)} alone {show(alone_ms)}"
        aim = P99_RATIO_AIM if name == WITH else None
        results.append(
            Result(
                "GREEDY", f"{name} p99_ratio", ratio(beside_ms, alone_ms), aim,
                aim_is_ceiling=True, note=note, details={"rounds": rounds},
            )
        )  # fmt: skip
    return results


def one_round(server: Server, settings: Settings) -> dict:
    modest_load(server, settings)  # not counted: the first load on a fresh server is slower
    alone = modest_load(server, settings)
    with bad_clients(CASE, server) as said:
        try:
            beside = modest_load(server, settings)
        except Failed:  # not even a stream could be made within that time
            beside = {"appends": 0, "p99_ms": TIMEOUT_S * 1_000}
    return {"alone": alone, "beside": beside, "clients": said}


def modest_load(server: Server, settings: Settings) -> dict:
    window_s = max(settings.seconds, 3.0)
    spec = {"work": "paced", "port": server.port, "server_pid": server.pid, "body_bytes": 100, "window_s": window_s}
    spec |= {"connections": MODEST_CONNECTIONS, "interval_s": MODEST_INTERVAL_S}
    return generator.run("bench.lake_load", spec, timeout_s=60 + window_s)
