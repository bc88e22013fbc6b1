"""JSON records as typed rows: a schema, declared or inferred, and what does not fit it.

Owns the columns of derived tables, the one place where JSON is parsed, and the reasons why a record is put aside. Never
drops a record: each one becomes a row of the table or of its quarantine.

    day, bucket | stream, incarnation, seq, offset, appended_at | the schema's columns          the table
    day, bucket | stream, incarnation, seq, offset, appended_at | reason, payload               its quarantine
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.spark.derived_tables import arrow_schema
from headwater.spark.job_runs import JobRefused
from headwater.spark.json_types import TooManyFields, inferred, struct_of
from headwater.spark.schema_evolution import Sampled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

PARTITION_BY = ("day", "bucket")
FACTS = pa.schema(
    [
        ("day", pa.date32()),
        ("bucket", pa.string()),
        ("stream", pa.string()),
        ("incarnation", pa.int64()),
        ("seq", pa.int64()),
        ("offset", pa.int64()),
        ("appended_at", pa.timestamp("us", "UTC")),
    ]
)
"""What every row says of its record. The day is that of the append unless it is taken from a column."""
QUARANTINE = pa.schema([*FACTS, ("reason", pa.string()), ("payload", pa.binary())])
READ = (
    "bucket string, stream string, incarnation bigint, seq bigint, offset bigint, timestamp timestamp, payload string, "
    "content_type string"
)
"""The columns that are asked of the source: it reads no others."""
BAD = "_headwater_bad"
_PARSED, _LACKING = "_parsed", "_lacking"
_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": BAD,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}
_JSON_TYPES = r"(?i)^\s*application/(json|[\w.-]+\+json|x-ndjson|jsonl)\s*(;|$)"


def parse_schema(text: str) -> StructType:
    """A schema as DDL (`run STRING, tokens BIGINT NOT NULL`) or as Spark's JSON. Raises JobRefused."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        is_json = text.lstrip().startswith("{")
        found = StructType.fromJson(json.loads(text)) if is_json else StructType.fromDDL(text)
    except (PySparkException, ValueError, KeyError, TypeError) as error:
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
        raise JobRefused(
            f"the schema cannot be read: {line}", "write it as `name TYPE, name TYPE`, or as the JSON of a Spark schema"
        ) from None
    return checked(found)


def checked(schema: StructType) -> StructType:
    """Raises JobRefused for one that no table can have."""
    if not schema.fields:
        raise JobRefused("the schema has no columns", "name at least one field of the records")
    names = [column_name(field.name).lower() for field in schema.fields]
    for name in names:
        if names.count(name) > 1:
            raise JobRefused(f"the schema has the column {name} twice", "columns differ by more than case")
    return schema


def infer(sample: Sequence[Sampled]) -> StructType:
    """The schema that a sample of the records has. Raises JobRefused when there is nothing to see."""
    try:
        found = struct_of(inferred(one.payload for one in sample))
    except TooManyFields as many:
        raise JobRefused(str(many), "give --schema") from None
    if not found.fields:
        raise JobRefused(
            f"none of {len(sample)} records is a JSON object with a field: there is no schema to be inferred",
            "declare one, or append records first",
        )
    return checked(found)


def table_schema(schema: StructType) -> pa.Schema:
    """The columns of the table for such records. Raises JobRefused."""
    fields = arrow_schema(schema)
    return pa.schema([*FACTS, *(field.with_name(column_name(field.name)) for field in fields)])


def column_name(field: str) -> str:
    """The column for a field of the records: a name that the table uses itself gets `_` after it."""
    return f"{field}_" if field.lower() in FACTS.names else field


