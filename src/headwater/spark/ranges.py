"""Ranges of the log as work: which files hold a range, how far a number of rows reaches, and how work is shared out.

Owns the arithmetic, on what the node tells of its files. Never asks a node and never opens a file.

A range is (after, until] of one group: records with after < position <= until. The same range is the same records for
ever, wherever they lie by now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

PART_BYTES_MAX = 128 << 20
PART_BYTES_MIN = 4 << 20
"""Of files. Each part is a task, and costs 35–40 ms before its first row."""
FAR = 1 << 62

Positions = Mapping[int, int]
"""By group."""


class Range(NamedTuple):
    after: int
    until: int

    @property
    def empty(self) -> bool:
        return self.until <= self.after


class File(NamedTuple):
    """A file of the lake, as the node or the table lists it."""

    path: str
    size_bytes: int
    rows: int
    live_rows: int
    """Rows that a read returns."""
    position_min: int
    position_max: int
    modified_ms: int
    matched_rows: int | None = None
    """How many of them are of chosen streams, at most; None: nobody counted them."""
    ms_min: int | None = None
    ms_max: int | None = None
    """Between which times they were committed; None: nobody says."""

    def bounds(self, column: str) -> tuple[int, int] | None:
        """Between which values of a column of the lake they lie, as far as it is known here."""
        if column == "position":
            return self.position_min, self.position_max
        if column == "ts_ms" and self.ms_min is not None and self.ms_max is not None:
            return self.ms_min, self.ms_max
        return None

    @property
    def chosen_rows(self) -> int:
        """How many a read returns, about."""
        return self.live_rows if self.matched_rows is None else min(self.live_rows, self.matched_rows)

    @property
    def chosen_bytes(self) -> float:
        return self.size_bytes if self.matched_rows is None else self.size_bytes * self.chosen_rows / max(self.rows, 1)

    @property
    def range(self) -> Range:
        return Range(self.position_min - 1, self.position_max)

    def within(self, wanted: Range) -> bool:
        """All its rows are in the range."""
        return wanted.after < self.position_min and self.position_max <= wanted.until

    def meets(self, wanted: Range) -> bool:
        return self.position_min <= wanted.until and wanted.after < self.position_max


class Piece(NamedTuple):
    """A file to read, or the `part`-th of `parts` shares of its row groups."""

    file: File
    live: pa.Table | None = None
    """Which of its rows count (row_group, row_start, row_count); None: all of them."""
    part: int = 0
    parts: int = 1

    @property
    def size_bytes(self) -> float:
        return self.file.size_bytes / self.parts


class Share(NamedTuple):
    """The work of one task on files."""

    pieces: list[Piece]
    whole: list[Range] | None
    """Ranges that no other task reads, so that this one can read them again from other files; None: there are none."""


def file_of(facts: dict[str, Any]) -> File:
    """A file as a group's `lake/files` tells of it. Bounds that it does not know are taken as wide as can be."""
    low, high = facts["position_min"], facts["position_max"]
    return File(
        facts["path"],
        facts["bytes"],
        facts["rows"],
        facts["live_rows"] - facts.get("deleted_rows", 0),
        1 if low is None else low,
        FAR if high is None else high,
        facts["modified_ms"],
        facts.get("matched_rows"),
        facts.get("ms_min"),
        facts.get("ms_max"),
    )


