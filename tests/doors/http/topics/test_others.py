"""Topics of other processes: what their owner answers, and what becomes of a client when an owner goes away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headwater.doors.http.topics import others
from headwater.doors.http.topics.following import Filter
from headwater.doors.http.topics.others import Answering, Others, places
from headwater.errors import MemberUnavailable, OutcomeUnknown, StreamNotFound
from headwater.model.commands import Append, Create, Delete, Retention
from headwater.model.labels import Labels
from tests.doors.http.topics.deliveries import told_at_once
from tests.doors.http.topics.test_following import EVERYTHING, Out
from tests.support.processes import Process, Processes, until
from tests.support.processes import run as run_async


class Part:
    """What a process has of topics."""

    def __init__(self, process: Process[Part]) -> None:
        self.watchers = told_at_once(process.engine)
        self.answering = Answering(process.engine, self.watchers)


class World:
    """Two processes. A client of the first follows topics of the second."""

    def __init__(self) -> None:
        self.processes: Processes[Part] = Processes(Part, 2, 2)
        for member in range(2):
            self.processes.start(member)
        self.keys = self.processes.names(1, 3)
        self.out = Out()
        self.began: dict[str, int] = {}

    async def create(self, key: str, retention: Retention | None = None) -> None:
        await self.processes.submit(key, Create(key, "application/json", [], retention=retention))

    async def write(self, key: str, count: int = 1, node: str | None = None) -> None:
        labels: list[Labels | None] | None = None if node is None else [Labels(node=node)] * count
        await self.processes.submit(key, Append([b"1"] * count, "application/json", labels=labels))

    async def others(self, wanted: Filter = EVERYTHING, **cursors: int | None) -> Others:
        """`k0=…` is the first key, and so on. Where they begin is kept in `began`."""
        found = Others(self.processes[0].engine, 1, self.out, wanted)
        await self.add(found, **cursors)
        return found

    async def add(self, following: Others, **cursors: int | None) -> None:
        engine = self.processes[0].engine
        asked = [(1, self.keys[int(name[1:])], cursor) for name, cursor in cursors.items()]
        for name, (group, key, _), place in zip(cursors, asked, await places(engine, 1, asked), strict=True):
            if place is None:
                raise StreamNotFound
            following.add(name, group, key, place)
            self.began[name] = place.cursor

    async def told(self, count: int) -> list[tuple[Any, ...]]:
        await until(lambda: len(self.out.told) >= count)
        return self.out.take()


def on_two(body: Callable[[World], Awaitable[None]]) -> None:
    async def play() -> None:
        await body(World())

    run_async(play)


def test_a_client_is_told_where_each_topic_begins_and_then_what_comes() -> None:
    async def body(world: World) -> None:
        first, second, _ = world.keys
        await world.create(first)
        await world.create(second)
        await world.write(first, 3)
        following = await world.others(k0=1, k1=None)
        assert world.began == {"k0": 1, "k1": 0}
        following.start()
        assert await world.told(1) == [("k0", 2, 3)]
        await world.write(second, 2)
        assert await world.told(1) == [("k1", 2, 2)]
        following.close()

    on_two(body)


def test_a_cursor_beyond_the_head_goes_on_from_there() -> None:
    async def body(world: World) -> None:
        key = world.keys[0]
        await world.create(key)
        await world.write(key, 3)
        following = await world.others(k0=99)
        assert world.began == {"k0": 3}
        following.start()
        await world.write(key)
        assert await world.told(1) == [("k0", 1, 4)]
        following.close()

    on_two(body)


def test_a_topic_that_is_not_there_is_not_found() -> None:
    async def body(world: World) -> None:
        with pytest.raises(StreamNotFound):
            await world.others(k0=None)

    on_two(body)


def test_a_tombstone_comes_before_what_is_left_and_own_records_are_passed_over() -> None:
    async def body(world: World) -> None:
        key = world.keys[0]
        await world.create(key, Retention(records=2))
        await world.write(key, 5)
        following = await world.others(Filter(100, frozenset(["me"])), k0=1)
        following.start()
        assert await world.told(2) == [("lost", "k0", 2, 3), ("k0", 2, 5)]
        await world.write(key, 1, node="me")
        await world.write(key, 1, node="other")
        assert await world.told(1) == [("k0", 1, 7)]
        following.close()

    on_two(body)


def test_a_topic_that_is_deleted_is_gone_also_when_another_has_its_name_by_then() -> None:
    async def body(world: World) -> None:
        first, second, _ = world.keys
        await world.create(first)
        await world.create(second)
        following = await world.others(k0=None, k1=None)
        await world.processes.submit(first, Delete())
        await world.create(first)
        await world.write(first)
        following.start()
        assert await world.told(1) == [("gone", "k0")]
        await world.write(second)
        assert await world.told(1) == [("k1", 1, 1)]
        await world.processes.submit(second, Delete())
        assert await world.told(1) == [("gone", "k1")]
        await until(lambda: following._task is not None and following._task.done())

    on_two(body)


def test_a_topic_that_is_not_followed_any_more_is_passed_over() -> None:
    async def body(world: World) -> None:
        for key in world.keys[:2]:
            await world.create(key)
        following = await world.others(k0=None, k1=None)
        following.start()
        following.remove("k0")
        await world.write(world.keys[0])
        await world.write(world.keys[1])
        assert await world.told(1) == [("k1", 1, 1)]
        assert len(following) == 1
        following.remove("k1")
        assert following._task is None

    on_two(body)


def test_an_owner_is_not_asked_again_before_its_answer_was_taken() -> None:
    async def body(world: World) -> None:
        key = world.keys[0]
        await world.create(key)
        await world.write(key)
        following = await world.others(k0=0)
        world.out.room = 0
        following.start()
        questions = world.processes[0].questions
        await until(lambda: questions.asked.count(others.QUESTION) == 2)
        for _ in range(20):
            await world.write(key)
        assert questions.asked.count(others.QUESTION) == 2 and not world.out.told
        world.out.room = 9
        following.pump()
        assert await world.told(2) == [("k0", 1, 1), ("k0", 20, 21)]
        following.close()

    on_two(body)


def test_one_answer_is_bounded_and_every_topic_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "ANSWER_BYTES_MAX", 2)

    async def body(world: World) -> None:
        for key in world.keys:
            await world.create(key)
            await world.write(key, 4)
        following = await world.others(Filter(2, frozenset()), k0=0, k1=0, k2=0)
        following.start()
        told = await world.told(6)
        assert [name for name, _, _ in told] == ["k0", "k1", "k2"] * 2
        following.close()

    on_two(body)


@pytest.mark.parametrize("away", [MemberUnavailable, OutcomeUnknown])
def test_an_owner_that_goes_away_interrupts_its_client(away: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "WAIT_MS", 20)

    async def body(world: World) -> None:
        await world.create(world.keys[0])
        following = await world.others(k0=None)
        world.processes[0].questions.away[1] = away
        following.start()
        assert await world.told(1) == [("interrupted",)]
        with pytest.raises(away):
            await world.others(k0=None)

    on_two(body)


def test_a_group_that_leaves_its_owner_interrupts_those_who_follow_from_elsewhere() -> None:
    async def body(world: World) -> None:
        await world.create(world.keys[0])
        following = await world.others(k0=None)
        following.start()
        owner = world.processes[1]
        await until(lambda: owner.part.watchers._watched)
        owner.engine.leave(1)
        assert await world.told(1) == [("interrupted",)]
        assert not owner.part.watchers._watched

    on_two(body)


def test_a_client_that_goes_away_is_forgotten_by_the_owner_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(others, "WAIT_MS", 20)

    async def body(world: World) -> None:
        await world.create(world.keys[0])
        following = await world.others(k0=None)
        following.start()
        watched = world.processes[1].part.watchers._watched
        await until(lambda: watched)
        following.close()
        await until(lambda: not watched)

    on_two(body)


def test_when_more_topics_are_followed_the_owner_is_asked_about_all_and_waits_for_one_question_alone() -> None:
    async def body(world: World) -> None:
        for key in world.keys:
            await world.create(key)
        following = await world.others(k0=None)
        following.start()
        answering = world.processes[1].part.answering
        await until(lambda: answering._waiting)
        (first,) = answering._waiting.values()
        await world.add(following, k1=None, k2=None)
        following.start()
        await until(lambda: first.ended)
        for key in world.keys:
            await world.write(key)
        told: list[tuple[Any, ...]] = []
        while len(told) < 3:
            told += await world.told(1)
        assert sorted(told) == [("k0", 1, 1), ("k1", 1, 1), ("k2", 1, 1)]
        assert len(answering._waiting) <= 1
        following.close()

    on_two(body)
