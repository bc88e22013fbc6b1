"""Buckets over two groups: made and deleted in group 0, counted in each, and no race that leaves a stream behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headwater.engine.buckets import Buckets
from headwater.engine.engine import Engine
from headwater.engine.placements import Placements
from headwater.engine.questions import LocalQuestions
from headwater.engine.schema_records import SchemaRecords
from headwater.errors import BucketExists, BucketNotEmpty, BucketNotFound, Overloaded
from headwater.model.commands import Create, Delete, DeleteBucket
from tests.engine import Bench, Inbox


class Owned:
    """As much of an owned group as buckets use."""

    def __init__(self, bench: Bench) -> None:
        self.group = bench.group
        self.placements = Placements(bench.group.catalog)
        bench.group.domains[SchemaRecords.name] = SchemaRecords()


class Held(LocalQuestions):
    """Answers that a test may hold back on their way."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[str, asyncio.Event] = {}

    async def ask_owner(self, group: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        answer = await super().ask_owner(group, name, *arguments)
        if name in self.gates:
            await self.gates[name].wait()
        return answer


class Town:
    def __init__(self) -> None:
        self.benches = [Bench(), Bench()]
        owned: Any = {number: Owned(bench) for number, bench in enumerate(self.benches)}
        self.engine = Engine(owned, 2, self.benches[0].group.clock)
        self.questions = Held()
        self.buckets = Buckets(self.engine, self.questions)

    def key(self, group: int, bucket: str = "town") -> str:
        return next(key for n in range(100) if self.engine.home(key := f"{bucket}/s{n}") == group)

    def create(self, key: str) -> Inbox:
        inbox = Inbox()
        self.engine.submit(key, Create(key, None, []), inbox)
        return inbox

    async def steps(self, count: int = 20) -> None:
        """Lets everything that can go on go on: whatever is gathered is synced."""
        for _ in range(count):
            await asyncio.sleep(0)
            for bench in self.benches:
                bench.sync()

    async def done(self, work: Awaitable[Any]) -> Any:
        task = asyncio.ensure_future(work)
        await self.steps()
        assert task.done()
        return task.result()


def run(body: Callable[[Town], Awaitable[None]]) -> None:
    async def in_loop() -> None:
        await body(Town())

    asyncio.run(in_loop())


def test_a_bucket_is_known_everywhere_once_it_is_made_and_counts_streams_of_every_group() -> None:
    async def body(town: Town) -> None:
        assert not town.buckets.exists("town")
        await town.done(town.buckets.create("town"))
        with pytest.raises(BucketExists):
            await town.done(town.buckets.create("town"))
        for group in (0, 1):
            town.create(town.key(group))
        await town.steps()
        assert await town.done(town.buckets.count("town")) == 2
        found = await town.done(town.buckets.page("town", "", "", 10))
        assert [one.stream_id for one in found.streams] == sorted(town.key(group).partition("/")[2] for group in (0, 1))
        assert not found.has_more
        first = await town.done(town.buckets.page("town", "", "", 1))
        assert first.has_more and first.streams == found.streams[:1]

    run(body)


@pytest.mark.parametrize("group", [0, 1])
def test_a_bucket_with_a_stream_in_any_group_is_not_deleted(group: int) -> None:
    async def body(town: Town) -> None:
        await town.done(town.buckets.create("town"))
        key = town.key(group)
        town.create(key)
        with pytest.raises(BucketNotEmpty):
            await town.done(town.buckets.delete("town"))
        town.engine.submit(key, Delete(), Inbox())
        await town.done(town.buckets.delete("town"))
        with pytest.raises(BucketNotFound):
            await town.done(town.buckets.require("town"))
        with pytest.raises(BucketNotFound):
            await town.done(town.buckets.delete("town"))

    run(body)


def test_a_creation_that_is_not_durable_yet_counts() -> None:
    async def body(town: Town) -> None:
        await town.done(town.buckets.create("town"))
        town.create(town.key(1))  # decided, and nothing of it is synced
        with pytest.raises(BucketNotEmpty):
            await town.done(town.buckets.delete("town"))

    run(body)


def test_whoever_asks_while_a_deletion_is_under_way_waits_for_its_end() -> None:
    async def body(town: Town) -> None:
        await town.done(town.buckets.create("town"))
        deleting = asyncio.ensure_future(town.buckets.delete("town"))
        await asyncio.sleep(0)
        requiring = asyncio.ensure_future(town.buckets.require("town"))
        await town.steps()
        await deleting
        with pytest.raises(BucketNotFound):
            await requiring

    run(body)


def test_an_answer_from_before_a_deletion_that_arrives_after_it_does_not_count() -> None:
    async def body(town: Town) -> None:
        await town.done(town.buckets.create("town"))
        directory = town.engine.owned.pop(0)  # as in a process that does not serve group 0
        gate = town.questions.gates["bucket_made"] = asyncio.Event()
        town.engine.owned[0] = directory
        town.buckets._deciding._held["town"] = asyncio.Lock(), 1  # so that it has to ask
        requiring = asyncio.ensure_future(town.buckets.require("town"))
        await town.steps()
        assert not requiring.done()
        del town.buckets._deciding._held["town"]
        await town.done(town.buckets.delete("town"))
        gate.set()
        await town.steps()
        with pytest.raises(BucketNotFound):
            await requiring

    run(body)


def test_an_answer_is_not_relied_on_when_a_group_entered_since_it_was_asked_for() -> None:
    async def body(town: Town) -> None:
        await town.done(town.buckets.create("town"))
        gate = town.questions.gates["bucket_made"] = asyncio.Event()
        town.buckets._made.clear()
        town.buckets.exists = lambda name: name in town.buckets._made  # type: ignore[method-assign]
        asking = asyncio.ensure_future(town.buckets.require("town"))
        await town.steps()
        # Another owner of group 0 deletes the bucket. This process serves no group then, and is not told.
        town.benches[0].group.submit_bucket(DeleteBucket("town", 0), Inbox())
        town.buckets.entered(town.engine.owned[1])
        gate.set()
        with pytest.raises(BucketNotFound):
            await town.done(asking)

    run(body)


def test_what_an_owner_of_group_0_says_is_older_than_what_its_successor_said_whatever_its_clock() -> None:
    async def body(town: Town) -> None:
        group = town.benches[0].group
        await town.done(town.buckets.create("town"))
        town.buckets.exists = lambda name: name in town.buckets._made  # type: ignore[method-assign]
        await town.buckets._answer_forget("town", (2, 1))
        group.epoch = 1
        with pytest.raises(Overloaded):
            await town.done(town.buckets.require("town"))
        group.epoch = 2
        await town.done(town.buckets.require("town"))
        assert "town" in town.buckets._made

    run(body)
