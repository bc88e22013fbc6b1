"""Reads that begin in the lake, and questions only the lake can answer.

Owns their threads and their bound. Never blocks the event loop, an append or a live reader: files are fetched and
decoded in a small pool, and the result comes back as a call on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from headwater.engine.group import Group, Waiter
from headwater.engine.live import LiveStream
from headwater.engine.reads import Cold, Slice, plan, shown
from headwater.errors import BadQuery, Failure, Overloaded
from headwater.model import forks
from headwater.model.commands import Command, Create, ForkPoint, PublishSnapshot, Trim
from headwater.model.extents import Extent, Records
from headwater.model.stream import Stream
from headwater.world import BlobsUnavailable, Lake

THREADS = 4
PENDING_MAX = 1_000
"""Reads waiting for the pool; more are answered 503."""
EXTENTS_MAX = 256
"""Extents one read looks at: it answers with what they hold and the client comes back for the rest."""
FOLLOWING_BYTES = 16 << 20
"""What one step of a search for a fork's sub-offset reads."""

Done = Callable[[Slice | Failure], None]
T = TypeVar("T")


class Reads:
    """The way to a stream's records, wherever they are."""

    def __init__(self, group: Group, lake: Lake | None) -> None:
        self._group = group
        self._lake = lake
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="cold-read")
        self.pending = 0
        self.reads_count = 0

    def read(self, stream: LiveStream, offset: int, bytes_max: int, done: Done) -> None:
        """Calls `done` with the records from `offset` on: at once when memory holds them. Raises as `plan` does."""
        part = plan(stream, offset, bytes_max)
        if isinstance(part, Slice):
            done(part)
        else:
            self.fetch(part, done)

    async def read_now(self, stream: LiveStream, offset: int, bytes_max: int) -> Slice:
        """The same for coroutines. Raises the failure."""
        future: asyncio.Future[Slice | Failure] = self._loop.create_future()
        self.read(stream, offset, bytes_max, lambda part: None if future.done() else future.set_result(part))
        found = await future
        if isinstance(found, Failure):
            raise found
        return found

    def fetch(self, cold: Cold, done: Done) -> None:
        """Calls `done` with the records, joined by what memory holds behind them as far as `bytes_max` allows."""
        lake = self.lake()
        extents = self._group.shelf.extents(cold.held_by.sid, cold.offset, EXTENTS_MAX)
        self.reads_count += 1

        def read() -> tuple[list[bytes], int]:
            return _gather(lake, extents, cold)

        def finish(result: tuple[list[bytes], int] | Failure) -> None:
            if isinstance(result, Failure):
                done(result)
                return
            payloads, end = result
            stream = cold.stream
            left = cold.bytes_max - (end - cold.offset)
            try:
                more = plan(stream, end, left) if left > 0 and end < stream.visible else None
            except Failure:
                more = None  # trimmed or closed meanwhile: what was read is still right
            # A plan's first record comes whatever its size: here it is not the first, and has to fit.
            if isinstance(more, Slice) and more.end - cold.offset <= cold.bytes_max:
                payloads, end = payloads + more.payloads, more.end
            done(shown(stream, payloads, cold.offset, end))

        self.run(read, finish)

    def resolve(self, cold: forks.ColdOffset, key: str, command: Command, waiter: Waiter) -> None:
        """Looks up what a command needs to know about a cold offset, then submits it again with the answer."""
        lake = self.lake()
        fork = command.fork if isinstance(command, Create) else None
        about = key if fork is None else fork.source
        stream = self._group.shelf.find(about)
        if stream is None:
            raise RuntimeError(f"the stream {about} is cold and not there")
        offset = cold.offset
        extents = self._group.shelf.extents(forks.holder(stream, offset).sid, max(0, offset - 1), 2)
        wanted = 0 if fork is None else fork.sub if stream.is_json else min(fork.sub, 1)

        def look() -> int:
            return _seq_at(lake, extents, offset)

        def counted(seq: int | Failure) -> None:
            if isinstance(seq, Failure):
                waiter.resolve(seq)
            else:
                self._following(stream, offset, wanted, [], lambda following: submit(seq, following))

        def submit(seq: int, following: list[bytes] | Failure) -> None:
            try:
                if isinstance(following, Failure):
                    raise following
                # Of another stream that took the name meanwhile the answer says nothing: then the command asks anew.
                same = self._group.shelf.find(about)
                again = same is None or same.sid != stream.sid
                self._group.submit(key, command if again else _with(command, stream, offset, seq, following), waiter)
            except Failure as failure:
                waiter.resolve(failure)

        self.run(look, counted)

    def _following(
        self,
        stream: LiveStream,
        offset: int,
        wanted: int,
        found: list[bytes],
        done: Callable[[list[bytes] | Failure], None],
    ) -> None:
        """Calls `done` with the first `wanted` messages behind `offset`, or with fewer when there are no more."""
        if len(found) >= wanted or offset >= stream.visible:
            done(found)
            return

        def more(part: Slice | Failure) -> None:
            if isinstance(part, Failure):
                done(part)
            else:
                self._following(stream, part.end, wanted, found + part.payloads, done)

        try:
            self.read(stream, offset, FOLLOWING_BYTES, more)
        except Failure as failure:
            done(failure)

    def lake(self) -> Lake:
        if self._lake is None:
            raise RuntimeError("a record is neither in memory nor is there a lake")
        return self._lake

    def run(self, work: Callable[[], T], finish: Callable[[T | Failure], None]) -> None:
        if self.pending >= PENDING_MAX:
            finish(Overloaded("too many reads wait for the lake"))
            return
        self.pending += 1

        def done(result: T | Failure) -> None:
            self.pending -= 1
            finish(result)

        def run() -> None:
            result: T | Failure
            try:
                result = work()
            except BlobsUnavailable as error:
                result = Overloaded(f"the lake does not answer ({error})")
            except Failure as failure:
                result = failure
            except Exception as error:
                # Whatever it is (a file that is gone, a row group that cannot be decoded): whoever waits is told.
                result = Overloaded(f"the lake cannot be read: {error!r}")
            try:
                self._loop.call_soon_threadsafe(done, result)
            except RuntimeError:
                pass  # the loop is gone: nobody waits

        self._pool.submit(run)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _gather(lake: Lake, extents: list[Extent], cold: Cold) -> tuple[list[bytes], int]:
    """Payloads from the cold offset on, up to its bounds; at least one record."""
    payloads: list[bytes] = []
    at = cold.offset
    until = min(cold.until, cold.offset + cold.bytes_max)
    for extent in extents:
        if payloads and at >= until:
            break
        found = lake.read(extent, at, max(until, at + 1))
        if found.start != at:
            raise _inside()
        count = _fitting(found, cold.offset + cold.bytes_max, cold.until, bool(payloads))
        payloads += found.payloads[:count]
        if count:
            at = found.ends[count - 1]
        if at < extent.end:
            break  # the rest of it does not fit
    if not payloads:
        if extents and extents[0].start < at:
            raise _inside()  # it lies inside the last record that the lake holds
        raise Overloaded("the lake does not hold what the catalog says")
    return payloads, at


