"""`usage`: how many records and bytes each bucket has in the lake, by the day they were written; how often it was read,
by the day that happened; and its streams.

Owns the sums. Never reads a payload, and never shuffles a row: a record's size is the step to the next one's offset, a
file becomes a line for each bucket and day where it is read, and only those lines are added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.model.holes import Holes
from headwater.spark.executor_tasks import over_files, told, watching
from headwater.spark.job_runs import JobRefused, Progress, recorded, silent
from headwater.spark.lake_file import LakeFile, extents_of, live_mask, spans
from headwater.spark.lake_listing import File, listings, would_look_at
from headwater.spark.lake_place import Place
from headwater.spark.node import Node
from headwater.spark.same_versions import for_executors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAYS_SHOWN_MAX = 1_000
BUCKETS_SHOWN_MAX = 100
FORMATS = (".json", ".csv", ".parquet")
DAY_MS = 86_400_000
_DAYS = "bucket string, day date, records long, bytes long"
_READS = "bucket string, day date, reads long, read_bytes long"
_COUNTS = ("records", "bytes", "reads", "read_bytes")
_STREAMS = "bucket string, streams long, records long, bytes long, hot_bytes long"


@recorded("usage")
def usage(
    spark: SparkSession, node: Node, *, output: str | None = None, dry_run: bool = False, progress: Progress = silent
) -> dict[str, object]:
    """Sums over live records. The table of days goes into the summary, or to `output`: .json (a line each), .csv, or
    .parquet, a path that Spark can write. Raises JobRefused.
    """
    if output is not None and Path(output).suffix not in FORMATS:
        raise JobRefused(f"{output} is of no known kind", f"end the name with one of {', '.join(FORMATS)}")
    by_group = listings(node)
    if dry_run:
        return {**would_look_at(by_group), **({} if output is None else {"output": output})}
    files = [file for listing in by_group for file in listing.files]
    with watching(spark, progress, "tasks"), told("usage"):
        buckets = _buckets(spark, node)
        days = _days(spark, node, by_group[0].place, files)
        days = days.cache()
        try:
            sums = days.agg({**dict.fromkeys(_COUNTS, "sum"), "*": "count"}).collect()[0].asDict()
            summary: dict[str, object] = {
                "streams": sum(one["streams"] for one in buckets),
                "settled_records": sums["sum(records)"] or 0,
                "settled_bytes": sums["sum(bytes)"] or 0,
                "reads": sums["sum(reads)"] or 0,
                "read_bytes": sums["sum(read_bytes)"] or 0,
                "hot_bytes": sum(one["hot_bytes"] for one in buckets),
                "files": len(files),
                "files_bytes": sum(file.bytes for file in files),
                "buckets_count": len(buckets),
                "buckets": buckets[:BUCKETS_SHOWN_MAX],
            }
            lines = sums["count(1)"]
            if output is None:
                if lines > DAYS_SHOWN_MAX:
                    raise JobRefused(f"the table has {lines} lines", "write it to a file with --output")
                summary["days"] = [
                    {**row.asDict(), "day": row["day"].isoformat()} for row in days.orderBy("bucket", "day").collect()
                ]
            else:
                _write(days.orderBy("bucket", "day"), output)
                summary |= {"output": output, "lines": lines}
        finally:
            days.unpersist()
    return summary


def _write(days: DataFrame, output: str) -> None:
    if output.endswith(".parquet"):
        days.coalesce(1).write.mode("overwrite").parquet(output)
        return
    as_csv = output.endswith(".csv")
    from csv import writer
    from json import dumps

    with open(output, "w", newline="") as file:
        if as_csv:
            writer(file).writerow(days.columns)
        for row in days.toLocalIterator():
            values = {**row.asDict(), "day": row["day"].isoformat()}
            if as_csv:
                writer(file).writerow(values.values())
            else:
                file.write(dumps(values) + "\n")


# ---- what streams have -------------------------------------------------------------------------------------------


def _buckets(spark: SparkSession, node: Node) -> list[dict[str, Any]]:
    """By size, the largest first."""
    from pyspark.sql import functions as F

    found = spark.range(0, 1, 1, 1).mapInArrow(for_executors(partial(_streams, node)), _STREAMS)
    sums = found.groupBy("bucket").agg(
        *(F.sum(name).alias(name) for name in ("streams", "records", "bytes", "hot_bytes"))
    )
    return [row.asDict() for row in sums.orderBy(F.desc("bytes"), "bucket").collect()]


def _streams(node: Node, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A line for each bucket on each page."""
    for _ in batches:
        for page in node.lake_streams():
            rows = pa.ipc.open_stream(page).read_all()
            rows = rows.filter(pc.invert(rows["deleted"]))
            tail, earliest = rows["tail"], rows["earliest"]
            deleted = [Holes(packed or b"") for packed in rows["holes"].to_pylist()]
            held = pa.table(
                {
                    "bucket": rows["bucket"],
                    "streams": pa.array(np.ones(len(rows), np.int64)),
                    "records": pc.subtract(
                        pc.subtract(rows["count"], rows["first_seq"]),
                        pa.array([holes.count for holes in deleted], pa.int64()),
                    ),
                    "bytes": pc.subtract(
                        pc.subtract(tail, earliest), pa.array([holes.bytes for holes in deleted], pa.int64())
                    ),
                    "hot_bytes": pc.max_element_wise(
                        pc.subtract(tail, pc.max_element_wise(rows["cold_end"], earliest)), 0
                    ),
                }
            )
            yield from _summed(held, ["bucket"], ["streams", "records", "bytes", "hot_bytes"])


