"""The schedule of dirty topics: the rules of the topics specification, "Priority scheduler" (bands, DWRR, aging) and
"elastic throttling" (deferral), and the schedule beside a slow model that looks at every topic. Time is passed in."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.model.schedule import AGE_MS_MAX, STEP_MS, TOP, WEIGHTS, Schedule, Taken, band_of, effective

ROUND = sum(WEIGHTS)


def take(schedule: Schedule[str], now_ms: float) -> str | None:
    taken = schedule.take(now_ms)
    return None if taken is None else taken.id


def take_all(schedule: Schedule[str], now_ms: float) -> list[str]:
    found = []
    while (id := take(schedule, now_ms)) is not None:
        found.append(id)
    return found


# --- the ready set ------------------------------------------------------------------------------------------


def test_a_topic_is_in_the_ready_set_at_most_once() -> None:
    schedule = Schedule[str]()
    for now_ms in (0, 1, 2):
        schedule.mark("a", 0, now_ms)
    assert schedule.depth == 1
    assert take_all(schedule, 3) == ["a"]
    assert schedule.depth == 0


def test_a_topic_keeps_its_place_in_time_until_it_is_served() -> None:
    schedule = Schedule[str]()
    schedule.mark("a", 0, 0)
    schedule.mark("b", 0, 10)
    schedule.mark("a", 0, 20)
    assert schedule.oldest_wait_ms(30) == 30
    assert schedule.take(30) == Taken("a", 0, False)
    schedule.mark("a", 0, 40)
    assert schedule.take(50) == Taken("b", 10, False)
    assert schedule.take(50) == Taken("a", 40, False)


def test_a_topic_that_is_rewritten_all_the_time_still_ages() -> None:
    schedule = Schedule[str]()
    schedule.mark("old", 0, 0)
    for now_ms in range(0, 8_000, 10):
        schedule.mark("old", 0, now_ms)
    schedule.mark("new", 749, 8_000)
    assert take_all(schedule, 8_000) == ["old", "new"]


def test_a_discarded_topic_is_not_served() -> None:
    schedule = Schedule[str]()
    schedule.mark("a", 0, 0)
    schedule.mark("b", 0, 0)
    schedule.discard("a")
    schedule.discard("never marked")
    assert "a" not in schedule and "b" in schedule
    assert take_all(schedule, 0) == ["b"]


def test_nothing_waits_in_an_empty_schedule() -> None:
    schedule = Schedule[str]()
    assert schedule.take(5) is None
    assert schedule.oldest_wait_ms(5) == 0


def test_a_moment_before_the_latest_one_counts_as_the_latest() -> None:
    schedule = Schedule[str]()
    schedule.mark("a", 0, 1_000)
    schedule.mark("b", 0, 500)
    assert schedule.take(0) == Taken("a", 1_000, False)
    assert schedule.take(0) == Taken("b", 1_000, False)


def test_marking_again_changes_the_priority_and_not_the_place_in_time() -> None:
    schedule = Schedule[str]()
    schedule.mark("a", 0, 0)
    schedule.mark("b", 500, 1)
    schedule.mark("a", 500, 2)
    assert take_all(schedule, 3) == ["a", "b"]


def test_topics_that_come_and_go_leave_nothing_behind() -> None:
    schedule = Schedule[str]()
    schedule.mark("first", -1_000, 0)
    for turn in range(10_000):
        schedule.mark("a", (turn * 7) % 1_000 - 100, turn / 100)
        schedule.mark("a", (turn * 11) % 1_000 - 100, turn / 100)
        schedule.discard("a")
    entries = sum(len(queue._heap) for queue in (*schedule._plain, *schedule._deferrable))
    assert entries < 500
    assert len(schedule._due) <= 1


# --- bands and weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("priority", "band"),
    [
        (-1_000, 0),
        (-1, 0),
        (-0.5, 0),
        (0, 1),
        (249, 1),
        (249.9, 1),
        (250, 2),
        (499, 2),
        (500, 3),
        (749, 3),
        (750, 4),
        (1_250, 4),
    ],
)
def test_bands_are_those_of_the_specification(priority: float, band: int) -> None:
    assert band_of(priority) == band


def test_a_round_serves_each_band_by_its_weight() -> None:
    schedule = Schedule[str]()
    for band, priority in enumerate((-1, 0, 250, 500, 750)):
        for index in range(40):
            schedule.mark(f"{band}-{index}", priority, 0)
    for _ in range(4):
        served = Counter(str(take(schedule, 0))[0] for _ in range(ROUND))
        assert served == {"4": 8, "3": 4, "2": 2, "1": 1, "0": 1}


def test_the_band_with_the_most_credit_is_next() -> None:
    schedule = Schedule[str]()
    for index in range(20):
        schedule.mark(f"top{index}", 750, 0)
        schedule.mark(f"low{index}", 0, 0)
    assert [str(take(schedule, 0))[:3] for _ in range(9)] == ["top"] * 8 + ["low"]


def test_a_new_round_begins_when_the_ready_set_was_empty() -> None:
    schedule = Schedule[str]()
    for index in range(8):
        schedule.mark(f"{index}", 750, 0)
    assert len(take_all(schedule, 0)) == 8
    schedule.mark("low", 0, 1)
    schedule.mark("top", 750, 1)
    assert take_all(schedule, 1) == ["top", "low"]


@given(st.lists(st.sampled_from([-1, 0, 250, 500, 750]), min_size=1, max_size=200))
def test_bands_that_never_run_empty_share_by_weight(priorities: list[int]) -> None:
    """Whoever is served is marked again at once: no band runs empty."""
    schedule = Schedule[str]()
    priority_of = {f"{index}": priority for index, priority in enumerate(priorities)}
    for id, priority in priority_of.items():
        schedule.mark(id, priority, 0)
    rounds_count = 10
    weight_of = {band_of(priority): WEIGHTS[band_of(priority)] for priority in priorities}
    served = Counter[int]()
    for _ in range(rounds_count * sum(weight_of.values())):
        id = take(schedule, 0)
        assert id is not None
        served[band_of(priority_of[id])] += 1
        schedule.mark(id, priority_of[id], 0)
    assert served == {band: rounds_count * weight for band, weight in weight_of.items()}


@given(st.lists(st.integers(0, 249), max_size=50))
def test_within_a_band_the_one_that_was_enqueued_first_is_next(priorities: list[int]) -> None:
    schedule = Schedule[str]()
    for index, priority in enumerate(priorities):
        schedule.mark(f"{index}", priority, index / 1_000)
    assert take_all(schedule, 1) == [f"{index}" for index in range(len(priorities))]


# --- age ----------------------------------------------------------------------------------------------------


def band_now(schedule: Schedule[str], id: str, now_ms: float) -> int:
    """Looks inside: a service would take the topic out."""
    schedule._now_ms = now_ms
    schedule._age()
    return schedule._items[id].band


@pytest.mark.parametrize(
    ("priority", "crossings_ms"),
    [
        (0, {2: 2_500, 3: 5_000, 4: 7_500}),
        (249, {2: 50, 3: 2_550, 4: 5_050}),
        (-100, {1: 1_000, 2: 3_500, 3: 6_000, 4: 8_500}),
        (-250, {1: 2_500, 2: 5_000, 3: 7_500, 4: 10_000}),
        (-1_000, {4: 10_000}),
    ],
)
def test_age_lifts_a_topic_by_100_a_second_on_steps_of_50_ms(priority: int, crossings_ms: dict[int, int]) -> None:
    schedule = Schedule[str]()
    schedule.mark("a", priority, 0)
    band = band_of(priority)
    for next_band, at_ms in crossings_ms.items():
        assert band_now(schedule, "a", at_ms - 1) == band
        assert band_now(schedule, "a", at_ms) == next_band
        band = next_band
    assert band == TOP


@given(st.integers(-1_000, 1_000), st.integers(0, 200) | st.floats(0, 200))
def test_no_topic_waits_more_than_10_s_before_the_top_band(priority: int, start_ms: float) -> None:
    schedule = Schedule[str]()
    schedule.mark("a", priority, start_ms)
    assert band_now(schedule, "a", start_ms + AGE_MS_MAX) == TOP


@settings(max_examples=50)
@given(st.integers(-250, 749), st.floats(0, 100_000))
@example(-46, 940.0000000000001)  # the crossing is rounded to the step at 1,400 ms, and the age there to just below it
def test_a_topic_is_never_more_than_two_steps_late_in_its_band(priority: int, start_ms: float) -> None:
    schedule = Schedule[str]()
    schedule.mark("a", priority, start_ms)
    for other in range(-1_000, 700, 100):
        schedule.mark(f"{other}", other, start_ms)
    # The last step before 10 s may be the top band's already.
    for age_ms in range(0, AGE_MS_MAX - STEP_MS, 10):
        band = band_now(schedule, "a", start_ms + age_ms)
        assert band_of(priority + (age_ms - 2 * STEP_MS) / 10) <= band <= band_of(priority + (age_ms + 1) / 10)


def test_a_long_pause_is_one_move_whatever_bands_it_crosses() -> None:
    schedule = Schedule[str]()
    schedule.mark("a", -1_000, 0)
    schedule.mark("b", 0, 1)
    schedule.mark("c", 900, 3_600_000)
    assert take_all(schedule, 3_600_000) == ["a", "b", "c"]


@settings(max_examples=60)
@given(
    lows=st.lists(st.tuples(st.integers(-1_000, 1_000), st.integers(0, 3_000)), min_size=1, max_size=12),
    highs_count=st.integers(1, 200),
    service_ms=st.integers(1, 20),
    deferring=st.booleans(),
)
def test_under_lasting_load_of_high_priority_every_topic_is_served_within_its_bound(
    lows: list[tuple[int, int]], highs_count: int, service_ms: int, deferring: bool
) -> None:
    """10 s to the top band, 2 services for each that was there before it, and a round.

    Topics with the highest priority are marked again as soon as they are served. The bound holds while low priorities
    are deferred as well.
    """
    schedule = Schedule[str]()
    schedule.deferring = deferring
    for index in range(highs_count):
        schedule.mark(f"high{index}", 1_000, 0)
    coming = sorted((at_ms, f"low{index}", priority) for index, (priority, at_ms) in enumerate(lows))
    enqueued_ms: dict[str, int] = {}
    left = {id for _, id, _ in coming}
    now_ms = 0
    while left:
        while coming and coming[0][0] <= now_ms:
            _, id, priority = coming.pop(0)
            schedule.mark(id, priority, now_ms)
            enqueued_ms[id] = now_ms
        taken = schedule.take(now_ms)
        assert taken is not None
        if taken.id in left:
            left.remove(taken.id)
            older_max = highs_count + len(lows)
            within_ms = AGE_MS_MAX + (2 * older_max + ROUND) * service_ms
            assert now_ms - enqueued_ms[taken.id] <= within_ms
        else:
            schedule.mark(taken.id, 1_000, now_ms)
        now_ms += service_ms


def test_a_topic_that_reaches_the_top_band_as_the_oldest_is_served_within_one_round() -> None:
    schedule = Schedule[str]()
    schedule.mark("low", -1_000, 0)
    schedule.deferring = True
    now_ms, order = 0, list[str]()
    while "low" not in order:
        for index in range(10):
            schedule.mark(f"high{index}", 1_000, now_ms)
            schedule.mark(f"middle{index}", 300, now_ms)
        order.append(str(take(schedule, now_ms)))
        now_ms += 1
    assert AGE_MS_MAX <= now_ms <= AGE_MS_MAX + ROUND


# --- deferral -----------------------------------------------------------------------------------------------


def test_while_deferring_a_priority_below_0_gets_no_credit_before_the_top_band() -> None:
    schedule = Schedule[str]()
    schedule.mark("low", -100, 0)
    schedule.mark("plain", 0, 0)
    schedule.deferring = True
    assert schedule.deferred_count == 1
    assert take_all(schedule, 5_000) == ["plain"]
    assert take_all(schedule, 8_499) == []
    assert schedule.depth == 1
    assert schedule.take(8_500) == Taken("low", 0, True)
    assert schedule.deferred_count == 0


def test_when_deferral_ends_topics_are_served_by_the_age_they_have() -> None:
    schedule = Schedule[str]()
    schedule.deferring = True
    schedule.mark("low", -100, 0)
    assert schedule.take(7_000) is None
    schedule.deferring = False
    assert schedule.deferred_count == 0
    schedule.mark("plain", 499, 7_000)
    assert take_all(schedule, 7_000) == ["low", "plain"]


def test_deferral_that_begins_holds_topics_which_age_had_lifted() -> None:
    schedule = Schedule[str]()
    schedule.mark("low", -1, 0)
    schedule.mark("plain", 0, 4_000)
    schedule.deferring = True
    assert take_all(schedule, 4_000) == ["plain"]


@pytest.mark.parametrize(("priority", "band"), [(1_250, 3), (750, 3), (749, 2), (250, 1), (249, 0), (0, 0), (-1, 0)])
def test_while_deferring_a_router_is_enqueued_one_band_lower(priority: int, band: int) -> None:
    schedule = Schedule[str]()
    schedule.mark("before", priority, 0, lower=True)
    schedule.deferring = True
    schedule.mark("router", priority, 0, lower=True)
    assert schedule._items["before"].band == band_of(priority)
    assert schedule._items["router"].band == band


def test_a_router_that_was_lowered_into_b0_still_gets_its_credit() -> None:
    schedule = Schedule[str]()
    schedule.deferring = True
    schedule.mark("router", 0, 0, lower=True)
    schedule.mark("low router", -1, 0, lower=True)
    assert schedule.deferred_count == 1
    assert take_all(schedule, 0) == ["router"]


# --- priority by recency ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("consumed_ago_ms", "bonus"),
    [(-5, 250), (0, 250), (10_000, 250), (35_000, 125), (59_999, 0), (60_000, 0), (1_000_000, 0)],
)
def test_a_topic_that_was_consumed_lately_has_a_bonus(consumed_ago_ms: int, bonus: int) -> None:
    assert effective(100, True, 2_000_000 - consumed_ago_ms, 2_000_000) == 100 + bonus
    assert effective(100, False, 2_000_000 - consumed_ago_ms, 2_000_000) == 100


def test_a_topic_that_nobody_consumed_has_no_bonus() -> None:
    assert effective(-7, True, None, 5) == -7


# --- beside a slow model ------------------------------------------------------------------------------------


@dataclass
class Waiting:
    id: str
    priority: int
    deferrable: bool
    at_ms: int
    number: int


class SlowSchedule:
    """The same rules, with a look at every topic for each service."""

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self.credits = list(WEIGHTS)
        self.deferring = False
        self.number = 0

    def mark(self, id: str, priority: int, now_ms: int, lower: bool) -> None:
        deferrable = priority < 0
        if lower and self.deferring:
            priority = min(priority, 999) - 250
        if not self.waiting:
            self.credits = list(WEIGHTS)
        self.number += 1
        item = next((one for one in self.waiting if one.id == id), None)
        if item is None:
            self.waiting.append(Waiting(id, priority, deferrable, now_ms, self.number))
        else:
            item.priority, item.deferrable = priority, deferrable

    def discard(self, id: str) -> None:
        self.waiting = [one for one in self.waiting if one.id != id]

    def band(self, one: Waiting, now_ms: int) -> int:
        step = now_ms // STEP_MS
        if step >= (one.at_ms + 10_000) // STEP_MS:
            return TOP
        return band_of(one.priority + max(step * STEP_MS - one.at_ms, 0) / 10)

    def take(self, now_ms: int) -> str | None:
        bands: dict[int, list[Waiting]] = {}
        for one in self.waiting:
            band = self.band(one, now_ms)
            if band == TOP or not (one.deferrable and self.deferring):
                bands.setdefault(band, []).append(one)
        if not bands:
            return None
        if all(self.credits[band] == 0 for band in bands):
            self.credits = list(WEIGHTS)
        best = max(bands, key=lambda band: (self.credits[band], band))
        self.credits[best] -= 1
        first = min(bands[best], key=lambda one: (one.at_ms, one.number))
        self.waiting.remove(first)
        return first.id


ids = st.sampled_from("abcdefghij")
priorities = st.integers(-1_000, 1_250) | st.sampled_from([-251, -250, -1, 0, 249, 250, 499, 500, 749, 750])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("mark"), ids, priorities, st.booleans()),
        st.tuples(st.just("take")),
        st.tuples(st.just("discard"), ids),
        st.tuples(st.just("pass"), st.integers(1, 60) | st.integers(61, 4_000)),
        st.tuples(st.just("defer"), st.booleans()),
    ),
    max_size=80,
)


@settings(max_examples=400)
@given(steps)
def test_the_schedule_serves_like_a_slow_model(history: list[tuple]) -> None:  # type: ignore[type-arg]
    schedule, slow, now_ms = Schedule[str](), SlowSchedule(), 0
    for step in [*history, *[("take",)] * 11]:
        match step:
            case ("mark", id, priority, lower):
                schedule.mark(id, priority, now_ms, lower)
                slow.mark(id, priority, now_ms, lower)
            case ("take",):
                assert take(schedule, now_ms) == slow.take(now_ms)
            case ("discard", id):
                schedule.discard(id)
                slow.discard(id)
            case ("pass", ms):
                now_ms += ms
            case ("defer", deferring):
                schedule.deferring = slow.deferring = deferring
        assert schedule.depth == len(slow.waiting)
        assert schedule.oldest_wait_ms(now_ms) == max((now_ms - one.at_ms for one in slow.waiting), default=0)
