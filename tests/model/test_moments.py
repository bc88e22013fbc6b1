"""Moments: what is written is read back, and any number at all can be shown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.model import moments


@given(st.integers(0, moments.LATEST_MS))
def test_a_moment_that_is_shown_is_read_back(at_ms: int) -> None:
    assert moments.parse(moments.show(at_ms)) == at_ms


@given(st.integers())
def test_any_number_is_shown_as_a_moment_within_the_bounds(at_ms: int) -> None:
    read = moments.parse(moments.show(at_ms))
    assert read == min(max(at_ms, 0), moments.LATEST_MS)


@given(st.text(max_size=40))
def test_any_text_is_a_moment_within_the_bounds_or_none(text: str) -> None:
    read = moments.parse(text)
    assert read is None or 0 <= read <= moments.LATEST_MS
