"""What the extents of one stream have to be like, each by itself and beside its neighbours.

Owns the rules that every check of a lake holds extents against, and what is said of one that breaks them. Never knows
where extents come from: `lake/verify.py` has them from the catalog, `spark/lake_checks.py` from the files' rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headwater.model.holes import Holes

Gone = Sequence[Holes]
"""Records that were deleted, so that nothing has to hold them: by the stream itself, or by its forks. What a source
has deleted before a fork left it the fork lacks too, also when the source has forgotten it since."""
Fault = tuple[str, str]
"""Its kind, and what is wrong."""


class Part(NamedTuple):
    """An extent, as far as the rules look at it."""

    start: int
    end: int
    seq: int
    rows: int

    @property
    def seq_end(self) -> int:
        return self.seq + self.rows


def first_needed(earliest: int, need: int | None, fork_at: int) -> int:
    """The offset from which on a stream's own records have to be there. `need`: the lowest one that forks need."""
    return max(fork_at, earliest if need is None else min(earliest, need))


def shape(part: Part) -> Iterator[Fault]:
    if part.end < part.start or part.rows <= 0:
        yield "extent", f"an extent from {part.start} to {part.end} of {part.rows} rows"


def beginning(part: Part, first: int, cold_end: int, earliest: int, first_seq: int, gone: Gone = ()) -> Iterator[Fault]:
    """Of a stream's first extent. `first`: see `first_needed`; records up to `cold_end` have settled."""
    if part.start > first and first < cold_end and not _bytes_gone(gone, first, part.start):
        yield "gap", f"nothing holds its records from {first} to {part.start}"
    if part.start == earliest and part.seq != first_seq:
        yield "seq", f"its first record is number {first_seq}, its first extent begins with {part.seq}"


def joint(last: Part, part: Part, gone: Gone = (), first: int = 0) -> Iterator[Fault]:
    """Of two extents that follow each other. Of what lies before `first` nobody knows any more what was deleted."""
    if part.start < last.end:
        yield "overlap", f"two extents hold its records from {part.start} to {last.end}"
    elif part.seq > last.seq_end and (part.start <= first or _all_gone(gone, last, part)):
        return
    elif part.start > last.end:
        yield "gap", f"nothing holds its records from {last.end} to {part.start}"
    elif part.seq != last.seq_end:
        yield "seq", f"record {last.seq_end} should begin at {part.start}, not {part.seq}"


def ending(end: int, cold_end: int, gone: Gone = ()) -> Iterator[Fault]:
    """Of where a stream's extents end: that of the last one, or `first_needed` when there is none."""
    if end < cold_end and not _bytes_gone(gone, end, cold_end):
        yield "gap", f"its records settled up to {cold_end}, but extents end at {end}"


def counted(last: Part, count: int, gone: Gone = ()) -> Iterator[Fault]:
    """Of a stream whose last record is in its last extent, or deleted."""
    if last.seq_end != count and not _numbers_gone(gone, last.seq_end, count):
        yield "seq", f"it has {count} records, its extents end with {last.seq_end}"


def _all_gone(gone: Gone, last: Part, part: Part) -> bool:
    """What lies between two extents was deleted, by the numbers of records as by their bytes."""
    return any(
        _numbers_gone([holes], last.seq_end, part.seq) and _bytes_gone([holes], last.end, part.start) for holes in gone
    )


def _bytes_gone(gone: Gone, begin: int, end: int) -> bool:
    return begin == end or any(holes.after(begin) >= end for holes in gone)


def _numbers_gone(gone: Gone, first: int, last: int) -> bool:
    return any(holes.next_live(first) >= last > first for holes in gone)
