"""Rows as Spark sees them: the columns of `format("headwater")`, and how rows of the lake become those.

Owns names and types for users. Never reads a row from anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.spark.options import BadOptions

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

KINDS = {
    "bucket": "string",
    "stream": "string",
    "incarnation": "bigint",
    "seq": "bigint",
    "offset": "bigint",
    "timestamp": "timestamp",
    "n": "bigint",
    "group": "int",
    "position": "bigint",
    "content_type": "string",
    "payload": "binary",
    "tag": "string",
    "node": "string",
    "meta": "string",
}
"""Every column and its type in Spark, in order. All but the timestamp are the lake's own."""
HEADERS = ("tag", "node", "meta")
_STORED_AS = {"timestamp": "ts_ms"}
BATCH_ROWS_MAX = 64 << 10


def schema_of(with_headers: bool) -> StructType:
    from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType, TimestampType

    types: dict[str, Any] = {
        "string": StringType,
        "bigint": LongType,
        "int": IntegerType,
        "timestamp": TimestampType,
        "binary": BinaryType,
    }
    schema = StructType()
    for name, kind in KINDS.items():
        if with_headers or name not in HEADERS:
            schema = schema.add(name, types[kind]())
    return schema


def check(schema: StructType) -> None:
    """Raises BadOptions for a user's schema that rows cannot be given in."""
    if not len(schema.fields):
        raise BadOptions("the schema has no columns")
    for field in schema.fields:
        kind = KINDS.get(field.name.lower())
        if kind is None:
            raise BadOptions(f"there is no column {field.name}: there are {', '.join(KINDS)}")
        taken = [kind, "string"] if field.name.lower() == "payload" else [kind]
        if _name(field.dataType) not in taken:
            raise BadOptions(f"column {field.name} is {' or '.join(taken)}, not {_name(field.dataType)}")


def stored(schema: StructType) -> list[str]:
    """The lake's columns that these rows are made of."""
    return [_STORED_AS.get(name.lower(), name.lower()) for name in schema.fieldNames()]


class Shape:
    """Rows of the lake into rows of a schema. Made where it is used: it holds Arrow's idea of the schema."""

    def __init__(self, schema: StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        # Spark compares every batch with exactly this, nullability included.
        self.arrow = to_arrow_schema(schema, timezone="UTC")

    def batches(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """The same rows, in batches as large as Spark likes them."""
        if not len(rows):
            return
        columns = [self.column(rows, field) for field in self.arrow]
        shaped = pa.Table.from_arrays(columns, schema=self.arrow)
        # One batch of 64 k rows costs more to join, and less to pass on, than sixteen of 4 k rows each.
        yield from shaped.combine_chunks().to_batches(max_chunksize=BATCH_ROWS_MAX)

    @staticmethod
    def column(rows: pa.Table, field: pa.Field) -> Any:
        """A column of these rows as the schema has it."""
        name = field.name.lower()
        if name == "timestamp":
            return pc.cast(pc.multiply(rows["ts_ms"], 1_000), field.type)
        if name == "payload" and field.type == pa.string():
            # As Spark's own cast: the bytes as they are, whether they are UTF-8 or not.
            return pa.chunked_array([chunk.view(pa.string()) for chunk in rows[name].chunks], pa.string())
        return rows[name]


def _name(kind: DataType) -> str:
    return str(kind.simpleString())
