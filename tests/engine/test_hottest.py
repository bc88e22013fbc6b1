"""Which streams grow most, between two looks: with checkpoints in between, streams that go, and bounds."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from headwater.engine import hottest
from headwater.engine.hottest import Hottest


class World:
    """One group whose streams and clock a test moves."""

    def __init__(self) -> None:
        self.s = 100.0
        self.later: list[Callable[[], object]] = []
        self.loaded: Any = SimpleNamespace(dirty={}, by_key={})
        clock = SimpleNamespace(monotonic_s=lambda: self.s, call_later=lambda delay_s, call: self.later.append(call))
        owned = {0: SimpleNamespace(group=SimpleNamespace(loaded=self.loaded))}
        engine: Any = SimpleNamespace(owned=owned, clock=clock)
        self.hottest = Hottest(engine)

    def grow(self, name: str, records: int) -> None:
        stream = self.loaded.by_key.setdefault(
            name, SimpleNamespace(sid=len(self.loaded.by_key), key=name, count=0, tail=0)
        )
        stream.count += records
        stream.tail += 10 * records
        self.loaded.dirty[stream.sid] = stream

    def checkpoint(self) -> None:
        self.loaded.dirty = {}

    def look(self, after_s: float = 2.0) -> dict[str, float]:
        self.s += after_s
        return {hot.stream: hot.records_per_s for hot in self.hottest.look().streams}


def test_the_first_look_tells_nothing_and_the_next_one_rates() -> None:
    world = World()
    world.grow("a", 5)
    world.grow("b", 1)
    assert world.look() == {} and world.hottest.look().window_s == 0
    world.grow("a", 10)
    world.grow("b", 40)
    assert list(world.look().items()) == [("b", 20.0), ("a", 5.0)]
    (first, *_) = world.hottest.look().streams
    assert first.bytes_per_s == 200.0


def test_a_checkpoint_between_two_looks_hides_no_growth() -> None:
    world = World()
    world.grow("a", 5)
    world.look()
    world.grow("a", 6)
    world.checkpoint()
    assert world.look() == {"a": 3.0}
    assert world.look() == {}


def test_a_name_that_another_stream_has_taken_is_not_compared() -> None:
    world = World()
    world.grow("a", 5)
    world.look()
    world.loaded.by_key["a"] = SimpleNamespace(sid=77, key="a", count=900, tail=9)
    world.checkpoint()
    assert world.look() == {}


def test_who_asks_again_at_once_is_told_the_same() -> None:
    world = World()
    world.grow("a", 5)
    world.look()
    world.grow("a", 8)
    assert world.look() == world.look(0.1) == {"a": 4.0}


def test_all_is_forgotten_a_minute_after_the_last_look() -> None:
    world = World()
    world.grow("a", 5)
    world.look()
    world.s += hottest.KEPT_S
    for call in world.later:
        call()
    assert not world.hottest._seen
    world.grow("a", 5)
    assert world.look() == {}


def test_no_more_streams_are_looked_at_and_told_than_there_are_bounds_for(monkeypatch: Any) -> None:
    monkeypatch.setattr(hottest, "LOOKED_MAX", 50)
    world = World()
    for _ in range(2):
        for number in range(500):
            world.grow(f"s{number}", 1)
        found = world.look()
    assert len(world.hottest._seen) == 50 and len(found) == 50
    monkeypatch.setattr(hottest, "LOOKED_MAX", 400)
    world.look()
    for number in range(500):
        world.grow(f"s{number}", 1)
    assert len(world.look()) == hottest.TOLD_MAX
