"""Requests for groups of another member: the same request to its owner, the owner's answer back, byte for byte.

Owns the connections to other members that one client connection needs: one for each member it asks, made when it is
first needed and closed with the client's. Requests keep their order on it, and a client that takes its answers slowly
slows down only its own. Never forwards what was forwarded to it: whoever owns the group answers, or it is refused.

    client -> Exchange -> Upstream.send -> owner's socket -> its answer -> Exchange.reply, or streamed piece by piece
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from headwater.cluster.framing import BadAnswer, ResponseFraming
from headwater.errors import MemberUnavailable, OutcomeUnknown

if TYPE_CHECKING:
    from headwater.cluster.members import Members
    from headwater.doors.http.exchange import Exchange, Line
    from headwater.doors.http.wire import Request

HELD_BYTES_MAX = 64 * 1024
"""An answer up to this size is handed on whole; a longer one is streamed as soon as it is its turn."""
_NOT_FORWARDED = frozenset((b"expect", b"transfer-encoding", b"content-length"))
"""Of the way from the client to here. The body is whole by now and has a length."""


class ForwardedHead:
    """What a head that was forwarded before becomes, kept with it: a writer repeats its head."""

    __slots__ = ("head", "member")

    def __init__(self, member: int, head: bytes) -> None:
        self.member = member
        self.head = head


def encode_head(request: Request, size: int) -> bytes:
    """The request's head as it is sent to its owner, for a body of `size` bytes."""
    lines = [b"%b %b HTTP/%b\r\n" % (request.method, request.target, request.version.encode())]
    for name, value in request.headers.items():
        if name not in _NOT_FORWARDED:
            lines.append(b"%b: %b\r\n" % (name, value))
    if size or request.method in (b"POST", b"PUT"):
        lines.append(b"content-length: %d\r\n" % size)
    lines.append(b"\r\n")
    return b"".join(lines)


class Forwarder:
    """Hands exchanges to the members that own them. Counters are plain ints: `observe` exports them."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self.forwarded_count = 0

    def forward(self, exchange: Exchange, member: int) -> None:
        request = exchange.request
        known = request.known
        if known is not None:
            memo = known.memo
            if type(memo) is not ForwardedHead or memo.member != member:
                known.memo = memo = ForwardedHead(member, encode_head(request, len(request.body)))
            head = memo.head
        else:
            head = encode_head(request, len(request.body))
        self.forwarded_count += 1
        self.upstream(exchange.connection, member).send(exchange, head, request.body)

    def upstream(self, connection: Line, member: int) -> Upstream:
        upstreams = connection.upstreams
        if upstreams is None:
            upstreams = connection.upstreams = {}
        found = upstreams.get(member)
        if found is None or found.over:
            found = upstreams[member] = Upstream(connection, member, self._members.http_path(member))
        return found


class Upstream(asyncio.Protocol):
    """One connection to an owner, on behalf of one client connection. A Streamer while it streams an answer."""

    def __init__(self, connection: Line, member: int, path: str) -> None:
        self._connection = connection
        self._member = member
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._pending: deque[Exchange] = deque()
        self._framing: ResponseFraming | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._streaming = False
        self.over = False
        self._connecting = asyncio.get_running_loop().create_task(self._connect(path))

    def send(self, exchange: Exchange, head: bytes, body: bytes) -> None:
        self._pending.append(exchange)
        data = head + body if len(body) < HELD_BYTES_MAX else head
        for part in (data, body) if data is head and body else (data,):
            if self._transport is None:
                self._unsent.append(part)
            else:
                self._transport.write(part)

    def close(self) -> None:
        """The client is gone, or wants no more."""
        self.over = True
        self._pending.clear()
        self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio calls these ------------------------------------------------------------------------------------

    async def _connect(self, path: str) -> None:
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self, path)
        except OSError:
            self.over = True
            pending, self._pending = self._pending, deque()
            for exchange in pending:
                exchange.fail(MemberUnavailable(self._member))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports are not asyncio's by class
        unsent, self._unsent = self._unsent, []
        for part in unsent:
            self._transport.write(part)  # type: ignore[union-attr]

    def data_received(self, data: bytes) -> None:
        try:
            self._take(data)
        except BadAnswer:
            self._fail()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        framing = self._framing
        if framing is not None and self._pending and framing.end():
            self._end_answer()
        self._fail()

    # ---- answers ------------------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        while data and self._pending:
            exchange = self._pending[0]
            framing = self._framing
            if framing is None:
                framing = self._framing = ResponseFraming(exchange.request.method == b"HEAD")
            took = framing.take(data)
            whole = took == len(data)
            self._hand_on(exchange, framing, data if whole else data[:took])
            if framing.complete:
                self._end_answer()
            data = b"" if whole else data[took:]

    def _hand_on(self, exchange: Exchange, framing: ResponseFraming, data: bytes) -> None:
        connection = self._connection
        if self._streaming:
            connection.write(data)
            if connection.paused and self._transport is not None:
                self._transport.pause_reading()
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if framing.head is None or framing.complete:
            return
        # An event stream is sent as it comes. So is what is long; unless others are to be answered first.
        is_long = framing.size is None or framing.size > HELD_BYTES_MAX
        if is_long and connection.exchanges and connection.exchanges[0] is exchange:
            self._streaming = True
            connection.stream(self)
            held, self._held, self._held_bytes = self._held, [], 0
            connection.write(b"".join(held))

    def _end_answer(self) -> None:
        exchange = self._pending.popleft()
        self._framing = None
        if self._streaming:
            self._streaming = False
            self._connection.finish(exchange)
            return
        held, self._held, self._held_bytes = self._held, [], 0
        exchange.reply(held[0] if len(held) == 1 else b"".join(held))

    def _fail(self) -> None:
        """The owner went away: whoever waits is told, and an answer that was begun cannot be ended."""
        self.over = True
        pending, self._pending = self._pending, deque()
        if self._streaming:
            self._streaming = False
            self._connection.abort()
            return
        for exchange in pending:
            exchange.fail(OutcomeUnknown(self._member))

    # ---- as a Streamer --------------------------------------------------------------------------------------------

    def drained(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def tick(self, now_s: float) -> None:
        """The owner keeps the time of its answer."""

    def stop(self) -> None:
        """This member shuts down; its clients connect again, to another one."""
        self._connection.abort()

    def lost(self) -> None:
        self.close()
