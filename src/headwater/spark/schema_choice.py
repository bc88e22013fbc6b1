"""Which schema a derived table goes by: declared, its bucket's, its own, or one that is inferred from a sample.

Owns the order of these, what a table remembers of it, and how it is told. Never changes a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.model import json_schema
from headwater.spark import typed_rows
from headwater.spark.derived_tables import DerivedTable
from headwater.spark.json_types import BucketColumns, bucket_columns, ddl, fields_of, struct_of
from headwater.spark.node import Node
from headwater.spark.schema_evolution import Sampled, evolved, fitted
from headwater.spark.selection import Selection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

DECLARED, BUCKET, INFERRED = "declared", "bucket", "inferred"
"""Where a table's schema comes from."""


class SchemaChoice:
    """Of one run of one table. `rows` gives the records of a batch, narrowed by conditions if there are any."""

    def __init__(
        self,
        node: Node,
        table: DerivedTable,
        owner: Mapping[str, Any] | None,
        selection: Selection,
        overwrite: bool,
        whole: bool,
        rows: Callable[[str | None], DataFrame],
    ) -> None:
        self._node, self._table, self._owner, self._selection = node, table, owner, selection
        self._overwrite, self._rows = overwrite, rows
        self._goes_on = owner is not None and not overwrite and not whole
        """Its rows and columns stay."""
        self._bucket: BucketColumns | None = None
        self._added: list[str] = []
        self._left_out: list[str] = []
        self._origin = INFERRED
        self._schema: StructType

    def choose(self, text: str | None, infer: bool, sample_rows: int) -> StructType:
        """Raises JobRefused."""
        self._origin, self._schema = self._chosen(text, infer, sample_rows)
        return self._schema

    def _chosen(self, text: str | None, infer: bool, sample_rows: int) -> tuple[str, StructType]:
        if text is not None:
            return DECLARED, typed_rows.parse_schema(text)
        owner = self._owner
        if infer:
            if owner is None or not self._goes_on:
                return INFERRED, typed_rows.infer(self._sample(sample_rows))
            old = typed_rows.parse_schema(owner["schema"])
            found = evolved(old, self._sample(sample_rows), self._table.place.url)
            self._left_out = found.left_out
            return _origin(owner), typed_rows.checked(found.schema)
        if owner is not None and _origin(owner) == DECLARED:
            return DECLARED, typed_rows.parse_schema(owner["schema"])
        self._bucket = bucket_columns(self._node, self._selection)
        if self._bucket is not None:
            return BUCKET, typed_rows.checked(struct_of(self._bucket.fields))
        if owner is not None and not self._overwrite:
            return _origin(owner), typed_rows.parse_schema(owner["schema"])
        return INFERRED, typed_rows.infer(self._sample(sample_rows))

    def _sample(self, rows_max: int) -> list[Sampled]:
        """Some of the records: of a table that goes on the newest, also those that it has."""
        from pyspark.sql import functions as F

        goes_on = self._goes_on and self._table.exists()
        since = self._table.newest_since("appended_at", rows_max) if goes_on else None
        rows = self._rows(None if since is None else f"timestamp >= '{since:%Y-%m-%dT%H:%M:%SZ}'")
        rows = rows.orderBy(F.desc("timestamp")) if goes_on else rows
        found = rows.select("bucket", "stream", "seq", F.col("payload").cast("binary")).limit(rows_max).collect()
        return [Sampled(bucket, stream, seq, bytes(payload)) for bucket, stream, seq, payload in found]

    def fit(self) -> StructType:
        """Makes the schema one that the columns of the table hold, and notes which are new. Raises JobRefused."""
        columns = typed_rows.table_schema(self._schema)
        own = pa.schema(list(columns)[len(typed_rows.FACTS) :])
        there, bucket = self._table.schema, self._bucket
        source = "the schema" if bucket is None else f"the schema of bucket {bucket.bucket} (version {bucket.version})"
        self._schema = fitted(self._schema, own, there, self._table.place.url, source)
        known = {name.lower() for name in there.names}
        self._added = [name for name in columns.names if name.lower() not in known]
        return self._schema

    def owned(self) -> dict[str, Any]:
        """What the table remembers."""
        inferred = self._origin == INFERRED
        return {"schema": self._schema.json(), "inferred": inferred, "schema_from": self._origin}

    def told(self) -> dict[str, object]:
        """What the schema is, where it comes from, and what it changed."""
        bucket, inferred = self._bucket, self._origin == INFERRED
        fields = fields_of(self._schema) if inferred else None
        return {
            "schema_inferred": inferred,
            "schema_from": self._origin,
            "schema": ddl(self._schema),
            **({} if bucket is None else {"schema_bucket": bucket.bucket, "schema_version": bucket.version}),
            **({} if fields is None else {"json_schema": json_schema.schema_of(fields)}),
            **({"columns_added": self._added} if self._added else {}),
            **({"fields_left_out": self._left_out} if self._left_out else {}),
        }


def _origin(owner: Mapping[str, Any]) -> str:
    """Where a table's schema came from; earlier versions noted less."""
    found: str = owner.get("schema_from") or (INFERRED if owner["inferred"] else DECLARED)
    return found