def _inside() -> BadQuery:
    return BadQuery("offset", "it lies inside a message; use an offset returned by this server")


def _fitting(found: Records, bytes_end: int, until: int, have_some: bool) -> int:
    """How many of the records end within both bounds; the first one of a read comes whatever its size."""
    count = 0
    for end in found.ends:
        if end > until or (end > bytes_end and (count or have_some)):
            break
        count += 1
    return count


def _seq_at(lake: Lake, extents: list[Extent], offset: int) -> int:
    """How many records lie before `offset`, by the extents around it. Raises BadQuery inside a record."""
    for extent in extents:
        if extent.start == offset:
            return extent.seq_start
        if extent.start < offset <= extent.end:
            before = lake.read(extent, extent.start, offset)
            if before.ends and before.ends[-1] == offset:
                return extent.seq_start + len(before.payloads)
    raise BadQuery("offset", "it lies inside a message")


def _with(command: Command, stream: Stream, offset: int, seq: int, following: list[bytes]) -> Command:
    if isinstance(command, Trim | PublishSnapshot):
        return msgspec.structs.replace(command, seq=seq)
    if isinstance(command, Create) and command.fork is not None:
        fork = command.fork
        at = offset
        prefix: list[bytes] = []
        if fork.sub:
            at, seq, prefix = forks.sub_offset(stream.is_json, fork.sub, offset, seq, following)
        return msgspec.structs.replace(command, fork=msgspec.structs.replace(fork, point=ForkPoint(at, seq, prefix)))
    raise RuntimeError(f"{command!r} does not ask for a place")
