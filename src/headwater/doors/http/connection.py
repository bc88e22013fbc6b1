"""One HTTP connection: requests in, responses out in order, with back-pressure both ways.

Owns the socket's protocol object, pipelining and time limits. Never knows what a stream is: handlers do.

Appends of one connection are judged as they arrive and answered in order; everything else waits until the answers in
front of it are out, so that a pipelined read sees the append before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from headwater.doors import faults
from headwater.doors.farewell import Farewell
from headwater.doors.http import large_writes
from headwater.doors.http.arrival import arrived
from headwater.doors.http.exchange import Exchange, Receiver, Streamer, Upstream
from headwater.doors.http.headers import Headers
from headwater.doors.http.shared import Server
from headwater.doors.http.wire import BODY, HEAD, IDLE, Continue, Parsed, Request, RequestParser
from headwater.doors.peers import HERE, peer_of
from headwater.errors import Failure, RequestTimeout

PIPELINE_MAX = 256
"""Unanswered requests of one connection; beyond it the socket is not read."""
BODY_RATE_BYTES_PER_S = 1024
"""A body that arrives at this rate is never too slow, however long it takes."""
LINGER_S = 5.0
"""How long a client that sends on after a refusal may be quiet."""
LINGER_S_MAX = 300.0
LINGER_BYTES_MAX = 1024 * 1024 * 1024
"""How long it is read, and how much of it, before it is cut off."""
WAITING_BYTES_MAX = 4 * 1024 * 1024
"""Bodies of requests that wait for those in front of them; beyond it the socket is not read."""
EARLY_BYTES_MAX = 64 * 1024
"""What a client sends after a request for a WebSocket that is not answered yet; beyond it the socket is not read."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection(asyncio.Protocol):
    __slots__ = (
        "_active",
        "_closing",
        "_counted_bytes",
        "_deadline_s",
        "_deaf",
        "_discarded_bytes",
        "_ended",
        "_farewell",
        "_linger_end_s",
        "_lingering",
        "_parser",
        "_phase",
        "_reading",
        "_server",
        "_transport",
        "exchanges",
        "held",
        "identity",
        "internal",
        "paused",
        "peer",
        "receiver",
        "responder",
        "slicer",
        "streamer",
        "through_proxy",
        "unjudged",
        "upstreams",
        "waiting",
    )

    def __init__(self, server: Server) -> None:
        settings = server.settings
        self._server = server
        self.internal = server.internal
        self.identity = server.access.arriving(server.internal)
        self.responder = server.responder
        self.slicer = server.slicer
        self._parser = RequestParser(
            server.head_bytes_max,
            server.header_count_max,
            server.body_bytes_max,
            settings.snapshot_bytes_max,
            server.heads,
            server.bodies,
        )
        self._transport: asyncio.Transport | None = None
        self._closing = False
        """Nothing more is written."""
        self._deaf = False
        """What still arrives is no request: it goes to `receiver`, or is thrown away."""
        self._ended = False
        """The client sends no more."""
        self._lingering = False
        self._linger_end_s = 0.0
        self._discarded_bytes = 0
        self._counted_bytes = 0
        """What had arrived when the clock was last set."""
        self._active = True
        self._phase = IDLE
        self._reading = True
        self._deadline_s = 0.0
        self.exchanges: deque[Exchange] = deque()
        self.waiting: deque[Parsed | Failure] = deque()
        """Requests that have not started; after them what ends the connection, if anything does."""
        self.streamer: Streamer | None = None
        self.receiver: Receiver | None = None
        """Who gets what arrives on a connection that does not speak HTTP any more."""
        self.upstreams: dict[int, Upstream] | None = None
        """Connections to other members that this one has made, by member."""
        self.unjudged: Exchange | None = None
        """A request whose body is still being read in slices: nothing after it may be judged before it."""
        self.paused = False
        self.held = False
        """Nothing is begun, for a while (see `limited`)."""
        self._farewell: Farewell | None = None
        """Of a connection with TLS."""
        self.peer = HERE
        """The address at the other end: the client's, a proxy's, or that of another process."""
        self.through_proxy = False
        """A trusted proxy is at the other end."""

    # ---- asyncio calls these ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports are not asyncio's by class
        transport.set_write_buffer_limits(high=self._server.settings.write_buffer_bytes_max)  # type: ignore[attr-defined]
        server = self._server
        self.peer = peer_of(transport.get_extra_info("peername"))
        self._farewell = Farewell.of(transport)
        self.through_proxy = arrived(server, transport, self.peer, self._parser, self.identity)
        if not server.admit(self):
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = self._deaf = True
        self._parser.close()
        self._server.forget(self)
        self.drop_streamer()
        for upstream in (self.upstreams or {}).values():
            upstream.close()
        self.exchanges.clear()
        self.waiting.clear()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            if self.receiver is not None:
                try:
                    self.receiver.received(data)
                except Exception:
                    self.broke()
                return
            self._discarded_bytes += len(data)
            if self._discarded_bytes > LINGER_BYTES_MAX:
                self.abort()
            return
        self._active = True
        parser = self._parser
        try:
            parsed = parser.feed(data)
        except Failure as failure:
            self._refuse(failure)
            return
        except Exception:
            self._refuse(faults.report("http", bytes_count=len(data)))
            return
        for item in parsed:
            if (
                not self.waiting
                and type(item) is Request
                and (not self.exchanges or (item.method == b"POST" and self.streamer is None and self.unjudged is None))
            ):
                self._start(item)
            else:
                self.waiting.append(item)
        if self.waiting and not self.exchanges:
            self.advance()
        if parser.failure is not None:
            self._refuse(parser.failure)
        elif (
            len(self.exchanges) > PIPELINE_MAX
            or (self.waiting and self._is_full(PIPELINE_MAX))
            or (parser.rest is not None and self._is_full(PIPELINE_MAX))
        ):
            self._pause_reading()
        phase = parser.state
        if phase != self._phase or (phase and parsed):
            self._enter(phase)

    def eof_received(self) -> bool:
        """A client that half-closes still gets the answers that are under way. Nobody waits there for later ones."""
        self._ended = True
        if self._closing:
            return False
        if self._farewell is not None:
            # The transport sends nothing any more: connection_lost follows.
            self._closing = self._deaf = True
            return False
        if self.receiver is not None:
            self.drop_streamer()  # it had the means to say that it ends
            return False
        if not self._deaf:
            unanswered = [item for item in self.waiting if type(item) is Request]
            if unanswered or self.exchanges:
                last = unanswered[-1] if unanswered else self.exchanges[-1].request
                last.keep_alive = False
        self._stop_streamer()
        return bool(self.exchanges or self.waiting)

    def pause_writing(self) -> None:
        self.paused = True
        self._pause_reading()

    def resume_writing(self) -> None:
        self.paused = False
        if self.streamer is not None:
            try:
                self.streamer.drained()
            except Exception:
                self.broke()
        if not self.paused and not self._is_full(PIPELINE_MAX):
            self._resume_reading()
            if self.waiting and not self.exchanges:
                self.advance()

    # ---- handlers call these ------------------------------------------------------------------------------------

    def send(self, data: bytes, keep_alive: bool) -> None:
        transport = self._transport
        if transport is None or self._closing:
            return
        transport.write(data)  # not by `outflow`: a whole answer is small, and an append's is in a hurry
        if not keep_alive:
            self._linger(transport)

    def write(self, data: bytes | memoryview) -> None:
        if self._transport is not None and not self._closing:
            large_writes.put(self._transport, data)

    def after_others(self, act: Callable[[], None]) -> None:
        """Has `act` called when whatever else is ready has had its turn."""
        asyncio.get_running_loop().call_soon(act)

    def stream(self, streamer: Streamer) -> None:
        """Hands the connection to an answer that is written over time."""
        self.streamer = streamer
        self.identity.epoch = self.identity.generation = -1
        if self._ended or self._server.closing:
            self.after_others(self._stop_streamer)

    def take_over(self, receiver: Receiver) -> bytes:
        """Hands the connection to another protocol, in both directions. Returns what has arrived of it already."""
        rest = self._parser.rest
        if rest is None:
            raise RuntimeError("the parser took this request for one that others follow")
        early = bytes(rest)
        rest.clear()
        self._deaf = True
        self.receiver = receiver
        self.stream(receiver)
        return early

    def hang_up(self, exchange: Exchange) -> None:
        """Ends what another protocol wrote. The client has a bounded time to take it, and to stop sending."""
        self.streamer = self.receiver = None
        if self.exchanges and self.exchanges[0] is exchange:
            self.exchanges.popleft()
        if self._transport is not None and not self._closing:
            self._linger(self._transport)

    def read_no_more(self) -> None:
        """Until `read_on`."""
        self._pause_reading()

    def read_on(self) -> None:
        if not self.paused and not self._is_full(PIPELINE_MAX):
            self._resume_reading()

    def drop_streamer(self) -> None:
        """Has the answer that is written over time, if there is one, let go of what it holds."""
        streamer, self.streamer, self.receiver = self.streamer, None, None
        if streamer is not None:
            try:
                streamer.lost()
            except Exception:
                faults.report("http")

    def broke(self) -> None:
        """Called while an exception is handled that came out of the answer under way, or out of the connection."""
        if self.exchanges:
            self.exchanges[0].broke()
        else:
            faults.report("http")
            self.abort()

    def finish(self, exchange: Exchange) -> None:
        """Ends a streamed answer."""
        self.streamer = None
        if self.exchanges and self.exchanges[0] is exchange:
            self.exchanges.popleft()
        if not exchange.request.keep_alive:
            self.close()
        elif self.exchanges or self.waiting:
            self.advance()

    def close(self) -> None:
        """Closes after what was written has left."""
        if not self._closing and self._transport is not None:
            self._closing = self._deaf = True
            self._transport.close()

    def abort(self) -> None:
        self._closing = self._deaf = True
        if self._transport is not None:
            self._transport.abort()

    def advance(self) -> None:
        """Answers that became ready after the head leave; then waiting requests start."""
        exchanges = self.exchanges
        while exchanges and exchanges[0].answer is not None and not self._closing:
            exchange = exchanges.popleft()
            self.send(exchange.answer or b"", exchange.request.keep_alive)
        while self.waiting and not (self._closing or self.paused or self.held):
            item = self.waiting[0]
            append = type(item) is Request and item.method == b"POST"
            if exchanges and not (append and self.streamer is None and self.unjudged is None):
                break
            self.waiting.popleft()
            if type(item) is Request:
                self._start(item)
            elif type(item) is Continue:
                self.write(_CONTINUE)
                self._enter(self._phase)  # the client begins to send its body now
            elif isinstance(item, Failure):
                request = Request(self._parser.method, self._parser.target, self._parser.headers, "1.1")
                request.keep_alive = False
                exchange = Exchange(self, request)
                exchanges.append(exchange)
                exchange.fail(item)
        if not self._reading and not self.paused and not self._is_full(PIPELINE_MAX // 2):
            self._resume_reading()

    def tick(self, now_s: float) -> None:
        """Enforces time limits; called by the server's sweep about twice a second."""
        admitted = self.identity.admitted
        if admitted is not None and not self._closing and not self._server.access.guard.holds(admitted):
            self.shut_down()  # its certificate is over
        if self.streamer is not None:
            if not self._server.access.goes_on(self.identity, self.exchanges):
                self._stop_streamer()
            if self.streamer is not None:
                self.streamer.tick(now_s)
            return
        if self._lingering:
            quiet = now_s >= self._deadline_s and not self._goes_on(now_s, self._discarded_bytes, LINGER_S)
            if quiet or now_s >= self._linger_end_s:
                self.abort()
            return
        if self._closing and self._farewell is not None:
            if self._farewell.is_over():
                self.abort()
            return
        if self._phase == IDLE and (self._active or self.exchanges):
            # A slow reader holds one bounded buffer and one plan: it may take its time.
            self._active = False
            self._deadline_s = now_s + self._server.settings.idle_timeout_ms / 1000
        elif now_s >= self._deadline_s and not self._closing:
            if self._phase == IDLE:
                # What another process sends on may be on its way: that process closes with its client.
                if not self.internal:
                    self.close()
            elif self._phase == BODY and self._goes_on(now_s, self._parser.body_bytes, self._body_timeout_s):
                pass
            elif not self.exchanges and not self._deaf:
                self._refuse(RequestTimeout())

    def shut_down(self) -> None:
        """Stops taking requests: streams end with a last event, idle connections close, the others after answering."""
        for exchange in self.exchanges:
            exchange.request.keep_alive = False
        self._stop_streamer()
        if self._lingering:
            self.abort()
        elif not self.exchanges and self._phase == IDLE:
            self.close()  # one whose request is still arriving is answered first

    def client_address(self, headers: Headers) -> str:
        """Of the client of a request with these headers: its own, unless a trusted proxy says whom it speaks for."""
        return self._server.proxies.client(self.peer, headers) if self.through_proxy else self.peer

    @property
    def closing(self) -> bool:
        """True when nothing more is sent to the client, or it is gone."""
        return self._closing

    # ---- inside -------------------------------------------------------------------------------------------------

    def _stop_streamer(self) -> None:
        if self.streamer is not None:
            try:
                self.streamer.stop()
            except Exception:
                self.broke()

    def _is_full(self, count_max: int) -> bool:
        waiting = self.waiting
        if self.receiver is not None:
            return self.receiver.is_full
        if self._parser.rest is not None and len(self._parser.rest) > EARLY_BYTES_MAX:
            return True
        if len(self.exchanges) + len(waiting) > count_max:
            return True
        return bool(waiting) and sum(_body_bytes(item) for item in waiting) > WAITING_BYTES_MAX

    def _start(self, request: Request) -> None:
        if self._server.winding_down:
            request.keep_alive = False
        known = request.known
        if known is None or not known.is_append:
            self._server.watch.start(self, request, self._server.handle)
            return
        exchange = Exchange(self, request)
        self.exchanges.append(exchange)
        self._server.handle(exchange)

    def _refuse(self, failure: Failure) -> None:
        """What arrives cannot be taken: that is answered in its turn, then the connection closes."""
        self._deaf = True
        self.waiting.append(failure)
        if not self.exchanges:
            self.advance()

    def _linger(self, transport: asyncio.Transport) -> None:
        """Closes so that the answer arrives: a client still sending would have it wiped out by a reset.

        What it sends is read and thrown away until it stops, for as long as it goes on at the rate of a body.
        """
        unread = self._deaf or self._parser.state != IDLE or bool(self._parser.rest)
        self._closing = self._deaf = True
        if self._ended or not unread:
            transport.close()
            return
        self._lingering = True
        self._discarded_bytes = self._counted_bytes = 0
        self._deadline_s = self._server.now_s + LINGER_S
        self._linger_end_s = self._server.now_s + LINGER_S_MAX
        self._resume_reading_raw(transport)
        if transport.can_write_eof():
            transport.write_eof()

    def _enter(self, phase: int) -> None:
        """The clock of a request's head or body starts with its first byte; more bytes of a head do not restart it."""
        self._phase = phase
        if phase == HEAD:
            self._deadline_s = self._server.now_s + self._server.settings.head_timeout_ms / 1000
        elif phase == BODY:
            self._counted_bytes = self._parser.body_bytes
            self._deadline_s = self._server.now_s + self._body_timeout_s

    @property
    def _body_timeout_s(self) -> float:
        return self._server.settings.body_timeout_ms / 1000

    def _goes_on(self, now_s: float, arrived_bytes: int, window_s: float) -> bool:
        """Whether enough has arrived since the clock was set, `window_s` before the deadline. It is set again then."""
        since_s = now_s - self._deadline_s + window_s
        if arrived_bytes - self._counted_bytes < BODY_RATE_BYTES_PER_S * since_s:
            return False
        self._counted_bytes = arrived_bytes
        self._deadline_s = now_s + window_s
        return True

    def _pause_reading(self) -> None:
        if self._reading and self._transport is not None and not self._closing:
            self._reading = False
            self._transport.pause_reading()

    def _resume_reading_raw(self, transport: asyncio.Transport) -> None:
        if not self._reading:
            self._reading = True
            transport.resume_reading()

    def _resume_reading(self) -> None:
        if not self._reading and self._transport is not None and not self._closing:
            self._reading = True
            self._transport.resume_reading()
            self._enter(self._phase)  # nothing could arrive until now


def _body_bytes(item: Parsed | Failure) -> int:
    return len(item.body) if type(item) is Request else 0
