"""Topics architecture §7: bands, weights, age, deferral and the ladder of pressure, on time that tests move.
The schedule is driven directly; `Delivery` runs it on a simulated event loop."""

from __future__ import annotations

from collections import Counter

import pytest

from headwater.model.governor import SAMPLE_MS, Governor
from headwater.model.schedule import Schedule
from tests.topics.test_delivery import World

BANDS = {"B4": 900, "B3": 600, "B2": 300, "B1": 100, "B0": -100}
WEIGHTS = {"B4": 8, "B3": 4, "B2": 2, "B1": 1, "B0": 1}
STEP_MS = 50


def serve(schedule: Schedule[str], now_ms: float) -> str | None:
    taken = schedule.take(now_ms)
    return None if taken is None else taken.id


def under_load(schedule: Schedule[str], id: str, priority: int, load: int, step_ms: float) -> float:
    """How long `id` waits while so many topics of the highest priority are written again as soon as they are served,
    one of them served in each `step_ms`."""
    now_ms = 0.0
    for n in range(load):
        schedule.mark(f"busy{n}", 1_000, now_ms)
    schedule.mark(id, priority, now_ms)
    while True:
        served = serve(schedule, now_ms)
        if served == id:
            return now_ms
        if served is not None:
            schedule.mark(served, 1_000, now_ms)
        now_ms += step_ms


def test_a_topic_is_dirty_at_most_once() -> None:
    """§7.1: "inserts it into the ready set if not already present", "coalesces a topic's burst of writes into one unit
    of work"."""
    schedule: Schedule[str] = Schedule()
    for now_ms in range(1_000):
        schedule.mark("a", 0, now_ms)
    assert schedule.depth == 1
    assert serve(schedule, 1_000) == "a" and serve(schedule, 1_000) is None


def test_a_topic_that_is_written_while_it_is_served_is_served_again() -> None:
    """§7.1: "each worker drains ONE topic fully, requeues if more work arrived"."""
    world = World(0.000_1)
    world.again["a"] = 0
    world.mark("a")
    world.loop.run_for(0.000_5)
    world.again.clear()
    world.loop.run_for(1.0)
    assert len(world.served) > 1 and world.loop.idle


def test_credit_is_proportional_to_weight() -> None:
    """§7.2: the table of bands and weights; "for every 1 low-priority topic ... up to 8 top-band topics may be"."""
    schedule: Schedule[str] = Schedule()
    for band, priority in BANDS.items():
        for n in range(200):
            schedule.mark(f"{band}-{n}", priority, 0)
    served = Counter((serve(schedule, 0) or "").partition("-")[0] for _ in range(16 * 10))
    assert served == {band: 10 * weight for band, weight in WEIGHTS.items()}


def test_within_a_band_the_first_comes_first() -> None:
    """§7.2: "Within a band, FIFO by enqueued_at"."""
    schedule: Schedule[str] = Schedule()
    for n, priority in enumerate((10, 200, 0, 249, 100)):
        schedule.mark(f"{n}", priority, n)
    assert [serve(schedule, 5) for _ in range(5)] == ["0", "1", "2", "3", "4"]


def test_low_bands_go_forward_in_every_round() -> None:
    """§7.2: "high priority strongly favored, but B1/B0 always make forward progress every round"."""
    schedule: Schedule[str] = Schedule()
    for n in range(100):
        schedule.mark(f"high{n}", 1_000, 0)
    schedule.mark("low", -1_000, 0)
    served = [serve(schedule, 0) for _ in range(16)]
    assert "low" in served and served.index("low") >= 8


@pytest.mark.parametrize("priority", [-1_000, -250, -1, 0, 500, 749])
def test_no_topic_waits_more_than_its_bound_under_lasting_load(priority: int) -> None:
    """§7.3: "no topic waits more than 10 s before reaching the top band, and DWRR drains the top band every round -
    worst-case scheduling latency is bounded even under sustained high-priority load"."""
    load, step_ms = 200, 5.0
    waited_ms = under_load(Schedule(), "low", priority, load, step_ms)
    assert waited_ms <= 10_000 + 2 * step_ms * (load + 16)


