"""A READ from its start to the last byte of its reply.

Owns its waits: for its stream to settle, for records (BLOCK), for the client to take them. Never holds any connection
but its own, nor more of a reply than the socket's buffer and one slice: the rest are references to records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headwater.doors.s3p import outcomes, replies
from headwater.doors.s3p.commands import Read
from headwater.engine.group import Outcome
from headwater.engine.live import LiveStream
from headwater.engine.reads import Record, records_from
from headwater.errors import Failure, LogUnavailable, StreamNotFound

if TYPE_CHECKING:
    from headwater.doors.s3p.connection import Connection

SLICE_BYTES = 64 * 1024


class Reading:
    """Waits as a Waiter and as a Follower. While it lasts, its connection's `reading` is this."""

    __slots__ = ("_command", "_connection", "_key", "_parts", "_stream", "_timer")

    def __init__(self, connection: Connection, command: Read, key: str) -> None:
        self._connection = connection
        self._command = command
        self._key = key
        self._stream: LiveStream | None = None
        """The stream it follows."""
        self._timer: asyncio.TimerHandle | None = None
        self._parts: Iterator[bytes] | None = None
        """What is left of a reply that is too large for one write."""

    def begin(self) -> None:
        group = self._connection.server.group
        try:
            if group.unsettled(self._key):
                if group.log.failure is not None:
                    raise LogUnavailable(group.log.failure)
                group.after_settled(self._key, self)
                return
            stream = group.find(self._key, touch=True)
        except Failure as failure:
            self._fail(failure)
            return
        found = self._look(stream)
        if found or not self._command.block_ms or self._connection.server.closing:
            self._answer(found)
        else:
            self._follow(stream)

    def resolve(self, outcome: Outcome) -> None:
        """The creation or deletion that it waited for is durable, or never will be."""
        if self._connection.reading is self:
            if isinstance(outcome, Failure):
                self._fail(outcome)
            else:
                self.begin()

    def wake(self, stream: LiveStream) -> None:
        # Those who wait for the same share the bytes of the reply; the group forgets them when the stream grows again.
        command = self._command
        key = ("s3p", command.min_ms, command.min_n, command.count)
        cached = stream.encoded
        if cached is not None and (known := cached.get(key)) is not None:
            self.leave()
            self._finish(known[0])
            return
        found = self._look(stream)
        if not found:
            return  # all that came is older than what is asked for
        self.leave()
        if _size(found) > SLICE_BYTES:
            self._answer(found)
            return
        data = replies.records(found)
        if stream.encoded is None:
            stream.encoded = {}
        stream.encoded[key] = (data, stream.visible, False)
        self._finish(data)

    def gone(self, stream: LiveStream) -> None:
        self.leave()
        self._fail(StreamNotFound())

    def drained(self) -> None:
        """The socket takes data again."""
        connection = self._connection
        while self._parts is not None and not connection.paused and connection.reading is self:
            part = next(self._parts, None)
            if part is None:
                self._finish(b"")
            else:
                connection.write(part)

    def stop(self) -> None:
        """The server is shutting down: nothing is waited for any more but the client."""
        if self._stream is not None:
            self.leave()
            self._answer([])

    def leave(self) -> None:
        """Follows no more. Nothing else is held that would have to be given back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stream is not None:
            server = self._connection.server
            server.group.unfollow(self._stream, self)
            server.blocked_count -= 1
            self._stream = None

    def _follow(self, stream: LiveStream) -> None:
        server = self._connection.server
        self._stream = stream
        server.blocked_count += 1
        server.group.follow(stream, self)
        self._timer = asyncio.get_running_loop().call_later(self._command.block_ms / 1000, self._time_out)

    def _time_out(self) -> None:
        self.leave()
        self._answer([])

    def _look(self, stream: LiveStream) -> list[Record]:
        command = self._command
        bytes_max = self._connection.server.settings.read_bytes_max
        return records_from(stream, command.min_ms, command.min_n, command.count, bytes_max)

    def _answer(self, found: list[Record]) -> None:
        if _size(found) <= SLICE_BYTES:
            self._finish(replies.records(found))
        else:
            self._parts = parts(found)
            self.drained()

    def _fail(self, failure: Failure) -> None:
        self._finish(outcomes.failed(self._command.name, failure))

    def _finish(self, data: bytes) -> None:
        if data:
            self._connection.write(data)
        self._connection.finish(self)


def _size(found: list[Record]) -> int:
    """About how long the reply is: each record brings an id and two lengths beside its payload."""
    return sum(40 + len(payload) for _, _, payload in found)


def parts(found: list[Record]) -> Iterator[bytes]:
    """The same bytes as `replies.records` in pieces of about SLICE_BYTES; a record longer than that is not copied."""
    piece = [b"*%d\r\n" % (2 * len(found))]
    size = 0
    for ms, n, payload in found:
        record_id = b"%d-%d" % (ms, n)
        piece.append(b"$%d\r\n%b\r\n$%d\r\n" % (len(record_id), record_id, len(payload)))
        size += 40 + len(payload)
        if len(payload) >= SLICE_BYTES:
            yield b"".join(piece)
            yield payload
            piece, size = [b"\r\n"], 0
            continue
        piece.append(payload)
        piece.append(b"\r\n")
        if size >= SLICE_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)