# ---- what files have, and what was read --------------------------------------------------------------------------


def _days(spark: SparkSession, node: Node, place: Place, files: list[File]) -> DataFrame:
    from pyspark.sql import functions as F

    lines = [(line["bucket"], date.fromisoformat(line["day"]), line["reads"], line["bytes"]) for line in node.reads()]
    read = spark.createDataFrame(lines, _READS)
    if files:
        found = over_files(spark, files, partial(_file_days, node, place), _DAYS)
        found = found.groupBy("bucket", "day").agg(F.sum("records").alias("records"), F.sum("bytes").alias("bytes"))
    else:
        found = spark.createDataFrame([], _DAYS)
    return found.join(read, ["bucket", "day"], "full").na.fill(0, list(_COUNTS))


def _file_days(node: Node, place: Place, files: list[File]) -> Iterator[pa.RecordBatch]:
    store = place.store()
    for path, extents in extents_of(node, [(file.path, file.rows) for file in files]):
        file = LakeFile(store, path)
        starts, ends = spans(file, extents)
        extent_ends = extents["end"].to_numpy()
        for at, rows in file.rows(["bucket", "offset", "ts_ms"]):
            offsets = rows["offset"].to_numpy()
            sizes = np.empty(len(rows), np.int64)
            sizes[:-1], sizes[-1] = np.diff(offsets), 0
            low, high = np.searchsorted(starts, (at, at + len(rows)))
            last = ends[low:high] - at - 1
            sizes[last] = extent_ends[low:high] - offsets[last]
            days = (rows["ts_ms"].to_numpy() // DAY_MS).astype(np.int32)
            held = pa.table(
                {
                    "bucket": rows["bucket"],
                    "day": pa.array(days).cast(pa.date32()),
                    "records": pa.array(np.ones(len(rows), np.int64)),
                    "bytes": pa.array(sizes),
                }
            )
            mask = live_mask(starts, ends, at, len(rows))
            yield from _summed(
                held if mask is None else held.filter(pa.array(mask)), ["bucket", "day"], ["records", "bytes"]
            )


def _summed(rows: pa.Table, by: list[str], names: list[str]) -> list[pa.RecordBatch]:
    sums = rows.group_by(by).aggregate([(name, "sum") for name in names])
    return sums.select([*by, *(f"{name}_sum" for name in names)]).rename_columns([*by, *names]).to_batches()
