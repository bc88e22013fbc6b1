"""Records by id: those that answer a READ, and the place where a TRIM cuts.

Owns the way from an id to records, through memory where it holds them and through the lake where it does not. Never
blocks the event loop and never changes a stream.

Ids grow strictly along a stream, through its ancestors' records into its own: what lies before the first record that
is large enough is passed over unread. Deleted records are passed over too: which those are is asked of the stream that
is read, before the lake is and after it has answered.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import islice

import msgspec

from headwater.engine.group import Group
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.read_plan import behind_hole
from headwater.engine.reads import Reads
from headwater.errors import Failure, Overloaded
from headwater.model import forks
from headwater.model.extents import Extent, Records
from headwater.model.holes import Run
from headwater.model.stream_state import Stream

EXTENTS_MAX = 64
"""Extents one step looks at."""
RUNS_MAX = 1_000
"""Holes one step passes over."""

Record = tuple[int, int, bytes]
"""(ms, n, payload)"""


_Numbered = tuple[int, int, Record]
"""A record's number and the offset after it."""


class Place(msgspec.Struct, frozen=True):
    """Where the first record with a large enough id begins."""

    offset: int
    seq: int | None
    """How many records lie before it, where memory could not tell."""


class _Wanted(msgspec.Struct, frozen=True):
    stream: LoadedStream
    ms: int
    n: int
    count_max: int
    bytes_max: int


