"""The governor of pressure: the topics specification, "elastic throttling" (signals, ladder, hysteresis).
Time and what was seen are passed in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.model.governor import RETRY_AFTER_MS, SAMPLE_MS, Governor

CALM = (0, 0.0, 0.0)
FULL = (1_000_000, 1_000.0, 1.0)


def sampled(governor: Governor, seen: tuple[int, float, float], count: int, from_ms: int = 0) -> int:
    """Samples of the same kind, 100 ms apart; the moment after the last one."""
    for index in range(count):
        governor.sample(from_ms + index * SAMPLE_MS, *seen)
    return from_ms + count * SAMPLE_MS


def under(pressure: float) -> Governor:
    governor = Governor()
    governor.pressure = pressure
    return governor


samples = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 5_000), st.floats(0, 1_000), st.floats(-1, 2)), max_size=50
)


@given(samples)
def test_pressure_and_its_effects_stay_within_their_bounds(history: list[tuple[int, int, float, float]]) -> None:
    governor, now_ms = Governor(2), 0
    for elapsed_ms, depth, latency_ms, busy in history:
        now_ms += elapsed_ms
        governor.sample(now_ms, depth, latency_ms, busy)
        assert 0 <= governor.pressure <= 1
        assert 0 <= governor.coalesce_ms <= 20


@given(samples, st.tuples(st.integers(0, 1_000), st.floats(0, 20), st.floats(0, 1)), st.integers(0, 2))
def test_more_of_any_signal_never_lowers_the_pressure(
    history: list[tuple[int, int, float, float]], seen: tuple[int, float, float], signal: int
) -> None:
    less, more, now_ms = Governor(), Governor(), 0
    for elapsed_ms, *before in history:
        now_ms += elapsed_ms
        less.sample(now_ms, *before)  # type: ignore[arg-type]
        more.sample(now_ms, *before)  # type: ignore[arg-type]
    raised = list(seen)
    raised[signal] = raised[signal] * 2 + 1
    less.sample(now_ms + SAMPLE_MS, *seen)
    more.sample(now_ms + SAMPLE_MS, *raised)  # type: ignore[arg-type]
    assert more.pressure >= less.pressure


def test_a_server_that_keeps_up_has_no_pressure() -> None:
    governor = Governor()
    sampled(governor, CALM, 3)
    assert governor.pressure == 0
    governor.sample(300, 1, 0.2, 0.1)
    assert governor.pressure < 0.2


def test_a_server_that_is_full_comes_close_to_a_pressure_of_1() -> None:
    governor = Governor()
    sampled(governor, FULL, 20)
    assert governor.pressure == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("seen", "pressure"), [((0, 5.0, 0.0), 0.5), ((1_000_000, 0.0, 0.0), 0.25), ((0, 0.0, 1.0), 0.25)]
)
def test_each_signal_alone_has_its_part(seen: tuple[int, float, float], pressure: float) -> None:
    governor = Governor()
    sampled(governor, seen, 50)
    assert governor.pressure == pytest.approx(pressure, abs=0.001)


@pytest.mark.parametrize(("depth", "waiting"), [(0, 0.0), (3, 0.0), (4, 0.0), (8, 0.5), (16, 0.75)])
def test_depth_counts_against_the_workers(depth: int, waiting: float) -> None:
    governor = Governor(workers=4)
    governor.sample(0, depth, 0.0, 0.0)
    assert governor.pressure == pytest.approx(0.25 * waiting)


def test_latency_is_smoothed_by_time_and_not_by_the_number_of_samples() -> None:
    often, seldom = Governor(), Governor()
    for governor in (often, seldom):
        governor.sample(0, 0, 4.0, 0.0)
    for now_ms in range(100, 700, 100):
        often.sample(now_ms, 0, 0.0, 0.0)
    seldom.sample(600, 0, 0.0, 0.0)
    assert often.pressure == pytest.approx(seldom.pressure)
    assert 0 < often.pressure < 0.1


def test_a_very_long_wait_is_forgotten_as_fast_as_one_of_5_ms() -> None:
    short, long = Governor(), Governor()
    now_ms = sampled(short, (0, 5.0, 0.0), 20)
    sampled(long, (0, 60_000.0, 0.0), 20)
    for governor in (short, long):
        sampled(governor, CALM, 5, now_ms)
    assert long.pressure == short.pressure < 0.1


@pytest.mark.parametrize(("pressure", "window_ms"), [(0.0, 0), (0.2, 0), (0.6, 10), (1.0, 20)])
def test_above_0_2_the_coalescing_window_grows_to_20_ms(pressure: float, window_ms: float) -> None:
    assert under(pressure).coalesce_ms == pytest.approx(window_ms)


def test_low_priorities_are_deferred_when_pressure_above_0_8_lasts() -> None:
    governor = Governor()
    now_ms = 0
    while governor.pressure <= 0.8:
        assert not governor.deferring
        now_ms = sampled(governor, FULL, 1, now_ms)
    began_ms = now_ms - SAMPLE_MS
    while now_ms - began_ms < 500:
        now_ms = sampled(governor, FULL, 1, now_ms)
        assert not governor.deferring
    sampled(governor, FULL, 1, now_ms)
    assert governor.deferring


def test_pressure_above_0_8_that_is_interrupted_defers_nothing() -> None:
    governor, now_ms = Governor(), 0
    for _ in range(10):
        now_ms = sampled(governor, FULL, 6, now_ms)
        now_ms = sampled(governor, CALM, 3, now_ms)
        assert not governor.deferring


def test_deferral_lasts_until_the_pressure_is_below_0_6() -> None:
    governor = Governor()
    now_ms = sampled(governor, FULL, 20)
    now_ms = sampled(governor, (1_000_000, 4.0, 0.5), 30, now_ms)
    assert 0.6 <= governor.pressure < 0.8
    assert governor.deferring
    now_ms = sampled(governor, (1_000_000, 3.0, 0.0), 30, now_ms)
    assert governor.pressure < 0.6
    assert not governor.deferring
    sampled(governor, (1_000_000, 4.0, 0.5), 30, now_ms)
    assert 0.6 <= governor.pressure < 0.8
    assert not governor.deferring


def test_an_append_is_refused_only_when_its_ingest_is_full_at_a_pressure_of_about_1() -> None:
    assert under(1.0).retry_after_ms(ingest_full=True) == RETRY_AFTER_MS
    assert under(0.95).retry_after_ms(ingest_full=True) == RETRY_AFTER_MS
    assert under(1.0).retry_after_ms(ingest_full=False) is None
    assert under(0.94).retry_after_ms(ingest_full=True) is None


def test_after_a_rest_nothing_of_before_counts() -> None:
    governor = Governor()
    now_ms = sampled(governor, FULL, 20)
    governor.rest()
    assert (governor.pressure, governor.deferring, governor.coalesce_ms) == (0, False, 0)
    governor.sample(now_ms, *CALM)
    assert governor.pressure == 0
