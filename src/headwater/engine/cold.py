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
            if isinstance(more, Slice) and more.payloads and len(payloads) + len(more.payloads) > 0:
                payloads, end = payloads + more.payloads, more.end
            done(shown(stream, payloads, cold.offset, end))

        self.run(read, finish)

    def resolve(self, cold: forks.ColdOffset, key: str, command: Command, waiter: Waiter) -> None:
        """Looks up what a command needs to know about a cold offset, then submits it again with the answer."""
        lake = self.lake()
        stream, offset = cold.stream, cold.offset
        wanted = 0
        if isinstance(command, Create) and command.fork is not None:
            wanted = command.fork.sub
        held_by = forks.holder(stream, offset)
        extents = self._group.shelf.extents(held_by.sid, offset - 1 if offset else 0, EXTENTS_MAX)

        def look() -> tuple[int, list[bytes]]:
            return _locate(lake, extents, held_by, offset, wanted)

        def finish(result: tuple[int, list[bytes]] | Failure) -> None:
            try:
                if isinstance(result, Failure):
                    raise result
                self._group.submit(key, _with(command, stream, offset, *result), waiter)
            except Failure as failure:
                waiter.resolve(failure)

        self.run(look, finish)

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
            raise BadQuery("offset", "it lies inside a message; use an offset returned by this server")
        count = _fitting(found, cold.offset + cold.bytes_max, cold.until, bool(payloads))
        payloads += found.payloads[:count]
        if count:
            at = found.ends[count - 1]
        if count < len(found.payloads):
            break
    if not payloads:
        raise Overloaded("the lake does not hold what the catalog says")
    return payloads, at


def _fitting(found: Records, bytes_end: int, until: int, have_some: bool) -> int:
    """How many of the records end within both bounds; the first one of a read comes whatever its size."""
    count = 0
    for end in found.ends:
        if end > until or (end > bytes_end and (count or have_some)):
            break
        count += 1
    return count


def _locate(
    lake: Lake, extents: list[Extent], held_by: Stream, offset: int, wanted: int
) -> tuple[int, list[bytes]]:
    """How many records lie before `offset`, and the `wanted` payloads behind it (memory's included)."""
    seq: int | None = None
    following: list[bytes] = []
    for extent in extents:
        if extent.start > offset:
            break
        if extent.end < offset:
            continue
        before = lake.read(extent, extent.start, offset)
        if extent.start == offset or (before.ends and before.ends[-1] == offset):
            seq = extent.seq_start + len(before.payloads)
        break
    if seq is None:
        raise BadQuery("offset", "it lies inside a message")
    for extent in extents:
        if len(following) >= wanted:
            break
        if extent.end > offset:
            following += lake.read(extent, max(offset, extent.start), extent.end).payloads
    following += held_by.timeline.payloads[: max(0, wanted - len(following))]
    return seq, following[:wanted]


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
