"""No topic starves: a real engine with tails of its topics, on an event loop whose turns and time are simulated.
Topics architecture §7.2: a topic is in the top band after 10 s at the latest, and that band is always served."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headwater.doors.http.topics.following import Filter, Following
from headwater.doors.http.topics.watchers import Watchers
from headwater.engine.engine import Engine
from headwater.log.null import NullLog
from headwater.model.commands import Append, Create
from headwater.model.topics import TopicConfig
from headwater.topics.delivery import Delivery
from headwater.topics.priorities import Priorities
from tests.engine import Inbox, group_on, owned_on
from tests.support.turns import Loop

COST_S = 0.004
"""What one batch to one client takes."""
BUSY_COUNT = 50
"""Topics of the highest priority, each written to again as soon as its tail has got its batch."""


class Tail:
    """A client of one topic, which always takes what it is sent. An Outlet."""

    full = False

    def __init__(self, world: World, key: str, repeats: bool) -> None:
        self._world = world
        self._key = key
        self._repeats = repeats
        self.waits_s: list[float] = []
        self.written_s: float | None = None

    def write(self) -> None:
        if self.written_s is None:
            self.written_s = self._world.loop.now_s
        inbox = Inbox()
        self._world.group.submit(self._key, Append([b"1"], None), inbox)

    def records(self, topic: str, texts: bytes, next_seq: int) -> None:
        assert self.written_s is not None
        self._world.loop.now_s += COST_S
        self.waits_s.append(self._world.loop.now_s - self.written_s)
        self.written_s = None
        if self._repeats:
            self._world.loop.soon(self.write)

    def tombstone(self, topic: str, gap_from: int, gap_to: int, lagged: bool) -> None:
        raise AssertionError("nothing was lost")

    def gone(self, topic: str) -> None:
        raise AssertionError("no topic was deleted")

    def interrupted(self) -> None:
        raise AssertionError("nothing moved")

    def broke(self) -> None:
        raise


class World:
    def __init__(self) -> None:
        self.loop = Loop()
        clock: Any = self.loop
        self.group = group_on(NullLog(), clock=clock, schedule=self.loop.soon)
        self.engine = Engine({0: owned_on(self.group)}, 1, clock)
        self.delivery = Delivery(self.loop.soon, self.loop.call_later, clock)
        self.watchers = Watchers(self.engine, self.delivery, Priorities(clock))

    def tail(self, name: str, priority: int, repeats: bool = False) -> Tail:
        """A topic, and a client that follows it. What is written to it is visible at once."""
        topic = TopicConfig(priority=priority)
        self.group.submit(name, Create(name, "application/json", [], topic=topic), Inbox())
        tail = Tail(self, name, repeats)
        following = Following(self.engine, self.watchers, tail, Filter(100, frozenset()))
        following.add(name, self.engine.find(name, True), None)
        following.pump()
        return tail

    def saturate(self) -> list[Tail]:
        busy = [self.tail(f"_default/busy{index}", 1_000, repeats=True) for index in range(BUSY_COUNT)]
        for tail in busy:
            tail.write()
        self.loop.run_for(3)
        assert self.delivery.pressure > 0.9
        return busy


def new_world() -> World:
    async def made() -> World:
        return World()

    return asyncio.run(made())  # what reads the lake takes a loop; here there is no lake


@pytest.mark.parametrize("priority", [-1_000, -1, 0, 500])
def test_under_lasting_load_of_high_priority_a_low_topic_is_served_within_its_bound(priority: int) -> None:
    world = new_world()
    low = world.tail("_default/low", priority)
    busy = world.saturate()
    for _ in range(3):
        low.write()
        world.loop.run_for(11)
    assert len(low.waits_s) == 3
    # 10 s until it is in the top band; then 2 services for each topic that was there before it, and 8 before the first.
    assert max(low.waits_s) <= 10 + (2 * BUSY_COUNT + 8) * COST_S
    served = [len(tail.waits_s) for tail in busy]
    assert min(served) > 0.9 * max(served), "those of one priority are served alike"


def test_a_topic_of_low_priority_waits_less_than_one_that_is_deferred() -> None:
    world = new_world()
    plain, deferred = world.tail("_default/plain", 0), world.tail("_default/deferred", -1)
    world.saturate()
    plain.write()
    deferred.write()
    world.loop.run_for(11)
    assert plain.waits_s[0] < 1 < deferred.waits_s[0]


def test_without_load_a_tail_is_served_in_the_next_turn() -> None:
    world = new_world()
    low = world.tail("_default/low", -1_000)
    low.write()
    world.loop.turn()
    assert low.waits_s == pytest.approx([COST_S])
