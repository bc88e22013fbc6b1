"""`compact`: many small files of the lake become few large ones, sorted, without rows that no stream has any more.

Owns which files are rewritten, and how much one run does. Only moves rows: what streams hold, and what a reader sees
at any moment, stays the same. Files of different groups are never joined.

The newest small files go first: those are what reads of a growing stream have to gather its records from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.spark import rewrite as files
from headwater.spark.job_runs import Progress, recorded, silent
from headwater.spark.lake_listing import File, listed, listings
from headwater.spark.node import Node
from headwater.spark.rewrite import Changed, Swapped, counted, summed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

MIN_FILES = 4
"""Fewer small files than this are left for later."""
MAX_BYTES = 16 << 30
SMALL_PART = 3
"""A file is small below this part of the target: what a run has written is not small, even where it compresses well."""


@recorded("compact")
def compact(
    spark: SparkSession,
    node: Node,
    *,
    target_bytes: int = files.TARGET_BYTES,
    min_files: int = MIN_FILES,
    max_bytes: int = MAX_BYTES,
    progress: Progress = silent,
) -> dict[str, object]:
    """Does what there is to do, up to `max_bytes` of old files, swap by swap. Raises JobRefused.

    A run that ends anywhere, also by a crash, leaves a lake that is right; the next one goes on where it stood.
    """
    swaps: list[Swapped] = []
    rest_bytes, conflicts = max_bytes, 0
    files_before = files_after = 0
    for listing in listings(node):
        files_before += len(listing.files)
        # The next run takes what settles during this one: on a busy node this one would never end.
        known = {file.path for file in listing.files}
        while chosen := choose(
            [file for file in listing.files if file.path in known], target_bytes, min_files, rest_bytes
        ):
            progress("bytes", max_bytes - rest_bytes, max_bytes - rest_bytes + sum(file.bytes for file in chosen))
            try:
                swaps.append(files.rewrite(spark, node, listing, chosen, target_bytes, progress))
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
    if not swaps:
        summary["nothing_to_do"] = True
    return summary


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
            size > min(max(files.SWAP_BYTES_MAX, 4 * target_bytes), bytes_max)
            or rows > files.SWAP_ROWS_MAX
            or len(chosen) == files.SWAP_FILES_MAX
        ):
            break
        chosen.append(file)
    return chosen if len(chosen) >= max(min_files, 2) else []
