"""Topics that one client follows: whose turn it is, what a slow client is told, and that records are encoded once.
Topics architecture §8: a slow consumer degrades its own connection and no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headwater.doors.http.topics.following import Filter, Following
from headwater.engine.leaving import leave
from headwater.model.commands import Append, Create, Delete, DeleteRecords, Retention
from headwater.model.holes import Run
from headwater.model.labels import Labels
from tests.doors.http.topics.deliveries import told_at_once
from tests.engine import KEY, Bench, engine_on
from tests.engine.shore import Shore, asked

EVERYTHING = Filter(100, frozenset())


class Out:
    """An outlet that a test fills. `room` is how many more batches it takes."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.room = 1_000

    @property
    def full(self) -> bool:
        return self.room <= 0

    def records(self, topic: str, texts: bytes, next_seq: int) -> None:
        self.room -= 1
        self.told.append((topic, texts.count(b'"seq"'), next_seq))

    def tombstone(self, topic: str, gap_from: int, gap_to: int, lagged: bool) -> None:
        self.told.append(("lagged" if lagged else "lost", topic, gap_from, gap_to))

    def gone(self, topic: str) -> None:
        self.told.append(("gone", topic))

    def interrupted(self) -> None:
        self.told.append(("interrupted",))

    def broke(self) -> None:
        raise AssertionError("a fault was found")

    def take(self) -> list[tuple[Any, ...]]:
        told, self.told = self.told, []
        return told


class World:
    """Topics `a` and `b`, on a log that stands still."""

    def __init__(self, retention: Retention | None = None) -> None:
        self.bench = Bench()
        self.engine = engine_on(self.bench.group)
        self.watchers = told_at_once(self.engine)
        for name in "ab":
            self.bench.submit(Create(name_key(name), "application/json", [], retention=retention), name_key(name))
        self.bench.sync()

    def write(self, name: str, count: int = 1, node: str | None = None) -> None:
        labels: list[Labels | None] | None = None if node is None else [Labels(node=node)] * count
        self.bench.submit(Append([b"1"] * count, "application/json", labels=labels), name_key(name))
        self.bench.sync()

    def follow(self, out: Out, wanted: Filter = EVERYTHING, **cursors: int | None) -> Following:
        following = Following(self.engine, self.watchers, out, wanted)
        for name, cursor in cursors.items():
            following.add(name, self.stream(name), cursor)
        following.pump()
        return following

    def stream(self, name: str) -> Any:
        return self.bench.group.find(name_key(name), touch=False)


def name_key(name: str) -> str:
    return f"_default/{name}"


def on_a_loop(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 30))  # type: ignore[arg-type]


def test_what_lies_behind_the_cursors_comes_first_and_then_what_is_written() -> None:
    async def body() -> None:
        world, out = World(), Out()
        world.write("a", 3)
        following = world.follow(out, a=1, b=None)
        assert out.take() == [("a", 2, 3)]
        world.write("b", 2)
        world.write("a")
        assert out.take() == [("b", 2, 2), ("a", 1, 4)]
        following.remove("a")
        world.write("a")
        world.write("b")
        assert out.take() == [("b", 1, 3)] and len(following) == 1
        following.close()
        world.write("b")
        assert out.take() == [] and not world.stream("b").followers

    on_a_loop(body)


def test_a_cursor_beyond_the_head_goes_on_from_there() -> None:
    async def body() -> None:
        world, out = World(), Out()
        world.write("a", 3)
        following = Following(world.engine, world.watchers, out, EVERYTHING)
        assert following.add("a", world.stream("a"), 99) == 3
        following.pump()
        world.write("a")
        assert out.take() == [("a", 1, 4)]

    on_a_loop(body)


def test_topics_take_turns_when_there_is_much_of_each() -> None:
    async def body() -> None:
        world, out = World(), Out()
        world.write("a", 4)
        world.write("b", 4)
        world.follow(out, Filter(2, frozenset()), a=0, b=0)
        assert out.take() == [("a", 2, 2), ("b", 2, 2), ("a", 2, 4), ("b", 2, 4)]

    on_a_loop(body)


def test_nothing_is_read_for_a_client_that_takes_nothing_and_it_goes_on_where_it_was() -> None:
    async def body() -> None:
        world, out = World(), Out()
        out.room = 0
        following = world.follow(out, a=0)
        for _ in range(5):
            world.write("a")
        assert out.take() == []
        out.room = 1
        following.pump()
        assert out.take() == [("a", 5, 5)]
        world.write("a")
        assert out.take() == []
        out.room = 5
        following.pump()
        assert out.take() == [("a", 1, 6)]

    on_a_loop(body)


