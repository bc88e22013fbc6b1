"""Where Spark looks for `format("headwater")`: it imports every package of this kind and takes its DefaultSource.

Owns the name alone. Never does anything itself: `headwater.spark` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from headwater.spark.sink import BatchWriter, StreamWriter
    from headwater.spark.source import Reader
    from headwater.spark.stream_source import StreamReader


class DefaultSource(DataSource):
    """Streams of a Headwater node as rows."""

    _inferred = False
    """Whether the columns come from a sample. Spark pickles the object after it asked for them."""

    # Imported where they are used: Spark imports this package for every session, also those that do not use it.

    @classmethod
    def name(cls) -> str:
        return "headwater"

    def schema(self) -> StructType:
        from headwater.spark.options import parse
        from headwater.spark.rows import schema_of

        options = parse(self.options)
        if options.parse_mode is None:
            return schema_of(options.with_headers)
        from headwater.spark.typed_columns import typed_schema

        schema, self._inferred = typed_schema(options)
        return schema

    def reader(self, schema: StructType) -> Reader:
        from headwater.spark.source import Reader

        return Reader(self.options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        from headwater.spark.stream_source import StreamReader

        if self._inferred:
            from headwater.spark.typed_columns import NOT_INFERRED, BadOptions

            raise BadOptions(NOT_INFERRED)
        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from headwater.spark.sink import writer

        return writer(schema, overwrite, self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        # Spark names these parameters when a batch is committed: another spelling fails after the tasks wrote.
        from headwater.spark.sink import stream_writer

        return stream_writer(schema, overwrite, self.options)
