"""Reads that begin in the lake, and questions only the lake can answer.

Owns their threads and their bound. Never blocks the event loop, an append or a live reader: files are fetched and
decoded in a small pool, and the result comes back as a call on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from headwater import spans
from headwater.engine.group import Group
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.pending_answers import Waiter
from headwater.engine.read_ahead import ANSWERS, Ahead
from headwater.engine.read_plan import Cold, Data, Slice, behind_hole, plan, shown
from headwater.errors import BadHeader, BadQuery, BadSnapshotOffset, Failure, GroupMoved, Overloaded
from headwater.histogram import Histogram
from headwater.model import forks
from headwater.model.commands import Command, Create, ForkPoint, PublishSnapshot, Trim
from headwater.model.extents import Extent, Records
from headwater.model.stream_state import Stream
from headwater.ports import BlobsUnavailable, Lake

THREADS = 4
PENDING_MAX = 1_000
"""Reads waiting for the pool; more are answered 503."""
EXTENTS_MAX = 256
"""Extents one read looks at: it answers with what they hold and the client comes back for the rest."""
EXTENTS_FEW = 12
"""Looked up first: where extents are as long as they get, these are enough for a read and what lies ahead of it."""
FOLLOWING_BYTES = 16 << 20
"""What one step of a search for a fork's sub-offset reads."""

Done = Callable[[Slice | Failure], None]
_Found = tuple[list[Data], int, int, int]
"""Payloads, the offset after them, how many records they are, and how many bytes."""
T = TypeVar("T")


