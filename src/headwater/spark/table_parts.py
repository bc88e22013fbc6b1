"""Executors write the parts of a derived table: Parquet files, split by day and bucket, named nowhere yet.

Owns what a part is and how rows become few of them. Never commits: a part that no commit names does not count, so a
task that is run twice, or half, changes nothing.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.lake.arrow_file import open_parquet
from headwater.spark.lake_place import Place
from headwater.spark.same_versions import for_executors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PART_BYTES = 96 << 20
"""Rows of one part before it is written, as they lie in memory; about a quarter of it on disk."""
HELD_BYTES_MAX = 256 << 20
"""Rows a task holds for all its parts; with more the largest part is written early."""
STATISTICS_COUNT_MAX = 32
"""Columns with statistics, from the left: they make the table's log longer."""
_PARTS = "output int, path string, size_bytes bigint, row_count bigint, statistics string, partition string"
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


class Output(NamedTuple):
    """Where rows go. Pickles: it travels to the executors."""

    place: Place
    schema: pa.Schema
    """Every column, those of `partition_by` among them."""
    partition_by: tuple[str, ...]


class Part(NamedTuple):
    output: int
    path: str
    size_bytes: int
    row_count: int
    statistics: str
    """Delta's JSON: numRecords, minValues, maxValues, nullCount."""
    partition: dict[str, str | None]


Route = Callable[[pa.RecordBatch], list[pa.RecordBatch]]
"""Rows of the frame into rows of each output."""


def write_parts(frame: DataFrame, outputs: list[Output], route: Route | None = None) -> list[Part]:
    """Runs the frame and returns what was written. Without a `route` its rows are those of the one output."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writers = [_Writer(number, output) for number, output in enumerate(outputs)]
        for batch in batches:
            for writer, mine in zip(writers, [batch] if route is None else route(batch), strict=True):
                if mine.num_rows:
                    writer.add(mine)
                    while sum(one.held_bytes for one in writers) > HELD_BYTES_MAX:
                        max(writers, key=lambda one: one.held_bytes).write_largest()
        parts = [part for writer in writers for part in writer.finish()]
        columns: list[Any] = [list(column) for column in zip(*parts, strict=True)] if parts else [[]] * 6
        columns[5] = [json.dumps(values) for values in columns[5]]
        types = [pa.int32(), pa.string(), pa.int64(), pa.int64(), pa.string(), pa.string()]
        arrays = [pa.array(column, of) for column, of in zip(columns, types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=list(Part._fields))

    return [
        Part(row[0], row[1], row[2], row[3], row[4], json.loads(row[5]))
        for row in frame.mapInArrow(for_executors(write), _PARTS).collect()
    ]


class _Held:
    __slots__ = ("batches", "bytes", "values")

    def __init__(self, values: dict[str, str | None]) -> None:
        self.values = values
        self.batches: list[pa.RecordBatch] = []
        self.bytes = 0


class _Writer:
    """The parts of one output that one task writes."""

    def __init__(self, number: int, output: Output) -> None:
        self.number = number
        self.held_bytes = 0
        self._output = output
        self._store = output.place.store()
        self._stored = pa.schema([field for field in output.schema if field.name not in output.partition_by])
        self._held: dict[tuple[Any, ...], _Held] = {}
        self._parts: list[Part] = []

    def add(self, batch: pa.RecordBatch) -> None:
        for values, rows in split(batch, self._output.partition_by):
            key = tuple(values.values())
            held = self._held.setdefault(key, _Held(values))
            # Spark's batches carry the session's time zone in their types; the table has one type for ever.
            columns = [rows.column(field.name).cast(field.type) for field in self._stored]
            stored = pa.RecordBatch.from_arrays(columns, schema=self._stored)
            held.batches.append(stored)
            held.bytes += stored.nbytes
            self.held_bytes += stored.nbytes
            if held.bytes >= PART_BYTES:
                self._write(key)

    def write_largest(self) -> None:
        self._write(max(self._held, key=lambda key: self._held[key].bytes))

    def finish(self) -> list[Part]:
        for key in list(self._held):
            self._write(key)
        return self._parts

    def _write(self, key: tuple[Any, ...]) -> None:
        held = self._held.pop(key)
        self.held_bytes -= held.bytes
        table = pa.Table.from_batches(held.batches, self._stored)
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        data = memoryview(sink.getvalue())
        path = f"{folder(held.values)}part-{secrets.token_hex(16)}.parquet"
        self._store.put(path, data)
        self._parts.append(Part(self.number, path, len(data), len(table), statistics(table), held.values))


def folder(values: dict[str, str | None]) -> str:
    """The folder of a partition, ending in `/`, as Hive spells it: readers of plain files find the values in it."""
    return "".join(
        f"{name}={_HIVE_NULL if value is None else quote(value, safe='')}/" for name, value in values.items()
    )


def split(batch: pa.RecordBatch, by: tuple[str, ...]) -> Iterator[tuple[dict[str, str | None], pa.RecordBatch]]:
    """The batch's rows by the values of these columns, each value as Delta writes it."""
    if not by:
        yield {}, batch
        return
    texts = [batch.column(name).cast(pa.string()) for name in by]
    codes: Any = pa.array([0] * batch.num_rows, pa.int64())
    for text in texts:
        encoded = text.dictionary_encode("encode")
        codes = pc.add(pc.multiply(codes, len(encoded.dictionary)), pc.cast(encoded.indices, pa.int64()))
    runs = pc.run_end_encode(codes, pa.int32())
    if len(runs.values) > len(runs.values.unique()):
        order = pc.array_sort_indices(codes)
        batch, codes, texts = batch.take(order), codes.take(order), [text.take(order) for text in texts]
        runs = pc.run_end_encode(codes, pa.int32())
    start = 0
    for end in runs.run_ends.to_pylist():
        values = {name: text[start].as_py() for name, text in zip(by, texts, strict=True)}
        yield values, batch.slice(start, end - start)
        start = end


