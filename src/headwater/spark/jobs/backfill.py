"""`backfill`: Parquet, JSON, CSV, ORC or text files onto streams, in order, each row exactly once.

Owns what order means for files, and the name under which the same load is known again. Never reads a file itself.

    rows of a stream stand by order_by, then by file name, then by their place in the file
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater.spark.badlines import first_bad_line, is_malformed
from headwater.spark.chunks import CHUNK_BYTES_MAX, CHUNK_ROWS_MAX
from headwater.spark.executor_tasks import parallelism
from headwater.spark.failures import cause, failed, refused, spark_errors
from headwater.spark.job_runs import JobRefused, Progress, recorded, silent
from headwater.spark.node import Node
from headwater.spark.sink import to_streams

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = ("parquet", "json", "csv", "orc", "text")
PARTITION_BYTES = 32 * 1024 * 1024
"""Input per partition: progress moves, and an attempt that fails repeats little."""
PARTITIONS_MAX = 2_000
POLL_S = 0.5
COLUMNS = "expressions see the columns of the files"


class Input(NamedTuple):
    path: str
    size_bytes: int


@recorded("backfill")
def backfill(
    spark: SparkSession,
    node: Node,
    *,
    paths: Sequence[str],
    format: str,
    stream: str,
    payload: str | None = None,
    order_by: Sequence[str] = (),
    where: str | None = None,
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
    content_type: str | None = None,
    create_streams: bool = True,
    producer_id: str | None = None,
    partitions: int | None = None,
    dry_run: bool = False,
    progress: Progress = silent,
) -> dict[str, object]:
    """Loads files. Run again, also after a kill, it adds what is missing and no more. Raises JobRefused, SinkFailed.

    `stream`, `payload`, `where` and `order_by` are SQL over the files' columns; without `payload` a record is the whole
    row as JSON. `options` are those of Spark's reader. The same load is known by its files' names and sizes and by
    these arguments, or by `producer_id` when one is given.
    """
    if format not in FORMATS:
        raise JobRefused(f"files of the format {format!r} cannot be loaded", f"there are {', '.join(FORMATS)}")
    if not paths:
        raise JobRefused("no file is named", "name files or folders")
    reading = {**({"mode": "FAILFAST"} if format in ("json", "csv") else {}), **(options or {})}
    from pyspark.sql import functions as F

    if payload is None and content_type is None:
        content_type = "application/json"
    try:
        reader = spark.read.format(format).options(**reading)
        frame = (reader if schema is None else reader.schema(schema)).load(list(paths))
        inputs = _inputs(spark, frame)
        record = F.to_json(F.struct(*[F.col(f"`{name}`") for name in frame.columns])) if payload is None else payload
        checked = frame.selectExpr(stream, *order_by, *([] if payload is None else [payload]), *([where] * bool(where)))
        _check_repeatable(checked)
    except spark_errors() as error:
        raise _unreadable(spark, error, paths, format, schema, reading) or refused(error, COLUMNS) from error
    identity = [format, reading, schema, stream, payload, list(order_by), where, content_type]
    producer = producer_id or _identity(inputs, identity)
    bytes_count = sum(one.size_bytes for one in inputs)
    chosen = partitions or min(PARTITIONS_MAX, max(2 * parallelism(spark), bytes_count // PARTITION_BYTES + 1))
    rows = frame.select("*", *_places())
    kept = rows if where is None else rows.where(where)
    known: dict[str, object] = {"files": len(inputs), "bytes": bytes_count, "producer_id": producer}
    if dry_run:
        try:
            sums = kept.agg(F.count("*").alias("rows"), F.expr(f"count(DISTINCT {stream})").alias("streams")).collect()
        except spark_errors() as error:
            raise _unreadable(spark, error, paths, format, schema, reading) or failed(error) from error
        return {
            **known,
            "rows": sums[0]["rows"],
            "rows_written": None,
            "rows_known": None,
            "streams": sums[0]["streams"],
        }
    with tempfile.TemporaryDirectory(prefix="headwater-backfill-") as folder:
        report = Path(folder) / "commit"
        try:
            with _told(spark, progress):
                to_streams(
                    kept,
                    node,
                    stream=stream,
                    payload=record,
                    content_type=content_type,
                    order_by=[*order_by, *_PLACES],
                    create_streams=create_streams,
                    producer_id=producer,
                    partitions=chosen,
                    report_file=str(report),
                )
        except spark_errors() as error:
            raise _unreadable(spark, error, paths, format, schema, reading) or failed(error) from error
        # None: the driver that committed runs on another machine, and nothing tells what it counted.
        commit: dict[str, Any] | None = json.loads(report.read_text()) if report.exists() else None
    if commit is not None:
        progress("rows", commit["rows"], commit["rows"])
    return {
        **known,
        "rows_written": None if commit is None else commit["rows"] - commit["rows_known"],
        "rows_known": None if commit is None else commit["rows_known"],
        "streams": None if commit is None else commit["streams_count"],
    }


def _unreadable(
    spark: SparkSession,
    error: Exception,
    paths: Sequence[str],
    format: str,
    schema: str | None,
    reading: Mapping[str, str],
) -> JobRefused | None:
    """For a line that cannot be read: nothing was written then, all files are read before the first record is."""
    if not is_malformed(cause(error)):
        return None
    bad = first_bad_line(spark, paths, format, schema, reading)
    if bad is None:
        return None
    what = format.upper() if schema is None else f"{format.upper()} of the columns {schema}"
    return JobRefused(
        f"{bad.where} is not {what}: {bad.shown}",
        "nothing was written; mend it, or leave such lines out with --option mode=DROPMALFORMED",
    )


_PLACES = ("_headwater_file", "_headwater_block", "_headwater_row")


def _places() -> list[Column]:
    """Where a row stands in its file. Blocks begin where Spark splits a file, but their order is always the file's."""
    from pyspark.sql import functions as F

    expressions = ("_metadata.file_path", "_metadata.file_block_start", "monotonically_increasing_id()")
    return [F.expr(text).alias(name) for text, name in zip(expressions, _PLACES, strict=True)]


