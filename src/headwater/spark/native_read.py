"""The lake read by Spark itself: `read_lake`, a batch read at the JVM's speed where Spark can reach the files.

Owns the split of a read into files that Spark reads alone, and the rest: files with rows that no longer count, and
what is not in the lake yet. Never returns other rows than `format("headwater")` does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from headwater.lake.layout import WIDE
from headwater.lake.store import StoreError
from headwater.model.glob import MANY, ONE, parse
from headwater.model.names import DEFAULT_BUCKET
from headwater.spark import options as asked
from headwater.spark.job_runs import RUNS_BUCKET
from headwater.spark.lake_place import Place
from headwater.spark.lake_table import table_bounds
from headwater.spark.node import Node
from headwater.spark.options import BadOptions, Options
from headwater.spark.parsing import check_columns, columns_of, shape_of
from headwater.spark.planning import Plan, packed
from headwater.spark.ranges import Piece, Range
from headwater.spark.reading import Task, Work, rows_of
from headwater.spark.rows import KINDS, Shape, schema_of, stored
from headwater.spark.same_versions import for_executors
from headwater.spark.selection import Selection
from headwater.spark.source import plan_batch
from headwater.spark.typed_columns import typed_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SPARK_TYPES = {"string": "string", "int64": "bigint", "int32": "int", "binary": "binary"}
_STORED = ", ".join(f"`{field.name}` {_SPARK_TYPES[str(field.type)]}" for field in WIDE)
Span = tuple[int, Range]
"""A range of a group's log."""
_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"


def read_lake(
    spark: SparkSession, node: Node | str | None, *, schema: StructType | str | None = None, **given: str
) -> DataFrame:
    """The rows that `format("headwater")` returns with these options (by the same names), for one pass or many. Without
    a node those of the table that `lake` names.

    It is planned when it is called: the frame is the same rows whenever it is used, as long as the lake's grace period
    lasts. `schema` names the columns of a read that parses, as `.schema(…)` does.
    Raises BadOptions, DataLoss, NodeError or StoreError.
    """
    url = node.url if isinstance(node, Node) else node
    options = asked.for_batch(given if url is None else {"url": url, **given})
    if isinstance(node, Node):
        options = options._replace(node=node)
    if schema is not None and options.parse_mode is None:
        raise BadOptions('a schema is for reads that parse: add parse="json", or select columns from the frame')
    typed = None if options.parse_mode is None else _typed_schema(options, schema)
    planned = plan_batch(options, stored(schema_of(options.with_headers)))
    # Where single streams begin and end is for the reader in Python.
    root = _root(spark, planned.work.place) if planned.work.bounds is None else None
    plain, sifted, tasks = _split(planned, root)
    frames = []
    if plain:
        frames.append(_native(spark, plain, planned.work, options))
    if sifted:
        paths = [path for some in sifted.values() for path in some]
        frames.append(_native(spark, paths, planned.work, options, list(sifted)))
    if tasks or not frames:
        frames.append(_through_python(spark, planned.work, packed(tasks), options))
    whole = reduce(lambda one, other: one.unionByName(other), frames)
    return whole if typed is None else _parsed(whole, typed, options)


def _typed_schema(options: Options, given: StructType | str | None) -> StructType:
    from pyspark.sql.types import StructType

    if given is None:
        return typed_schema(options)[0]
    schema = StructType.fromDDL(given) if isinstance(given, str) else given
    check_columns(schema, options.parse_mode)
    return schema


def _parsed(frame: DataFrame, schema: StructType, options: Options) -> DataFrame:
    """The same rows with their records parsed, as `format("headwater")` does it."""
    mode = options.parse_mode
    names = ["timestamp" if name == "ts_ms" else name for name in columns_of(schema, mode)]

    def parse_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shape = shape_of(schema, mode)
        for batch in batches:
            yield from shape.batches(pa.Table.from_batches([batch]))

    return frame.select(*names).mapInArrow(for_executors(parse_batches), schema)


def read_where(
    spark: SparkSession, node: Node | str, where: str, columns: Sequence[str] = (), **given: str
) -> DataFrame:
    """Rows of `format("headwater")` for which conditions are true, and of them some columns: a frame with a plan of its
    own at each call. The other options by name. Raises BadOptions when the frame is used."""
    url = node if isinstance(node, str) else node.url
    reader = spark.read.format("headwater").options(**{"url": url, **given, "where": where})
    if columns:
        from pyspark.sql.types import StructType

        known = schema_of(True)
        reader = reader.schema(StructType([known[name] for name in columns]))
    return reader.load()


