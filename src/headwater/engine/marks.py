"""Records by their marks: tags, job keys and the times of scheduled jobs.

Owns the way from a mark to records. Never changes a stream, and adds nothing to the cost of an append.

    held by memory, or settled since the last checkpoint -> an index in memory, made when somebody asks for it
    settled before                                       -> the catalog's table of marks

Marks settle with their records: `LoadedStreams.settle` sets the labels aside, the next checkpoint writes their marks in
its transaction, and until it has, they are found in memory. So memory holds no mark of what the catalog has, however
many that are. Recovery, standbys and restores make the same calls and come to the same marks. The catalog forgets
marks with the extents of a trimmed or deleted stream, in bounded steps.

A fork finds what it shares by its ancestors' marks. Which records are deleted is asked of the stream that is looked in.

A lookup of one mark costs an item of a dict and a point read of SQLite (about 15 µs), once per ancestor, without
waiting. The first lookup in a stream after it grew also indexes what came since (`held_marks`); whoever can wait has
that done in steps first (`make_ready`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from headwater.engine.group import Group
from headwater.engine.held_marks import HeldMarks
from headwater.engine.listing import beyond
from headwater.engine.loaded_stream import LoadedStream
from headwater.model.holes import Run
from headwater.model.marks import LabelledRun
from headwater.model.stream_state import Stream

PAGE_COUNT = 500
"""Rows of the catalog looked at together: about a millisecond of the event loop."""
INDEXED_MAX = 10_000
"""Streams whose marks memory indexes. Overflow: all are forgotten, and indexed again when somebody asks."""
READY_COUNT = 2_500
"""Labels indexed by one step: about a millisecond of the event loop."""


class Marked(NamedTuple):
    mark: str
    run: Run
    """One record."""


class Marks:
    def __init__(self, group: Group) -> None:
        self._group = group
        self._held: dict[int, HeldMarks] = {}

    def tidy(self) -> None:
        """Forgets indexes of what the catalog knows by now. Cost: that of a look at each."""
        for sid, known in list(self._held.items()):
            if known.is_stale(self._settled(known.stream)):
                del self._held[sid]

    def make_ready(self, stream: LoadedStream) -> bool:
        """One step of indexing what memory holds of the stream and its ancestors. True: a lookup has nothing to index,
        until more comes."""
        return all(self._known(level).advance(self._settled(level), READY_COUNT) for level, _, _ in _levels(stream))

    def find(self, stream: LoadedStream, mark: str, count_max: int, first: int = 0) -> list[Run]:
        """Live records with that mark from number `first` on, each a run of its own, in order; `count_max` at most.

        Those that readers cannot see yet are among them.
        """
        found: list[Run] = []
        for held_by, low, high in _levels(stream):
            if len(found) >= count_max:
                break
            known = self._known(held_by)
            fresh = known.refresh(self._settled(held_by))
            number = max(low, first, stream.first_seq)
            if number < fresh and held_by.cold_end > held_by.fork_at:
                self._from_catalog(stream, held_by.sid, mark, number, min(high, fresh), count_max, found)
            numbers = known.numbers(mark)
            for index in range(bisect_left(numbers, max(number, fresh)), len(numbers)):
                one = numbers[index]
                if one >= high or len(found) >= count_max:
                    break
                if not stream.holes.holds(one):
                    found.append(self._run(held_by, one))
        return found

    def _from_catalog(
        self, stream: LoadedStream, sid: int, mark: str, number: int, until: int, count_max: int, found: list[Run]
    ) -> None:
        catalog, holes = self._group.catalog, stream.holes
        while len(found) < count_max:
            number = holes.next_live(number)
            wanted = min(count_max - len(found), PAGE_COUNT)
            rows = catalog.marked(sid, mark, number, until, wanted) if number < until else []
            found += [Run(one, one + 1, begin, end) for one, begin, end in rows if not holes.holds(one)]
            if len(rows) < wanted:
                return
            number = rows[-1][0] + 1

    def find_prefix(
        self, stream: LoadedStream, prefix: str, count_max: int, after: tuple[str, int] = ("", -1)
    ) -> list[Marked]:
        """The same for all marks that begin with `prefix`, which is not empty: see `find_between`."""
        return self.find_between(stream, prefix, beyond(prefix), count_max, after)

    def find_between(
        self, stream: LoadedStream, low: str, high: str, count_max: int, after: tuple[str, int] = ("", -1)
    ) -> list[Marked]:
        """Live records with marks low <= mark < high, ordered by (mark, number), `count_max` at most; none of them is
        at or before `after`. Cost: that of what is found, and of deleted ones with such marks; all without waiting, so
        whoever wants many asks for some at a time."""
        sources = [self._ordered(stream, level, low, high, count_max, after) for level in _levels(stream)]
        if len(sources) == 1:
            return sources[0]
        return sorted(one for found in sources for one in found)[:count_max]

    def _ordered(
        self,
        stream: LoadedStream,
        level: tuple[Stream, int, int],
        low: str,
        high: str,
        count_max: int,
        after: tuple[str, int],
    ) -> list[Marked]:
        """What one stream of a chain has of them, `count_max` at most."""
        held_by, first, last = level
        known = self._known(held_by)
        fresh = known.refresh(self._settled(held_by))
        first = max(first, stream.first_seq)
        found: list[Marked] = []
        if first < fresh and held_by.cold_end > held_by.fork_at:
            at, until = max((low, -1), after), min(last, fresh)
            while len(found) < count_max:
                rows = self._group.catalog.marked_between(held_by.sid, at, high, PAGE_COUNT)
                for mark, number, begin, end in rows:
                    if first <= number < until and not stream.holes.holds(number):
                        found.append(Marked(mark, Run(number, number + 1, begin, end)))
                if len(rows) < PAGE_COUNT:
                    break
                at = rows[-1][0], rows[-1][1]
        held: list[Marked] = []
        first = max(first, fresh)
        for mark in known.between(max(low, after[0]), high):
            numbers = known.numbers(mark)
            # Many records may have one mark: those before the place are not looked through again.
            start = bisect_left(numbers, max(first, after[1] + 1) if mark == after[0] else first)
            for index in range(start, len(numbers)):
                number = numbers[index]
                if number >= last or len(held) >= count_max:
                    break
                if not stream.holes.holds(number):
                    held.append(Marked(mark, self._run(held_by, number)))
            if len(held) >= count_max:
                break
        return sorted(found + held)[:count_max] if held else found[:count_max]

    def _known(self, stream: Stream) -> HeldMarks:
        known = self._held.get(stream.sid)
        if known is None or known.stream is not stream:
            if len(self._held) >= INDEXED_MAX:
                self._held.clear()
            known = self._held[stream.sid] = HeldMarks(stream)
        return known

    def _settled(self, stream: Stream) -> Sequence[LabelledRun]:
        return self._group.loaded.new_marks.get(stream.sid, ())

    def _run(self, stream: Stream, number: int) -> Run:
        """Where a record lies that memory knows of."""
        timeline = stream.timeline
        if number >= timeline.seq:
            index = number - timeline.seq
            return Run(number, number + 1, timeline.begin_of(index), timeline.ends[index])
        settled = self._settled(stream)
        run = settled[bisect_right(settled, number, key=_seq) - 1] if settled else None
        if run is not None and 0 <= (index := number - run.seq) < len(run.ends):
            return Run(number, number + 1, run.ends[index - 1] if index else run.start, run.ends[index])
        raise RuntimeError(f"record {number} of {stream.key} is indexed and not there")


def _seq(run: LabelledRun) -> int:
    return run.seq


def _levels(stream: Stream) -> list[tuple[Stream, int, int]]:
    """The streams of a fork's chain, the oldest first, each with the numbers [first, last) that are its own."""
    found: list[tuple[Stream, int, int]] = []
    last = stream.count
    level: Stream | None = stream
    while level is not None:
        first = 0 if level.forked is None else level.forked.seq
        found.append((level, min(first, last), last))
        last = min(first, last)
        level = level.parent
    return found[::-1]
