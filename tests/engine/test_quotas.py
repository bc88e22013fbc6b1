"""What buckets may hold: counted with checkpoints, given out as room, in one process and in several.
Logs move by hand, catalogs are real; processes are parts of one event loop, and what they ask each other is packed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.catalog.sqlite import SqliteCatalog
from headwater.engine import quotas as module
from headwater.engine.engine import Engine
from headwater.engine.quotas import Quotas
from headwater.errors import BucketFull
from headwater.model.commands import Append, Create, Delete, Fork, Producer, Trim
from headwater.model.events import Appended
from headwater.model.stream import Unchanged
from tests.engine import Bench, Inbox, engine_on
from tests.engine.test_checkpoint import take
from tests.support.clock import SimClock
from tests.support.processes import Process, Processes, run

TEXT = "text/plain"


class World:
    """One group, and its quotas."""

    def __init__(self, streams_max: int = 0, bytes_max: int = 0, catalog: SqliteCatalog | None = None) -> None:
        self.bench = Bench(catalog=catalog)
        self.engine: Engine = engine_on(self.bench.group)
        self.quotas = Quotas(self.engine, streams_max, bytes_max)

    def create(self, key: str, body: bytes = b"") -> Any:
        return self._outcome(self.bench.submit(Create(key, TEXT, [body] if body else []), key))

    def post(self, key: str, body: bytes, producer: Producer | None = None, close: bool = False) -> Any:
        return self._outcome(self.bench.submit(Append([body] if body else [], TEXT, producer, close=close), key))

    def submit(self, key: str, command: Any) -> Any:
        return self._outcome(self.bench.submit(command, key))

    def _outcome(self, inbox: Inbox) -> Any:
        self.bench.sync()
        return inbox.outcome

    def stored(self, name: str) -> int:
        bucket = self.bench.group.loaded.bucket(name)
        return 0 if bucket is None else bucket.stored


def in_a_loop(body: Callable[[], Any]) -> None:
    asyncio.run(body())


def test_a_bucket_takes_as_many_streams_as_it_may_hold_and_not_one_more() -> None:
    async def body() -> None:
        world = World(streams_max=3)
        outcomes = [world.create(f"shop/{number}") for number in range(5)]
        assert [isinstance(one, BucketFull) for one in outcomes] == [False] * 3 + [True] * 2
        assert "shop may hold 3 streams (bucket_streams_max)" in outcomes[4].message()
        assert isinstance(world.create("shop/1"), Unchanged)  # it is there already
        assert isinstance(world.post("shop/1", b"more"), Appended)
        assert not isinstance(world.create("other/1"), BucketFull)
        assert world.quotas.refused == {"bucket_streams": 2, "bucket_bytes": 0}
        world.submit("shop/1", Delete())
        await world.quotas.look()
        assert not isinstance(world.create("shop/4"), BucketFull)

    in_a_loop(body)


def test_a_bucket_that_is_full_takes_what_adds_nothing_and_answers_what_it_has() -> None:
    async def body() -> None:
        world = World(bytes_max=10)
        world.create("shop/1", b"12345")
        assert isinstance(world.post("shop/1", b"123456", Producer("p", 0, 0)), Appended)  # begun while there was room
        refused = world.post("shop/1", b"x")
        assert isinstance(refused, BucketFull) and "10 bytes" in refused.message()
        assert isinstance(world.create("shop/2", b"x"), BucketFull)
        assert isinstance(world.post("shop/1", b"123456", Producer("p", 0, 0)), Unchanged)
        assert not isinstance(world.create("shop/2"), BucketFull)
        assert isinstance(world.post("shop/1", b"", close=True), Appended)
        world.submit("shop/1", Trim(11))
        await world.quotas.look()
        assert isinstance(world.post("shop/2", b"x"), Appended)

    in_a_loop(body)


def test_the_bucket_of_the_node_has_no_limit() -> None:
    async def body() -> None:
        world = World(streams_max=1, bytes_max=1)
        for number in range(5):
            assert not isinstance(world.create(f"_headwater/{number}", b"a note"), BucketFull)

    in_a_loop(body)


def test_what_is_stored_is_known_after_a_restart() -> None:
    async def body() -> None:
        catalog = SqliteCatalog(None)
        world = World(catalog=catalog)
        world.create("shop/1", b"12345")
        world.create("shop/2", b"1234567")
        world.create("other/1", b"1")
        await take(world.bench)
        world.post("shop/2", b"890")
        world.submit("shop/1", Delete())
        await take(world.bench)
        again = World(bytes_max=11, catalog=catalog)
        assert again.stored("shop") == 10 and again.stored("other") == 1
        again.bench.log.tail = world.bench.log.tail
        assert isinstance(again.post("shop/2", b"1"), Appended)
        assert isinstance(again.post("shop/2", b"2"), BucketFull)

    in_a_loop(body)


def test_what_a_checkpoint_that_failed_had_counted_is_counted_once() -> None:
    class Failing(SqliteCatalog):
        fails = False

        def write(self, change: Any) -> None:
            if self.fails:
                raise OSError("no room")
            super().write(change)

    async def body() -> None:
        catalog = Failing(None)
        world = World(catalog=catalog)
        world.create("shop/1", b"12345")
        catalog.fails = True
        with pytest.raises(OSError, match="no room"):
            await take(world.bench)
        world.post("shop/1", b"678")
        catalog.fails = False
        await take(world.bench)
        assert world.stored("shop") == 8
        row = catalog.load_bucket("shop")
        assert row is not None and row.stored == 8

    in_a_loop(body)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.integers(0, 5), st.integers(0, 9)),
        st.tuples(st.just("post"), st.integers(0, 5), st.integers(1, 9)),
        st.tuples(st.just("trim"), st.integers(0, 5), st.integers(0, 20)),
        st.tuples(st.just("fork"), st.integers(0, 5), st.integers(0, 5)),
        st.tuples(st.just("delete"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("checkpoint"), st.just(0), st.just(0)),
        st.tuples(st.just("forget"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_a_bucket_stores_what_the_rows_of_its_streams_say(steps: list[tuple[str, int, int]]) -> None:
    """Whatever happens: after a checkpoint each bucket's row is the sum of its streams' rows, and of what they hold."""

    async def body() -> None:
        catalog = SqliteCatalog(None)
        world = World(catalog=catalog)
        for what, which, size in [*steps, ("checkpoint", 0, 0)]:
            key = f"{'shop' if which < 3 else 'town'}/{which}"
            if what == "create":
                world.create(key, b"x" * size)
            elif what == "post":
                world.post(key, b"x" * size)
            elif what == "trim":
                world.submit(key, Trim(size))
            elif what == "fork":
                other = f"{'shop' if size < 3 else 'town'}/{size}"
                world.submit(other, Create(other, None, [], fork=Fork(key, None)))
            elif what == "delete":
                world.submit(key, Delete())
            elif what == "checkpoint":
                await take(world.bench)
            else:
                world.bench.group.loaded.evict(0, 100)
        for name in ("shop", "town"):
            rows = catalog.page(f"{name}/", f"{name}0", 100)
            loaded = [world.bench.group.loaded.find(row.key) for row in rows]
            assert world.stored(name) == sum(row.counted for row in rows)
            assert world.stored(name) == sum(stream.own_bytes for stream in loaded if stream is not None)
            kept = catalog.load_bucket(name)
            assert (0 if kept is None else kept.stored) == world.stored(name)

    in_a_loop(body)


def test_rooms_are_forgotten_when_nobody_writes_and_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOMS_MAX", 5)
    monkeypatch.setattr(module, "IDLE_LOOKS", 3)

    async def body() -> None:
        world = World(streams_max=1)
        for number in range(20):
            world.create(f"bucket{number}/1")
        assert len(world.quotas._rooms) == 5
        for _ in range(4):
            await world.quotas.look()
        assert world.quotas._rooms == {}
        assert isinstance(world.create("bucket0/2"), BucketFull)

    in_a_loop(body)


# ---- several processes ----------------------------------------------------------------------------------------------


def processes(streams_max: int, bytes_max: int = 0) -> Processes[Quotas]:
    def make(process: Process[Quotas]) -> Quotas:
        return Quotas(process.engine, streams_max, bytes_max)

    found = Processes(make, 3, 6, clock=SimClock())
    for member in range(3):
        found.start(member)
    return found


async def created(world: Processes[Quotas], keys: list[str]) -> int:
    count = 0
    for key in keys:
        try:
            await world.submit(key, Create(key, TEXT, []))
        except BucketFull:
            continue
        count += 1
    return count


def test_processes_share_what_is_left_and_let_in_few_too_many() -> None:
    async def body() -> None:
        world = processes(streams_max=30)
        keys = {member: world.names(member, 60) + world.names(member + 3, 60) for member in range(3)}
        total = await created(world, keys[0])
        assert 0 < total <= 10  # its share of what it knows nothing of
        for _ in range(8):
            for part in world.parts:
                await part.look()
            for member in range(3):
                total += await created(world, keys[member])
                keys[member] = keys[member][30:] + keys[member][:30]
        streams = {key for process in world.running.values() for one in process.owned.values()
                   for key in one.group.loaded.by_key}  # fmt: skip
        assert 30 <= len(streams) <= 30 + 3 + 10

    run(body)


def test_a_process_that_does_not_answer_is_taken_to_have_what_it_had() -> None:
    async def body() -> None:
        world = processes(streams_max=30)
        assert await created(world, world.names(1, 20)) == 10
        await created(world, world.names(0, 1))
        await world[0].part.look()
        world.kill(1)
        await world[0].part.look()
        assert world[0].part._rooms["town"].elsewhere[0] == 10

    run(body)