def test_only_who_was_too_slow_is_told_that_it_lagged() -> None:
    async def body() -> None:
        world, late, slow = World(Retention(records=2)), Out(), Out()
        world.write("a", 3)
        following = world.follow(slow, a=3)
        assert slow.take() == []
        slow.room = 0
        world.write("a", 5)
        world.follow(late, a=3)
        assert late.take() == [("lost", "a", 4, 6), ("a", 2, 8)]
        slow.room = 9
        following.pump()
        assert slow.take() == [("lagged", "a", 4, 6), ("a", 2, 8)]

    on_a_loop(body)


def test_own_records_are_passed_over() -> None:
    async def body() -> None:
        world, out = World(), Out()
        following = world.follow(out, Filter(100, frozenset(["me"])), a=0)
        world.write("a", 3, node="me")
        assert out.take() == []
        world.write("a", node="other")
        assert out.take() == [("a", 1, 4)]
        assert following._topics["a"].cursor == 4

    on_a_loop(body)


def test_who_stands_at_one_place_is_sent_the_same_bytes_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        world, outs = World(), [Out() for _ in range(5)]
        others = Out()
        for out in outs:
            world.follow(out, a=0)
        world.follow(others, Filter(100, frozenset(["me"])), a=0)
        reads: list[int] = []
        read = world.engine.read_records
        monkeypatch.setattr(world.engine, "read_records", lambda *given: (reads.append(given[1]), read(*given)))
        world.write("a", 2)
        assert [out.take() for out in outs] == [[("a", 2, 2)]] * 5
        assert others.take() == [("a", 2, 2)]
        assert reads == [0, 0]  # once for all, and once for who wants something else

    on_a_loop(body)


def test_what_was_encoded_is_not_sent_any_more_when_something_of_it_was_deleted() -> None:
    async def body() -> None:
        world, quick, slow = World(), Out(), Out()
        world.follow(quick, a=0)
        slow.room = 0
        following = world.follow(slow, a=0)
        world.write("a", 3)
        assert quick.take() == [("a", 3, 3)]
        world.bench.submit(DeleteRecords([Run(1, 2, 1, 2)]), name_key("a"))
        world.bench.sync()
        slow.room = 9
        following.pump()
        assert slow.take() == [("a", 2, 3)]

    on_a_loop(body)


def test_the_deletion_of_a_topic_is_told_and_the_others_go_on() -> None:
    async def body() -> None:
        world, out = World(), Out()
        following = world.follow(out, a=None, b=None)
        world.bench.submit(Delete(), name_key("a"))
        world.bench.sync()
        world.write("b")
        assert out.take() == [("gone", "a"), ("b", 1, 1)] and len(following) == 1

    on_a_loop(body)


def test_a_group_that_leaves_interrupts_the_client() -> None:
    async def body() -> None:
        world, out = World(), Out()
        world.follow(out, a=None, b=None)
        leave(world.bench.group)
        assert out.take() == [("interrupted",)] * 2

    on_a_loop(body)


# ---- records that have settled ----------------------------------------------------------------------------------


@contextmanager
def settled(shore: Shore, out: Out) -> Iterator[Following]:
    """A follower from the beginning of a topic of which three records are in the lake, and two in memory."""
    shore.create()
    shore.submit(Append([b"1", b"1", b"1"]))
    shore.sync()
    shore.flush()
    shore.submit(Append([b"2", b"3"]))
    shore.sync()
    engine = engine_on(shore.group, shore.lake)
    following = Following(engine, told_at_once(engine), out, EVERYTHING)
    following.add("s", engine.find(KEY, False), 0)
    try:
        yield following
    finally:
        engine.owned[0].reads.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.001)


def sent(out: Out) -> int:
    return sum(count for _, count, _ in out.told)


def test_records_from_the_lake_come_before_those_in_memory() -> None:
    async def play(shore: Shore) -> None:
        out = Out()
        with settled(shore, out) as following:
            following.pump()
            await until(lambda: sent(out) == 5)
        told = out.take()
        assert [next_seq for _, _, next_seq in told] == sorted(next_seq for _, _, next_seq in told)
        assert ("s", 2, 5) in told

    asked(play)


@pytest.mark.parametrize("deleted", [False, True])
def test_what_came_out_of_the_lake_for_a_full_outlet_is_sent_later_unless_it_was_deleted(deleted: bool) -> None:
    async def play(shore: Shore) -> None:
        out = Out()
        with settled(shore, out) as following:
            following.pump()
            out.room = 0
            await until(lambda: not following._topics["s"].reading)
            assert out.take() == []
            if deleted:
                shore.submit(DeleteRecords([Run(1, 2, 1, 2)]))
                shore.sync()
            reads_count = shore.lake.reads_count
            out.room = 9
            following.pump()
            assert (shore.lake.reads_count == reads_count and sent(out) > 0) or deleted
            await until(lambda: sent(out) == (4 if deleted else 5))
        assert out.told[-1] == ("s", 2, 5)

    asked(play)