def _split(planned: Plan, root: str | None) -> tuple[list[str], dict[Span, list[str]], list[Task]]:
    """Files that Spark reads as they are, files of which it reads only some rows (in a range), and the rest."""
    plain: list[str] = []
    sifted: dict[Span, list[str]] = {}
    rest: list[Task] = []
    selection = planned.work.selection
    work = planned.work
    wanted = {"bucket", "stream", *(() if work.where is None else work.where.columns)}
    found = {} if root is None or work.place is None else _bounds(work.place, wanted)
    for task in planned.tasks:
        left: list[Piece] = []
        for piece in task.pieces:
            known = found.get(piece.file.path, {})
            if selection.rules_out(known.get) or (work.where is not None and work.where.rules_out(known.get)):
                continue
            if root is None or piece.live is not None:
                left.append(piece)
            elif piece.part == 0:  # the other shares of a file are read with the first
                path = f"{root}/{piece.file.path}"
                # A comparison of names costs a tenth of the read: where a file's bounds answer it, none is made.
                if piece.file.within(task.wanted) and not selection.needs(known.get):
                    plain.append(path)
                else:
                    sifted.setdefault((task.group, task.wanted), []).append(path)
        if left or task.hot is not None:
            rest.append(task._replace(pieces=left, whole=None if len(left) < len(task.pieces) else task.whole))
    return plain, sifted, rest


def _bounds(place: Place, columns: set[str]) -> dict[str, dict[str, tuple[Any, Any]]]:
    try:
        return table_bounds(place, columns)
    except StoreError:
        return {}  # it only saves work


def _root(spark: SparkSession, place: Place | None) -> str | None:
    """What the lake's paths begin with for Spark's own reader; None when it cannot read there."""
    if place is None:
        return None
    root = None
    if place.is_local:
        path = unquote(urlsplit(place.url).path) if "://" in place.url else place.url
        root = "file://" + os.path.abspath(path)
    elif place.url.startswith("s3://") and _has_s3a(spark):
        root = "s3a://" + place.url.removeprefix("s3://").rstrip("/")
    # Spark would take these for patterns.
    return None if root is None or set(root) & set("*?[]{}\\") else root


def _has_s3a(spark: SparkSession) -> bool:
    """Whether the jars for S3 are there. Spark Connect has no JVM to ask: then they are taken not to be."""
    try:
        jvm: Any = spark.sparkContext._jvm
        jvm.java.lang.Class.forName(_S3A)
    except Exception:
        return False
    return True


def _native(
    spark: SparkSession, paths: list[str], work: Work, options: Options, within: list[Span] | None = None
) -> DataFrame:
    from pyspark.sql import functions as F

    # With a schema Spark does not open a file to find one.
    frame = spark.read.schema(_STORED).parquet(*paths)
    if within is not None:
        group, position = F.col("group"), F.col("position")
        spans = [(group == one) & (position > span.after) & (position <= span.until) for one, span in within]
        frame = frame.where(reduce(lambda one, other: one | other, spans))
        frame = frame.where(_wanted(work.selection))
    if work.trims is not None:
        rows = [(int(sid), int(earliest)) for sid, earliest in zip(*work.trims, strict=True)]
        gone = F.broadcast(spark.createDataFrame(rows, "trimmed bigint, earliest bigint"))
        trimmed = (F.col("incarnation") == F.col("trimmed")) & (F.col("offset") < F.col("earliest"))
        frame = frame.join(gone, trimmed, "left_anti")
    if work.where is not None:
        frame = frame.where(work.where.column())
    names = schema_of(options.with_headers).fieldNames()
    shown = {name: F.col(f"`{name}`") for name in KINDS if name != "timestamp"}
    shown["timestamp"] = F.timestamp_millis(F.col("ts_ms")).alias("timestamp")
    return frame.select(*(shown[name] for name in names))


def _wanted(selection: Selection) -> Column:
    """The choice of streams as Spark says it."""
    from pyspark.sql import functions as F

    if selection.minus is not None:
        return _wanted(replace(selection, minus=None)) & ~_wanted(selection.minus)

    bucket, stream = F.col("bucket"), F.col("stream")
    if selection.streams is not None:
        by_bucket: dict[str, list[str]] = {}
        for name, one in sorted(selection.streams):
            by_bucket.setdefault(name, []).append(one)
        parts = [(bucket == name) & stream.isin(names) for name, names in by_bucket.items()]
        return reduce(lambda one, other: one | other, parts)
    if selection.bucket is not None:
        return bucket == selection.bucket
    if selection.pattern is not None:
        plain = (bucket == DEFAULT_BUCKET) & (F.instr(stream, "/") == 0)
        path = F.when(plain, stream).otherwise(F.concat(bucket, F.lit("/"), stream))
        matched = F.concat(F.lit("/"), path).rlike(rf"\A{expression(selection.pattern)}\z")
        own = selection.pattern.partition("/")[0] == RUNS_BUCKET
        return matched if own else matched & (bucket != RUNS_BUCKET)
    return bucket != RUNS_BUCKET


def expression(pattern: str) -> str:
    """The pattern as a regular expression, for Java's and Python's alike, over a path with a slash before it."""
    kinds = {ONE: "/[^/]*", MANY: "(?:/[^/]*)*"}
    return "".join(kinds[part] if isinstance(part, int) else "/" + re.escape(part) for part in parse(pattern))


def _through_python(spark: SparkSession, work: Work, parts: list[list[Task]], options: Options) -> DataFrame:
    """The rest, a task for each part: the parts travel with the function, and a row's number says which is whose."""
    schema = schema_of(options.with_headers)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shape = Shape(schema)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for task in parts[number]:
                    for rows in rows_of(work, task):
                        yield from shape.batches(rows)

    return spark.range(0, len(parts), 1, max(len(parts), 1)).mapInArrow(for_executors(read), schema)
