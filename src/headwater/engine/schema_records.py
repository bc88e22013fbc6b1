"""Schemas of buckets as group 0's log and catalog keep them.

Owns the fold of their events and the rows of a checkpoint. Never reads a document: `model.json_schema` does.

Rows in the catalog, msgpack arrays, by bucket: document (empty when it was taken away), version, when the bucket that
is meant was made (ms), when the schema was put (ms).
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from headwater.engine.group import Group
from headwater.engine.row_changes import RowChanges
from headwater.errors import Failure
from headwater.model.names import DEFAULT_BUCKET

NONE = '"0"'
"""What stands for no schema where a version is named."""


class BucketSchema(msgspec.Struct, frozen=True, array_like=True):
    document: bytes
    """JSON as it was put. Empty: it was taken away, and versions go on counting."""
    version: int
    created_ms: int
    """Of the bucket: one that is made later under that name is another one."""
    at_ms: int = 0

    @property
    def etag(self) -> str:
        return f'"{self.version}"' if self.document else NONE


class Put(msgspec.Struct, frozen=True, array_like=True, tag=1):
    bucket: str
    schema: BucketSchema


class Forgotten(msgspec.Struct, frozen=True, array_like=True, tag=2):
    bucket: str


SchemaEvent = Put | Forgotten

_encode = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(SchemaEvent).decode
_decode_row = msgspec.msgpack.Decoder(BucketSchema).decode


def encode(event: SchemaEvent) -> bytes:
    return _encode(event)


class SchemaRecords(RowChanges):
    """The `Domain` of schemas, of one group. Only that of the directory group ever has any."""

    name = "bucket-schemas"
    in_memory = True

    def __init__(self) -> None:
        super().__init__()
        self.by_bucket: dict[str, BucketSchema] = {}

    def apply(self, body: bytes, at_ms: int, position: int) -> None:
        event = _decode_event(body)
        if isinstance(event, Put):
            schema = msgspec.structs.replace(event.schema, at_ms=at_ms)
            self.by_bucket[event.bucket] = schema
            self._changes[event.bucket] = _encode(schema)
        else:
            self.by_bucket.pop(event.bucket, None)
            self._changes[event.bucket] = None

    def restore(self, things: dict[str, bytes]) -> None:
        self.by_bucket = {bucket: _decode_row(row) for bucket, row in things.items()}


def created(group: Group, bucket: str) -> int | None:
    """When a bucket was made by name, ms; None for one that is only there while it has streams, or not at all."""
    if bucket == DEFAULT_BUCKET:
        return 0
    found = group.loaded.bucket(bucket)
    return found.created_ms if found is not None and found.explicit else None


def forget(group: Group, bucket: str) -> None:
    """Of a bucket that was deleted, on the directory group."""
    if bucket in records_of(group).by_bucket:
        with suppress(Failure):  # what is left of a bucket that is gone is nobody's, and makes room later
            group.note(SchemaRecords.name, encode(Forgotten(bucket)))


def records_of(group: Group) -> SchemaRecords:
    found = group.domains[SchemaRecords.name]
    if not isinstance(found, SchemaRecords):
        raise TypeError(f"the domain {SchemaRecords.name} is another one's")
    return found