def parsed(rows: DataFrame, schema: StructType, day_from: str | None = None) -> DataFrame:
    """Rows of the source with their JSON parsed, once: what `Router` takes apart.

    `day_from`: a column of the schema whose date is the row's day; where it is null, the append's is.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructType

    shape = StructType([*[_loose(field) for field in schema.fields], *StructType().add(BAD, StringType()).fields])
    document = F.from_json("payload", shape, _OPTIONS)
    columns = [F.col(name) for name in ("bucket", "stream", "incarnation", "seq", "offset")]
    day = _day(F.col("timestamp"))
    if day_from is not None:
        kind = schema[day_from].dataType.typeName()
        given = document.getField(day_from)
        day = F.coalesce(given if kind == "date" else _day(given), day)
    required = [field.name for field in schema.fields if not field.nullable]
    lacking = F.lit(None).cast("string")
    if required:
        # Another look at the document: worth it only where a column is required.
        absent = [document.getField(name).isNull() for name in required]
        anything = absent[0]
        for one in absent[1:]:
            anything = anything | one
        lacking = F.when(anything, F.col("payload"))
    return rows.select(
        day.alias("day"),
        *columns,
        F.col("timestamp").alias("appended_at"),
        document.alias(_PARSED),
        lacking.alias(_LACKING),
    )


def check_day(schema: StructType, day_from: str | None) -> None:
    """Raises JobRefused for a column that has no day."""
    if day_from is None:
        return
    kinds = {field.name: field.dataType.typeName() for field in schema.fields}
    if kinds.get(day_from) not in ("date", "timestamp"):
        has = kinds.get(day_from, "not in the schema")
        raise JobRefused(f"the day cannot come from {day_from}, which is {has}", "name a DATE or TIMESTAMP column")


def only_json(rows: DataFrame) -> DataFrame:
    """Rows of streams whose content type says JSON."""
    from pyspark.sql import functions as F

    kind = F.col("content_type")
    # The comparison answers for nearly every row; the pattern alone would cost a sixth of the parsing.
    return rows.where((kind == "application/json") | kind.rlike(_JSON_TYPES)).drop("content_type")


def as_read(rows: DataFrame) -> DataFrame:
    """Rows with all columns of the source, as `READ` asks for them."""
    from pyspark.sql import functions as F

    names = [column.split()[0] for column in READ.split(", ")]
    return rows.select(*(F.col(name).cast("string").alias(name) if name == "payload" else name for name in names))


def typed_frame(rows: DataFrame, schema: StructType, day_from: str | None = None) -> DataFrame:
    """The rows of the table as a frame, without those that do not fit: for queries that go on from there."""
    from pyspark.sql import functions as F

    found = parsed(rows, schema, day_from)
    fine = F.col(_PARSED).isNotNull() & F.col(f"{_PARSED}.{BAD}").isNull() & F.col(_LACKING).isNull()
    columns = [F.col(_PARSED).getField(field.name).alias(column_name(field.name)) for field in schema.fields]
    return found.where(fine).select(*FACTS.names, *columns)


class Router:
    """Takes a batch of `parsed` apart: rows of the table, and rows of its quarantine. Pickles."""

    def __init__(self, schema: StructType, table: pa.Schema) -> None:
        self._kinds = {field.name: field.dataType.typeName() for field in schema.fields}
        self._required = [field.name for field in schema.fields if not field.nullable]
        self._table = table

    def __call__(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        document = batch.column(_PARSED)
        bad = pc.or_(pc.is_null(document), pc.is_valid(pc.struct_field(document, BAD)))
        bad = pc.or_(bad, pc.is_valid(batch.column(_LACKING)))
        if not pc.any(bad).as_py():
            return [self._fitting(batch), _none(QUARANTINE)]
        return [self._fitting(batch.filter(pc.invert(bad))), self._unfit(batch.filter(bad))]

    def _fitting(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        document = batch.column(_PARSED)
        found = {name: batch.column(name) for name in FACTS.names}
        found |= {column_name(name): pc.struct_field(document, name) for name in self._kinds}
        lower = {name.lower(): column for name, column in found.items()}
        columns = [
            lower[field.name.lower()] if field.name.lower() in lower else pa.nulls(batch.num_rows, field.type)
            for field in self._table
        ]
        return pa.RecordBatch.from_arrays(columns, names=self._table.names)

    def _unfit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        whole = pc.coalesce(pc.struct_field(batch.column(_PARSED), BAD), batch.column(_LACKING), "")
        payloads = whole.cast(pa.binary())
        reasons = [self.reason(payload) for payload in payloads.to_pylist()]
        facts = [batch.column(name) for name in FACTS.names]
        return pa.RecordBatch.from_arrays([*facts, pa.array(reasons, pa.string()), payloads], names=QUARANTINE.names)

    def reason(self, payload: bytes) -> str:
        """Why a record does not fit, for who looks into the quarantine."""
        try:
            document = json.loads(payload)
        except (ValueError, RecursionError) as error:
            return f"not JSON: {error}"
        if not isinstance(document, dict):
            return f"not a JSON object but {_kind(document)}"
        for name in self._required:
            if document.get(name) is None:
                return f"{name} is required and missing"
        for name, kind in self._kinds.items():
            value = document.get(name)
            if value is not None and not _fits(value, kind):
                return f"{name} should be {kind} and is {_kind(value)} {_short(value)}"
        return "a value does not fit the type of its column"


def _loose(field: Any) -> Any:
    from pyspark.sql.types import StructField

    return StructField(field.name, field.dataType, True)


def _day(moment: Any) -> Any:
    """The date in UTC, whatever time zone the session has."""
    from pyspark.sql import functions as F

    return F.date_from_unix_date(F.floor(F.unix_micros(moment) / F.lit(86_400_000_000)).cast("int"))


def _none(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


_WHOLE = {"long": 64, "bigint": 64, "integer": 32, "int": 32, "short": 16, "smallint": 16, "byte": 8, "tinyint": 8}


def _fits(value: Any, kind: str) -> bool:
    """A guess, to name the culprit: Spark has already decided."""
    if kind in _WHOLE:
        bits = _WHOLE[kind]
        return type(value) is int and -(1 << bits - 1) <= value < 1 << bits - 1
    if kind in ("double", "float") or kind.startswith("decimal"):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "array":
        return isinstance(value, list)
    if kind in ("struct", "map"):
        return isinstance(value, dict)
    return kind == "string" or not isinstance(value, dict | list | bool)


def _kind(value: Any) -> str:
    kinds = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return kinds.get(type(value), "null")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}…"