def statistics(table: pa.Table) -> str:
    """What an add action says of its rows. Only of columns whose order every reader agrees on."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in list(table.schema)[:STATISTICS_COUNT_MAX]:
        if not (pa.types.is_integer(field.type) or pa.types.is_date32(field.type) or _is_moment(field.type)):
            continue
        column = table[field.name]
        nulls[field.name] = column.null_count
        if column.null_count < len(column):
            try:
                found = pc.min_max(column).as_py()
            except (OverflowError, ValueError):
                continue  # a date that Python has no name for
            low[field.name], high[field.name] = (_shown(found[side]) for side in ("min", "max"))
    return json.dumps({"numRecords": len(table), "minValues": low, "maxValues": high, "nullCount": nulls})


def _is_moment(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is not None


def _shown(value: Any) -> Any:
    if isinstance(value, int):
        return value
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.isoformat()


def read_parts(
    place: Place, schema: pa.Schema, by: tuple[str, ...], paths: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The rows of parts whose paths come in, as the table shows them: for stores that Spark itself cannot reach."""
    store = place.store()
    for batch in paths:
        for path in batch.column(0).to_pylist():
            found = open_parquet(pa.BufferReader(pa.py_buffer(store.get(path)))).read(use_threads=False)
            values = dict(part.partition("=")[::2] for part in path.split("/")[:-1])
            for rows in found.to_batches(max_chunksize=65_536):
                columns = []
                for field in schema:
                    if field.name in by:
                        text = values[field.name]
                        value = None if text == _HIVE_NULL else unquote(text)
                        columns.append(pa.array([value], pa.string()).cast(field.type).take(pa.array([0] * len(rows))))
                    elif field.name in found.column_names:
                        columns.append(rows.column(field.name).cast(field.type))
                    else:
                        columns.append(pa.nulls(len(rows), field.type))
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
