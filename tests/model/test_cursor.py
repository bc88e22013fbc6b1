"""Cursors: the present interval, and never one that the client has seen already."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.model.cursor import EPOCH_MS, INTERVAL_MS, JITTER_INTERVALS_MAX, answer, interval

moments_ms = st.integers(EPOCH_MS, EPOCH_MS + 10**12)
jitters = st.integers(1, JITTER_INTERVALS_MAX)


def test_intervals_are_twenty_seconds_from_the_protocols_zero() -> None:
    assert interval(EPOCH_MS) == 0
    assert interval(EPOCH_MS + INTERVAL_MS - 1) == 0
    assert interval(EPOCH_MS + INTERVAL_MS) == 1


@given(moments_ms, jitters, st.integers(0, 10**9))
def test_a_client_never_gets_its_own_cursor_or_an_older_one(now_ms: int, jitter: int, theirs: int) -> None:
    ours = answer(str(theirs), now_ms, jitter)
    assert ours > theirs
    assert ours == (interval(now_ms) if theirs < interval(now_ms) else theirs + jitter)


@given(moments_ms, jitters, st.none() | st.text(max_size=25))
def test_whatever_a_client_sends_the_answer_is_a_cursor_of_now_or_later(
    now_ms: int, jitter: int, theirs: str | None
) -> None:
    assert answer(theirs, now_ms, jitter) >= interval(now_ms)


@given(moments_ms, st.sampled_from(["", "-5", "9" * 19, "²", "٣", "1.5", "abc", None]))
def test_a_cursor_that_is_none_of_ours_is_ignored(now_ms: int, theirs: str | None) -> None:
    assert answer(theirs, now_ms, 7) == interval(now_ms)
