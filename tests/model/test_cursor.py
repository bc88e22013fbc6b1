"""Cursors: of the present interval, never one that the client has seen already, and of one life of a stream."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from headwater.model.cursor import (
    EPOCH_MS,
    INTERVAL_MS,
    JITTER_INTERVALS_MAX,
    MARKS,
    answer,
    interval,
    is_another,
    stamp,
)

YEAR_MS = 365 * 86_400_000
moments_ms = st.integers(EPOCH_MS + YEAR_MS, EPOCH_MS + 100 * YEAR_MS)
jitters = st.integers(1, JITTER_INTERVALS_MAX)
incarnations = st.integers(1, 10**12)


def test_intervals_are_twenty_seconds_from_the_protocols_zero() -> None:
    assert interval(EPOCH_MS) == 0
    assert interval(EPOCH_MS + INTERVAL_MS - 1) == 0
    assert interval(EPOCH_MS + INTERVAL_MS) == 1


@given(moments_ms, moments_ms, jitters, incarnations)
def test_a_client_never_gets_its_own_cursor_or_an_older_one(
    now_ms: int, then_ms: int, jitter: int, incarnation: int
) -> None:
    theirs = stamp(then_ms, incarnation)
    ours = answer(str(theirs), now_ms, jitter, incarnation)
    assert ours > theirs
    ahead = interval(then_ms) >= interval(now_ms)
    assert ours // MARKS == (interval(then_ms) + jitter if ahead else interval(now_ms))
    assert not is_another(str(ours), incarnation)


@given(moments_ms, jitters, incarnations, st.none() | st.text(max_size=25))
def test_whatever_a_client_sends_the_answer_is_a_cursor_of_now_or_later(
    now_ms: int, jitter: int, incarnation: int, theirs: str | None
) -> None:
    assert answer(theirs, now_ms, jitter, incarnation) >= stamp(now_ms, incarnation)


@given(moments_ms, incarnations, st.sampled_from(["", "-5", "9" * 19, "²", "٣", "1.5", "abc", "1700000", None]))
def test_a_cursor_that_is_none_of_ours_is_ignored(now_ms: int, incarnation: int, theirs: str | None) -> None:
    assert answer(theirs, now_ms, 7, incarnation) == stamp(now_ms, incarnation)
    assert not is_another(theirs or "", incarnation)


@given(moments_ms, moments_ms, incarnations, incarnations)
def test_a_cursor_tells_a_stream_from_the_one_that_had_its_name_before(
    now_ms: int, then_ms: int, before: int, present: int
) -> None:
    assume(before % MARKS != present % MARKS)
    assert is_another(str(stamp(then_ms, before)), present)
    assert not is_another(str(stamp(then_ms, present)), present)


@given(moments_ms, incarnations)
def test_a_cursor_is_a_number_that_javascript_holds_exactly(now_ms: int, incarnation: int) -> None:
    assert stamp(now_ms, incarnation) + JITTER_INTERVALS_MAX * MARKS < 1 << 53
