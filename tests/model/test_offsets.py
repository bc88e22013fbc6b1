"""Offsets on the wire: what is written can be read, sorts as text, and nothing else is taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BadQuery, BadSnapshotOffset
from headwater.model.offsets import NOW, START, WIDTH, parse, parse_snapshot, show

offsets = st.integers(0, (1 << 64) - 1)


@given(offsets)
def test_an_offset_that_was_shown_is_parsed_back(offset: int) -> None:
    assert len(show(offset)) == WIDTH
    assert parse(show(offset)) == offset


@given(offsets, offsets)
def test_offsets_sort_as_text_like_they_sort_as_numbers(a: int, b: int) -> None:
    assert (show(a) < show(b)) == (a < b)


def test_the_reserved_words_mean_the_beginning_and_the_tail() -> None:
    assert parse("-1") == START
    assert parse("now") == NOW
    # Other servers' spellings of the beginning, which some clients send.
    assert parse("0") == parse("0000000000000000_0000000000000000") == 0


@given(st.text(max_size=24) | st.text("0123456789-+_ ", min_size=18, max_size=22))
def test_any_other_text_is_refused_by_the_name_of_its_parameter(text: str) -> None:
    ours = text in ("-1", "now", "0") or (len(text) == WIDTH and set(text) <= set("0123456789") and int(text) < 1 << 64)
    if ours:
        assert parse(text) >= NOW
        return
    with pytest.raises(BadQuery) as caught:
        parse(text)
    assert caught.value.name == "offset"


@given(offsets)
def test_a_snapshot_is_named_by_an_offset_in_its_path(offset: int) -> None:
    assert parse_snapshot(show(offset)) == offset
    assert parse_snapshot("-1") == 0


@pytest.mark.parametrize("segment", ["now", "", "1", "abc"])
def test_a_refused_snapshot_offset_speaks_of_the_path_and_offers_no_now(segment: str) -> None:
    with pytest.raises(BadSnapshotOffset) as caught:
        parse_snapshot(segment)
    assert "path" in caught.value.message()
    assert "query" not in caught.value.message() and "now" not in caught.value.message()


@pytest.mark.parametrize(
    "text",
    ["", "1", "00", "+0000000000000000001", "-0000000000000000001", "0" * 19 + "²", "٠" * 20, "0" * 21, "9" * 20,
     "0000000000000000001_0", "18446744073709551616", "NOW", " now", "-1 ", "-2"],
)  # fmt: skip
def test_what_this_server_never_hands_out_is_refused(text: str) -> None:
    with pytest.raises(BadQuery):
        parse(text)
