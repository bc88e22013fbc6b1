"""What an executor does for a read: its share of files, and the records that are not in the lake yet.

Owns the promise that a range is read whole and once, however files change and records settle meanwhile. Never decides
who reads what: planning does.

    files of the share ---------> rows in the range, live, wanted
    hot range --feed--> rows      410: it has settled, read it from the lake's newest files
                                  partly settled: the feed, and what of the range lies in files
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.lake.store import ObjectMissing, ObjectStore
from headwater.spark.lake_file import LakeFile, extents_of, live_mask, spans
from headwater.spark.lake_place import Place, place_of
from headwater.spark.node import DataLoss, LogChanged, Node, NodeError, NodeRefused
from headwater.spark.ranges import File, Piece, Range, file_of
from headwater.spark.row_filters import RowFilter
from headwater.spark.selection import Selection
from headwater.spark.stream_bounds import Bounds

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEED_BYTES = 16 << 20
ATTEMPTS_MAX = 100
PAUSE_S = 0.05
Trims = tuple["NDArray[np.int64]", "NDArray[np.int64]"]
"""Incarnations, in order, and the offset at which the oldest record left of each begins."""


class FilesGone(Exception):
    """Files that the read was planned on are gone, and others hold their rows now: plan it again."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is not in the lake any more: its rows moved to another file since this read was planned, and "
            "longer ago than the lake's grace period. Run the query again"
        )
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return FilesGone, (self.path,)


class Work(NamedTuple):
    """What all tasks of a read have in common. Pickles."""

    node: Node | None
    place: Place | None
    """None: none of it is in the lake, or the node is asked where that is."""
    selection: Selection
    columns: tuple[str, ...]
    """Of the lake."""
    trims: Trims | None = None
    bounds: Bounds | None = None
    """What of the rows is wanted beside ranges and choice."""
    where: RowFilter | None = None

    @property
    def sifting(self) -> set[str]:
        """Columns of the lake that the last two look at."""
        parts = (self.bounds, self.where)
        return {name for one in parts if one is not None for name in one.columns}


class Task(NamedTuple):
    """A part of the read, of one group: files, or a range that may not be in the lake yet. Pickles."""

    group: int
    wanted: Range
    """Bounds for the rows of the files."""
    pieces: list[Piece]
    whole: list[Range] | None
    """See `ranges.Share`."""
    hot: Range | None = None
    size_bytes: float = 0
    """About how much it is to read."""


class Listing(NamedTuple):
    """A group's files as the node knows them: all up to `position` is in them, and maybe some of what follows."""

    position: int
    place: Place
    files: list[File]


def rows_of(work: Work, task: Task) -> Iterator[pa.Table]:
    """The rows of a task, with the lake's columns. Raises StoreError, NodeError, DataLoss or FilesGone."""
    try:
        yield from _rows(work, task)
    except LogChanged as changed:
        raise DataLoss(str(changed)) from changed


def _rows(work: Work, task: Task) -> Iterator[pa.Table]:
    if task.pieces:
        if work.place is None:
            raise ValueError("files without a place")
        store = work.place.store()
        try:
            opened = [(piece, LakeFile(store, piece.file.path)) for piece in task.pieces]
        except ObjectMissing as error:
            if task.whole is None or work.node is None:
                raise FilesGone(error.key) from error
            for part in task.whole:
                yield from _range(work, work.node, task.group, part)
        else:
            for piece, file in opened:
                yield from _piece(work, task.wanted, piece, file)
    if task.hot is not None:
        if work.node is None:
            raise ValueError("hot records without a node")
        yield from _range(work, work.node, task.group, task.hot)


# ---- files -------------------------------------------------------------------------------------------------------


