"""Holes: records of a stream that were deleted, and do not all lie before the first that is left.

Owns the runs of such records, by their numbers in the stream and by their offsets: neighbouring records are neighbours
in both, so a run is told by two of each, and whoever reads by either passes over it. Never holds the run at the front:
then the stream begins after it (see `stream_state`).

Looking something up takes a bisection. Adding a run moves those after it in memory (40 µs with 100,000 holes); many at
once are merged instead, which moves each of those that are there once.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

MERGE_MIN = 16
HOLES_MAX = 100_000
"""Of one stream: 32 bytes of memory each, and all are written to the catalog when one of them has changed."""


class Run(NamedTuple):
    """Neighbouring records: numbers [first, last), offsets [begin, end)."""

    first: int
    last: int
    begin: int
    end: int


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Run]).decode
_totals = struct.Struct("<QQ")


def totals(packed: bytes) -> tuple[int, int]:
    """How many records packed holes hold, and how many bytes, without unpacking them."""
    if not packed:
        return 0, 0
    count, size = _totals.unpack_from(packed)
    return count, size


class Holes:
    __slots__ = ("_begins", "_ends", "_firsts", "_lasts", "_packed", "bytes", "count")

    def __init__(self, packed: bytes = b"") -> None:
        self._firsts, self._lasts = array("Q"), array("Q")
        self._begins, self._ends = array("Q"), array("Q")
        self._packed: bytes | None = packed
        self.count = 0
        """Records in all runs."""
        self.bytes = 0
        if packed:
            for run in _unpack(packed[_totals.size :]):
                self._insert(len(self._firsts), run)

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Iterator[Run]:
        return map(Run, self._firsts, self._lasts, self._begins, self._ends)

    def packed(self) -> bytes:
        if self._packed is None:
            head = _totals.pack(self.count, self.bytes)
            columns = zip(self._firsts, self._lasts, self._begins, self._ends, strict=True)
            self._packed = head + _pack(list(columns)) if self._firsts else b""
        return self._packed

    # ---- asking -------------------------------------------------------------------------------------------------

    def holds(self, number: int) -> bool:
        index = bisect_right(self._firsts, number) - 1
        return index >= 0 and number < self._lasts[index]

    def next_live(self, number: int) -> int:
        """The first number from this one on that is in no run."""
        index = bisect_right(self._firsts, number) - 1
        return self._lasts[index] if index >= 0 and number < self._lasts[index] else number

    def live_before(self, number: int) -> int:
        """One more than the last number before this one that is in no run; `number` itself when that is the one."""
        index = bisect_left(self._firsts, number) - 1
        return self._firsts[index] if index >= 0 and number <= self._lasts[index] else number

    def after(self, offset: int) -> int:
        """Where a reader at `offset` goes on: there, or at the end of the run that it is in."""
        index = bisect_right(self._begins, offset) - 1
        return self._ends[index] if index >= 0 and offset < self._ends[index] else offset

    def passed(self, offset: int, number: int) -> tuple[int, int]:
        """The same for a reader who knows the number of the record that begins there."""
        index = bisect_right(self._begins, offset) - 1
        if index >= 0 and offset < self._ends[index]:
            return self._ends[index], self._lasts[index]
        return offset, number

    def first_at(self, offset: int) -> int | None:
        """Number of the record that begins there, if that is the first one of a run."""
        index = bisect_left(self._begins, offset)
        return self._firsts[index] if index < len(self._begins) and self._begins[index] == offset else None

    def next_begin(self, offset: int) -> int | None:
        """Where the first run begins that has bytes after `offset`; None when there is none."""
        index = bisect_right(self._ends, offset)
        return self._begins[index] if index < len(self._begins) else None

    def before(self, number: int) -> int:
        """How many deleted records have a smaller number. Linear in the runs before it."""
        index = bisect_left(self._firsts, number)
        total = sum(self._lasts[:index]) - sum(self._firsts[:index])
        return total - max(0, self._lasts[index - 1] - number) if index else total

    def runs(self, first: int, last: int) -> Iterator[Run]:
        """The runs that have numbers in [first, last), whole."""
        index = bisect_right(self._lasts, first)
        while index < len(self._firsts) and self._firsts[index] < last:
            yield Run(self._firsts[index], self._lasts[index], self._begins[index], self._ends[index])
            index += 1

    def live(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The parts of [first, last) that are in no run, in order."""
        for run in self.runs(first, last):
            if run.first > first:
                yield first, run.first
            first = run.last
        if first < last:
            yield first, last

    def without(self, run: Run) -> list[Run]:
        """The parts of `run` that are in no run yet."""
        index = bisect_right(self._lasts, run.first)
        if index == len(self._firsts) or self._firsts[index] >= run.last:
            return [run]
        found = []
        first, begin = run.first, run.begin
        for hole in self.runs(run.first, run.last):
            if hole.first > first:
                found.append(Run(first, hole.first, begin, hole.begin))
            first, begin = hole.last, hole.end
        if first < run.last:
            found.append(Run(first, run.last, begin, run.end))
        return found

    def contradicts(self, run: Run) -> bool:
        """Whether a run that lies between those that are there, by its numbers, does not lie there by its offsets."""
        index = bisect_left(self._firsts, run.first)
        if index:
            last, end = self._lasts[index - 1], self._ends[index - 1]
            if run.begin < end or (run.first == last and run.begin != end):
                return True
        if index < len(self._firsts):
            first, begin = self._firsts[index], self._begins[index]
            if run.end > begin or (run.last == first and run.end != begin):
                return True
        return run.end < run.begin

    def more(self, runs: Iterable[Run]) -> int:
        """How many more runs there would be with these, which lie outside those that are there. Less than none when
        they close gaps."""
        total = 0
        for run in runs:
            index = bisect_left(self._firsts, run.first)
            total += 1
            if index and self._lasts[index - 1] == run.first:
                total -= 1
            if index < len(self._firsts) and self._firsts[index] == run.last:
                total -= 1
        return total

    # ---- changing -----------------------------------------------------------------------------------------------

    def add(self, runs: Sequence[Run]) -> None:
        """Runs that ascend and lie wholly outside those that are there."""
        if len(runs) >= MERGE_MIN:
            self._merge(runs)
            return
        for run in runs:
            index = bisect_left(self._firsts, run.first)
            if index and self._lasts[index - 1] == run.first:
                index -= 1
                run = Run(self._firsts[index], run.last, self._begins[index], run.end)
                self._remove(index)
            if index < len(self._firsts) and self._firsts[index] == run.last:
                run = Run(run.first, self._lasts[index], run.begin, self._ends[index])
                self._remove(index)
            self._insert(index, run)
            self._packed = None

    def _merge(self, runs: Sequence[Run]) -> None:
        old_firsts, old_lasts, old_begins, old_ends = self._firsts, self._lasts, self._begins, self._ends
        firsts, lasts, begins, ends = array("Q"), array("Q"), array("Q"), array("Q")
        at = 0
        for run in runs:
            index = bisect_left(old_firsts, run.first, at)
            if index > at:
                firsts += old_firsts[at:index]
                lasts += old_lasts[at:index]
                begins += old_begins[at:index]
                ends += old_ends[at:index]
            if lasts and lasts[-1] == run.first:
                lasts[-1], ends[-1] = run.last, run.end
            else:
                firsts.append(run.first)
                lasts.append(run.last)
                begins.append(run.begin)
                ends.append(run.end)
            if index < len(old_firsts) and old_firsts[index] == run.last:
                lasts[-1], ends[-1] = old_lasts[index], old_ends[index]
                index += 1
            at = index
            self.count += run.last - run.first
            self.bytes += run.end - run.begin
        self._firsts, self._lasts = firsts + old_firsts[at:], lasts + old_lasts[at:]
        self._begins, self._ends = begins + old_begins[at:], ends + old_ends[at:]
        self._packed = None

    def cut(self, number: int, offset: int) -> tuple[int, int]:
        """The stream begins at that record from now on: forgets what lies before it, and the run that begins there.

        Returns where the stream then begins: number and offset."""
        index = bisect_left(self._lasts, number + 1)
        if index < len(self._firsts) and self._firsts[index] <= number:
            number, offset = self._lasts[index], self._ends[index]
            index += 1
        if index:
            gone = slice(0, index)
            self.count -= sum(self._lasts[gone]) - sum(self._firsts[gone])
            self.bytes -= sum(self._ends[gone]) - sum(self._begins[gone])
            for column in (self._firsts, self._lasts, self._begins, self._ends):
                del column[gone]
            self._packed = None
        return number, offset

    def up_to(self, number: int, offset: int) -> Holes:
        """Those before a record, as a fork that begins there shares them."""
        found = Holes()
        for run in self.runs(0, number):
            found.add([Run(run.first, min(run.last, number), run.begin, min(run.end, offset))])
        return found

    def _insert(self, index: int, run: Run) -> None:
        self._firsts.insert(index, run.first)
        self._lasts.insert(index, run.last)
        self._begins.insert(index, run.begin)
        self._ends.insert(index, run.end)
        self.count += run.last - run.first
        self.bytes += run.end - run.begin

    def _remove(self, index: int) -> None:
        self.count -= self._lasts.pop(index) - self._firsts.pop(index)
        self.bytes -= self._ends.pop(index) - self._begins.pop(index)
