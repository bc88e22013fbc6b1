"""Records by number: those after a cursor, as topics are read, and where a record begins.

Owns the way from a number to records, through memory where it holds them and through the lake where it does not. Never
blocks the event loop, never changes a stream, and never shows a record that was deleted, not even one that was while
the lake was being read.

    number -> (holes passed over) -> memory: an index of the timeline that holds it
                                  -> lake: the extent, by halving on `Extent.seq_start`, then rows of it

Numbers count from 0 inside; what leaves here is a `seq`, which counts from 1. Numbers go on from an ancestor's records
into a fork's own. Which records are deleted is asked of the stream that is read, never of the ancestor that holds them.

Offsets of numbers are remembered where a read ended, because whoever reads on begins there: such a read costs no search
and copies nothing that it does not answer with.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from headwater.engine.group import Group
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.read_plan import shown_count
from headwater.engine.reads import Reads
from headwater.errors import Failure, Overloaded
from headwater.model import forks
from headwater.model.extents import Extent
from headwater.model.holes import Run
from headwater.model.labels import Labels
from headwater.model.stream_state import Stream
from headwater.ports import Lake

EXTENTS_MAX = 64
"""Extents one step looks at."""
RUNS_MAX = 1_000
"""Holes one step passes over."""
PLACES_MAX = 4_096
"""Offsets remembered: one for each reader that goes through the lake. Overflow: the oldest go, and are searched for."""
CHUNK_BYTES = 64 << 10
"""Copied from a row group at least: where holes are, not everything that is copied is answered with."""


class TopicRecord(NamedTuple):
    seq: int
    ms: int
    payload: bytes | memoryview
    labels: Labels | None
    end: int = 0
    """The offset after it, when it was read from the lake; 0: memory tells."""


Done = Callable[[list[TopicRecord] | Failure], None]


class _Wanted(NamedTuple):
    stream: LoadedStream
    count_max: int
    bytes_max: int


class _Stretch(NamedTuple):
    """Numbers [number, until) of `held_by` that the lake holds."""

    held_by: Stream
    number: int
    until: int
    offset: int | None
    """Where `number` begins, if that is known."""


class _Step(NamedTuple):
    found: list[TopicRecord]
    number: int
    """The next one to look at."""
    offset: int | None


class RecordReads:
    def __init__(self, group: Group, reads: Reads) -> None:
        self._group = group
        self._reads = reads
        self._places: OrderedDict[tuple[int, int], int] = OrderedDict()
        """(sid, number) -> offset. That of a record never changes."""

    def read(self, stream: LoadedStream, from_seq: int, count_max: int, bytes_max: int, done: Done) -> None:
        """Calls `done` with visible records after `from_seq`, in order: at once when memory holds them.

        At most `count_max`, and beyond the first no more than `bytes_max` of payload; none means that there is none,
        but there may be more than those given.
        """
        self._walk(_Wanted(stream, count_max, bytes_max), from_seq, done)

    def offset_of(self, stream: LoadedStream, number: int, done: Callable[[int | Failure], None]) -> None:
        """Calls `done` with where record `number` (from 0) begins: at once when memory can tell.

        For one that was deleted, where the deleted ones around it end: nothing need hold it any more. The earliest
        offset for one that the stream has let go of, the tail for one that it never had.
        """
        number = stream.holes.next_live(number)
        if number >= stream.count:
            done(stream.tail)
            return
        held_by, _ = forks.holder_of(stream, number)
        offset = self._known(stream, held_by, max(number, stream.first_seq))
        if offset is not None:
            done(offset)
        elif number >= held_by.timeline.seq:
            done(held_by.timeline.begin_of(number - held_by.timeline.seq))
        else:
            self._look_up(stream, held_by, number, done)

    # ---- one step after the other ---------------------------------------------------------------------------------

    def _walk(self, wanted: _Wanted, number: int, done: Done) -> None:
        """From one stretch of records to the next, be it in memory or in the lake, until some are there."""
        stream = wanted.stream
        shown = shown_count(stream)
        while True:
            number = stream.holes.next_live(max(number, stream.first_seq))
            if number >= shown:
                done([])
                return
            held_by, until = forks.holder_of(stream, number)
            until = min(until, shown)
            if number < held_by.timeline.seq:
                until = min(until, held_by.timeline.seq)
                offset = self._known(stream, held_by, number)
                self._ask_lake(wanted, _Stretch(held_by, number, until, offset), done)
                return
            found = _from_memory(wanted, held_by, number, until)
            if found:
                done(found)
                return
            number = until

    def _ask_lake(self, wanted: _Wanted, stretch: _Stretch, done: Done) -> None:
        lake = self._reads.lake()
        stream, sid = wanted.stream, stretch.held_by.sid
        runs = list(islice(stream.holes.runs(stretch.number, stretch.until), RUNS_MAX))
        if len(runs) == RUNS_MAX:
            stretch = stretch._replace(until=min(stretch.until, runs[-1].last))
        extents = self._extents(stream, stretch)

        def finish(step: _Step | Failure) -> None:
            if isinstance(step, Failure):
                done(step)
                return
            if step.number <= stretch.number:
                done(Overloaded("the lake does not hold what the catalog says"))
                return
            if step.offset is not None:
                self._remember(sid, step.number, step.offset)
            # What was deleted meanwhile is not shown any more.
            first, holes = stream.first_seq, stream.holes
            found = [one for one in step.found if one.seq > first and not holes.holds(one.seq - 1)]
            if found:
                done(found)
            else:
                self._walk(wanted, step.number, done)

        self._reads.reads_count += 1
        self._reads.run(lambda: _from_lake(lake, extents, runs, wanted, stretch), finish)

    def _look_up(
        self, stream: LoadedStream, held_by: Stream, number: int, done: Callable[[int | Failure], None]
    ) -> None:
        lake = self._reads.lake()
        extents = self._extents(stream, _Stretch(held_by, number, number + 1, None))[:1]

        def look() -> int:
            for extent in extents:
                if number <= extent.seq_start:
                    return extent.start
                records = lake.read(extent, extent.start, extent.end)
                if records.ends:
                    return records.ends[min(number - extent.seq_start, len(records.ends)) - 1]
            raise Overloaded("the lake does not hold what the catalog says")

        def finish(offset: int | Failure) -> None:
            if not isinstance(offset, Failure):
                self._remember(held_by.sid, number, offset)
            done(offset)

        self._reads.reads_count += 1
        self._reads.run(look, finish)

    # ---- where a number is ----------------------------------------------------------------------------------------

    def _known(self, stream: LoadedStream, held_by: Stream, number: int) -> int | None:
        """Where a record begins, when that needs no search."""
        if number == stream.first_seq:
            return stream.earliest
        before = next(stream.holes.runs(number - 1, number), None)
        if before is not None and before.last == number:
            return before.end
        offset = self._places.get((held_by.sid, number))
        if offset is not None:
            self._places.move_to_end((held_by.sid, number))
        return offset

    def _remember(self, sid: int, number: int, offset: int) -> None:
        self._places[sid, number] = offset
        if len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)

    def _extents(self, stream: LoadedStream, stretch: _Stretch) -> list[Extent]:
        """The extent that holds the number, and those after it. Halving takes few lookups."""
        extents, held_by = self._group.loaded.extents, stretch.held_by
        start = stretch.offset
        if start is None:
            start = low = max(stream.earliest, held_by.fork_at)
            high = held_by.timeline.start
            while low < high:
                middle = (low + high) // 2
                at = extents(held_by.sid, middle, 1)
                if not at or at[0].start >= high or at[0].seq_start > stretch.number:
                    high = min(middle, at[0].start if at else high)
                else:
                    start, low = max(start, at[0].start), at[0].end
        # The number may be that of a record without bytes at the end of the extent before.
        found = extents(held_by.sid, max(start - 1, 0), EXTENTS_MAX)
        return [
            extent
            for extent in found
            if extent.seq_start < stretch.until and extent.seq_start + extent.row_count > stretch.number
        ]


def _from_memory(wanted: _Wanted, held_by: Stream, number: int, until: int) -> list[TopicRecord]:
    """The live ones of [number, until), as many as are wanted. Linear in those, and in the holes between them."""
    timeline, room_bytes = held_by.timeline, wanted.bytes_max
    found: list[TopicRecord] = []
    for low, high in wanted.stream.holes.live(number, until):
        first, begin = low - timeline.seq, timeline.begin_of(low - timeline.seq)
        fitting = timeline.index_until(begin + max(room_bytes, 0)) + timeline.seq
        last = min(high, low + wanted.count_max - len(found), max(fitting, low if found else low + 1))
        if last > low:
            index = last - timeline.seq
            room_bytes -= timeline.ends[index - 1] - begin
            labels = [None] * (last - low) if timeline.labels is None else timeline.labels[first:index]
            columns = (timeline.ms[first:index], timeline.payloads[first:index], labels)
            found += map(TopicRecord, range(low + 1, last + 1), *columns)
        if last < high:
            break
    return found


def _from_lake(lake: Lake, extents: list[Extent], runs: list[Run], wanted: _Wanted, stretch: _Stretch) -> _Step:
    """The same out of the lake, in a worker thread. `runs`: the holes in the stretch."""
    number, offset = stretch.number, stretch.offset
    found: list[TopicRecord] = []
    room_bytes = wanted.bytes_max
    firsts = [run.first for run in runs]
    for extent in extents:
        if extent.seq_start > number:
            number, offset = extent.seq_start, extent.start
        last = min(extent.seq_start + extent.row_count, stretch.until)
        while number < last:
            begin = extent.start if offset is None else max(offset, extent.start)
            end = extent.end if offset is None else begin + max(room_bytes, CHUNK_BYTES)
            records = lake.read(extent, begin, max(end, begin + 1), labels=True)
            labels = records.labels
            if not records.payloads or records.seq_start + len(records.payloads) <= number:
                # Nothing of it is there: on, rather than for ever.
                number, offset = last, None
                break
            for index, payload in enumerate(records.payloads):
                one = records.seq_start + index
                if one < number:
                    continue
                if one >= last:
                    return _Step(found, number, offset)
                hole = bisect_right(firsts, one) - 1
                if hole >= 0 and one < runs[hole].last:
                    number, offset = runs[hole].last, runs[hole].end
                    continue
                room_bytes -= len(payload)
                if found and room_bytes < 0:
                    return _Step(found, number, offset)
                number, offset = one + 1, records.ends[index]
                found.append(TopicRecord(number, records.ms[index], payload, labels[index] if labels else None, offset))
                if len(found) >= wanted.count_max:
                    return _Step(found, number, offset)
    return _Step(found, number, offset)
