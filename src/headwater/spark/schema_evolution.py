"""What becomes of a table's columns when records, or their schema, have changed: new columns, and reasons why not.

Owns what is additive. Never changes a table: `derived_tables` adds columns, and a column's type never changes there.

    a field that is new                      a new column, null in older rows
    a narrower type (int for bigint)         the table's type stays: it holds both
    any other type                           refused, with the column, both types, and for a sample an example
    a field inside a column that is new      cannot be added: left out of a sample's schema, refused in a declared one
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from headwater.spark.derived_tables import arrow_schema
from headwater.spark.job_runs import JobRefused
from headwater.spark.json_types import TooManyFields, inferred, struct_of
from headwater.spark.json_values import Reader, Unfit, Unsupported, fields_in, reader

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_HOLDS = {
    **{wide: set(_WHOLE[:at]) for at, wide in enumerate(_WHOLE)},
    "double": {"float", "tinyint", "smallint", "int"},
}
"""By type, those whose every value it holds."""


class Sampled(NamedTuple):
    bucket: str
    stream: str
    seq: int
    payload: bytes

    @property
    def place(self) -> str:
        return f"record {self.seq} of stream {self.bucket}/{self.stream}"


class Evolved(NamedTuple):
    schema: StructType
    added: list[str]
    left_out: list[str]
    """Fields inside columns, by their paths."""


def evolved(old: StructType, sample: Sequence[Sampled], table: str) -> Evolved:
    """The schema with what is new in a sample. Raises JobRefused for columns whose type does not hold its values."""
    from pyspark.sql.types import StructType

    try:
        new = struct_of(inferred((one.payload for one in sample), with_unknown=False))
    except TooManyFields as many:
        raise JobRefused(str(many), "leave out --infer, or give --schema") from None
    kinds = {field.name: field.dataType for field in new.fields}
    refused = [
        f"column {field.name} is {_name(field.dataType)} in the table and {_name(kinds[field.name])} in the records: "
        f"{example}"
        for field in old.fields
        if field.name in kinds and (example := _example(field.name, field.dataType, sample)) is not None
    ]
    if refused:
        raise JobRefused(
            f"the table at {table} does not take the records as they are now: {'; '.join(refused)}",
            "without --infer such records go to the quarantine; --overwrite begins the table anew with types that hold "
            "all values; or give those fields other names where they are written",
        )
    known = {field.name for field in old.fields}
    added = [field for field in new.fields if field.name not in known]
    left_out = [
        path
        for field in old.fields
        if field.name in kinds
        for path in _new_inside(field.dataType, kinds[field.name], field.name)
    ]
    return Evolved(StructType([*old.fields, *added]), [field.name for field in added], left_out)


def _example(name: str, kind: DataType, sample: Sequence[Sampled]) -> str | None:
    read = _reader(name, kind)
    for one in sample if read is not None else ():
        try:
            found = fields_in(one.payload)
            if name in found and read is not None:
                read(found[name])
        except Unfit as unfit:
            if unfit.wanted != "a JSON object":
                value = unfit.value.decode(errors="replace")
                return f"{one.place} has {name}{unfit.path} {value[:60]}{'…' if len(value) > 60 else ''}"
    return None


def _reader(name: str, kind: DataType) -> Reader | None:
    from pyspark.sql.types import StructType

    try:
        return reader(arrow_schema(StructType().add(name, kind)).field(0).type)
    except Unsupported:
        return None


def _new_inside(old: DataType, new: DataType, path: str) -> Iterator[str]:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        yield from _new_inside(old.elementType, new.elementType, f"{path}[]")
    elif isinstance(old, StructType) and isinstance(new, StructType):
        known = {field.name: field.dataType for field in old.fields}
        for field in new.fields:
            if field.name in known:
                yield from _new_inside(known[field.name], field.dataType, f"{path}.{field.name}")
            else:
                yield f"{path}.{field.name}"


def fitted(schema: StructType, columns: pa.Schema, table: pa.Schema, place: str, source: str) -> StructType:
    """The schema with the table's type where that is wider. Raises JobRefused where it is another one.

    `columns` are those that the schema makes, in its order; `source` says whose schema it is."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    there = {field.name.lower(): field.type for field in table}
    made, refused = [], []
    for field, column in zip(schema.fields, columns, strict=True):
        kind = there.get(column.name.lower(), column.type)
        if kind == column.type:
            made.append(field)
            continue
        was = from_arrow_type(kind)
        if _name(field.dataType) in _HOLDS.get(_name(was), ()):
            made.append(StructField(field.name, was, field.nullable))
        else:
            refused.append(f"column {column.name} is {_name(was)} in the table and {_name(field.dataType)} in {source}")
    if refused:
        raise JobRefused(
            f"the table at {place} has columns of other types: {'; '.join(refused)}",
            "give the changed field a new name, keep the table's type with a --schema of your own, or begin the table "
            "anew with --overwrite",
        )
    return StructType(made)


def _name(kind: DataType) -> str:
    return str(kind.simpleString())
