"""Files of the lake become other files with the same live rows: what compaction and erasure have in common.

Owns reading, sorting and writing by executors, and the one step that makes it count: the node swaps the files. Never
touches a file that exists: until the swap the old ones serve, after it the new ones, and gc takes what is left over.

    files -> executors read their live rows -> Spark sorts them by (bucket, stream, incarnation, seq) -> executors write
    a file per part of that order -> the node swaps the new ones for the old, or says that something changed meanwhile
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from headwater.lake.layout import SCHEMA
from headwater.lake.sorted_writer import write_sorted
from headwater.lake.store import StoreError
from headwater.lake.writer import LZ4, SORTED_BY, ZSTD
from headwater.spark.job_runs import JobRefused, Progress
from headwater.spark.lake_file import LakeFile, extents_of, live_mask, spans
from headwater.spark.lake_place import Place, place_of
from headwater.spark.node import Node, NodeRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TARGET_BYTES = 128 << 20
SWAP_BYTES_MAX = 1 << 30
SWAP_ROWS_MAX = 2_000_000
SWAP_FILES_MAX = 1_000
"""What one swap replaces, about. A conflict costs no more than this, and the node checks no more at once."""
FILE_ROWS_MAX = 1_500_000
"""Each may be an extent of its own, and the node tells of two million at once: of a file with more nobody could ask."""
TASK_BYTES = 64 << 20
CONFLICTS_MAX = 5
ROWS = ", ".join(
    f"`{field.name}` { {'int64': 'long', 'int32': 'int', 'string': 'string', 'binary': 'binary'}[str(field.type)] }"
    for field in SCHEMA
)
"""A lake row as Spark spells it."""
_WRITTEN = "path string, bytes long, rows long"
_POLL_S = 0.5


class File(NamedTuple):
    path: str
    bytes: int
    rows: int
    live_rows: int
    position_min: int
    position_max: int
    modified_ms: int

    @property
    def live_bytes(self) -> int:
        """About what its live rows take."""
        return self.bytes * self.live_rows // max(self.rows, 1)


class Listing(NamedTuple):
    """A group's files as the node sees them: every settled record of it is in exactly one of these."""

    group: int
    lake_position: int
    place: Place
    files: list[File]
    unused_ms_max: int
    """How long an object that nothing refers to may still be there."""


class Swapped(NamedTuple):
    removed: list[File]
    added: list[tuple[str, int, int]]
    """(path, bytes, rows)"""


class Changed(Exception):
    """The lake changed while the files were written; nothing was swapped. Plan again."""


def listings(node: Node) -> list[Listing]:
    """One for each group, in order. Raises JobRefused when there is no lake, or none that can be reached from here."""
    return [listed(node, group) for group in node.groups()]


def listed(node: Node, group: int) -> Listing:
    """Raises JobRefused when the node has no lake, or one that cannot be reached from here."""
    try:
        facts = node.lake_files(group)
    except NodeRefused as refused:
        if refused.status in (400, 404):
            raise JobRefused(
                f"the node at {node.url} keeps no lake", "name a node that was started with --data"
            ) from None
        raise
    place = place_of(facts["lake"])
    advice = "run the job where the lake's directory is, or with the credentials of its bucket in the environment"
    try:
        if facts["files"] and next(place.store().list("_delta_log"), None) is None:
            raise JobRefused(f"the lake {place.url} is not here", advice)
    except StoreError as error:
        raise JobRefused(f"the lake cannot be reached from here: {error.reason}", advice) from error
    files = [
        File(one["path"], one["bytes"], one["rows"], one["live_rows"], *(one[name] or 0 for name in File._fields[4:]))
        for one in facts["files"]
    ]
    return Listing(facts["group"], facts["lake_position"], place, files, facts["unused_ms_max"])


