"""Answers that take time: large bodies, long-polls and SSE connections.

Owns their pace: a client that does not read holds one bounded buffer, never a growing one. Never blocks a writer: a
follower that falls behind is not written to, and catches up from the stream itself when its socket drains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from headwater.doors.http import sse
from headwater.doors.http.exchange import Exchange
from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.read_plan import Data, Slice
from headwater.errors import Failure, GroupMoved, StreamNotFound

SLICE_BYTES = 256 * 1024
TURN_BYTES = 1024 * 1024
"""What one answer writes while others wait: a client that reads fast takes megabytes without a pause otherwise, at
about a third of a millisecond each."""
STALLED_TICKS = 10
"""A client that takes nothing for so many ticks, about five seconds, has stalled."""


class BodyPump:
    """A body that is too large for one write: goes out part by part as the socket takes it."""

    def __init__(self, exchange: Exchange, head: bytes, parts: Iterator[Data]) -> None:
        self._exchange = exchange
        self._parts = parts
        exchange.begin(head)
        exchange.connection.stream(self)
        self.drained()

    def drained(self) -> None:
        connection = self._exchange.connection
        while not connection.paused and connection.streamer is self:
            part = next(self._parts, None)
            if part is None:
                connection.finish(self._exchange)
                return
            connection.write(part)

    def tick(self, now_s: float) -> None: ...

    def stop(self) -> None: ...

    def lost(self) -> None: ...


class ReadPump:
    """The body of a read. Who takes it holds its records; who stalls costs what the socket has buffered, no more.

    A stalled client's records are let go of, and read again when the socket drains. When they cannot be read again, or
    some were deleted meanwhile, the connection is cut: its client sees that the body is not whole.
    """

    def __init__(self, exchange: Exchange, head: bytes, engine: Engine, part: Slice) -> None:
        self._exchange = exchange
        self._engine = engine
        self._stream, self._start, self._end, self._size = part.stream, part.start, part.end, part.size
        self._parts: Iterator[Data] | None = body_parts(part.payloads, part.stream.is_json)
        self._sent_bytes = 0
        self._waits_turn = False
        self._quiet_ticks = 0
        self._again: list[Data] | None = None
        """What has been read again so far, while that is under way."""
        self._left = 0
        """How many bytes are still to be read again."""
        exchange.begin(head)
        exchange.connection.stream(self)
        self.drained()

    def drained(self) -> None:
        connection = self._exchange.connection
        self._quiet_ticks = 0
        if self._parts is None:
            if self._again is None:
                self._again, self._left = [], self._size
                self._read_again(self._start)
            return
        turn_end = self._sent_bytes + TURN_BYTES
        while not (connection.paused or self._waits_turn) and connection.streamer is self:
            part = next(self._parts, None)
            if part is None:
                connection.finish(self._exchange)
                return
            connection.write(part)
            self._sent_bytes += len(part)
            if self._sent_bytes >= turn_end and not connection.paused:
                self._waits_turn = True
                connection.after_others(self._next_turn)

    def _next_turn(self) -> None:
        self._waits_turn = False
        if not self._exchange.connection.paused and self._exchange.connection.streamer is self:
            try:
                self.drained()
            except Exception:
                self._exchange.broke()

    def tick(self, now_s: float) -> None:
        self._quiet_ticks += 1
        if self._quiet_ticks > STALLED_TICKS and self._exchange.connection.paused:
            self._parts = None

    def _read_again(self, offset: int) -> None:
        try:
            self._engine.read(self._stream, offset, self._left, self._got, joined=True)
        except Failure as failure:
            self._got(failure)

    def _got(self, part: Slice | Failure) -> None:
        try:
            self._go_on(part)
        except Exception:
            self._exchange.broke()

    def _go_on(self, part: Slice | Failure) -> None:
        connection = self._exchange.connection
        if connection.streamer is not self or self._again is None:
            return
        if isinstance(part, Failure) or part.end > self._end:
            connection.abort()
            return
        self._again += part.payloads
        self._left -= part.size
        if part.end < self._end and self._left > 0:
            self._read_again(part.end)
            return
        if self._left:
            connection.abort()
            return
        self._parts = _behind(body_parts(self._again, self._stream.is_json), self._sent_bytes)
        self._again = None
        self.drained()

    def stop(self) -> None: ...

    def lost(self) -> None:
        self._parts = self._again = None


def body_parts(payloads: Sequence[Data], is_json: bool) -> Iterator[Data]:
    """The body of a read in writes of about SLICE_BYTES."""
    at, count = 0, len(payloads)
    while at < count:
        first, size = at, 0
        while at < count and size < SLICE_BYTES:
            size += len(payloads[at]) + 1
            at += 1
        part = payloads[first:at]
        if size > 2 * SLICE_BYTES:
            # One that is large is among them: it is written as it is held, not copied once per reader.
            for index, payload in enumerate(part, first):
                if is_json:
                    yield b"," if index else b"["
                yield from _cut(payload)
            if is_json and at == count:
                yield b"]"
        elif is_json:
            yield (b"," if first else b"[") + b",".join(part) + (b"]" if at == count else b"")
        else:
            yield part[0] if len(part) == 1 else b"".join(part)


def _cut(payload: Data) -> Iterator[Data]:
    """A stretch from the lake in views of it, so that its row group is not held for longer than it takes to send it.

    As large as a turn: with 256 KiB a reader of the lake had 0.47 of the rate from memory, with this 0.53 (B5).
    """
    if isinstance(payload, bytes):
        yield payload
    else:
        for at in range(0, len(payload), TURN_BYTES):
            yield payload[at : at + TURN_BYTES]


def _behind(parts: Iterator[Data], sent_bytes: int) -> Iterator[Data]:
    """What of the parts has not been sent."""
    for part in parts:
        if sent_bytes < len(part):
            yield memoryview(part)[sent_bytes:] if sent_bytes else part
        sent_bytes = max(0, sent_bytes - len(part))


def chunks_to(exchange: Exchange) -> Callable[[bytes], None]:
    """What writes the chunks of an answer, in the way that its client understands."""
    write = exchange.connection.write
    if exchange.request.version == "1.0":
        return lambda chunks: write(sse.content(chunks))
    return write


class LongPoll:
    """Waits for a stream to grow, then calls `answer` once, with where to read from, or with why there is nothing.

    Calls `ended` once, also when the client goes away and nobody is answered.
    """

    def __init__(
        self,
        exchange: Exchange,
        engine: Engine,
        stream: LoadedStream,
        offset: int,
        timeout_s: float,
        answer: Callable[[int, Failure | None], None],
        ended: Callable[[], None],
    ) -> None:
        self._exchange = exchange
        self._ended = ended
        self._engine = engine
        self._stream = stream
        self._offset = offset
        self._answer = answer
        engine.follow(stream, self)
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._time_out)
        exchange.connection.stream(self)

    def wake(self, stream: LoadedStream) -> None:
        self._over(None)

    def gone(self, stream: LoadedStream) -> None:
        self._over(StreamNotFound())

    def left(self, stream: LoadedStream) -> None:
        self._over(GroupMoved(stream.sid % self._engine.groups_count))

    def _time_out(self) -> None:
        self._over(None)

    def _over(self, failure: Failure | None) -> None:
        try:
            self._leave()
            self._answer(self._offset, failure)
        except Exception:
            self._exchange.broke()

    def _leave(self) -> None:
        self._timer.cancel()
        self._engine.unfollow(self._stream, self)
        self._ended()
        if self._exchange.connection.streamer is self:
            self._exchange.connection.streamer = None

    def drained(self) -> None: ...

    def tick(self, now_s: float) -> None: ...

    def stop(self) -> None:
        self._time_out()

    def lost(self) -> None:
        self._leave()


class SseFeed:
    """One SSE connection. `cursor` maps the present moment to the cursor this client is to be told."""

    def __init__(
        self,
        exchange: Exchange,
        engine: Engine,
        stream: LoadedStream,
        offset: int,
        cursor: Callable[[], int],
        keepalive_s: float,
        lifetime_s: float,
        closed: Callable[[], None],
    ) -> None:
        self._exchange = exchange
        self._engine = engine
        self._stream = stream
        self._begin = self._offset = offset
        self._cursor = cursor
        self._keepalive_s = keepalive_s
        self._closed = closed
        self._write = chunks_to(exchange)
        self._over = False
        self._reading = False
        self._pumping = False
        self._greeted = False
        now_s = asyncio.get_running_loop().time()
        self._quiet_since_s = now_s
        self._ends_s = now_s + lifetime_s
        engine.follow(stream, self)
        exchange.connection.stream(self)

    def begin(self, head: bytes) -> None:
        """Sends the header block and everything from the offset on; the first control event comes even without data."""
        self._exchange.begin(head)
        self._pump()

    def wake(self, stream: LoadedStream) -> None:
        # Only a follower that stands at the tail is written to; the others come here through `drained`.
        if not self._exchange.connection.paused and not self._over:
            try:
                self._pump()
            except Exception:
                self._exchange.broke()

    def drained(self) -> None:
        if not self._over:
            self._pump()

    def _pump(self) -> None:
        """Writes as long as the socket takes it and there is something to write."""
        connection = self._exchange.connection
        stream = self._stream
        while not (connection.paused or self._over or self._reading):
            if self._offset == stream.visible and self._greeted and not stream.closed_visible:
                return
            cached = stream.encoded
            if cached is not None and (found := cached.get(self._place())) is not None:
                self._write(found[0])
                self._advance(found[1], found[2])
                continue
            self._reading = self._pumping = True
            try:
                self._engine.read(stream, self._offset, SLICE_BYTES, self._got, joined=True)
            except Failure as failure:
                self._got(failure)
            self._pumping = False

    def _place(self) -> object:
        """What an encoded event depends on."""
        stream = self._stream
        return self._offset, stream.visible, stream.closed_visible, self._cursor()

    def _got(self, part: Slice | Failure) -> None:
        """Records arrived: at once from memory, later from the lake."""
        try:
            self._send(part)
        except Exception:
            self._exchange.broke()

    def _send(self, part: Slice | Failure) -> None:
        self._reading = False
        if self._over:
            return
        if isinstance(part, Failure):
            # Retention overtook this follower, or the lake is away: the connection ends, and its return is told why.
            self._end(b"")
            return
        place = self._place()
        data = sse.events(part, self._cursor())
        if part.up_to_date:
            if self._stream.encoded is None:
                self._stream.encoded = {}
            self._stream.encoded[place] = (data, part.end, part.closed)
        self._write(data)
        self._advance(part.end, part.closed)
        if not self._pumping:
            self._pump()

    def _advance(self, offset: int, closed: bool) -> None:
        self._offset = offset
        self._greeted = True
        self._quiet_since_s = 0.0
        if closed:
            self._end(b"")

    def tick(self, now_s: float) -> None:
        if now_s >= self._ends_s:
            self._end(b"")
        elif self._quiet_since_s == 0.0:
            self._quiet_since_s = now_s
        elif now_s - self._quiet_since_s >= self._keepalive_s - 1 and not self._exchange.connection.paused:
            self._quiet_since_s = now_s
            self._write(sse.KEEP_ALIVE)

    def gone(self, stream: LoadedStream) -> None:
        try:
            self._end(b"")
        except Exception:
            self._exchange.broke()

    def left(self, stream: LoadedStream) -> None:
        try:
            self.stop()
        except Exception:
            self._exchange.broke()

    def stop(self) -> None:
        """A last control event tells the client where to resume."""
        at_tail = self._offset == self._stream.visible
        self._end(sse.chunk(sse.control_event(self._offset, self._cursor(), at_tail, False)))

    def _end(self, last: bytes) -> None:
        if self._over:
            return
        self._leave()
        self._write(last + sse.LAST_CHUNK)
        self._exchange.connection.finish(self._exchange)

    def lost(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if not self._over:
            self._over = True
            self._engine.unfollow(self._stream, self)
            # Counted here and not with each event: a connection lives for a minute, and its events are many.
            if self._offset > self._begin:
                self._engine.count_read(self._stream.key, self._offset - self._begin)
            self._closed()
