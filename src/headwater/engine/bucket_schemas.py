"""Schemas of buckets: what a bucket says its JSON records look like, asked for and changed in any process.

Owns what is asked of group 0's, and versions. Never compares a record with a schema: it describes, for tables and for
readers, and an append does not look at it.
"""

from __future__ import annotations

from typing import Any

from headwater.engine.buckets import DIRECTORY
from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.schema_records import (
    NONE,
    BucketSchema,
    Forgotten,
    Put,
    SchemaRecords,
    created,
    encode,
    records_of,
)
from headwater.errors import BadBucketSchema, BucketNotFound, GroupMoved, PreconditionFailed, SchemaNotFound
from headwater.model import json_schema

SCHEMAS_MAX = 1_000
"""Buckets that have one, or had one and are still there. Overflow: no further one is taken."""


class BucketSchemas:
    """Of one process: asks group 0's, and answers where that is."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._questions = engine.questions
        self._questions.register("schema_get", self._answer_get)
        self._questions.register("schema_put", self._answer_put)

    async def get(self, bucket: str) -> BucketSchema:
        """Raises BucketNotFound, SchemaNotFound."""
        found: BucketSchema = await self._questions.ask_owner(DIRECTORY, "schema_get", bucket, into=BucketSchema)
        return found

    async def put(self, bucket: str, document: bytes, if_match: str | None) -> BucketSchema:
        """On return it is durable; the same document again is the same version. `if_match` None: whatever there is.

        Raises BadBucketSchema, BucketNotFound, PreconditionFailed.
        """
        json_schema.fields_of(document)
        return await self._put(bucket, document, if_match)

    async def take_away(self, bucket: str, if_match: str | None) -> None:
        """Raises BucketNotFound, SchemaNotFound, PreconditionFailed."""
        await self._put(bucket, b"", if_match)

    async def _put(self, bucket: str, document: bytes, if_match: str | None) -> BucketSchema:
        asked: Any = self._questions.ask_owner(DIRECTORY, "schema_put", bucket, document, if_match, into=BucketSchema)
        found: BucketSchema = await asked
        return found

    # ---- answers, where the directory is ------------------------------------------------------------------------

    async def _answer_get(self, bucket: str) -> BucketSchema:
        future = OutcomeFuture()
        group = self._group()
        group.after_pending(future)
        await future.success()
        found, _ = self._present(group, bucket)
        if found is None or not found.document:
            raise SchemaNotFound
        return found

    async def _answer_put(self, bucket: str, document: bytes, if_match: str | None) -> BucketSchema:
        group = self._group()
        found, created_ms = self._present(group, bucket)
        etag = NONE if found is None else found.etag
        if if_match is not None and if_match != etag and not (if_match == "*" and etag != NONE):
            raise PreconditionFailed(etag)
        if etag == NONE and not document:
            raise SchemaNotFound
        if found is not None and found.document == document:
            return await self._answer_get(bucket)  # it may not be durable yet
        if found is None:
            self._make_room(group, bucket)
        version = 1 if found is None else found.version + bool(document)
        future = OutcomeFuture()
        event = Put(bucket, BucketSchema(bytes(document), version, created_ms))
        group.note(SchemaRecords.name, encode(event), future)
        made = records_of(group).by_bucket[bucket]
        await future.success()
        return made

    # ---- inside -------------------------------------------------------------------------------------------------

    def _present(self, group: Group, bucket: str) -> tuple[BucketSchema | None, int]:
        """What is kept for the bucket that there is now, and when that was made. Raises BucketNotFound."""
        created_ms = created(group, bucket)
        if created_ms is None:
            raise BucketNotFound
        found = records_of(group).by_bucket.get(bucket)
        return (found if found is not None and found.created_ms == created_ms else None), created_ms

    def _make_room(self, group: Group, bucket: str) -> None:
        """Schemas of buckets that are gone make room, where a crash left any. Raises BadBucketSchema."""
        kept = records_of(group).by_bucket
        if len(kept) < SCHEMAS_MAX or bucket in kept:
            return
        for name, schema in list(kept.items()):
            if created(group, name) != schema.created_ms:
                group.note(SchemaRecords.name, encode(Forgotten(name)))
        if len(kept) >= SCHEMAS_MAX:
            raise BadBucketSchema(f"at most {SCHEMAS_MAX} buckets have a schema: delete buckets that are not needed")

    def _group(self) -> Group:
        """Raises GroupMoved."""
        owned = self._engine.owned.get(DIRECTORY)
        if owned is None:
            raise GroupMoved(DIRECTORY)
        return owned.group
