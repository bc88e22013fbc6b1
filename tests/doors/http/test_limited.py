"""A connection beyond its limit is held: one refusal, and nothing is begun until it is let go. What a live read is.
Routes answer everything at once, the transport keeps what it is told, and the test moves time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headwater import config
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.limited import LimitedConnection, is_live
from headwater.doors.http.respond import Responder
from headwater.doors.http.server import HttpServer
from headwater.doors.http.wire import Budget, Request
from headwater.limit_settings import LimitSettings
from headwater.security.limits import Limits
from tests.support.clock import SimClock

PROXY = "10.0.0.9"


class Routes:
    def handle(self, exchange: Exchange) -> None:
        exchange.empty(204, [])


class Wire:
    """A transport."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.written = b""
        self.reading, self.closed, self.aborted = True, False, False

    def get_extra_info(self, name: str) -> object:
        return (self.peer, 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def can_write_eof(self) -> bool:
        return False

    def take(self) -> list[int]:
        """Statuses of the answers that came."""
        found = [int(part[:3]) for part in self.written.split(b"HTTP/1.1 ")[1:]]
        self.written = b""
        return found


class World:
    def __init__(self, **settings: int) -> None:
        self.clock = SimClock()
        self.limits = Limits(LimitSettings(**settings), self.clock)
        served = config.resolve({"memory": True, "trusted_proxies": PROXY}, {}, None).settings
        self.server = HttpServer(served, Routes(), Responder("*", True), Budget(1 << 30), limits=self.limits)

    def connect(self, peer: str = "10.0.0.1") -> tuple[LimitedConnection, Wire]:
        connection, wire = self.server.accept(), Wire(peer)
        assert isinstance(connection, LimitedConnection)
        connection.connection_made(wire)  # type: ignore[arg-type]
        return connection, wire


GET = b"GET /v1/stream/a HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/stream/a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nGET"


def in_a_loop(body: Callable[[], Any]) -> None:
    async def run() -> None:
        body()

    asyncio.run(run())


@pytest.mark.parametrize("raw", [GET, POST], ids=["reads", "appends"])
def test_a_connection_that_was_refused_is_held_and_goes_on_where_it_was(raw: bytes) -> None:
    def body() -> None:
        world = World(address_requests_per_s=2, limit_burst_ms=1_000)
        connection, wire = world.connect()
        connection.data_received(raw * 6)
        assert wire.take() == [204, 204, 429]
        assert connection.held and not wire.reading and len(connection.waiting) == 3
        connection.data_received(raw)  # what the transport had read already
        connection.advance()
        connection.resume_writing()
        connection.tick(10_000.0)
        assert wire.take() == [] and not wire.reading and not wire.closed
        world.clock.ms += 500
        connection._let_go()
        assert wire.take() == [204, 429] and connection.held
        world.clock.ms += 60_000
        connection._let_go()
        assert wire.take() == [204, 204] and not connection.held and wire.reading
        assert world.limits.held_count == 2

    in_a_loop(body)


def test_a_held_connection_ends_like_any_other() -> None:
    def body() -> None:
        world = World(address_requests_per_s=1, limit_burst_ms=1_000)
        connection, wire = world.connect()
        connection.data_received(GET * 3)
        assert connection.held and wire.take() == [204, 429]
        connection.connection_lost(None)
        connection._let_go()
        assert wire.take() == [] and world.limits.of_address("10.0.0.1").connections == 0
        connection, wire = world.connect()
        connection.data_received(GET * 3)
        assert connection.held
        connection.shut_down()
        assert wire.closed

    in_a_loop(body)


def test_the_connection_of_a_trusted_proxy_is_never_held() -> None:
    def body() -> None:
        world = World(address_requests_per_s=1, limit_burst_ms=1_000, address_connections_max=1)
        connection, wire = world.connect(PROXY)
        of = b"GET /v1/stream/a HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 203.0.113.%d\r\n\r\n"
        connection.data_received(of % 1 + of % 1 + of % 2 + of % 2)
        assert wire.take() == [204, 429, 204, 429] and wire.reading and not connection.held
        assert world.connect(PROXY)[1].aborted is False
        assert world.limits.of_address(PROXY).connections == 0

    in_a_loop(body)


def test_what_is_sent_counts_for_the_address() -> None:
    def body() -> None:
        world = World(address_bytes_per_s=100, limit_burst_ms=1_000)
        connection, wire = world.connect()
        connection.data_received(GET * 2)
        assert wire.take() == [204, 429]  # the head of the answer alone is more than a hundred bytes

    in_a_loop(body)


@pytest.mark.parametrize(
    ("target", "live"),
    [
        (b"/v1/stream/a?offset=now&live=sse", True),
        (b"/v1/stream/a?offset=now&l%69ve=long-poll", True),
        (b"/v1/stream/a?offset=now&%6c%69%76%65=sse", True),
        (b"/v0/topics/a/diff?wait_ms=20000", True),
        (b"/v0/diff?topics=a&wait%5fms=20000", True),
        (b"/v0/topics/a/sse", True),
        (b"/v0/sse?topics=a", True),
        (b"/v0/sse/?topics=a", True),
        (b"/v0/ws", True),
        (b"/v0/topics/a/claim", True),
        (b"/v0/topics/a/work", True),
        (b"/__headwater/tail?stream=a", True),
        (b"/__headwater/tail/", True),
        (b"/v1/stream/a", False),
        (b"/v1/stream/a/sse", False),
        (b"/v1/stream/a?offset=-1", False),
        (b"/v0/topics/a/diff", False),
        (b"/v0/topics/a/records", False),
    ],
)
def test_a_live_read_is_told_by_what_its_request_means(target: bytes, live: bool) -> None:
    assert is_live(Request(b"GET", target, {}, "1.1")) is live
