"""One HTTP connection on a hand-made transport, with a clock that the test sets and handlers that answer when told.
Nothing here opens a socket, and no handler knows a stream."""

from __future__ import annotations

import asyncio
import re

from headwater.config import Settings
from headwater.doors.http import connection as connections
from headwater.doors.http.access import Access
from headwater.doors.http.client_address import Proxies
from headwater.doors.http.connection import Connection
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.live_reads import BodyPump
from headwater.doors.http.respond import Responder
from headwater.doors.http.slices import Slicer
from headwater.doors.http.watch import Watch
from headwater.doors.http.wire import Budget, Heads

WINDOW_S = 10.0
HOST = b"Host: a\r\n"
GET = b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n"
POST = b"POST /a HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


class Hand:
    """A server and a transport. A request to /now is answered at once, one to /wait by a waiting answer."""

    def __init__(self, **settings: int) -> None:
        self.settings = Settings(body_timeout_ms=int(WINDOW_S * 1000), **settings)  # type: ignore[arg-type]
        self.responder = Responder("*", keeps_nothing=True)
        self.access = Access()
        self.heads, self.proxy_heads, self.bodies = Heads(), Heads(), Budget(1 << 30)
        self.proxies = Proxies(self.settings)
        self.access, self.admitted = Access(), None
        self.slicer = Slicer(self.bodies)
        self.watch = Watch(self.settings, lambda: 0.0)
        self.access = Access()
        self.closing = self.winding_down = False
        self.internal = False
        self.head_bytes_max = self.settings.head_bytes_max
        self.header_count_max = self.settings.header_count_max
        self.body_bytes_max = self.settings.body_bytes_max
        self.now_s = 1_000.0
        self.exchanges: list[Exchange] = []
        self.written = bytearray()
        self.reading, self.eof, self.closed, self.aborted = True, False, False, False
        self.connection = Connection(self)  # type: ignore[arg-type]
        self.connection.connection_made(self)  # type: ignore[arg-type]

    # ---- as the server

    def admit(self, connection: Connection) -> bool:
        return True

    def forget(self, connection: Connection) -> None: ...

    def handle(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        if exchange.request.target == b"/now":
            exchange.empty(200, [])
        elif exchange.request.target == b"/wait":
            self.connection.stream(Waiting(exchange))

    # ---- as the transport

    def get_extra_info(self, name: str) -> object:
        return None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        assert not self.closed and not self.eof, "written to after the end"
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    # ---- as the client

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.connection.data_received(piece)

    def half_close(self) -> None:
        if not self.connection.eof_received():
            self.closed = True

    def statuses(self) -> list[int]:
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", self.written)]

    def pass_time(self, seconds: float, each: bytes = b"", step_s: float = 0.5) -> None:
        """Ticks as the sweep does; `each` arrives before every tick."""
        for _ in range(round(seconds / step_s)):
            if each and not self.closed:
                self.send(each)
            self.now_s += step_s
            self.connection.tick(self.now_s)


class Waiting:
    """An answer that waits for something, as a long-poll does."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    def drained(self) -> None: ...

    def tick(self, now_s: float) -> None: ...

    def stop(self) -> None:
        self.exchange.connection.streamer = None
        self.exchange.empty(204, [])

    def lost(self) -> None: ...


def chunk(size: int) -> bytes:
    return b"%x\r\n%b\r\n" % (size, b"x" * size)


# ---- the clock of a body ------------------------------------------------------------------------------------------


def test_a_chunked_body_that_arrives_steadily_may_take_any_time() -> None:
    hand = Hand()
    hand.send(CHUNKED)
    hand.pass_time(20 * WINDOW_S, each=chunk(connections.BODY_RATE_BYTES_PER_S))
    assert hand.statuses() == [] and not hand.closed
    hand.send(b"0\r\n\r\n")
    assert len(hand.exchanges[0].request.body) == connections.BODY_RATE_BYTES_PER_S * 20 * WINDOW_S * 2


def test_a_body_with_a_length_has_the_same_clock() -> None:
    hand = Hand()
    hand.send(POST + b"Content-Length: 1000000\r\n\r\n")
    hand.pass_time(20 * WINDOW_S, each=b"x" * connections.BODY_RATE_BYTES_PER_S)
    assert hand.statuses() == [] and not hand.closed


def test_a_body_that_drips_is_cut_off_whatever_came_before() -> None:
    for quick_bytes in (0, 10_000_000):
        hand = Hand()
        hand.send(CHUNKED, chunk(quick_bytes) if quick_bytes else b"")
        hand.pass_time(3 * WINDOW_S, each=chunk(connections.BODY_RATE_BYTES_PER_S // 4))
        assert hand.statuses() == [408] and hand.eof


def test_bytes_that_are_no_payload_do_not_keep_a_body_alive() -> None:
    hand = Hand(head_bytes_max=1 << 20)
    hand.send(CHUNKED + b"1;")
    hand.pass_time(3 * WINDOW_S, each=b"e" * connections.BODY_RATE_BYTES_PER_S)
    assert hand.statuses() == [408]


def test_a_body_that_waits_for_its_100_continue_is_given_its_time_from_then_on() -> None:
    hand = Hand()
    hand.send(GET)
    hand.send(POST + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\n")
    hand.pass_time(3 * WINDOW_S)
    assert hand.statuses() == []
    hand.exchanges[0].empty(200, [])
    hand.pass_time(0.9 * WINDOW_S)
    assert hand.statuses() == [200, 100]
    hand.send(b"x")
    assert hand.exchanges[1].request.body == b"x"


def test_time_in_which_the_connection_was_not_read_does_not_count() -> None:
    hand = Hand()
    hand.send(GET)
    hand.send(POST + b"Content-Length: 2\r\n\r\nx")
    hand.connection.pause_writing()
    hand.pass_time(3 * WINDOW_S)
    hand.exchanges[0].empty(200, [])
    hand.connection.resume_writing()
    hand.pass_time(0.9 * WINDOW_S)
    hand.send(b"x")
    assert hand.statuses() == [200] and hand.exchanges[1].request.body == b"xx"


def test_the_clock_starts_again_with_each_of_pipelined_bodies() -> None:
    hand = Hand()
    one = b"POST /now HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\nxx"
    hand.send(one[:-1])
    # Each read ends inside a body: the connection is never seen between two requests.
    hand.pass_time(3 * WINDOW_S, each=one[-1:] + one[:-1])
    assert set(hand.statuses()) == {200} and not hand.closed


# ---- refusals -----------------------------------------------------------------------------------------------------


def test_a_refusal_waits_for_the_answers_in_front_of_it() -> None:
    hand = Hand()
    hand.send(GET + GET.replace(b"/a", b"/now") + b"nonsense\r\n\r\n")
    hand.send(GET)
    assert hand.statuses() == [] and len(hand.exchanges) == 1
    hand.exchanges[0].empty(200, [])
    assert hand.statuses() == [200, 200, 400] and hand.eof and len(hand.exchanges) == 2


def test_a_refusal_of_head_has_no_body() -> None:
    hand = Hand()
    hand.send(b"HEAD /a HTTP/1.1\r\nHost:\r\n\r\n")
    assert hand.statuses() == [400] and hand.written.endswith(b"\r\n\r\n")
    assert hand.written.count(b"\r\n\r\n") == 1


def test_a_refused_client_that_sends_on_is_read_until_it_stops() -> None:
    hand = Hand(body_bytes_max=1024)
    hand.send(POST + b"Content-Length: 100000000\r\n\r\n" + b"x" * 5_000)
    assert hand.statuses() == [413] and hand.eof and hand.reading and not hand.closed
    hand.pass_time(10 * connections.LINGER_S, each=b"x" * 50_000)
    assert not hand.closed and hand.statuses() == [413]
    hand.half_close()
    assert hand.closed and not hand.aborted


def test_a_refused_client_that_is_quiet_is_cut_off() -> None:
    hand = Hand(body_bytes_max=1024)
    hand.send(POST + b"Content-Length: 100000000\r\n\r\n")
    hand.pass_time(connections.LINGER_S + 1)
    assert hand.aborted


def test_a_refused_client_that_goes_on_slowly_is_cut_off_in_the_end() -> None:
    hand = Hand(body_bytes_max=1024)
    hand.send(POST + b"Content-Length: 100000000\r\n\r\n")
    hand.pass_time(connections.LINGER_S_MAX - 1, each=b"x" * connections.BODY_RATE_BYTES_PER_S)
    assert not hand.closed
    hand.pass_time(2, each=b"x" * connections.BODY_RATE_BYTES_PER_S)
    assert hand.aborted


def test_a_refused_client_that_never_ends_is_cut_off() -> None:
    hand = Hand(body_bytes_max=1024)
    hand.send(CHUNKED + b"fffffff\r\n")
    data = bytes(1 << 20)
    for _ in range(connections.LINGER_BYTES_MAX // len(data)):
        hand.send(data)
    assert not hand.closed
    hand.send(data)
    assert hand.aborted


def test_a_node_that_stops_does_not_wait_for_a_refused_client() -> None:
    hand = Hand()
    hand.send(b"nonsense\r\n\r\n")
    assert not hand.closed
    hand.connection.shut_down()
    assert hand.closed


# ---- the end of input ---------------------------------------------------------------------------------------------


def test_an_answer_under_way_still_leaves_after_the_end_of_input() -> None:
    hand = Hand()
    hand.send(GET + GET)
    hand.half_close()
    assert not hand.closed
    hand.exchanges[0].empty(200, [])
    assert not hand.closed
    hand.exchanges[1].empty(200, [])
    assert hand.statuses() == [200, 200] and hand.closed
    assert hand.written.count(b"Connection: close") == 1


def test_a_connection_without_a_request_ends_with_its_input() -> None:
    for sent in (b"", b"GET / HTT", POST + b"Content-Length: 3\r\n\r\nx", GET.replace(b"/a", b"/now")):
        hand = Hand()
        if sent:
            hand.send(sent)
        hand.half_close()
        assert hand.closed, sent


def test_half_a_request_behind_an_answer_does_not_hold_a_connection_that_sends_no_more() -> None:
    hand = Hand()
    hand.send(GET + b"GET / HTT")
    hand.half_close()
    hand.exchanges[0].empty(200, [])
    assert hand.closed and not hand.eof


def test_a_waiting_answer_ends_with_the_input_and_those_behind_it_are_given() -> None:
    hand = Hand()
    hand.send(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n" + GET.replace(b"/a", b"/now"))
    assert hand.statuses() == []
    hand.half_close()
    assert hand.statuses() == [204, 200] and hand.closed


def test_an_answer_that_would_wait_after_the_end_of_input_does_not() -> None:
    async def play() -> None:
        hand = Hand()
        hand.send(GET + b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
        hand.half_close()
        hand.exchanges[0].empty(200, [])
        await asyncio.sleep(0)
        assert hand.statuses() == [200, 204] and hand.closed

    asyncio.run(play())


def test_a_body_on_its_way_goes_on_after_the_end_of_input() -> None:
    hand = Hand()
    hand.send(GET)
    exchange = hand.exchanges[0]
    hand.connection.pause_writing()
    BodyPump(exchange, b"head ", iter([b"a", b"b"]))
    hand.half_close()
    assert not hand.closed and hand.written == b"head "
    hand.connection.resume_writing()
    assert hand.written == b"head ab" and hand.closed


def test_a_server_that_stops_ends_waiting_answers_and_says_that_it_closes() -> None:
    hand = Hand()
    hand.send(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
    hand.connection.shut_down()
    assert hand.statuses() == [204] and b"Connection: close" in hand.written and hand.closed


def test_the_next_answer_of_a_server_that_winds_down_is_the_last_one_of_its_connection() -> None:
    hand = Hand()
    hand.connection.data_received(b"GET /now HTTP/1.1\r\nHost: a\r\n\r\n")
    assert b"connection: close" not in bytes(hand.written).lower() and not hand.closed
    hand.winding_down = True
    hand.connection.data_received(b"GET /now HTTP/1.1\r\nHost: a\r\n\r\n")
    assert b"connection: close" in bytes(hand.written).lower() and hand.closed