def reach(files: Iterable[File], wanted: Range, rows_max: int | None, bytes_max: int | None) -> tuple[int, int, int]:
    """How far into the range so many rows and bytes of files go: a position, and about how many that were.

    Rows are taken to lie evenly over a file's positions. The position is always after the range's start, as long as
    there is anything in it.
    """
    held = [file for file in files if file.meets(wanted) and file.chosen_rows]
    edges = sorted({edge for file in held for edge in _clipped(file.range, wanted)} | {wanted.until})
    steps = {edge: [0.0, 0.0] for edge in edges}
    for file in held:
        low, high = _clipped(file.range, wanted)
        span = file.position_max - file.position_min + 1
        for index, amount in enumerate((file.chosen_rows, file.chosen_bytes)):
            steps[low][index] += amount / span
            steps[high][index] -= amount / span
    limits = (FAR if rows_max is None else rows_max, FAR if bytes_max is None else bytes_max)
    density, taken, at = [0.0, 0.0], [0.0, 0.0], wanted.after
    for edge in edges:
        width = edge - at
        share = min(
            (
                (limit - had) / (much * width)
                for limit, had, much in zip(limits, taken, density, strict=True)
                if much > 0
            )
            if width
            else (),
            default=1.0,
        )
        if share < 1.0:
            # At least about one row, so that a small limit does not make batches without any.
            step = max(ceil(width * max(share, 0.0)), ceil(1 / density[0]) if density[0] > 0 and not taken[0] else 0)
            step = min(step, width)
            taken = [had + much * step for had, much in zip(taken, density, strict=True)]
            return max(at + step, wanted.after + 1), round(taken[0]), round(taken[1])
        taken = [had + much * width for had, much in zip(taken, density, strict=True)]
        at = edge
        density = [max(much + more, 0.0) for much, more in zip(density, steps[edge], strict=True)]
    return wanted.until, round(taken[0]), round(taken[1])


def limits_by_group(limit: int, left: Positions) -> dict[int, int]:
    """A number of rows or bytes shared out over groups, in proportion to how much of the log each has left to read.

    Together they are `limit`; a group that gets nothing now gets its turn as the others come to have less left.
    """
    total = sum(left.values())
    if not total:
        return dict.fromkeys(left, 0)
    found = {group: limit * much // total for group, much in left.items()}
    # What division leaves goes to those that it cost most; of equal ones to the group with more left to read.
    by_cost = sorted((-(limit * much % total), -much, group) for group, much in left.items() if much)
    for _, _, group in by_cost[: limit - sum(found.values())]:
        found[group] += 1
    return found


def part_bytes(total: int, parts_min: int | None, cores: int) -> float:
    """How many bytes of files a task is to have: tasks are few and large, but one for each core if there is enough."""
    size = min(PART_BYTES_MAX, max(PART_BYTES_MIN, total / max(cores, 1)))
    return max(min(size, total / parts_min), 1) if parts_min is not None else size


def share_out(pieces: Sequence[Piece], wanted: Range, size: float) -> list[Share]:
    """Tasks of about the same size, of the files of one group."""
    total = sum(piece.file.size_bytes for piece in pieces)
    if not pieces:
        return []
    split = [part for piece in pieces for part in _split(piece, size)]
    split.sort(key=lambda piece: (piece.file.position_min, piece.file.path, piece.part))
    size = total / ceil(total / size) if total else 1
    shares: list[list[Piece]] = [[]]
    held = 0.0
    for piece in split:
        # To the nearer side of the mark: otherwise the last task would get very little, or too much.
        if shares[-1] and held + piece.size_bytes / 2 > size * len(shares):
            shares.append([])
        shares[-1].append(piece)
        held += piece.size_bytes
    return _with_ranges(shares, wanted)


def _split(piece: Piece, size: float) -> list[Piece]:
    count = max(1, round(piece.file.size_bytes / size))
    return [piece._replace(part=part, parts=count) for part in range(count)]


def _with_ranges(shares: list[list[Piece]], wanted: Range) -> list[Share]:
    """Each share with the ranges that lie in its files and in no other's."""
    owners: list[tuple[Range, set[int]]] = []
    held = sorted((piece.file.range, number) for number, share in enumerate(shares) for piece in share)
    for span, number in held:
        if owners and span.after < owners[-1][0].until:
            last, who = owners[-1]
            owners[-1] = Range(last.after, max(last.until, span.until)), who | {number}
        else:
            owners.append((span, {number}))
    shared = {number for _, who in owners if len(who) > 1 for number in who}
    mine: list[list[Range]] = [[] for _ in shares]
    for span, who in owners:
        for number in who:
            mine[number].append(Range(*_clipped(span, wanted)))
    return [Share(share, None if number in shared else mine[number]) for number, share in enumerate(shares)]


def _clipped(span: Range, wanted: Range) -> tuple[int, int]:
    return max(span.after, wanted.after), min(span.until, wanted.until)