def rewrite(
    spark: SparkSession, node: Node, listing: Listing, files: Sequence[File], target_bytes: int, progress: Progress
) -> Swapped:
    """Puts the live rows of some files of the listing into new ones of about `target_bytes` each, sorted, and has the
    node swap them.

    Raises Changed; then nothing is different, but for objects that nothing refers to. Raises JobRefused when a file
    cannot be read: a damaged file is never replaced.
    """
    place, group = listing.place, listing.group
    live_bytes, live_rows = sum(file.live_bytes for file in files), sum(file.live_rows for file in files)
    parts = max(1, round(live_bytes / target_bytes), -(-live_rows // FILE_ROWS_MAX))
    rows = over_files(spark, files, partial(_read_live, node, place), ROWS)
    # More than one part reads the files twice: Spark looks at all keys before it chooses where to cut.
    rows = rows.repartitionByRange(parts, *SORTED_BY)
    codec = LZ4 if place.is_local else ZSTD
    written = rows.sortWithinPartitions(*SORTED_BY).mapInArrow(partial(_write, place, group, codec), _WRITTEN)
    with watching(spark, progress, "tasks"), told("rewriting"):
        added = [(row["path"], row["bytes"], row["rows"]) for row in written.collect()]
    try:
        node.swap(group, [file.path for file in files], sorted(path for path, _, _ in added))
    except NodeRefused as refused:
        if refused.status == 409:
            raise Changed(str(refused)) from refused
        raise
    return Swapped(list(files), added)


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


def over_files(spark: SparkSession, files: Sequence[File], work: Any, schema: str) -> DataFrame:
    """`work(files)`, which yields Arrow batches, for all files, a task for several of them."""
    tasks = shared(files, parallelism(spark))
    # No shuffle: task number i takes the i-th share.
    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(partial(_task, tasks, work), schema)


def _task(tasks: list[list[File]], work: Any, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from work(tasks[number])


def shared(files: Sequence[File], parallel: int) -> list[list[File]]:
    """Shares of about the same size: one for each core, more when they would grow large, none without a file."""
    total = sum(file.bytes for file in files)
    count = max(1, min(len(files), max(parallel, total // TASK_BYTES)))
    shares: list[list[File]] = [[] for _ in range(count)]
    sizes = [0] * count
    for file in sorted(files, key=lambda file: -file.bytes):
        least = sizes.index(min(sizes))
        shares[least].append(file)
        sizes[least] += file.bytes
    return shares


def _read_live(node: Node, place: Place, files: list[File]) -> Iterator[pa.RecordBatch]:
    store = place.store()
    for path, extents in extents_of(node, [(file.path, file.rows) for file in files]):
        file = LakeFile(store, path)
        starts, ends = spans(file, extents)
        for at, rows in file.rows(SCHEMA.names):
            mask = live_mask(starts, ends, at, len(rows))
            yield from (rows if mask is None else rows.filter(pa.array(mask))).to_batches()


def _write(place: Place, group: int, codec: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    written = write_sorted(batches, group, secrets.token_hex(8), codec)
    if written is None:
        return
    file = written.file
    place.store().put(file.path, written.data)
    yield pa.RecordBatch.from_pydict({"path": [file.path], "bytes": [file.size_bytes], "rows": [file.row_count]})


# ---- around a Spark job ------------------------------------------------------------------------------------------


def parallelism(spark: SparkSession) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # a Spark Connect session has no context, and says so with an error of its own
        return 8


@contextmanager
def watching(spark: SparkSession, progress: Progress, what: str) -> Iterator[None]:
    """Tells of the tasks that are done, while the block runs. A Connect session has nothing to tell."""
    try:
        tracker = spark.sparkContext.statusTracker()
    except Exception:
        yield
        return
    over = threading.Event()
    stages: dict[int, tuple[int, int]] = {}

    def watch() -> None:
        while not over.wait(_POLL_S):
            for number in tracker.getActiveStageIds():
                info = tracker.getStageInfo(number)
                if info is not None:
                    stages[number] = (info.numCompletedTasks, info.numTasks)
            if stages:
                progress(what, sum(done for done, _ in stages.values()), sum(count for _, count in stages.values()))

    watcher = threading.Thread(target=watch, daemon=True, name="headwater-progress")
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


@contextmanager
def told(doing: str) -> Iterator[None]:
    """What an executor raised becomes one line."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        lines = [line.strip() for line in str(error).splitlines()]
        named = [line for line in lines if line.startswith("headwater.")]
        if not named:
            raise
        kind, _, reason = named[-1].partition(": ")
        advice = "see what else is: headwater pipeline run verify" if kind.endswith("LakeDamaged") else ""
        raise JobRefused(f"{doing} ended, and has changed nothing: {reason}", advice) from error
