"""Schemas of buckets, asked for and changed: versions, a bucket that goes, and how many there may be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from headwater.engine import bucket_schemas
from headwater.engine.bucket_schemas import BucketSchemas
from headwater.engine.buckets import Buckets
from headwater.engine.schema_records import BucketSchema, Put, SchemaRecords, encode
from headwater.errors import BadBucketSchema, BucketNotFound, PreconditionFailed, SchemaNotFound
from headwater.log.null import NullLog
from tests.engine import engine_on, group_on


def document(*names: str) -> bytes:
    return json.dumps({"type": "object", "properties": {name: {"type": "string"} for name in names}}).encode()


class Town:
    def __init__(self) -> None:
        self.group = group_on(NullLog())
        engine = engine_on(self.group)
        self.buckets = Buckets(engine, engine.questions)
        self.schemas = BucketSchemas(engine)

    @property
    def kept(self) -> dict[str, BucketSchema]:
        records = self.group.domains[SchemaRecords.name]
        assert isinstance(records, SchemaRecords)
        return records.by_bucket


def run(body: Callable[[Town], Awaitable[None]]) -> None:
    async def in_loop() -> None:
        await body(Town())

    asyncio.run(in_loop())


def test_versions_go_on_counting_when_a_schema_was_taken_away() -> None:
    async def body(town: Town) -> None:
        await town.buckets.create("town")
        assert (await town.schemas.put("town", document("a"), None)).version == 1
        assert (await town.schemas.put("town", document("a"), '"1"')).version == 1
        with pytest.raises(PreconditionFailed):
            await town.schemas.put("town", document("b"), '"0"')
        await town.schemas.take_away("town", "*")
        for if_match in (None, '"0"'):
            with pytest.raises(SchemaNotFound):
                await town.schemas.take_away("town", if_match)
        with pytest.raises(SchemaNotFound):
            await town.schemas.get("town")
        assert (await town.schemas.put("town", document("a"), '"0"')).version == 2

    run(body)


def test_nothing_is_left_of_a_schema_whose_bucket_was_deleted() -> None:
    async def body(town: Town) -> None:
        await town.buckets.create("town")
        await town.schemas.put("town", document("a"), None)
        await town.buckets.delete("town")
        assert town.kept == {}
        with pytest.raises(BucketNotFound):
            await town.schemas.get("town")

    run(body)


def test_a_schema_that_a_crash_left_behind_is_nobodys_and_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(town: Town) -> None:
        await town.buckets.create("town")
        await town.buckets.create("other")
        left = BucketSchema(document("old"), 9, created_ms=-1)
        town.group.note(SchemaRecords.name, encode(Put("town", left)))
        with pytest.raises(SchemaNotFound):
            await town.schemas.get("town")
        assert (await town.schemas.put("other", document("a"), None)).version == 1
        assert set(town.kept) == {"other"}
        with pytest.raises(BadBucketSchema, match="at most 1 buckets"):
            await town.schemas.put("town", document("a"), None)

    monkeypatch.setattr(bucket_schemas, "SCHEMAS_MAX", 1)
    run(body)


def test_a_schema_that_cannot_be_read_is_not_taken() -> None:
    async def body(town: Town) -> None:
        await town.buckets.create("town")
        with pytest.raises(BadBucketSchema):
            await town.schemas.put("town", b"{}", None)
        assert town.kept == {}

    run(body)
