"""Groups that come to a running process and leave it: what ends, what is still answered, and what is carried over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headwater.engine.engine import Engine
from headwater.engine.feed import Feed
from headwater.engine.leaving import leave
from headwater.errors import GroupMoved, LogUnavailable, NotServedHere
from headwater.log.null import NullLog
from headwater.model.commands import Append, CreateBucket
from headwater.ports import FENCED, UNKNOWN, LogFailure
from tests.engine import KEY, Bench, Ear, HandClock, Inbox, group_on


def test_what_was_decided_before_a_group_left_is_answered_and_what_comes_after_is_refused() -> None:
    bench = Bench()
    bench.create()
    before = bench.post(b"before")
    leave(bench.group)
    after = bench.post(b"after")
    bucket = Inbox()
    bench.group.submit_bucket(CreateBucket("b"), bucket)
    with pytest.raises(GroupMoved):
        bench.group.note("notes", b"")
    assert before.waits
    bench.sync()
    assert not isinstance(before.outcome, Exception)
    assert isinstance(after.outcome, GroupMoved) and isinstance(bucket.outcome, GroupMoved)
    assert bench.read() == b"before"


def test_a_group_that_left_logs_nothing_by_itself() -> None:
    bench = Bench()
    bench.create(ttl_ms=1_000)
    events = len(bench.log.events)
    leave(bench.group)
    bench.clock.ms += 10_000
    bench.group.expire_due(10)
    bench.group.apply_retention()
    bench.group.settle("file", [], {})
    assert len(bench.log.events) == events


@pytest.mark.parametrize(("kind", "failure"), [(FENCED, GroupMoved), (UNKNOWN, LogUnavailable)])
def test_who_waits_when_a_log_fails_is_told_whether_it_certainly_had_no_effect(kind: str, failure: type) -> None:
    bench = Bench()
    bench.create()
    waiting = bench.post(b"x")
    bench.turn()
    bench.log.failure = LogFailure(kind, "why")  # type: ignore[assignment]
    bench.group.progress()
    assert isinstance(waiting.outcome, failure)
    assert isinstance(bench.post(b"y").outcome, failure)


def test_followers_and_feeds_are_told_that_their_group_left() -> None:
    bench = Bench()
    bench.create()
    ear = Ear()
    bench.group.follow(bench.group.find(KEY, touch=False), ear)
    feed = Feed(bench.group, 0, lambda key: True)
    ended: list[bool] = []
    feed.ended = lambda: ended.append(True)
    leave(bench.group)
    leave(bench.group)
    assert (ear.left_count, ear.gone_count, ended) == (1, 0, [True])
    feed.close()


def served(number: int, clock: HandClock) -> Any:
    group = group_on(NullLog(), clock=clock)
    group.number = number
    return SimpleNamespace(group=group, number=number)


class Noted:
    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def entered(self, owned: Any) -> None:
        self.calls.append(("entered", owned.number))

    def left(self, owned: Any) -> None:
        self.calls.append(("left", owned.number))


def test_an_engine_serves_groups_as_they_come_and_go_and_keeps_the_counts_of_reads() -> None:
    clock = HandClock()
    engine = Engine({}, 2, clock)
    noted = Noted()
    engine.listeners.append(noted)
    ear = SimpleNamespace(left=lambda: None)
    engine.observe(ear)  # type: ignore[arg-type]
    engine.count_read("b/s", 5)
    engine.discard_blob("nobody is here")
    first, second = served(0, clock), served(1, clock)
    engine.enter(first)
    engine.enter(second)
    engine.count_read("b/s", 6)
    engine.leave(0)
    engine.leave(0)
    assert noted.calls == [("entered", 0), ("entered", 1), ("left", 0)]
    assert first.group.observers == second.group.observers == [ear]
    assert [(count.reads, count.bytes) for count in second.group.usage.take()] == [(2, 11)]
    key = next(name for n in range(50) if engine.home(name := f"b/s{n}") == 0)
    with pytest.raises(NotServedHere):
        engine.submit(key, Append([b"x"], None, None), Inbox())
    with pytest.raises(GroupMoved):
        engine.serving(0)


def test_a_stream_of_a_group_that_left_and_came_back_is_not_followed() -> None:
    bench = Bench()
    bench.create()
    old = bench.group.find(KEY, touch=False)
    other = Bench()
    other.create()
    engine = Engine({}, 1, bench.clock)
    engine.enter(SimpleNamespace(group=other.group, number=0))  # type: ignore[arg-type]
    with pytest.raises(NotServedHere):
        engine.follow(old, Ear())