def _piece(work: Work, wanted: Range, piece: Piece, file: LakeFile) -> Iterator[pa.Table]:
    footer = file.footer
    share = range(footer.num_row_groups)
    low, high = (len(share) * part // piece.parts for part in (piece.part, piece.part + 1))
    live = None if piece.live is None else spans(file, piece.live)
    names = {footer.schema.column(index).name: index for index in range(footer.num_columns)}
    needs: set[str] = set()
    groups: list[int] = []
    every = piece.file.within(wanted)
    for number in share[low:high]:
        group = footer.row_group(number)

        def bounds(column: str, group: Any = group) -> tuple[Any, Any] | None:
            statistics = group.column(names[column]).statistics
            return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None

        if work.selection.rules_out(bounds) or (work.where is not None and work.where.rules_out(bounds)):
            continue
        known = bounds("position") if not every else None
        if known is not None and (known[1] <= wanted.after or known[0] > wanted.until):
            continue
        groups.append(number)
        needs |= work.selection.needs(bounds)
        if not every and (known is None or not wanted.after < known[0] <= known[1] <= wanted.until):
            needs.add("position")
    if work.trims is not None:
        needs |= {"incarnation", "offset"}
    within = wanted if "position" in needs else None
    if work.where is not None and "payload" in work.columns:
        groups = [number for number in groups if _any(file, number, work.where)]
    for at, rows in file.rows(sorted({*work.columns, *needs, *work.sifting}), groups):
        mask = None if live is None else live_mask(*live, at, len(rows))
        yield _wanted(work, rows, needs, within, mask)


def _any(file: LakeFile, number: int, where: RowFilter) -> bool:
    """Whether any row of a row group comes through: payloads are read only then."""
    return any(pc.any(where.mask(rows)).as_py() for _, rows in file.rows(sorted(where.columns), [number]))


def _wanted(work: Work, rows: pa.Table, needs: set[str], within: Range | None, live: Any) -> pa.Table:
    """Those of the rows that are live, in the range and asked for; of all columns only the ones that are read."""
    masks = [] if live is None else [pa.array(live)]
    if within is not None:
        position = rows["position"]
        masks.append(pc.and_(pc.greater(position, within.after), pc.less_equal(position, within.until)))
    if "bucket" in needs:
        masks.append(work.selection.mask(rows))
    if work.trims is not None:
        masks.append(pa.array(_kept(work.trims, rows)))
    if work.bounds is not None:
        masks.append(work.bounds.mask(rows))
    if work.where is not None:
        masks.append(work.where.mask(rows))
    rows = rows.select(list(dict.fromkeys(work.columns)))
    if not masks:
        return rows
    whole = masks[0]
    for mask in masks[1:]:
        whole = pc.and_(whole, mask)
    return rows.filter(whole)


def _kept(trims: Trims, rows: pa.Table) -> NDArray[np.bool_]:
    """Rows that their stream still has: a trim may lie in the middle of what settled together."""
    incarnations, earliest = trims
    of, offset = rows["incarnation"].to_numpy(), rows["offset"].to_numpy()
    at = np.minimum(np.searchsorted(incarnations, of), len(incarnations) - 1)
    kept: NDArray[np.bool_] = (incarnations[at] != of) | (offset >= earliest[at])
    return kept


# ---- what may not be in the lake yet -------------------------------------------------------------------------------


class _Answer(NamedTuple):
    rows: pa.Table
    position: int
    lake_position: int
    settled_position: int


def _range(work: Work, node: Node, group: int, wanted: Range) -> Iterator[pa.Table]:
    """A range from wherever its records are by now; every step is a part of it, whole."""
    at, until = wanted
    choice = work.selection.choice()
    # Without names of streams the node does the choosing.
    needs = work.selection.needs(lambda column: None) if choice is None else set()
    columns = sorted({*work.columns, *needs, *work.sifting}) or ["seq"]
    idle = 0
    while at < until:
        idle += 1
        if idle > ATTEMPTS_MAX:
            raise NodeError(f"{node.url}: the lake changes too fast to be read from position {at} of group {group} on")
        if idle > 1:
            time.sleep(PAUSE_S)
        answer = feed(node, group, at, until, choice, columns)
        listing = None
        if answer is None or answer.settled_position > at:
            listing = list_files(node, group, work.place)
            # Only now can it be told whether anything settled after the listing: then it is in neither of them.
            answer = feed(node, group, at, until, choice, columns) if listing.position <= at else None
            if answer is not None and answer.lake_position != listing.position:
                continue
        reached = answer.position if answer is not None else min(until, listing.position) if listing is not None else at
        if reached <= at:
            continue
        if listing is not None:
            opened = open_files(node, listing, Range(at, reached))
            if opened is None:
                continue
            for piece, file in opened:
                yield from _piece(work, Range(at, reached), piece, file)
        if answer is not None and len(answer.rows):
            # What a stream has let go of is not in the feed to begin with.
            yield _wanted(work._replace(trims=None), answer.rows, needs, None, None)
        at, idle = reached, 0


def open_files(node: Node, listing: Listing, wanted: Range) -> list[tuple[Piece, LakeFile]] | None:
    """The files that hold a range, open; None when some changed since they were listed."""
    pieces = live_pieces(node, [file for file in listing.files if file.meets(wanted)])
    if pieces is None:
        return None
    store: ObjectStore = listing.place.store()
    try:
        return [(piece, LakeFile(store, piece.file.path)) for piece in pieces]
    except ObjectMissing:
        return None


def list_files(node: Node, group: int, place: Place | None) -> Listing:
    """The files of a group now. `place` takes the place of what the node says of where they are."""
    return listing_of(node.lake_files(group), place)


def listing_of(found: dict[str, Any], place: Place | None) -> Listing:
    files = [file_of(facts) for facts in found["files"]]
    return Listing(found["lake_position"], place or place_of(found["lake"]), files)


def live_pieces(node: Node, files: list[File]) -> list[Piece] | None:
    """The files with which of their rows are live; None when some changed since they were listed."""
    files = [file for file in files if file.live_rows]
    masked = [(file.path, file.rows) for file in files if file.live_rows < file.rows]
    live: dict[str, pa.Table] = {}
    for path, extents in extents_of(node, masked, shown=True):
        if not len(extents):
            return None
        live[path] = _joined(extents)
    return [Piece(file, live.get(file.path)) for file in files]


def _joined(extents: pa.Table) -> pa.Table:
    """The same rows in as few entries as can be: neighbours become one, whichever streams they are of."""
    group, start, count = (extents[name].to_numpy() for name in ("row_group", "row_start", "row_count"))
    firsts = np.flatnonzero(
        np.concatenate(([True], (group[1:] != group[:-1]) | (start[1:] != start[:-1] + count[:-1])))
    )
    return pa.table(
        {
            "row_group": group[firsts],
            "row_start": start[firsts],
            "row_count": np.add.reduceat(count, firsts),
        }
    )


def feed(
    node: Node,
    group: int,
    after: int,
    until: int,
    choice: Mapping[str, Any] | None = None,
    columns: Sequence[str] | None = None,
) -> _Answer | None:
    """Records after a position that memory holds; None when the lake has some of them. Of all streams and with all
    columns, unless some are chosen."""
    wanted: dict[str, Any] = {"from": after, "to": until, "max_bytes": FEED_BYTES}
    if choice is not None:
        wanted["choice"] = choice
    if columns is not None:
        wanted["columns"] = list(columns)
    try:
        answer = node.feed(group, wanted)
    except NodeRefused as refused:
        if refused.status == 410:
            return None
        raise
    positions = (answer.headers[f"headwater-{name}position"] for name in ("", "lake-", "settled-"))
    return _Answer(pa.ipc.open_stream(answer.body).read_all(), *(int(position) for position in positions))
