"""Schemas of JSON records as Spark has them: fields into columns and back, and what a sample of records has.

Owns the correspondence of types, which columns a bucket's schema gives, and inference. Never parses for a result:
`json_columns` does, and `typed_rows` with Spark.

    boolean BOOLEAN    integer BIGINT    number DOUBLE    string STRING    date DATE    date-time TIMESTAMP
    array ARRAY        object with fields STRUCT          object of any names MAP<STRING, …>
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, assert_never
from urllib.parse import quote

import msgspec

from headwater.errors import BadBucketSchema
from headwater.model import json_schema
from headwater.model.json_schema import FIELDS_MAX, Field, Fields, ListOf, MapOf, Plain, Shape
from headwater.spark.job_runs import JobRefused
from headwater.spark.node import Node, NodeRefused
from headwater.spark.selection import Selection

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

SAMPLE_ROWS = 10_000
_INT64 = 1 << 63
_NAMES = {
    "boolean": "boolean",
    "integer": "bigint",
    "number": "double",
    "string": "string",
    "date": "date",
    "date-time": "timestamp",
}


class TooManyFields(ValueError):
    def __init__(self) -> None:
        super().__init__(
            f"the records have more than {FIELDS_MAX} fields: nobody wants a column for each, so declare some"
        )


# ---- as columns -------------------------------------------------------------------------------------------------


def struct_of(fields: Fields) -> StructType:
    """Columns for a record's fields; NOT NULL where they are required. Inside them everything may be null."""
    from pyspark.sql.types import StructType

    made = StructType()
    for field in fields.fields:
        made = made.add(field.name, _type_of(field.shape), not field.required)
    return made


def _type_of(shape: Shape) -> DataType:
    from pyspark.sql import types as T

    if isinstance(shape, Plain):
        plain: dict[str, Any] = {
            "boolean": T.BooleanType,
            "integer": T.LongType,
            "number": T.DoubleType,
            "string": T.StringType,
            "date": T.DateType,
            "date-time": T.TimestampType,
        }
        made: DataType = plain[shape.kind]()
        return made
    if isinstance(shape, ListOf):
        return T.ArrayType(_type_of(shape.items))
    if isinstance(shape, MapOf):
        return T.MapType(T.StringType(), _type_of(shape.values))
    if isinstance(shape, Fields):
        return struct_of(Fields(tuple(Field(field.name, field.shape) for field in shape.fields)))
    assert_never(shape)


def fields_of(schema: StructType) -> Fields | None:
    """The fields that give such columns, or wider ones; None where a column's type has no word in JSON Schema."""
    try:
        return Fields(tuple(Field(one.name, _shape_of(one.dataType), not one.nullable) for one in schema.fields))
    except KeyError:
        return None


def _shape_of(kind: DataType) -> Shape:
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        return Fields(tuple(Field(field.name, _shape_of(field.dataType)) for field in kind.fields))
    if isinstance(kind, T.ArrayType):
        return ListOf(_shape_of(kind.elementType))
    if isinstance(kind, T.MapType):
        return MapOf(_shape_of(kind.valueType))
    if isinstance(kind, T.ByteType | T.ShortType | T.IntegerType | T.LongType):
        return Plain("integer")
    if isinstance(kind, T.FloatType | T.DoubleType | T.DecimalType):
        return Plain("number")
    names = {spark: ours for ours, spark in _NAMES.items()}
    found: Any = names[kind.simpleString()]
    return Plain(found)


def ddl(schema: StructType) -> str:
    """As `--schema` takes it."""
    return ", ".join(
        f"{_quoted(field.name)} {_sql(field.dataType)}{'' if field.nullable else ' NOT NULL'}"
        for field in schema.fields
    )


def _sql(kind: DataType) -> str:
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        return f"struct<{', '.join(f'{_quoted(field.name)}: {_sql(field.dataType)}' for field in kind.fields)}>"
    if isinstance(kind, T.ArrayType):
        return f"array<{_sql(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"map<{_sql(kind.keyType)}, {_sql(kind.valueType)}>"
    return str(kind.simpleString())