class Reads:
    """The way to a stream's records, wherever they are."""

    def __init__(self, group: Group, lake: Lake | None) -> None:
        self._group = group
        self._lake = lake
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="cold-read")
        self._ahead = None if lake is None else Ahead(lake, group.clock.monotonic_s)
        self.pending = 0
        self.reads_count = 0
        self.times = Histogram()
        """Of what waited for a thread of the pool, from when it was asked for."""

    def read(self, stream: LoadedStream, offset: int, bytes_max: int, done: Done, joined: bool = False) -> None:
        """Calls `done` with the records from `offset` on: at once when memory holds them. Raises as `plan` does.

        Who does not ask where records begin says `joined`: that costs the lake no object for each of them.
        """
        part = plan(stream, offset, bytes_max, joined)
        if isinstance(part, Slice):
            done(part)
        else:
            self.fetch(part, done)

    async def read_now(self, stream: LoadedStream, offset: int, bytes_max: int, joined: bool = False) -> Slice:
        """The same for coroutines. Raises the failure."""
        future: asyncio.Future[Slice | Failure] = self._loop.create_future()
        self.read(stream, offset, bytes_max, lambda part: None if future.done() else future.set_result(part), joined)
        found = await future
        if isinstance(found, Failure):
            raise found
        return found

    def fetch(self, cold: Cold, done: Done) -> None:
        """Calls `done` with the records, joined by what memory holds after them as far as `bytes_max` allows."""
        lake = self.lake()
        extents = self._extents(cold)
        self.reads_count += 1

        def finish(result: _Found | Failure) -> None:
            if isinstance(result, Failure):
                done(result)
                return
            if cold.joined:
                self._read_ahead(cold, extents, behind_hole(cold.stream, result[1]))
            part = _completed(cold, *result)
            following = _following_cold(cold, part)
            if following is None:
                done(part)
            else:
                self.fetch(following, lambda more: done(_put_together(cold, part, more)))

        def read() -> _Found:
            found = _joined(lake, extents, cold, True) if cold.joined else None
            return found or _gather(lake, extents, cold)

        at_hand = _at_hand(lake, extents, cold) if cold.joined else None
        if at_hand is not None:
            finish(at_hand)
            return
        span = spans.begin_part("cold read", **{"headwater.group": self._group.number})
        if span is None:
            self.run(read, finish)
            return

        def traced(result: _Found | Failure) -> None:
            span.end(str(result) if isinstance(result, Failure) else None)
            finish(result)

        self.run(read, traced)

    def _extents(self, cold: Cold) -> list[Extent]:
        find, sid = self._group.loaded.extents, cold.held_by.sid
        few = find(sid, cold.offset, EXTENTS_FEW)
        enough = cold.offset + cold.bytes_max * (1 + ANSWERS)
        return few if len(few) < EXTENTS_FEW or few[-1].end >= enough else find(sid, cold.offset, EXTENTS_MAX)

    def _read_ahead(self, cold: Cold, extents: list[Extent], end: int) -> None:
        """A reader that begins at the stream's beginning, or goes on where one was left, is taken to read on."""
        ahead, sid = self._ahead, cold.held_by.sid
        if ahead is None:
            return
        follows = ahead.expects(sid, cold.offset) or cold.offset == cold.stream.earliest
        if end < cold.until:
            behind = (extent for extent in extents if end < extent.end and extent.start < cold.until)
            ahead.left(sid, end, follows, behind, cold.bytes_max, cold.stream.is_json)

    def resolve(self, cold: forks.ColdOffset, key: str, command: Command, waiter: Waiter) -> None:
        """Looks up what a command needs to know about a cold offset, then submits it again with the answer."""
        lake = self.lake()
        fork = command.fork if isinstance(command, Create) else None
        about = key if fork is None else fork.source
        stream = self._group.loaded.find(about)
        if stream is None:
            raise RuntimeError(f"the stream {about} is cold and not there")
        offset = cold.offset
        held_by = forks.holder(stream, offset)
        extents = self._group.loaded.extents(held_by.sid, max(0, offset - 1), 2)
        wanted = 0 if fork is None else fork.sub if stream.is_json else min(fork.sub, 1)

        def look() -> tuple[int, int]:
            place = _looked_up(lake, extents, offset)
            if place is None:
                raise _between_records(command)
            return place

        def counted(place: tuple[int, int] | Failure) -> None:
            if isinstance(place, Failure):
                waiter.resolve(place)
            else:
                seq, position = place[0], place[1] if held_by is stream else 0
                self._following(stream, offset, seq, wanted, [], lambda following: submit(seq, position, following))

        def submit(seq: int, position: int, following: list[forks.Following] | Failure) -> None:
            try:
                if isinstance(following, Failure):
                    raise following
                # Of another stream that took the name meanwhile the answer says nothing: then the command asks anew.
                same = self._group.loaded.find(about)
                again = same is None or same.sid != stream.sid
                asked = command if again else _with(command, stream, offset, seq, position, following)
                self._group.submit(key, asked, waiter)
            except Failure as failure:
                waiter.resolve(failure)

        edge = _at_edge(extents, offset)
        if edge is None:
            self.run(look, counted)
        else:
            counted(edge)

    def _following(
        self,
        stream: LoadedStream,
        offset: int,
        number: int,
        wanted: int,
        found: list[forks.Following],
        done: Callable[[list[forks.Following] | Failure], None],
    ) -> None:
        """Calls `done` with the first `wanted` messages after `offset`, which has that number; with fewer when there
        are no more."""
        if len(found) >= wanted or offset >= stream.visible:
            done(found)
            return

        def more(part: Slice | Failure) -> None:
            if isinstance(part, Failure):
                done(part)
                return
            at, seq, holes = offset, number, stream.holes
            for payload in part.payloads:
                at, seq = holes.passed(at, seq)
                found.append(forks.Following(bytes(payload), at, seq))
                at, seq = at + len(payload), seq + 1
            at, seq = holes.passed(at, seq)
            if min(at, stream.visible) != part.end:
                done(Overloaded("messages behind the offset were deleted meanwhile; try again"))
            else:
                self._following(stream, part.end, seq, wanted, found, done)

        try:
            self.read(stream, offset, FOLLOWING_BYTES, more)
        except Failure as failure:
            done(failure)

    def lake(self) -> Lake:
        if self._lake is None:
            raise RuntimeError("a record is neither in memory nor is there a lake")
        return self._lake

    def run(self, work: Callable[[], T], finish: Callable[[T | Failure], None]) -> None:
        if self._group.left:
            finish(GroupMoved(self._group.number))
            return
        if self.pending >= PENDING_MAX:
            finish(Overloaded("too many reads wait for the lake"))
            return
        self.pending += 1
        now_s = self._group.clock.monotonic_s
        begun_s = now_s()

        def done(result: T | Failure) -> None:
            self.pending -= 1
            self.times.add(now_s() - begun_s)
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
        if self._ahead is not None:
            self._ahead.close()


def _completed(cold: Cold, payloads: list[Data], end: int, count: int, size: int) -> Slice:
    """What the lake gave, and what memory holds after it as far as there is room."""
    stream = cold.stream
    left = cold.bytes_max - size
    try:
        more = plan(stream, end, left) if left > 0 and end < stream.visible else None
    except Failure:
        more = None  # trimmed or closed meanwhile: what was read is still right
    # A plan's first record comes whatever its size: here it is not the first, and has to fit.
    if isinstance(more, Slice) and more.size <= left:
        payloads, end, count, size = [*payloads, *more.payloads], more.end, count + more.count, size + more.size
    return shown(stream, payloads, cold.start, behind_hole(stream, end), count, size)


def _following_cold(cold: Cold, part: Slice) -> Cold | None:
    """The read that has to follow where one stream's records end and those of a fork of it go on in the lake."""
    stream, left = cold.stream, cold.bytes_max - part.size
    if part.end < cold.until or part.end >= stream.visible or left <= 0:
        return None
    try:
        more = plan(stream, part.end, left, cold.joined)
    except Failure:
        return None  # trimmed meanwhile: what was read is still right
    return more if isinstance(more, Cold) and more.held_by is not cold.held_by else None