class ReadsById:
    def __init__(self, group: Group, reads: Reads) -> None:
        self._group = group
        self._reads = reads

    def read(
        self,
        stream: LoadedStream,
        ms: int,
        n: int,
        count_max: int,
        bytes_max: int,
        done: Callable[[list[Record] | Failure], None],
        after: int = 0,
    ) -> None:
        """Calls `done` with visible records from id `ms-n` on, oldest first: at once when memory holds them.

        At most `count_max`, and beyond the first no more than `bytes_max`; none means that there is none, but there may
        be more than those given. `after` is an offset before which no record is known to be large enough.
        """
        wanted = _Wanted(stream, ms, n, count_max, bytes_max)
        self._walk(wanted, max(after, _start(stream, ms, n)), lambda found, _: done(found))

    def place(self, stream: LoadedStream, ms: int, n: int, done: Callable[[Place | Failure], None]) -> None:
        """Calls `done` with where the first visible record with an id of at least `ms-n` begins, else with the tail."""

        def finish(found: list[Record] | Failure, place: Place) -> None:
            done(found if isinstance(found, Failure) else place)

        self._walk(_Wanted(stream, ms, n, 1, 1), _start(stream, ms, n), finish)

    def _walk(self, wanted: _Wanted, offset: int, done: Callable[[list[Record] | Failure, Place], None]) -> None:
        """From one stretch of records to the next, be it in memory or in the lake, until some are large enough."""
        stream = wanted.stream
        while True:
            offset = behind_hole(stream, max(offset, stream.earliest))
            if offset >= stream.visible:
                break
            held_by = forks.holder(stream, offset)
            timeline = held_by.timeline
            until = min(stream.visible, forks.limit_of(stream, held_by))
            if offset < timeline.start:
                self._ask_lake(wanted, held_by, offset, min(until, timeline.start), done)
                return
            first = max(timeline.index_until(offset), timeline.index_id(wanted.ms, wanted.n))
            found = _from_memory(wanted, held_by, first, timeline.index_until(until))
            if found is not None:
                done(*found)
                return
            offset = until
        done([], Place(stream.visible, None))

    def _ask_lake(
        self,
        wanted: _Wanted,
        held_by: Stream,
        offset: int,
        until: int,
        done: Callable[[list[Record] | Failure, Place], None],
    ) -> None:
        lake = self._reads.lake()
        stream = wanted.stream
        extents = self._extents(wanted, held_by.sid, offset, until)
        runs, cut = _runs(stream, extents)

        def read() -> list[_Numbered]:
            found: list[_Numbered] = []
            room_bytes = wanted.bytes_max
            for extent in extents:
                if cut is not None and extent.seq_start >= cut.last:
                    break
                records = lake.read(extent, max(offset, extent.start), min(until, extent.end))
                for index in range(_first(records, wanted.ms, wanted.n), len(records.payloads)):
                    number = records.seq_start + index
                    if cut is not None and number >= cut.last:
                        return found
                    if runs and _among(runs, number):
                        continue
                    payload = records.payloads[index]
                    room_bytes -= len(payload)
                    if found and room_bytes < 0:
                        return found
                    found.append((number, records.ends[index], (records.ms[index], records.n[index], payload)))
                    if len(found) == wanted.count_max:
                        return found
            return found

        def finish(result: list[_Numbered] | Failure) -> None:
            if isinstance(result, Failure):
                done(result, Place(offset, None))
                return
            # What was deleted meanwhile is not shown any more.
            first, holes = stream.first_seq, stream.holes
            found = [one for one in result if one[0] >= first and not holes.holds(one[0])]
            if found:
                number, end, record = found[0]
                done([record for _, _, record in found], Place(end - len(record[2]), number))
                return
            passed = min(until, extents[-1].end, until if cut is None else cut.end)
            self._walk(wanted, result[-1][1] if result else passed, done)

        if extents:
            self._reads.reads_count += 1
            self._reads.run(read, finish)
        else:
            done(Overloaded("the lake does not hold what the catalog says"), Place(offset, None))

    def _extents(self, wanted: _Wanted, sid: int, offset: int, until: int) -> list[Extent]:
        """The last extent that begins at or before the id, and those after it. Halving takes few lookups."""
        extents = self._group.loaded.extents
        low, high, start = offset, until, offset
        while low < high:
            at = extents(sid, (low + high) // 2, 1)
            if not at or at[0].start >= high or (at[0].ms, at[0].n) > (wanted.ms, wanted.n):
                high = min((low + high) // 2, at[0].start if at else high)
            else:
                start, low = max(start, at[0].start), at[0].end
        return [extent for extent in extents(sid, start, EXTENTS_MAX) if extent.start < until]


def _start(stream: LoadedStream, ms: int, n: int) -> int:
    """An offset at or before the first record that is large enough, as late as memory can tell."""
    if (ms, n) > (stream.last_ms, stream.last_n):
        return stream.visible
    timeline = stream.timeline
    if timeline.payloads and (timeline.ms[0], timeline.n[0]) <= (ms, n):
        return max(stream.earliest, timeline.start)
    return stream.earliest


def _runs(stream: LoadedStream, extents: list[Extent]) -> tuple[list[Run], Run | None]:
    """The holes among the extents' records; and the last of them, when there are more than one step passes over."""
    if not stream.holes.count or not extents:
        return [], None
    last = extents[-1].seq_start + extents[-1].row_count
    runs = list(islice(stream.holes.runs(extents[0].seq_start, last), RUNS_MAX))
    return runs, runs[-1] if len(runs) == RUNS_MAX else None


def _among(runs: list[Run], number: int) -> bool:
    index = bisect_right(runs, number, key=_first_of) - 1
    return index >= 0 and number < runs[index].last


def _first_of(run: Run) -> int:
    return run.first


def _from_memory(wanted: _Wanted, held_by: Stream, first: int, last: int) -> tuple[list[Record], Place] | None:
    """The live ones of those records of a timeline, as many as are wanted; None when there is none."""
    timeline, room_bytes = held_by.timeline, wanted.bytes_max
    found: list[Record] = []
    place = None
    for low, high in wanted.stream.holes.live(timeline.seq + first, timeline.seq + last):
        first, last = low - timeline.seq, high - timeline.seq
        begin = timeline.begin_of(first)
        if place is None:
            place = Place(begin, None)
        last = min(last, first + wanted.count_max - len(found))
        if timeline.ends[last - 1] - begin > room_bytes:
            last = max(first if found else first + 1, timeline.index_until(begin + max(room_bytes, 0)))
        if last > first:
            found += zip(timeline.ms[first:last], timeline.n[first:last], timeline.payloads[first:last], strict=True)
            room_bytes -= timeline.ends[last - 1] - begin
        if last < high - timeline.seq or len(found) == wanted.count_max:
            break
    return None if place is None else (found, place)


def _first(records: Records, ms: int, n: int) -> int:
    """Index of the first record whose id is at least `ms-n`."""
    return bisect_left(list(zip(records.ms, records.n, strict=True)), (ms, n))
