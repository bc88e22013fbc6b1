"""The columns of a read with `parse` for which the user gave none: those of the bucket's schema, or of a sample.

Owns where they come from. Never parses for a result: `parsing` does, with these columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headwater.spark.job_runs import JobRefused
from headwater.spark.json_types import SAMPLE_ROWS, TooManyFields, bucket_columns, inferred, struct_of
from headwater.spark.options import LATEST, PERMISSIVE, BadOptions, Options
from headwater.spark.parsing import CORRUPT, check_typed, column_of
from headwater.spark.reading import rows_of
from headwater.spark.rows import schema_of
from headwater.spark.source import plan_batch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SAMPLE_BYTES = 32 << 20
NOT_INFERRED = (
    "the columns of a streaming read are not inferred, because a query that is started again would have others: name "
    "them with .schema(…), or give the bucket a schema (headwater bucket schema)"
)


def typed_schema(options: Options) -> tuple[StructType, bool]:
    """The columns of such a read for which the user gave none, and whether they were inferred from a sample: those of
    the bucket's schema, or else what the first records have. Raises BadOptions, and what a batch read raises."""
    from pyspark.sql.types import StructType

    try:
        found = None if options.node is None else bucket_columns(options.node, options.selection)
    except JobRefused as refused:
        raise BadOptions(str(refused)) from None
    if found is not None:
        fields = found.fields
    else:
        if options.starting == LATEST or options.rows_max or options.bytes_max or options.rows_min:
            raise BadOptions(NOT_INFERRED)
        try:
            fields = inferred(_sample(options))
        except TooManyFields as many:
            raise BadOptions(f"{many} with .schema(…), or give the bucket a schema") from None
        if not fields.fields:
            raise BadOptions(
                "none of the records that this read would have is a JSON object with a field: name the columns with "
                ".schema(…), or give the bucket a schema"
            )
    schema = StructType([one for one in schema_of(options.with_headers).fields if one.name != "payload"])
    strict = options.parse_mode != PERMISSIVE
    for field in struct_of(fields).fields:
        schema = schema.add(column_of(field.name), field.dataType, field.nullable or not strict)
    if not strict:
        schema = schema.add(CORRUPT, "string")
    check_typed(schema, options.parse_mode or PERMISSIVE)
    return schema, found is None


def _sample(options: Options) -> Iterator[bytes]:
    """Some of the records that the read has now: the first of each part of it, until there are enough."""
    planned = plan_batch(options, ["payload", "content_type"])
    rows_count = size = 0
    for task in planned.tasks:
        for rows in rows_of(planned.work, task):
            for batch in rows.select(["payload"]).to_batches(max_chunksize=1_000):
                for payload in batch.column(0).to_pylist():
                    yield payload
                    rows_count += 1
                    size += len(payload)
                    if rows_count >= SAMPLE_ROWS or size >= SAMPLE_BYTES:
                        return