def _put_together(cold: Cold, part: Slice, more: Slice | Failure) -> Slice:
    """Both as one answer; the first alone when the second failed or does not fit."""
    if isinstance(more, Failure) or part.size + more.size > cold.bytes_max:
        return shown(cold.stream, part.payloads, part.start, part.end, part.count, part.size)
    payloads = [*part.payloads, *more.payloads]
    return shown(cold.stream, payloads, part.start, more.end, part.count + more.count, part.size + more.size)


def _at_hand(lake: Lake, extents: list[Extent], cold: Cold) -> _Found | None:
    """The same as `_joined` when nothing has to be fetched. A failure is met again, and told, by whoever waits."""
    try:
        return _joined(lake, extents, cold, False)
    except (Failure, BlobsUnavailable):
        return None


def _joined(lake: Lake, extents: list[Extent], cold: Cold, wait: bool) -> _Found | None:
    """Stretches of records from the cold offset on, up to its bounds; at least one record. None: see `Lake.stretch`."""
    stretches: list[Data] = []
    at, count, size = cold.offset, 0, 0
    for extent, begin, end in _parts(extents, cold.pieces):
        limit = min(end, begin + cold.bytes_max - size)
        if stretches and begin >= limit:
            break
        found = lake.stretch(extent, begin, limit, cold.stream.is_json, wait)
        if found is None:
            return None
        if found.start != begin:
            raise _inside()
        if not found.count or found.end > (limit if stretches else end):
            break  # the rest does not fit
        stretches.append(found.data)
        at, count, size = found.end, count + found.count, size + found.end - begin
        if at < end:
            break
    if not stretches:
        raise _nothing(extents, at)
    return stretches, at, count, size


def _gather(lake: Lake, extents: list[Extent], cold: Cold) -> _Found:
    """Payloads from the cold offset on, up to its bounds; at least one record."""
    payloads: list[Data] = []
    at, size = cold.offset, 0
    for extent, begin, end in _parts(extents, cold.pieces):
        limit = begin + cold.bytes_max - size
        if payloads and begin >= limit:
            break
        found = lake.read(extent, begin, max(min(end, limit), begin + 1))
        if found.start != begin:
            raise _inside()
        count = _fitting(found, limit, end, bool(payloads))
        payloads += found.payloads[:count]
        if count:
            at = found.ends[count - 1]
            size += at - begin
        if at < end:
            break  # the rest of it does not fit
    if not payloads:
        raise _nothing(extents, at)
    return payloads, at, len(payloads), size


def _parts(extents: list[Extent], pieces: list[tuple[int, int]]) -> Iterator[tuple[Extent, int, int]]:
    """Each piece as far as an extent holds it: where it begins and ends there. Ends early where extents are missing."""
    found = 0
    for begin, end in pieces:
        while begin < end:
            if found == len(extents):
                return
            extent = extents[found]
            if extent.end <= begin:
                found += 1
                continue
            yield extent, begin, min(end, extent.end)
            begin = extent.end


def _nothing(extents: list[Extent], at: int) -> Failure:
    if extents and extents[0].start < at:
        return _inside()  # it lies inside the last record that the lake holds
    return Overloaded("the lake does not hold what the catalog says")


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


def _at_edge(extents: list[Extent], offset: int) -> tuple[int, int] | None:
    """How many records lie before `offset`, and the log position of the last: when extents alone tell."""
    for extent in extents:
        if extent.end == offset:
            return extent.seq_start + extent.row_count, extent.position
        if extent.start == offset:
            return extent.seq_start, 0
    return None


def _looked_up(lake: Lake, extents: list[Extent], offset: int) -> tuple[int, int] | None:
    """The same where the lake has to be read. None inside a record."""
    for extent in extents:
        if extent.start < offset < extent.end:
            before = lake.read(extent, extent.start, offset)
            if before.ends and before.ends[-1] == offset:
                return extent.seq_start + len(before.payloads), before.positions[-1]
    return None


def _between_records(command: Command) -> Failure:
    if isinstance(command, PublishSnapshot):
        return BadSnapshotOffset("it is not the end of a message")
    if isinstance(command, Create):
        return BadHeader("Stream-Fork-Offset", "it lies inside a message")
    return BadQuery("offset", "it lies inside a message")


def _with(
    command: Command, stream: Stream, offset: int, seq: int, position: int, following: list[forks.Following]
) -> Command:
    if isinstance(command, Trim | PublishSnapshot):
        return msgspec.structs.replace(command, seq=seq, position=position)
    if isinstance(command, Create) and command.fork is not None:
        fork = command.fork
        at = offset
        prefix: list[bytes] = []
        if fork.sub:
            at, seq, prefix = forks.sub_offset(stream.is_json, fork.sub, following)
        return msgspec.structs.replace(command, fork=msgspec.structs.replace(fork, point=ForkPoint(at, seq, prefix)))
    raise RuntimeError(f"{command!r} does not ask for a place")
