"""Who waits for topics: everybody is told once for each turn that a topic gets, however it was marked."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import pytest

from headwater.doors.http.topics.watchers import TURN_WATCHERS, Watchers
from headwater.errors import NotServedHere
from headwater.model.topics import TopicConfig
from headwater.ports import SystemClock
from headwater.topics.priorities import CONSUMED_MAX, Priorities
from tests.doors.http.topics.deliveries import AtOnce


class Stream:
    """As much of a stream as is looked at."""

    def __init__(self, sid: int, priority: int | None = None, auto_priority: bool = False) -> None:
        self.sid = sid
        self.topic = None if priority is None else TopicConfig(priority=priority, auto_priority=auto_priority)


class Clock(SystemClock):
    """Moved by the test."""

    def __init__(self) -> None:
        self.s = 1_000.0

    def monotonic_s(self) -> float:
        return self.s

    def advance(self, ms: int) -> None:
        self.s += ms / 1000


class Followers:
    """An engine, as far as following goes."""

    def __init__(self) -> None:
        self.of: dict[Any, set[Any]] = {}
        self.away = False
        self.clock = Clock()

    def follow(self, stream: Any, follower: Any) -> None:
        if self.away:
            raise NotServedHere(0)
        self.of.setdefault(stream, set()).add(follower)

    def unfollow(self, stream: Any, follower: Any) -> None:
        self.of[stream].discard(follower)


class Later:
    """Deliveries that a test lets happen."""

    def __init__(self) -> None:
        self.marked: dict[Hashable, tuple[int, Callable[[], object]]] = {}

    def mark(self, id: Hashable, priority: int, deliver: Callable[[], object]) -> None:
        self.marked[id] = priority, deliver

    def discard(self, id: Hashable) -> None:
        self.marked.pop(id, None)

    def run(self) -> None:
        marked, self.marked = self.marked, {}
        for _, deliver in marked.values():
            deliver()


class Heard:
    def __init__(self) -> None:
        self.words: list[tuple[str, int]] = []

    def grown(self, stream: Any) -> None:
        self.words.append(("grown", stream.sid))

    def gone(self, stream: Any) -> None:
        self.words.append(("gone", stream.sid))

    def left(self, stream: Any) -> None:
        self.words.append(("left", stream.sid))


def made(deliveries: Any) -> tuple[Followers, Any]:
    engine: Any = Followers()
    return engine, Watchers(engine, deliveries, Priorities(engine.clock))


def wake(engine: Followers, stream: Any) -> None:
    for follower in list(engine.of.get(stream, ())):
        follower.wake(stream)


def test_all_who_wait_for_a_topic_are_one_follower_of_it_and_are_told_in_the_order_they_came() -> None:
    engine, watchers = made(AtOnce())
    stream, first, second = Stream(1), Heard(), Heard()
    watchers.watch(stream, first)
    watchers.watch(stream, second)
    assert len(engine.of[stream]) == 1
    wake(engine, stream)
    assert first.words == second.words == [("grown", 1)]
    watchers.unwatch(stream, first)
    wake(engine, stream)
    assert (len(first.words), len(second.words)) == (1, 2)
    watchers.unwatch(stream, second)
    assert not engine.of[stream]


def test_marks_until_a_delivery_are_one_and_tell_the_priority() -> None:
    later = Later()
    engine, watchers = made(later)
    stream, plain, heard = Stream(1, 700), Stream(2), Heard()
    watchers.watch(stream, heard)
    watchers.watch(plain, heard)
    for _ in range(3):
        wake(engine, stream)
    wake(engine, plain)
    assert {id: priority for id, (priority, _) in later.marked.items()} == {1: 700, 2: 0}
    assert not heard.words
    later.run()
    assert heard.words == [("grown", 1), ("grown", 2)]


def test_a_topic_that_nobody_waits_for_any_more_is_not_delivered() -> None:
    later = Later()
    engine, watchers = made(later)
    stream, heard = Stream(1), Heard()
    watchers.watch(stream, heard)
    wake(engine, stream)
    watchers.unwatch(stream, heard)
    assert not later.marked
    watchers.unwatch(stream, heard)  # again: nothing happens


@pytest.mark.parametrize("word", ["gone", "left"])
def test_the_end_of_a_topic_is_told_at_once_and_another_of_its_kind_can_be_waited_for(word: str) -> None:
    later = Later()
    engine, watchers = made(later)
    stream, heard = Stream(1), Heard()
    watchers.watch(stream, heard)
    wake(engine, stream)
    (follower,) = engine.of.pop(stream)
    getattr(follower, word)(stream)
    assert heard.words == [(word, 1)] and not later.marked
    again = Stream(1)
    watchers.watch(again, heard)
    watchers.unwatch(stream, heard)  # of the one before: the new one is still waited for
    wake(engine, again)
    later.run()
    assert heard.words[-1] == ("grown", 1)


def test_a_topic_that_is_not_served_here_is_not_waited_for() -> None:
    engine, watchers = made(AtOnce())
    engine.away = True
    with pytest.raises(NotServedHere):
        watchers.watch(Stream(1), Heard())
    engine.away = False
    stream, heard = Stream(1), Heard()
    watchers.watch(stream, heard)
    wake(engine, stream)
    assert heard.words == [("grown", 1)]


def test_many_who_wait_are_told_in_several_turns_and_those_told_early_hear_of_later_growth() -> None:
    later = Later()
    engine, watchers = made(later)
    stream, many = Stream(1), [Heard() for _ in range(TURN_WATCHERS + 1)]
    for heard in many:
        watchers.watch(stream, heard)
    wake(engine, stream)
    later.run()
    assert [len(heard.words) for heard in many] == [1] * TURN_WATCHERS + [0]
    wake(engine, stream)
    later.run()  # the rest of those of the first growth
    assert [len(heard.words) for heard in many] == [1] * (TURN_WATCHERS + 1)
    later.run()
    later.run()
    assert [len(heard.words) for heard in many] == [2] * (TURN_WATCHERS + 1)
    assert not later.marked


def test_who_has_left_before_its_turn_is_not_told_and_a_topic_that_all_have_left_is_not_marked() -> None:
    later = Later()
    engine, watchers = made(later)
    stream = Stream(1)

    class Leaving(Heard):
        def grown(self, stream: Any) -> None:
            super().grown(stream)
            for one in many:
                watchers.unwatch(stream, one)

    many = [Leaving() for _ in range(TURN_WATCHERS + 1)]
    for heard in many:
        watchers.watch(stream, heard)
    wake(engine, stream)
    later.run()
    assert [len(heard.words) for heard in many] == [1] + [0] * TURN_WATCHERS
    assert not later.marked and not engine.of[stream]


def test_how_long_a_topic_has_waited_for_its_turn_is_known_while_it_is_told() -> None:
    later = Later()
    engine, watchers = made(later)
    stream, waits = Stream(1), list[float]()

    class Waiting(Heard):
        def grown(self, stream: Any) -> None:
            waits.append(watchers.waited_s)

    watchers.watch(stream, Waiting())
    wake(engine, stream)
    engine.clock.advance(20)
    wake(engine, stream)
    engine.clock.advance(30)
    later.run()
    wake(engine, stream)
    later.run()
    assert waits == pytest.approx([0.05, 0])


def test_a_topic_that_was_read_lately_is_delivered_with_a_bonus_if_it_wants_that() -> None:
    later = Later()
    engine, watchers = made(later)
    eager, plain, heard = Stream(1, 100, auto_priority=True), Stream(2, 100), Heard()
    for stream in (eager, plain):
        watchers.watch(stream, heard)
        watchers.priorities.consumed(stream)

    def priorities() -> list[int]:
        wake(engine, eager)
        wake(engine, plain)
        return [priority for priority, _ in later.marked.values()]

    assert priorities() == [350, 100]
    engine.clock.advance(35_000)
    assert priorities() == [225, 100]
    engine.clock.advance(25_000)
    assert priorities() == [100, 100]


def test_the_topics_that_were_read_least_lately_are_forgotten() -> None:
    found = Priorities(Clock())
    streams: list[Any] = [Stream(sid, 0, auto_priority=True) for sid in range(CONSUMED_MAX + 1)]
    for stream in streams[:-1]:
        found.consumed(stream)
    found.consumed(streams[0])
    found.consumed(streams[-1])
    assert [found.of(streams[index]) for index in (0, 1, 2, -1)] == [250, 0, 250, 250]
