"""Work on executors: files shared out to tasks, progress while tasks run, and their errors in one line.

Never knows what a task does with its files.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.spark.job_runs import JobRefused, Progress
from headwater.spark.lake_listing import File
from headwater.spark.same_versions import for_executors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASK_BYTES = 64 << 20
_POLL_S = 0.5


def parallelism(spark: SparkSession) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # a Spark Connect session has no context, and says so with an error of its own
        return 8


def over_files(spark: SparkSession, files: Sequence[File], work: Any, schema: str) -> DataFrame:
    """`work(files)`, which yields Arrow batches, for all files, a task for several of them."""
    tasks = shared(files, parallelism(spark))
    # No shuffle: task number i takes the i-th share.
    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(for_executors(partial(_task, tasks, work)), schema)


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
