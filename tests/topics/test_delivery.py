"""Deliveries of dirty topics: the topics specification, "Priority scheduler" and "elastic throttling", on an event loop
whose turns and time are simulated."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headwater.topics.delivery import LOG_EVERY_S, SHOWN_NAME_MAX, SLICE_COUNT, SLICE_S, Delivery
from tests.support.turns import Loop

STEP_S = 0.0005


class World:
    """A delivery, and what it delivered. Each service takes `cost_s`."""

    def __init__(self, cost_s: float = 0.0) -> None:
        self.loop = Loop()
        self.delivery = Delivery(self.loop.soon, self.loop.call_later, self.loop)
        self.cost_s = cost_s
        self.served: list[str] = []
        self.again: dict[str, int] = {}
        """Topics that are written again with this priority while they are served."""

    def mark(self, id: str, priority: int = 0, lower: bool = False) -> None:
        self.delivery.mark(id, priority, lambda: self._deliver(id), lower)

    def _deliver(self, id: str) -> None:
        self.loop.now_s += self.cost_s
        self.served.append(id)
        if id in self.again:
            self.mark(id, self.again[id])

    def saturate(self, duration_s: float = 3.0) -> None:
        """Load of many topics of priority 0, more than can be served, for as long."""
        for index in range(200):
            self.again[f"busy{index}"] = 0
            self.mark(f"busy{index}", 0)
        self.loop.run_for(duration_s)

    def relax(self) -> None:
        self.again.clear()


# --- passes -------------------------------------------------------------------------------------------------


def test_without_load_a_topic_is_served_in_the_next_turn_and_no_timer_is_left() -> None:
    world = World(0.000_05)
    world.mark("a")
    assert world.served == []
    world.loop.turn()
    assert world.served == ["a"]
    assert world.loop.idle


def test_marks_until_a_topic_is_served_are_one_delivery() -> None:
    world, seen = World(), list[int]()
    for number in range(5):
        world.delivery.mark("a", 0, lambda number=number: seen.append(number))  # type: ignore[misc]
    assert len(world.loop.ready) == 1
    world.loop.turn()
    assert seen == [4]


def test_a_topic_that_is_marked_while_it_is_served_is_served_again() -> None:
    world = World()
    world.again["a"] = 0
    world.mark("a")
    world.delivery.mark("b", 0, lambda: world.served.append("b"))
    world.again["a"] = 0
    world.delivery.mark("c", 0, lambda: (world.served.append("c"), world.again.clear()))
    world.loop.turn()
    assert world.served == ["a", "b", "c", "a"]


def test_a_pass_ends_after_a_slice_of_time_and_others_run_before_the_next() -> None:
    world = World(STEP_S)
    for index in range(20):
        world.mark(f"{index}")
    others = list[int]()
    world.loop.soon(lambda: others.append(len(world.served)))
    world.loop.turn()
    at_once = round(SLICE_S / STEP_S)
    assert at_once - 1 <= len(world.served) <= at_once + 1
    assert others == [len(world.served)]
    world.loop.run_for(1)
    assert world.served == [f"{index}" for index in range(20)]


def test_a_pass_ends_after_a_number_of_topics() -> None:
    world = World()
    for index in range(SLICE_COUNT + 1):
        world.mark(f"{index}")
    world.loop.turn()
    assert len(world.served) == SLICE_COUNT
    world.loop.turn()
    assert len(world.served) == SLICE_COUNT + 1
    assert world.loop.idle


def test_one_topic_that_takes_long_is_served_to_its_end() -> None:
    world = World(10 * SLICE_S)
    world.mark("a")
    world.mark("b")
    world.loop.turn()
    assert world.served == ["a"]
    world.loop.turn()
    assert world.served == ["a", "b"]


def test_higher_priorities_are_served_first() -> None:
    world = World()
    for id, priority in [("low", -1), ("plain", 0), ("top", 1_000), ("high", 500)]:
        world.mark(id, priority)
    world.loop.turn()
    assert world.served == ["top", "high", "plain", "low"]


def test_a_discarded_topic_is_not_served() -> None:
    world = World()
    world.mark("a")
    world.mark("b")
    world.delivery.discard("a")
    world.delivery.discard("never marked")
    world.loop.turn()
    assert world.served == ["b"]


def test_nothing_is_served_after_the_end() -> None:
    world = World()
    world.mark("a")
    world.delivery.close()
    world.mark("b")
    world.loop.run_for(1)
    assert world.served == []
    assert world.delivery.figures().depth == 0


def test_the_end_may_come_from_a_delivery() -> None:
    world = World()
    world.delivery.mark("a", 1, world.delivery.close)
    world.mark("b")
    world.loop.run_for(1)
    assert world.served == []
    assert world.loop.idle


# --- failures -----------------------------------------------------------------------------------------------


def test_a_delivery_that_fails_stops_no_other_and_is_logged_by_a_name_that_is_one_line() -> None:
    world = World()
    name = "a\r\nforged\u2028" + "x" * 1_000

    def fail() -> None:
        raise ValueError("no")

    with capture_logs() as events:
        world.delivery.mark(name, 1, fail)
        world.mark("b")
        world.loop.turn()
    assert world.served == ["b"]
    (event,) = events
    assert event["log_level"] == "error"
    assert event["topic"].startswith("'a\\r\\nforged\\u2028x")
    assert event["topic"].isprintable() and len(event["topic"]) == SHOWN_NAME_MAX
    assert world.delivery.figures().failed_count == 1


def test_deliveries_that_fail_all_the_time_are_logged_now_and_then() -> None:
    world = World()

    def fail() -> None:
        raise ValueError("no")

    with capture_logs() as events:
        for _ in range(100):
            world.delivery.mark("a", 0, fail)
            world.loop.run_for(LOG_EVERY_S / 64)
    assert [event["unlogged"] for event in events] == [0, 63]
    assert world.delivery.figures().failed_count == 100


def test_what_ends_the_process_is_not_held_back_and_leaves_the_others_planned() -> None:
    world = World()

    def stop() -> None:
        raise KeyboardInterrupt

    world.delivery.mark("a", 1, stop)
    world.mark("b")
    with pytest.raises(KeyboardInterrupt):
        world.loop.turn()
    world.loop.turn()
    assert world.served == ["b"]


# --- pressure -----------------------------------------------------------------------------------------------


def test_light_load_gives_no_pressure_and_no_timer() -> None:
    world = World(0.000_05)
    for index in range(300):
        world.mark(f"{index % 10}")
        world.loop.turn()
        assert not world.loop.timers
        assert world.delivery.pressure < 0.2
        world.loop.run_for(0.01)
    assert len(world.served) == 300


def test_more_load_than_can_be_served_gives_a_pressure_of_about_1() -> None:
    world = World(STEP_S)
    world.saturate()
    assert world.delivery.pressure > 0.95
    assert world.delivery.retry_after_ms(ingest_full=True) == 1_000
    assert world.delivery.retry_after_ms(ingest_full=False) is None


def test_when_load_ends_pressure_ends_without_a_timer() -> None:
    world = World(STEP_S)
    world.saturate()
    world.relax()
    world.loop.run_for(1)
    assert world.loop.idle
    assert world.delivery.pressure == 0
    world.mark("a")
    world.loop.turn()
    assert world.served[-1] == "a"


def test_under_pressure_a_pass_waits_for_the_coalescing_window() -> None:
    world = World(STEP_S)
    world.saturate()
    world.relax()
    while not world.loop.idle:
        world.loop.turn()
    world.served.clear()
    assert world.delivery.pressure > 0.2
    begin_s = world.loop.now_s
    world.mark("a")
    world.loop.turn()
    world.mark("b")
    world.mark("a")
    assert world.served == []
    world.loop.run_for(0.021)
    assert world.served == ["a", "b"]
    assert world.loop.now_s - begin_s <= 0.022


def test_time_in_the_coalescing_window_does_not_keep_the_pressure_up() -> None:
    """One quick topic every 5 ms after a time of overload: its waiting is on purpose."""
    world = World(STEP_S)
    world.saturate()
    world.relax()
    while not world.loop.idle:
        world.loop.turn()
    assert world.delivery.pressure > 0.9
    world.cost_s = 0.000_05
    for _ in range(400):
        world.mark("a")
        world.loop.run_for(0.005)
    assert world.delivery.pressure < 0.2


def test_under_lasting_pressure_low_priorities_are_deferred_until_it_falls() -> None:
    world = World(STEP_S)
    world.saturate()
    world.mark("low", -500)
    world.loop.run_for(4)
    assert "low" not in world.served
    figures = world.delivery.figures()
    assert (figures.deferred_count, figures.depth) == (1, 201)
    world.relax()
    world.loop.run_for(1)
    assert world.served[-1] == "low"
    assert world.loop.idle


def test_under_pressure_without_end_a_deferred_topic_is_served_after_10_s_and_a_round() -> None:
    world = World(STEP_S)
    world.saturate()
    begin_s = world.loop.now_s
    world.mark("low", -1_000)
    while "low" not in world.served:
        world.loop.turn()
    # The other 200 topics are all younger by then: a slice and a round are enough.
    assert 9.9 <= world.loop.now_s - begin_s <= 10 + 17 * STEP_S


def test_a_topic_of_priority_0_is_not_held_up_by_deferred_ones() -> None:
    world = World(STEP_S)
    world.saturate()
    for index in range(100):
        world.mark(f"low{index}", -500)
    world.relax()
    while world.delivery.figures().deferred_count < world.delivery.figures().depth:
        world.loop.turn()
    assert world.delivery.figures().deferred_count == 100
    assert world.loop.timers, "somebody looks whether they may be served"
    world.served.clear()
    world.mark("plain")
    world.loop.run_for(0.021)
    assert world.served[0] == "plain"


def test_deferred_topics_alone_do_not_keep_themselves_deferred() -> None:
    world = World(STEP_S)
    world.saturate()
    for index in range(100):
        world.mark(f"low{index}", -500)
    world.relax()
    world.loop.run_for(1)
    assert Counter(id[:3] for id in world.served)["low"] == 100
    assert world.loop.idle


def test_the_time_for_which_topics_were_deferred_does_not_raise_the_pressure() -> None:
    world = World(STEP_S)
    world.saturate()
    for index in range(4_000):
        world.mark(f"low{index}", -500)
    world.loop.run_for(2)
    world.relax()
    while world.delivery.figures().deferred_count:
        world.loop.turn()
        world.loop.run_for(0.001)
    assert world.delivery.figures().depth > 3_000
    world.loop.run_for(1)
    assert world.delivery.figures().depth > 1_000
    assert world.delivery.pressure < 0.55


# --- figures ------------------------------------------------------------------------------------------------


def test_figures_tell_what_was_served_and_how_long_it_waited() -> None:
    world = World(0.001)
    for id in ("a", "b"):
        world.mark(id)
    world.loop.now_s += 0.004
    assert world.delivery.figures().oldest_wait_ms == pytest.approx(4)
    world.loop.turn()
    figures = world.delivery.figures()
    assert (figures.served_count, figures.failed_count, figures.depth, figures.deferred_count) == (2, 0, 0, 0)
    assert figures.wait_ms_sum == pytest.approx(4 + 5)
    assert figures.wait_ms_max == pytest.approx(5)
    assert figures.oldest_wait_ms == 0


# --- histories ----------------------------------------------------------------------------------------------


steps = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.integers(-1_000, 1_000), st.booleans(), st.integers(0, 300)), max_size=60
)


@settings(max_examples=100)
@given(steps, st.sampled_from([0.0, 0.0003, 0.004]))
def test_every_mark_is_followed_by_a_delivery_and_then_nothing_is_left(
    history: list[tuple[str, int, bool, int]], cost_s: float
) -> None:
    world = World(cost_s)
    marked_at: dict[str, int] = {}
    for id, priority, lower, pause_ms in history:
        marked_at[id] = len(world.served)
        world.mark(id, priority, lower)
        world.loop.run_for(pause_ms / 1000)
    world.loop.run_for(20)
    assert all(id in world.served[count:] for id, count in marked_at.items())
    assert world.loop.idle
    assert world.delivery.pressure == 0
    assert world.delivery.figures().served_count == len(world.served) <= len(history)
