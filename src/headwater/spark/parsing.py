"""`option("parse", "json")`: fields of JSON records as columns of a read, beside those of every read.

Owns which columns those are, and what becomes of a record that does not fit. Never parses: `json_columns` does.

    bucket, stream, seq, …      as in every read; of a schema of the user's only those that it names
    the fields                  one whose name is taken gets `_` behind it, as in derived tables: `seq_` is seq
    _corrupt_record             the text of a record that does not fit, whose fields are all null then (permissive)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.spark.json_columns import JsonColumns, Parsed
from headwater.spark.json_values import Unsupported
from headwater.spark.options import DROPMALFORMED, FAILFAST, PERMISSIVE, BadOptions
from headwater.spark.rows import BATCH_ROWS_MAX, KINDS, Shape, check, stored

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

CORRUPT = "_corrupt_record"
_TAKEN = frozenset((*KINDS, CORRUPT))


class BadRecord(Exception):
    """A record does not fit, and the read was told to fail then."""

    def __init__(self, bucket: str, stream: str, seq: int, reason: str) -> None:
        super().__init__(
            f"record {seq} of stream {bucket}/{stream} does not fit: {reason}. To go on without its fields set "
            f"parseMode to {PERMISSIVE}, without it to {DROPMALFORMED}"
        )
        self._facts = bucket, stream, seq, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return BadRecord, self._facts


# ---- of a read that may parse, or not ----------------------------------------------------------------------------


def check_columns(schema: StructType, mode: str | None) -> None:
    """Raises BadOptions for a schema that the rows of a read cannot be given in; mode None: records are not parsed."""
    if mode is None:
        check(schema)
    else:
        check_typed(schema, mode)


def columns_of(schema: StructType, mode: str | None) -> list[str]:
    """The lake's columns that these rows are made of."""
    return stored(schema) if mode is None else typed_stored(schema, mode)


def shape_of(schema: StructType, mode: str | None) -> Shape | TypedShape:
    return Shape(schema) if mode is None else TypedShape(schema, mode)


# ---- which columns ----------------------------------------------------------------------------------------------


def check_typed(schema: StructType, mode: str) -> None:
    """Raises BadOptions for columns that a read with `parse` cannot have."""
    from pyspark.sql.types import StructType

    names = [field.name.lower() for field in schema.fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadOptions(f"columns that differ in case alone, or not at all: {', '.join(twice)}")
    own = StructType([field for field in schema.fields if field.name.lower() in KINDS])
    if own.fields:
        check(own)
    for field in schema.fields:
        if field.name.lower() == CORRUPT:
            if field.dataType.simpleString() != "string":
                raise BadOptions(f"column {field.name} is string, not {field.dataType.simpleString()}")
        elif field.name.lower() not in KINDS:
            _check_field(field, mode)


def _check_field(field: StructField, mode: str) -> None:
    kind = field.dataType.simpleString()
    try:
        _columns([field])
    except (Unsupported, TypeError, ValueError) as error:
        raise BadOptions(f"column {field.name}: no JSON value is read as {kind}; take string, and cast it") from error
    if not field.nullable and mode == PERMISSIVE:
        raise BadOptions(
            f"column {field.name} is NOT NULL, and null for a record that does not fit: leave NOT NULL out, or set "
            f"parseMode to {FAILFAST} or {DROPMALFORMED}"
        )


def typed_stored(schema: StructType, mode: str) -> list[str]:
    """The lake's columns that these rows are made of."""
    from pyspark.sql.types import StructType

    own = stored(StructType([field for field in schema.fields if field.name.lower() in KINDS]))
    more = ["payload", "content_type"] if _is_parsed(schema, mode) else []
    told = ["bucket", "stream", "seq"] if mode == FAILFAST else []
    return list(dict.fromkeys([*own, *more, *told])) or ["seq"]


def _is_parsed(schema: StructType, mode: str) -> bool:
    """Whether anything depends on what is in the records."""
    return mode != PERMISSIVE or any(field.name.lower() not in KINDS for field in schema.fields)


def column_of(field: str) -> str:
    return f"{field}_" if field.lower() in _TAKEN else field


def _field(column: str) -> str:
    """The field of the records that a column shows."""
    return column[:-1] if column.endswith("_") and column[:-1].lower() in _TAKEN else column


def _columns(fields: Iterable[StructField]) -> JsonColumns:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    shown = list(fields)
    arrow = to_arrow_schema(StructType(shown), timezone="UTC")
    kinds = pa.schema([pa.field(_field(field.name), field.type) for field in arrow])
    return JsonColumns(kinds, [_field(field.name) for field in shown if not field.nullable])


# ---- rows -------------------------------------------------------------------------------------------------------


class TypedShape:
    """As `rows.Shape`, with records parsed. Rows may also be those of a frame, with the columns of a read."""

    def __init__(self, schema: StructType, mode: str) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._mode = mode
        self.arrow = to_arrow_schema(schema, timezone="UTC")
        typed = [field for field in schema.fields if field.name.lower() not in _TAKEN]
        self._typed = {field.name: at for at, field in enumerate(typed)}
        self._columns = _columns(typed) if _is_parsed(schema, mode) else None

    def batches(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Rows of the lake as rows of the schema. Raises BadRecord."""
        for start in range(0, len(rows), BATCH_ROWS_MAX):
            part = rows.slice(start, BATCH_ROWS_MAX).combine_chunks()
            parsed = None if self._columns is None else self._parsed(part, self._columns)
            if parsed is not None and self._mode == DROPMALFORMED and pc.any(parsed.unfit).as_py():
                fine = pc.invert(parsed.unfit)
                part = part.filter(fine).combine_chunks()
                parsed = Parsed([column.filter(fine) for column in parsed.columns], parsed.unfit.filter(fine))
            if not len(part):
                continue
            columns = [self._shown(part, parsed, field) for field in self.arrow]
            yield from pa.Table.from_arrays(columns, schema=self.arrow).combine_chunks().to_batches()

    def _parsed(self, part: pa.Table, columns: JsonColumns) -> Parsed:
        parsed = columns.parse(_whole(part["payload"]), _whole(part["content_type"]))
        if self._mode == FAILFAST and pc.any(parsed.unfit).as_py():
            at = pc.index(parsed.unfit, True).as_py()
            bucket, stream, seq = (part[name][at].as_py() for name in ("bucket", "stream", "seq"))
            raise BadRecord(bucket, stream, seq, columns.reason(part["payload"][at].cast(pa.binary()).as_py()))
        return parsed

    def _shown(self, part: pa.Table, parsed: Parsed | None, field: pa.Field) -> Any:
        if parsed is not None and field.name in self._typed:
            column = parsed.columns[self._typed[field.name]]
            return column if column.type == field.type else column.cast(field.type)
        if parsed is not None and field.name.lower() == CORRUPT:
            texts = _whole(part["payload"]).view(pa.string())
            return pc.if_else(parsed.unfit, texts, pa.scalar(None, pa.string()))
        if field.name.lower() == "timestamp" and "timestamp" in part.column_names:
            return part["timestamp"].cast(field.type)
        return Shape.column(part, field)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)
