"""Files of the lake become other files with the same live rows: what compaction and erasure have in common.

Never changes a file that exists: reads are served from the old files until the node swaps them, from the new ones
after it, and gc deletes those that nothing refers to.

    files -> executors read their live rows -> Spark sorts them by (bucket, stream, incarnation, seq) -> executors write
    a file per part of that order -> the node swaps the new ones for the old, or says that something changed meanwhile
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from headwater.lake.layout import SCHEMA, WIDE
from headwater.lake.names import epoch_token
from headwater.lake.sorted_writer import write_sorted
from headwater.lake.writer import LZ4, SORTED_BY, ZSTD
from headwater.spark.executor_tasks import over_files, told, watching
from headwater.spark.job_runs import JobRefused, Progress
from headwater.spark.lake_file import LakeFile, extents_of, live_mask, spans
from headwater.spark.lake_listing import File, Listing
from headwater.spark.lake_place import Place
from headwater.spark.lake_table import is_wide
from headwater.spark.node import Node, NodeRefused
from headwater.spark.same_versions import for_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_BYTES = 128 << 20
SWAP_BYTES_MAX = 1 << 30
SWAP_ROWS_MAX = 2_000_000
SWAP_FILES_MAX = 1_000
"""What one swap replaces, about. A conflict costs no more than this, and the node checks no more at once."""
FILE_ROWS_MAX = 1_500_000
"""Each row may be an extent of its own, and the node answers with at most two million extents for a file."""
CONFLICTS_MAX = 5
_TYPES = {"int64": "long", "int32": "int", "string": "string", "binary": "binary"}
_WRITTEN = "path string, bytes long, rows long"


class Swapped(NamedTuple):
    removed: list[File]
    added: list[tuple[str, int, int]]
    """(path, bytes, rows)"""


class Changed(Exception):
    """The lake changed while the files were written; nothing was swapped. Plan again."""


def rewrite(
    spark: SparkSession,
    node: Node,
    listing: Listing,
    files: Sequence[File],
    target_bytes: int,
    progress: Progress,
    cluster_by: Sequence[str] = (),
) -> Swapped:
    """Puts the live rows of some files of the listing into new ones of about `target_bytes` each, sorted, and has the
    node swap them.

    Each new file has a range of the order by `cluster_by` and then by `SORTED_BY`; within it rows stand as ever. Raises
    Changed; then nothing is different, but for objects that nothing refers to. Raises JobRefused when a file cannot be
    read: a damaged file is never replaced.
    """
    place, group = listing.place, listing.group
    # Looked at after the files were listed: one of them with more columns is in a table that has them.
    wide = is_wide(place)
    schema = WIDE if wide else SCHEMA
    spelt = ", ".join(f"`{field.name}` {_TYPES[str(field.type)]}" for field in schema)
    rows = over_files(spark, files, partial(_read_live, node, place, schema.names), spelt)
    # More than one part reads the files twice: Spark looks at all keys before it chooses where to cut.
    rows = rows.repartitionByRange(parts_count(files, target_bytes), *dict.fromkeys((*cluster_by, *SORTED_BY)))
    codec = LZ4 if place.is_local else ZSTD
    written = rows.sortWithinPartitions(*SORTED_BY).mapInArrow(
        for_executors(partial(_write, place, group, listing.epoch, codec, wide)), _WRITTEN
    )
    with watching(spark, progress, "tasks"), told("rewriting"):
        added = [(row["path"], row["bytes"], row["rows"]) for row in written.collect()]
    try:
        node.swap(group, [file.path for file in files], sorted(path for path, _, _ in added))
    except NodeRefused as refused:
        if refused.status == 409:
            raise Changed(str(refused)) from refused
        raise
    return Swapped(list(files), added)


def would_rewrite(files: Sequence[File], target_bytes: int) -> Swapped:
    """What `rewrite` would come to, about: how well rows pack is not known before."""
    count = parts_count(files, target_bytes) if any(file.live_rows for file in files) else 0
    sizes, rows = (_shares(sum(getattr(file, name) for file in files), count) for name in ("live_bytes", "live_rows"))
    return Swapped(list(files), [("", *one) for one in zip(sizes, rows, strict=True)])


def parts_count(files: Sequence[File], target_bytes: int) -> int:
    """How many new files take the place of these."""
    live_bytes, live_rows = sum(file.live_bytes for file in files), sum(file.live_rows for file in files)
    return max(1, round(live_bytes / target_bytes), -(-live_rows // FILE_ROWS_MAX))


def _shares(total: int, count: int) -> list[int]:
    return [total * (number + 1) // count - total * number // count for number in range(count)]


def without(listing: Listing, files: Sequence[File]) -> Listing:
    """The listing as a dry run goes on with it."""
    gone = {file.path for file in files}
    return listing._replace(files=[file for file in listing.files if file.path not in gone])


def counted(conflicts: int, changed: Changed) -> int:
    """One more. Raises JobRefused when that is too many."""
    if conflicts == CONFLICTS_MAX:
        raise JobRefused(
            f"the lake changed {conflicts + 1} times while files were rewritten ({changed})",
            "run it again when no other job rewrites files",
        ) from changed
    return conflicts + 1


def summed(swaps: Sequence[Swapped]) -> dict[str, object]:
    """What swaps have done, for a summary."""
    removed = [file for swapped in swaps for file in swapped.removed]
    added = [one for swapped in swaps for one in swapped.added]
    rows = sum(count for _, _, count in added)
    return {
        "files_read": len(removed),
        "files_written": len(added),
        "bytes_read": sum(file.bytes for file in removed),
        "bytes_written": sum(size for _, size, _ in added),
        "rows": rows,
        "rows_dropped": sum(file.rows for file in removed) - rows,
        "swaps": len(swaps),
    }


# ---- on executors ------------------------------------------------------------------------------------------------


def _read_live(node: Node, place: Place, names: list[str], files: list[File]) -> Iterator[pa.RecordBatch]:
    store = place.store()
    for path, extents in extents_of(node, [(file.path, file.rows) for file in files]):
        file = LakeFile(store, path)
        starts, ends = spans(file, extents)
        for at, rows in file.rows(names):
            mask = live_mask(starts, ends, at, len(rows))
            yield from (rows if mask is None else rows.filter(pa.array(mask))).to_batches()


def _write(
    place: Place, group: int, epoch: int, codec: str, wide: bool, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    written = write_sorted(batches, group, epoch_token(epoch, secrets.token_hex(8)), codec, wide=wide)
    if written is None:
        return
    file = written.file
    place.store().put(file.path, written.data)
    yield pa.RecordBatch.from_pydict({"path": [file.path], "bytes": [file.size_bytes], "rows": [file.row_count]})
