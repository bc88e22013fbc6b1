"""`compact`: many small files of the lake become few large ones, sorted, without rows that no stream has any more.

Owns which files are rewritten, and how much one run does. Only moves rows: what streams hold, and what a reader sees
at any moment, stays the same. Files of different groups are never joined, and all of a chosen file is rewritten.

The newest small files go first: those are what reads of a growing stream have to gather its records from. With an order
to cluster by, files that overlap in it go before them, whatever their size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.spark import rewrite as files
from headwater.spark.clustering import Bounds, columns_of, deepest, order_of
from headwater.spark.job_runs import JobRefused, Progress, recorded, silent
from headwater.spark.lake_listing import File, Listing, listed, listings
from headwater.spark.lake_table import table_bounds
from headwater.spark.node import Node
from headwater.spark.rewrite import Changed, Swapped, counted, summed
from headwater.spark.row_filters import MOMENT, BadCondition, RowFilter, row_filter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

MIN_FILES = 4
"""Fewer small files than this are left for later."""
MAX_BYTES = 16 << 30
SMALL_PART = 3
"""A file is small below this part of the target: what a run has written is not small, even where it compresses well."""
CHOSEN_BY = ("bucket", "stream", MOMENT)
"""Columns of conditions."""


@recorded("compact")
def compact(
    spark: SparkSession,
    node: Node,
    *,
    target_bytes: int = files.TARGET_BYTES,
    min_files: int = MIN_FILES,
    max_bytes: int = MAX_BYTES,
    where: str | None = None,
    cluster_by: Sequence[str] = (),
    dry_run: bool = False,
    progress: Progress = silent,
) -> dict[str, object]:
    """Does what there is to do, up to `max_bytes` of old files, swap by swap. Raises JobRefused.

    `where` leaves files alone that hold no row for which it is true, as far as the table tells; of the others all rows
    are rewritten. With `cluster_by` each new file has a range of that order, and files of any size are rewritten where
    at least `min_files` overlap in it. A run that ends anywhere, also by a crash, leaves a lake that is right; the next
    one goes on where it stood.
    """
    wanted, order = condition_of(where), order_of(cluster_by)
    swaps: list[Swapped] = []
    rest_bytes, conflicts = max_bytes, 0
    files_before = files_after = 0
    by_group = listings(node)
    asked = {*(columns_of(order) if order else ()), *(() if wanted is None else wanted.columns)}
    bounds: Bounds = _bounds(by_group, asked)
    overlap = [_overlap(by_group, order, bounds)]
    for listing in by_group:
        files_before += len(listing.files)
        # The next run takes what settles during this one: on a busy node this one would never end.
        known = {
            file.path for file in listing.files if wanted is None or not wanted.rules_out(bounds.get(file.path, {}).get)
        }
        while True:
            found = [file for file in listing.files if file.path in known]
            chosen = (
                overlapping(found, order, bounds, min_files, target_bytes, rest_bytes) if order else []
            ) or choose(found, target_bytes, min_files, rest_bytes)
            if not chosen:
                break
            if dry_run:
                swaps.append(files.would_rewrite(chosen, target_bytes))
                rest_bytes -= sum(file.bytes for file in chosen)
                listing = files.without(listing, chosen)
                files_after += len(swaps[-1].added)
                continue
            progress("bytes", max_bytes - rest_bytes, max_bytes - rest_bytes + sum(file.bytes for file in chosen))
            try:
                swaps.append(files.rewrite(spark, node, listing, chosen, target_bytes, progress, order))
                rest_bytes -= sum(file.bytes for file in chosen)
            except Changed as changed:
                conflicts = counted(conflicts, changed)
            listing = listed(node, listing.group)
        files_after += len(listing.files)
    summary: dict[str, object] = {
        "files_before": files_before,
        "files_after": files_after,
        **summed(swaps),
        "conflicts": conflicts,
    }
    if order:
        if swaps and not dry_run:
            by_group = listings(node)
            overlap.append(_overlap(by_group, order, _bounds(by_group, asked)))
        summary |= {"overlap_before": overlap[0], "overlap_after": None if swaps and dry_run else overlap[-1]}
    if not swaps:
        summary["nothing_to_do"] = True
    return summary


def condition_of(text: str | None) -> RowFilter | None:
    """Raises JobRefused for what files are not chosen by."""
    if text is None:
        return None
    try:
        found = row_filter(text)
    except BadCondition as bad:
        raise JobRefused(f"where: {bad}") from None
    others = [one.column for one in found.conditions if one.column not in CHOSEN_BY]
    if others:
        raise JobRefused(f"files are not chosen by {others[0]}", f"use conditions on {', '.join(CHOSEN_BY)}")
    return found


def _bounds(by_group: Sequence[Listing], columns: set[str]) -> Bounds:
    """What the table says of all files; nothing where nothing is asked, or there is no file yet."""
    return table_bounds(by_group[0].place, columns) if columns and any(one.files for one in by_group) else {}


def _overlap(by_group: Sequence[Listing], order: Sequence[str], bounds: Bounds) -> int:
    """The most files of a group that a query for one place of the order has to open."""
    return max((len(deepest(listing.files, order, bounds)) for listing in by_group), default=0) if order else 0


def choose(found: Sequence[File], target_bytes: int, min_files: int, bytes_max: int) -> list[File]:
    """The files of the next swap: small ones, the newest first; none when too few are."""
    small = [
        file for file in found if file.bytes < target_bytes // SMALL_PART and file.live_rows < files.FILE_ROWS_MAX // 2
    ]
    chosen: list[File] = []
    size = rows = 0
    for file in sorted(small, key=lambda file: (-file.position_max, file.path)):
        size, rows = size + file.bytes, rows + file.rows
        if (
            size > min(_swap_bytes_max(target_bytes), bytes_max)
            or rows > files.SWAP_ROWS_MAX
            or len(chosen) == files.SWAP_FILES_MAX
        ):
            break
        chosen.append(file)
    return chosen if len(chosen) >= max(min_files, 2) else []


def overlapping(
    found: Sequence[File], order: Sequence[str], bounds: Bounds, min_files: int, target_bytes: int, bytes_max: int
) -> list[File]:
    """The files of the next swap: of those that overlap where most do, the smallest; none where too few overlap.

    Two always fit. Of files that overlapped at one place one is left there, and nowhere are there more than before.
    """
    deep = deepest(found, order, bounds)
    if len(deep) < max(min_files, 2):
        return []
    chosen: list[File] = []
    size = rows = 0
    for file in sorted(deep, key=lambda file: (file.bytes, file.path)):
        size, rows = size + file.bytes, rows + file.rows
        full = size > _swap_bytes_max(target_bytes) or rows > files.SWAP_ROWS_MAX or len(chosen) == files.SWAP_FILES_MAX
        if size > bytes_max or (full and len(chosen) >= 2):
            break
        chosen.append(file)
    return chosen if len(chosen) >= 2 else []


def _swap_bytes_max(target_bytes: int) -> int:
    return max(files.SWAP_BYTES_MAX, 4 * target_bytes)
