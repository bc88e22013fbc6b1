"""`route`: records of some streams, filtered and changed, onto others, each exactly once.

Owns the query between source and sink, and how far one run goes. Never writes into what it reads.

    source --where--> transform --target, payload--> sink
"""

from __future__ import annotations

import json
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.spark.dry_runs import would_read
from headwater.spark.failures import failed, refused, spark_errors
from headwater.spark.job_runs import JobRefused, Progress, recorded, silent
from headwater.spark.matching import job_match
from headwater.spark.node import Node
from headwater.spark.options import BadOptions, parse
from headwater.spark.sink import start_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

POLL_S = 0.5
SELECTING = ("subscribe", "subscribePattern", "bucket")
COLUMNS = "expressions see the columns of the source, and `value` (the payload as text) and `name` (bucket/stream)"


@recorded("route")
def route(
    spark: SparkSession,
    node: Node,
    *,
    source: Mapping[str, str],
    target: str,
    checkpoint: str,
    where: str | None = None,
    payload: str | None = None,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    content_type: str | None = None,
    order_by: Sequence[str] = (),
    create_streams: bool = True,
    available_now: bool = True,
    interval: str = "1 second",
    partitions: int | None = None,
    producer_id: str | None = None,
    epoch_base: int = 0,
    require_match: bool = False,
    dry_run: bool = False,
    progress: Progress = silent,
) -> dict[str, object]:
    """Routes what there is (`available_now`), or goes on until it is interrupted. Raises JobRefused, SinkFailed.

    `source`: options of the read, which say what streams. `target`, `where` and `payload` are SQL. A row whose target
    or payload is null goes nowhere; a target that is an array goes to each stream in it. `transform` changes the frame
    between `where` and `target`. Run again with the same `checkpoint`, it goes on where it stood. `require_match`
    refuses names that no stream goes by, which is a warning otherwise.
    """
    if not any(name.lower() in {key.lower() for key in source} for name in SELECTING):
        raise JobRefused("it is not said which streams to read", f"name them with {', '.join(SELECTING)}")
    options = {"url": node.url, "startingOffsets": "earliest", **_token(node), **source}
    try:
        warnings = job_match(node, parse(options).selection, require_match)
    except BadOptions as error:
        raise JobRefused(str(error)) from None
    from pyspark.errors import StreamingQueryException

    if dry_run:
        would = _would(spark, options, checkpoint, lambda read: _routed(read, where, transform, target, payload))
        return {**would, **({"warnings": warnings} if warnings else {})}
    with tempfile.TemporaryDirectory(prefix="headwater-route-") as folder:
        report = Path(folder) / "commits"
        try:
            read = spark.readStream.format("headwater").options(**options).load()
            routed = _routed(read, where, transform, target, payload)
            _check_repeatable(routed)
            query = start_stream(
                routed,
                node,
                checkpoint,
                stream="target",
                content_type=content_type,
                order_by=order_by,
                create_streams=create_streams,
                producer_id=producer_id,
                epoch_base=epoch_base,
                partitions=partitions,
                report_file=str(report),
                not_into={name: value for name, value in source.items() if name.lower() in _LOWER},
                trigger={"availableNow": True} if available_now else {"processingTime": interval},
            )
        except StreamingQueryException as error:
            raise failed(error) from error
        except spark_errors() as error:
            raise refused(error, COLUMNS) from error
        seen = _follow(query, progress)
        told: dict[str, object] = {"batches": seen.batches, "rows_read": seen.rows_read}
        if warnings:
            told["warnings"] = warnings
        return {**told, **_written(report, seen.rows_out), "query": str(query.id)}


_LOWER = {name.lower() for name in SELECTING}


def _routed(
    read: DataFrame,
    where: str | None,
    transform: Callable[[DataFrame], DataFrame] | None,
    target: str,
    payload: str | None,
) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType

    seen = read.withColumn("value", F.col("payload").cast("string")).withColumn(
        "name", F.concat_ws("/", "bucket", "stream")
    )
    kept = seen if where is None else seen.where(where)
    changed = kept if transform is None else transform(kept)
    # A frame that a transform made need not have a payload under that name.
    record = payload or ("payload" if "payload" in changed.columns else "value")
    made = changed.withColumn("target", F.expr(target)).withColumn("payload", F.expr(record))
    if isinstance(made.schema["target"].dataType, ArrayType):
        made = made.withColumn("target", F.explode(F.array_distinct("target")))
    return made.where(F.col("target").isNotNull() & F.col("payload").isNotNull())


def _would(
    spark: SparkSession, options: Mapping[str, str], checkpoint: str, routed: Callable[[DataFrame], DataFrame]
) -> dict[str, object]:
    """What is before the query. Of records that a batch wrote before it was cut off nothing is known here."""
    from pyspark.sql import functions as F

    try:
        read = would_read(spark, options, checkpoint)
        made = routed(read)
        _check_repeatable(made)
        sums = made.agg(F.count("*").alias("rows"), F.countDistinct("target").alias("streams")).collect()[0]
        return {"rows_read": read.count(), "rows_written": sums["rows"], "streams": sums["streams"]}
    except spark_errors() as error:
        raise refused(error, COLUMNS) from error


def _check_repeatable(frame: DataFrame) -> None:
    """Raises JobRefused for expressions that give another result when a batch is repeated."""
    plan = getattr(frame, "_jdf", None)
    if plan is not None and not plan.queryExecution().analyzed().deterministic():
        raise JobRefused(
            "the expressions give another result each time they are computed (rand(), uuid() or the like)",
            "a batch that is repeated after a failure must come out the same: derive values from the record instead",
        )


@dataclass
class _Seen:
    """What a query has told of itself."""

    batches: int = 0
    rows_read: int = 0
    rows_out: int = 0
    last: int = -1

    def add(self, query: StreamingQuery) -> None:
        for told in query.recentProgress:
            # As attributes: of the sums, Spark Connect has only those.
            if told.batchId > self.last and told.numInputRows:
                self.last = told.batchId
                self.rows_read += told.numInputRows
                self.rows_out += max(0, told.sink.numOutputRows)
                self.batches += 1


def _follow(query: StreamingQuery, progress: Progress) -> _Seen:
    """Waits for the query's end, or stops it when interrupted. Raises SinkFailed."""
    seen = _Seen()

    def count() -> None:
        seen.add(query)
        progress("rows", seen.rows_read, None)

    try:
        with _interrupted() as stop:
            while query.isActive and not stop.wait(POLL_S):
                count()
        if query.isActive:
            query.stop()
        count()
        if (error := query.exception()) is not None:
            raise failed(error)
    finally:
        query.stop()
    return seen


@contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """Set by an interrupt or a request to end. PySpark's own handler calls the JVM from within another call to it."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _written(report: Path, rows_out: int) -> dict[str, object]:
    """What the sink told with every commit. Of a driver on another machine only Spark's own count is to be had."""
    if not report.exists():
        return {"rows_written": rows_out, "rows_known": None if rows_out else 0}
    commits: list[dict[str, Any]] = [json.loads(line) for line in report.read_text().splitlines()]
    known = sum(commit["rows_known"] for commit in commits)
    return {"rows_written": sum(commit["rows"] for commit in commits) - known, "rows_known": known}


def _token(node: Node) -> dict[str, str]:
    token = node.token
    return {} if token is None else {"token": token}
