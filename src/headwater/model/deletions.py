"""Which rows of the lake are of records that their stream has deleted.

Owns that judgement: extents stay as they were written until a rewrite leaves such rows out, so whoever asks which rows
count takes a stream's deletions off its extents here. Never knows where extents or streams come from.

    extent   |---------------------------|      rows of one file, numbered in the stream
    gone     ====|     |==|        |=====...    what lies before the stream's first record, and its holes
    parts        |-----|  |--------|

Costs a bisection and the holes that lie in the extent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from headwater.model.extents import Extent
from headwater.model.holes import Holes, Run
from headwater.model.row import StreamRow


class Part(NamedTuple):
    extent: Extent
    """Its `ms` and `n` are those of the whole extent's first record, and its position is 0, unless it is the whole."""
    deleted: bool


def has_deleted(row: StreamRow) -> bool:
    """Whether the stream has lost records in another way than by its policy. What its policy lets go of is told apart:
    as a loss."""
    return bool(row.holes) or row.first_seq >= row.evict_floor


class Deletions:
    """Of one stream."""

    def __init__(self, row: StreamRow) -> None:
        self._front = Run(0, row.first_seq, 0, row.earliest)
        self._holes = Holes(row.holes)
        self.kept = row.children > 0
        """Forks may still read what the stream has deleted: no rewrite leaves it out."""

    def parts(self, extent: Extent) -> Iterator[Part]:
        """The extent in order, cut where deleted records begin and end."""
        first, begin, last = extent.seq_start, extent.start, extent.seq_start + extent.row_count
        for run in self._gone(first, last):
            if run.first > first:
                yield Part(_cut(extent, Run(first, run.first, begin, run.begin)), False)
            found = Run(max(first, run.first), min(last, run.last), max(begin, run.begin), min(extent.end, run.end))
            yield Part(_cut(extent, found), True)
            first, begin = found.last, found.end
        if first < last:
            yield Part(_cut(extent, Run(first, last, begin, extent.end)), False)

    def deleted_rows(self, extent: Extent) -> int:
        first, last = extent.seq_start, extent.seq_start + extent.row_count
        return sum(min(last, run.last) - max(first, run.first) for run in self._gone(first, last))

    @property
    def end(self) -> int:
        """No deleted record lies at or after this offset, except ones without bytes that lie there."""
        runs = list(self._holes)
        return runs[-1].end if runs else self._front.end

    def _gone(self, first: int, last: int) -> Iterator[Run]:
        if first < self._front.last:
            yield self._front
        yield from self._holes.runs(first, last)


def _cut(extent: Extent, run: Run) -> Extent:
    count = run.last - run.first
    if count == extent.row_count:
        return extent
    return msgspec.structs.replace(
        extent,
        start=run.begin,
        end=run.end,
        seq_start=run.first,
        row_start=extent.row_start + run.first - extent.seq_start,
        row_count=count,
        position=0,
    )