def _inputs(spark: SparkSession, frame: DataFrame) -> list[Input]:
    """The files, by name. Raises JobRefused when there is none."""
    files = [str(file) for file in frame.inputFiles()]  # Spark Connect gives scalars of Arrow
    if not files:
        raise JobRefused("there is no file at these paths", "see that they are right, and not empty")
    # This format reads no content as long as it is not asked for.
    found = spark.read.format("binaryFile").load(files).select("path", "length").collect()
    return sorted(Input(row["path"], row["length"]) for row in found)


def _identity(inputs: Sequence[Input], arguments: Sequence[object]) -> str:
    known = [inputs, arguments, CHUNK_ROWS_MAX, CHUNK_BYTES_MAX]
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
    return f"backfill-{digest[:40]}"


def _check_repeatable(frame: DataFrame) -> None:
    plan = getattr(frame, "_jdf", None)
    if plan is not None and not plan.queryExecution().analyzed().deterministic():
        raise JobRefused(
            "the expressions give another result each time they are computed (rand(), uuid() or the like)",
            "a load that is repeated must come out the same: derive values from the row instead",
        )


@contextmanager
def _told(spark: SparkSession, progress: Progress) -> Iterator[None]:
    """Tells how many rows are on their streams, as far as Spark lets one look."""
    group = f"headwater-backfill-{uuid.uuid4()}"
    try:
        context = spark.sparkContext
        context.setJobGroup(group, "backfill")
        store = context._jsc.sc().statusStore()
    except Exception:  # Spark Connect shows none of this
        yield
        return
    done = threading.Event()

    def watch() -> None:
        while not done.wait(POLL_S):
            try:
                progress("rows", *_rows(context, store, group))
            except Exception:  # a stage that is not registered yet, or a session that ends: the next look tells more
                continue

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("spark.job.description", None)


def _rows(context: Any, store: Any, group: str) -> tuple[int, int | None]:
    """Rows of finished partitions, and of all partitions once every row was read."""
    tracker = context.statusTracker()
    stages = {
        stage for job in tracker.getJobIdsForGroup(group) for stage in (tracker.getJobInfo(job) or _NONE).stageIds
    }
    written, total, reading = 0, 0, False
    for stage in stages:
        attempt = store.lastStageAttempt(stage)
        if attempt.shuffleWriteRecords() or attempt.inputRecords():
            total += attempt.shuffleWriteRecords()
            reading = reading or attempt.status().toString() == "ACTIVE"
            continue
        tasks = store.taskList(stage, attempt.attemptId(), PARTITIONS_MAX)
        for index in range(tasks.size()):
            task = tasks.apply(index)
            if task.status() == "SUCCESS" and task.taskMetrics().isDefined():
                written += task.taskMetrics().get().shuffleReadMetrics().recordsRead()
    return written, total if total and not reading else None


class _NONE:
    stageIds: tuple[int, ...] = ()
