"""Commands that hold their connection: READ from its start to the last byte of its reply, TRIM until it is submitted,
CREATE while it is decided where the stream's name is placed.

Owns their waits: for a stream to settle, for the lake, for records (BLOCK), for the client to take them. Never holds
any other connection, nor more of a reply than the socket's buffer and a slice: the rest are references to records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from headwater.doors import faults
from headwater.doors.s3p import outcomes, replies
from headwater.doors.s3p.commands import Create, Read, Trim
from headwater.doors.s3p.shared import Line
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.pending_answers import Outcome
from headwater.engine.reads_by_id import Place, Record
from headwater.errors import Failure, GroupMoved, NotServedHere, StreamNotFound
from headwater.model import commands as model

SLICE_BYTES = 64 * 1024


class Alone:
    """What they share: a fault of this server is the reply, as long as none has begun."""

    __slots__ = ("_command", "_connection", "_key")

    def __init__(self, connection: Line, command: Read | Trim | Create, key: str) -> None:
        self._connection = connection
        self._command = command
        self._key = key

    @property
    def command(self) -> Read | Trim | Create:
        return self._command

    def begin(self) -> None:
        raise NotImplementedError

    @property
    def begun(self) -> bool:
        """True once a part of the reply has been written."""
        return False

    def leave(self) -> None:
        """Lets go of what it waits for."""

    def drained(self) -> None:
        """The socket takes data again."""

    def stop(self) -> None:
        """Its client sends no more or the server shuts down: it does not wait for records."""

    def guard(self, act: Callable[..., None], *facts: object) -> None:
        """Runs one step of the command."""
        connection = self._connection
        try:
            act(*facts)
        except Exception as fault:
            failure: Failure
            if isinstance(fault, NotServedHere):
                failure = outcomes.not_here(connection.server.engine, fault)
            else:
                failure = faults.report("s3p", name=self._command.name[:200])
            self.leave()
            if self.begun:
                connection.abort()
            elif connection.alone is self:
                connection.write(outcomes.failed(self._command.name, failure))
                connection.finish(self)


class Reading(Alone):
    """Waits as a Waiter and as a Follower. While it lasts, its connection's `alone` is this."""

    __slots__ = ("_after", "_looks", "_parts", "_reply", "_size", "_stream", "_timer")

    _command: Read

    def __init__(self, connection: Line, command: Read, key: str) -> None:
        super().__init__(connection, command, key)
        self._after = 0
        """Before this offset there is no record to wait for."""
        self._stream: LoadedStream | None = None
        """The stream it follows."""
        self._timer: asyncio.TimerHandle | None = None
        self._looks = 0
        """How often the engine was asked and has not answered yet."""
        self._reply = b""
        self._size = 0
        self._parts: Iterator[bytes] | None = None
        """What is left of a reply that is too large for one write."""

    def begin(self) -> None:
        engine = self._connection.server.engine
        try:
            if engine.unpublished(self._key):
                engine.after_published(self._key, self)
                return
            stream = engine.find(self._key, True)
        except Failure as failure:
            self._fail(failure)
            return
        if self._command.block_ms and not self._connection.ended:
            # Follows first: what becomes visible while the lake is asked must not be missed.
            self._follow(stream)
        self._look(stream)

    def resolve(self, outcome: Outcome) -> None:
        """The creation or deletion that it waited for is durable, or never will be."""
        if self._connection.alone is self:
            if isinstance(outcome, Failure):
                self._fail(outcome)
            else:
                self.guard(self.begin)

    def _look(self, stream: LoadedStream) -> None:
        server, command, visible = self._connection.server, self._command, stream.visible

        def found(records: list[Record] | Failure) -> None:
            self._looks -= 1
            self.guard(tell, records)

        def tell(records: list[Record] | Failure) -> None:
            if self._connection.alone is not self or self._parts is not None:
                return  # gone, or answered while the lake was asked
            if isinstance(records, Failure):
                self.leave()
                self._fail(records)
            elif records or self._stream is None:
                self.leave()
                self._answer(records)
            else:
                self._after = max(self._after, visible)

        self._looks += 1
        bytes_max = server.settings.read_bytes_max
        server.engine.read_by_id(stream, command.min_ms, command.min_n, command.count, bytes_max, found, self._after)

    @property
    def begun(self) -> bool:
        return self._parts is not None

    # ---- following ------------------------------------------------------------------------------------------------

    def _follow(self, stream: LoadedStream) -> None:
        server = self._connection.server
        self._stream = stream
        server.blocked_count += 1
        server.engine.follow(stream, self)
        self._timer = asyncio.get_running_loop().call_later(self._command.block_ms / 1000, self.guard, self.stop)

    def wake(self, stream: LoadedStream) -> None:
        self.guard(self._grown, stream)

    def _grown(self, stream: LoadedStream) -> None:
        # Those who wait for the same share the bytes of the reply; the group forgets them when the stream grows again.
        server, command = self._connection.server, self._command
        same = ("s3p", command.min_ms, command.min_n, command.count)
        if stream.encoded is not None and (known := stream.encoded.get(same)) is not None:
            self.leave()
            server.engine.count_read(self._key, known[1])
            self._finish(known[0])
            return
        self._look(stream)
        if self._reply:
            if stream.encoded is None:
                stream.encoded = {}
            stream.encoded[same] = (self._reply, self._size, False)

    def gone(self, stream: LoadedStream) -> None:
        self.leave()
        self._fail(StreamNotFound())

    def left(self, stream: LoadedStream) -> None:
        self.leave()
        self._fail(GroupMoved(stream.sid % self._connection.server.engine.groups_count))

    def stop(self) -> None:
        """Its time is over, its client sends no more or the server shuts down: it does not wait for records."""
        if self._stream is not None:
            self.leave()
            if not self._looks:
                self._answer([])

    def leave(self) -> None:
        """Follows no more; there is nothing else that would have to be given back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stream is not None:
            server = self._connection.server
            server.engine.unfollow(self._stream, self)
            server.blocked_count -= 1
            self._stream = None

    # ---- the reply ------------------------------------------------------------------------------------------------

    def _answer(self, found: list[Record]) -> None:
        self._size = sum(len(payload) for _, _, payload in found)
        if found:
            self._connection.server.engine.count_read(self._key, self._size)
        if self._size + 40 * len(found) <= SLICE_BYTES:
            self._reply = replies.records(found)
            self._finish(self._reply)
        else:
            self._parts = parts(found)
            self.drained()

    def drained(self) -> None:
        connection = self._connection
        while self._parts is not None and not connection.paused and connection.alone is self:
            part = next(self._parts, None)
            if part is None:
                self._finish(b"")
            else:
                connection.write(part)

    def _fail(self, failure: Failure) -> None:
        self._finish(outcomes.failed(self._command.name, failure))

    def _finish(self, data: bytes) -> None:
        if data:
            self._connection.write(data)
        self._connection.finish(self)


class Trimming(Alone):
    """Finds the place to cut at. While it lasts, its connection's `alone` is this."""

    __slots__ = ()

    _command: Trim

    def begin(self) -> None:
        server, command = self._connection.server, self._command
        stream = server.engine.look(self._key)
        if stream is None:
            self._placed(Place(0, None))
        else:

            def placed(place: Place | Failure) -> None:
                self.guard(self._placed, place)

            server.engine.place_of_id(stream, command.min_ms, command.min_n, placed)

    def _placed(self, place: Place | Failure) -> None:
        connection = self._connection
        if connection.alone is not self:
            return
        if isinstance(place, Failure):
            connection.write(outcomes.failed(self._command.name, place))
            connection.finish(self)
        else:
            connection.alone = None
            connection.submit(self._command.name, self._key, model.Trim(place.offset, place.seq))
            connection.later()


class Undecided(Alone):
    """Created elsewhere now, the stream would be lost to its name. While it lasts, its connection's `alone` is this."""

    __slots__ = ("_task",)

    _command: Create

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        placing = self._connection.server.placing
        if placing is not None:
            await placing.decided(self._key)
        self.guard(self._decided)

    def _decided(self) -> None:
        # Now, not in a later turn of the event loop: it might be decided anew by then.
        connection = self._connection
        if connection.alone is self:
            connection.alone = None
            connection.create(self._command, self._key)
            connection.later()

    def leave(self) -> None:
        self._task.cancel()


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
