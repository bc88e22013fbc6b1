"""Objects copied from one store to another by Spark tasks, each one hashed on its way; or only read and hashed.

Owns how they are shared among tasks, and what becomes of an object that is missing or damaged: it is told, not raised,
so that all of them are known at the end. Never copies an object whose bytes are not what was promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from headwater.lake.store import ObjectMissing, ObjectStore
from headwater.spark.backup_store import digest
from headwater.spark.executor_tasks import parallelism, told, watching
from headwater.spark.job_runs import Progress
from headwater.spark.lake_place import Place
from headwater.spark.same_versions import for_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES = 256 << 20
OBJECT_COST_BYTES = 128 << 10
"""What an object costs beside its bytes, in bytes that could have been copied meanwhile."""
WAVE_COUNT = 20_000
WAVE_BYTES = 16 << 30
"""Copied by one Spark job. The list of objects goes to every task of it."""
THREADS = 8
SMALL_BYTES = 4 << 20
"""Objects up to this size are copied several at once, larger ones one after the other: they are held in memory."""
_MOVED = "key string, bytes long, digest string, problem string"


class Wanted(NamedTuple):
    """`digest` is None when it is not known yet."""

    key: str
    bytes: int
    digest: str | None


class Moved(NamedTuple):
    key: str
    bytes: int
    digest: str
    problem: str | None
    """Why it was not copied."""


def move(
    spark: SparkSession,
    wanted: Sequence[Wanted],
    source: Place,
    source_folder: str,
    target: Place | None,
    target_folder: str,
    progress: Progress,
) -> list[Moved]:
    """Copies objects from below one folder to below another. A folder is empty or ends with a slash.

    Without a target they are only held against what was promised. Safe to repeat. Raises JobRefused when a store does
    not answer.
    """
    done: list[Moved] = []
    for wave in waves(wanted):
        tasks = shared(wave, parallelism(spark))
        work = partial(_task, tasks, source, source_folder, target, target_folder)
        rows = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(for_executors(work), _MOVED)
        with watching(spark, progress, "tasks"), told("copying"):
            done += [Moved(*row) for row in rows.collect()]
        progress("objects", len(done), len(wanted))
    return done


def waves(wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    wave: list[Wanted] = []
    size = 0
    for one in wanted:
        if wave and (len(wave) == WAVE_COUNT or size + one.bytes > WAVE_BYTES):
            yield wave
            wave, size = [], 0
        wave.append(one)
        size += one.bytes
    if wave:
        yield wave


def shared(wanted: Sequence[Wanted], parallel: int) -> list[list[Wanted]]:
    """Shares of about the same work: one for each core, more when they would grow large."""
    total = sum(one.bytes for one in wanted)
    count = max(1, min(len(wanted), max(parallel, total // TASK_BYTES)))
    shares: list[list[Wanted]] = [[] for _ in range(count)]
    least = [(0, number) for number in range(count)]
    heapify(least)
    for one in sorted(wanted, key=lambda one: -one.bytes):
        cost, number = least[0]
        shares[number].append(one)
        heapreplace(least, (cost + one.bytes + OBJECT_COST_BYTES, number))
    return shares


# ---- on executors ------------------------------------------------------------------------------------------------


def _task(
    tasks: list[list[Wanted]],
    source: Place,
    source_folder: str,
    target: Place | None,
    target_folder: str,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            share = tasks[number]
            there = None if target is None else target.store()
            one = partial(_copy, source.store(), source_folder, there, target_folder)
            large = [one(wanted) for wanted in share if wanted.bytes > SMALL_BYTES]
            with ThreadPoolExecutor(THREADS) as pool:
                small = list(pool.map(one, [wanted for wanted in share if wanted.bytes <= SMALL_BYTES]))
            columns = list(zip(*large, *small, strict=True)) if share else [(), (), (), ()]
            kinds = (pa.string(), pa.int64(), pa.string(), pa.string())
            arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=list(Moved._fields))


def _copy(
    source: ObjectStore, source_folder: str, target: ObjectStore | None, target_folder: str, wanted: Wanted
) -> Moved:
    try:
        data = source.get(source_folder + wanted.key)
    except ObjectMissing:
        return Moved(wanted.key, 0, "", f"{source_folder}{wanted.key} is missing")
    found = digest(data)
    problem = None
    if len(data) != wanted.bytes:
        problem = f"{source_folder}{wanted.key} has {len(data)} bytes, not {wanted.bytes}"
    elif wanted.digest is not None and found != wanted.digest:
        problem = f"{source_folder}{wanted.key} has digest {found}, not {wanted.digest}"
    elif target is not None:
        target.put(target_folder + wanted.key, data)
    return Moved(wanted.key, len(data), found, problem)