def _quoted(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else "`" + name.replace("`", "``") + "`"


# ---- of a bucket ------------------------------------------------------------------------------------------------


class BucketColumns:
    """What a bucket's schema says, and which version of it that is."""

    def __init__(self, bucket: str, version: int, fields: Fields) -> None:
        self.bucket, self.version, self.fields = bucket, version, fields


def bucket_columns(node: Node, selection: Selection) -> BucketColumns | None:
    """Of the bucket that all streams of a choice are in; None when they are in several, or it has no schema.

    Raises JobRefused for a schema that only a newer version of this package can read, and NodeError.
    """
    bucket = selection.single_bucket()
    if bucket is None:
        return None
    try:
        found = node.json("GET", f"/__headwater/buckets/{quote(bucket, safe='')}/schema")
    except NodeRefused as refused:
        if refused.status == 404:
            return None
        raise
    try:
        fields = json_schema.fields_of(msgspec.json.encode(found["schema"]))
    except BadBucketSchema as bad:
        raise JobRefused(
            f"the schema of bucket {bucket} cannot be read here: {bad.message()}",
            "install the node's version of headwater where Spark's driver runs, or give a schema",
        ) from None
    return BucketColumns(bucket, found["version"], fields)


# ---- of a sample ------------------------------------------------------------------------------------------------


def inferred(payloads: Iterable[bytes | str], with_unknown: bool = True) -> Fields:
    """The fields that these records have, by name; without any when none of them is an object. Raises TooManyFields.

    Values of several types are text, but for whole numbers among others. So is what was null, or an empty array, in
    every record; without `with_unknown` it is left out.
    """
    found: dict[str, Any] = {}
    for payload in payloads:
        try:
            record = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(record, dict):
            _join(found, record)
    if not with_unknown:
        found = {name: seen for name, seen in found.items() if _is_known(seen)}
    return _settled(found)


_TEXT, _NULL = "string", None
_Seen = str | None | dict[str, Any] | list[Any]
"""What was seen of a value: a name of `Plain`, nothing but null, fields, or [what was seen of the items]."""


def _join(found: dict[str, Any], record: Mapping[str, Any]) -> None:
    for name, value in record.items():
        found[name] = _both(found.get(name), _seen(value))
    if len(found) > FIELDS_MAX:
        raise TooManyFields


def _seen(value: Any) -> _Seen:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer" if -_INT64 <= value < _INT64 else "number"
    if isinstance(value, float):
        return "number"
    if isinstance(value, list):
        items: _Seen = _NULL
        for one in value:
            items = _both(items, _seen(one))
        return [items]
    if isinstance(value, dict):
        inside: dict[str, Any] = {}
        _join(inside, value)
        return inside
    return _TEXT


def _both(one: _Seen, other: _Seen) -> _Seen:
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, list) and isinstance(other, list):
        return [_both(one[0], other[0])]
    if isinstance(one, dict) and isinstance(other, dict):
        joined = {name: _both(one.get(name), other.get(name)) for name in {**one, **other}}
        if len(joined) > FIELDS_MAX:
            raise TooManyFields
        return joined
    if one == other:
        return one
    numbers = {"integer", "number"}
    return "number" if isinstance(one, str) and isinstance(other, str) and {one, other} == numbers else _TEXT


def _is_known(seen: _Seen) -> bool:
    return _is_known(seen[0]) if isinstance(seen, list) else seen is not None


def _settled(found: Mapping[str, Any]) -> Fields:
    return Fields(tuple(Field(name, _shape(found[name])) for name in sorted(found) if name))


def _shape(seen: _Seen) -> Shape:
    if isinstance(seen, list):
        return ListOf(_shape(seen[0]))
    if isinstance(seen, dict):
        fields = _settled(seen)
        # Columns differ by more than case, and a structure has at least one.
        apart = len({field.name.lower() for field in fields.fields}) == len(fields.fields)
        return fields if fields.fields and apart else Plain("string")
    kinds: dict[str | None, Shape] = {
        "boolean": Plain("boolean"),
        "integer": Plain("integer"),
        "number": Plain("number"),
    }
    return kinds.get(seen, Plain("string"))
