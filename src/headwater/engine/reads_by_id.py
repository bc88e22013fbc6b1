"""Records by id: those that answer a READ, and the place where a TRIM cuts.

Owns the way from an id to records, through memory where it holds them and through the lake where it does not. Never
blocks the event loop and never changes a stream.

Ids grow strictly along a stream, through its ancestors' records into its own: what lies before the first record that
is large enough is passed over unread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import msgspec

from headwater.engine.group import Group
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.reads import Reads
from headwater.errors import Failure, Overloaded
from headwater.model import forks
from headwater.model.extents import Extent, Records
from headwater.model.stream_state import Stream

EXTENTS_MAX = 64
"""Extents one step looks at."""

Record = tuple[int, int, bytes]
"""(ms, n, payload)"""


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
        offset = max(offset, stream.earliest)
        while offset < stream.visible:
            held_by = forks.holder(stream, offset)
            timeline = held_by.timeline
            until = min(stream.visible, forks.limit_of(stream, held_by))
            if offset < timeline.start:
                self._ask_lake(wanted, held_by, offset, min(until, timeline.start), done)
                return
            first = max(timeline.index_until(offset), timeline.index_id(wanted.ms, wanted.n))
            last = timeline.index_until(until)
            if first < last:
                done(_from_memory(wanted, held_by, first, last), Place(timeline.begin_of(first), None))
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
        extents = self._extents(wanted, held_by.sid, offset, until)

        def read() -> tuple[list[Record], Place]:
            found: list[Record] = []
            place = Place(until, None)
            room_bytes = wanted.bytes_max
            for extent in extents:
                records = lake.read(extent, max(offset, extent.start), min(until, extent.end))
                first = _first(records, wanted.ms, wanted.n)
                if first < len(records.payloads) and not found:
                    begin = records.ends[first - 1] if first else records.start
                    place = Place(begin, records.seq_start + first)
                for index in range(first, len(records.payloads)):
                    payload = records.payloads[index]
                    room_bytes -= len(payload)
                    if found and room_bytes < 0:
                        return found, place
                    found.append((records.ms[index], records.n[index], payload))
                    if len(found) == wanted.count_max:
                        return found, place
            return found, place

        def finish(result: tuple[list[Record], Place] | Failure) -> None:
            if isinstance(result, Failure):
                done(result, Place(offset, None))
            elif result[0]:
                done(*result)
            else:
                self._walk(wanted, min(until, extents[-1].end), done)

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


def _from_memory(wanted: _Wanted, held_by: Stream, first: int, last: int) -> list[Record]:
    timeline = held_by.timeline
    last = min(last, first + wanted.count_max)
    begin = timeline.begin_of(first)
    if timeline.ends[last - 1] - begin > wanted.bytes_max:
        last = max(first + 1, timeline.index_until(begin + wanted.bytes_max))
    return list(zip(timeline.ms[first:last], timeline.n[first:last], timeline.payloads[first:last], strict=True))


def _first(records: Records, ms: int, n: int) -> int:
    """Index of the first record whose id is at least `ms-n`."""
    return bisect_left(list(zip(records.ms, records.n, strict=True)), (ms, n))