def test_deferral_is_a_pause_and_no_starvation() -> None:
    """§7.3 and §7.4 together: also while low priorities get no credit, the bound holds."""
    schedule: Schedule[str] = Schedule()
    schedule.deferring = True
    load, step_ms = 50, 5.0
    waited_ms = under_load(schedule, "low", -1_000, load, step_ms)
    assert 10_000 - STEP_MS <= waited_ms <= 10_000 + 2 * step_ms * (load + 16)


def test_age_counts_from_the_last_service_and_not_from_the_last_write() -> None:
    """§7.3: "enqueued_at resets only when the topic is actually serviced, so a continuously-rewritten topic still
    ages"."""
    schedule: Schedule[str] = Schedule()
    schedule.mark("old", 0, 0)
    for now_ms in range(0, 9_000, 10):
        schedule.mark("old", 0, now_ms)
    schedule.mark("young", 700, 9_000)
    assert serve(schedule, 9_000) == "old"


def test_without_load_a_topic_is_served_in_the_next_turn() -> None:
    """§7.3: "Under unsaturated load ... topics are serviced within microseconds of being marked dirty"."""
    world = World(0.000_05)
    for n in range(5):
        world.mark(f"{n}")
        world.loop.turn()
        assert world.served[-1] == f"{n}" and world.loop.idle
    assert world.delivery.pressure == 0.0


# ---- pressure --------------------------------------------------------------------------------------------------


def governor_at(pressure: float) -> Governor:
    governor = Governor()
    governor.pressure = pressure
    return governor


@pytest.mark.parametrize(
    ("pressure", "window_ms"), [(0.0, 0.0), (0.2, 0.0), (0.4, 5.0), (0.6, 10.0), (0.8, 15.0), (1.0, 20.0)]
)
def test_topics_are_coalesced_from_a_pressure_of_0_2_on(pressure: float, window_ms: float) -> None:
    """§7.4: "Batch coalescing (pressure > 0.2) ... Window grows 0..20 ms with pressure". There is no commit window: see
    the decision about differences."""
    assert governor_at(pressure).coalesce_ms == pytest.approx(window_ms)


def test_deferral_needs_lasting_pressure_and_ends_below_0_6() -> None:
    """§7.4: "Defer lowest-value work (pressure > 0.8, sustained) ... until pressure < 0.6 (hysteresis)"."""
    governor = Governor()
    now_ms = 0.0

    def sample(latency_ms: float, depth: int, busy: float) -> bool:
        nonlocal now_ms
        now_ms += SAMPLE_MS
        governor.sample(now_ms, depth, latency_ms, busy)
        return governor.deferring

    assert not sample(50, 1_000, 1.0)
    while not sample(50, 1_000, 1.0):
        assert now_ms < 10_000
    assert governor.pressure > 0.8
    seen = []
    while sample(0, 1_000, 1.0):
        seen.append(governor.pressure)
    assert governor.pressure < 0.6 and any(0.6 <= pressure <= 0.8 for pressure in seen)


def test_a_write_is_refused_only_when_there_is_no_room_at_full_pressure() -> None:
    """§7.4: "If ... ingest ... is full and pressure ~ 1.0, the write endpoint returns 429 + Retry-After"."""
    for pressure, full, refused in ((1.0, True, True), (1.0, False, False), (0.9, True, False), (0.0, True, False)):
        assert (governor_at(pressure).retry_after_ms(full) is not None) is refused


def test_under_pressure_a_burst_of_writes_is_one_delivery() -> None:
    """§7.4: "coalesce a topic's pending records into one multi-record frame"."""
    world = World(0.000_6)
    world.saturate()
    world.relax()
    world.loop.run_for(0.02)
    assert world.delivery.pressure > 0.2
    world.served.clear()
    for _ in range(10):
        world.mark("burst")
        world.loop.now_s += 0.000_1
    world.loop.run_for(0.1)
    assert world.served.count("burst") == 1


def test_throttling_loses_nothing() -> None:
    """§7.4, the cardinal rule: "throttling degrades latency and push-eagerness, never correctness": every mark is
    followed by a delivery."""
    world = World(0.000_6)
    world.saturate(1.0)
    for n in range(50):
        world.mark(f"late{n}", -1_000 + n)
    world.relax()
    world.loop.run_for(30.0)
    assert {f"late{n}" for n in range(50)} <= set(world.served) and world.loop.idle
