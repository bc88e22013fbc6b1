"""Long JSON in slices: the same messages and refusals as in one go, and never a long piece for the parser.
Pieces are made a few bytes long here, so that short texts are cut in every place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BadBody, Failure, TooManyRecords
from headwater.model import json_mode, json_slices
from tests.model.test_json_mode import space, spelled

MIB = 1024 * 1024


def walked(body: bytes, allow_empty: bool = True, count_max: int = json_mode.COUNT_MAX) -> tuple[list[bytes], int]:
    """The messages, and in how many slices they were found."""
    walk = json_mode.messages_in_slices(body, allow_empty, count_max)
    slices_count = 1
    while True:
        try:
            next(walk)
            slices_count += 1
        except StopIteration as done:
            return done.value, slices_count


def outcome(split: Callable[[], list[bytes]]) -> list[bytes] | type[Failure]:
    try:
        return split()
    except Failure as failure:
        return type(failure)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """JSON, mostly an array, and perhaps with a byte gone or too many."""
    inside = b",".join(draw(space) + one + draw(space) for one in draw(st.lists(spelled(), max_size=6)))
    body = draw(space) + draw(st.sampled_from([b"[%b]", b"[[%b]]", b'{"a":[%b]}', b"[%b,1]"])) % inside + draw(space)
    at = draw(st.integers(0, len(body)))
    gone = draw(st.sampled_from([0, 0, 1]))
    more = draw(st.sampled_from([b"", b"", b",", b"]", b"[", b'"', b"\\", b"1", b" ", b"e", b"-", b"\xff", b"{}"]))
    return body[:at] + more + body[at + gone :]


@given(damaged(), st.sampled_from([4, 16, 64, 1024]))
def test_slices_find_what_one_go_finds_and_refuse_what_it_refuses(body: bytes, piece_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_slices, "PIECE_BYTES", piece_bytes)
        patch.setattr(json_slices, "_REACH_BYTES_MIN", 4)
        assert outcome(lambda: walked(body)[0]) == outcome(lambda: json_mode.messages(body, allow_empty=True))


@given(st.lists(spelled(), min_size=1, max_size=8), st.integers(1, 9))
def test_more_elements_than_may_be_are_refused(elements: list[bytes], count_max: int) -> None:
    found = outcome(lambda: walked(json_mode.array(elements), count_max=count_max)[0])
    assert found == (elements if len(elements) <= count_max else TooManyRecords)
    assert outcome(lambda: json_mode.messages(json_mode.array(elements), count_max=count_max)) == found


def test_a_text_whose_commas_are_never_where_they_are_looked_for_is_parsed_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_slices, "INNER_ALONE_MAX", 10)
    monkeypatch.setattr(json_slices, "PIECE_BYTES", 64)
    element = b"[" + b'{"a":[1,{"b":[1,2],"c":3}],"d":4},' * 100 + b"5]"
    assert walked(b"[1," + element + b",2]")[0] == [b"1", element, b"2"]


OBJECT = b'{"id":12345678,"name":"some name","values":[1,2,3],"nested":{"a":1,"b":[true,null]},"text":"hello"}'
LONG = {
    "objects": (OBJECT + b",") * (2 * MIB // len(OBJECT)) + b"1",
    "numbers in an array": b"[" + b"1," * MIB + b"1]",
    "objects in an object": b'{"a":{"b":[' + (OBJECT + b",") * (2 * MIB // len(OBJECT)) + b"1]}}",
    "arrays in an array": b"[" + b"1,[1,[2,3]]," * (2 * MIB // 12) + b"1]",
    "strings": (b'"' + b"x,[" * 1000 + b'",') * (2 * MIB // 3000) + b"1",
}


@pytest.mark.parametrize("name", LONG)
def test_the_parser_is_only_given_bounded_pieces_of_a_long_body(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = b"[" + LONG[name] + b"]"
    given_bytes: list[int] = []

    def watched(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def watch(text: Any) -> Any:
            given_bytes.append(len(text))
            return decode(text)

        return watch

    for parser in ("_value", "_values"):
        monkeypatch.setattr(json_slices, parser, watched(getattr(json_slices, parser)))
    found, slices_count = walked(body)
    assert b",".join(found) == LONG[name]
    assert max(given_bytes) <= json_slices.PIECE_BYTES + 2
    assert len(given_bytes) < 8 * len(body) // json_slices.PIECE_BYTES, "items were parsed one by one"
    assert slices_count > len(body) // json_slices.PIECE_BYTES


def test_a_count_that_is_too_great_is_noticed_long_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made_count = 0
    values = json_slices._values

    def watched(text: bytes) -> list[Any]:
        nonlocal made_count
        made = values(text)
        made_count += len(made)
        return made

    monkeypatch.setattr(json_slices, "_values", watched)
    with pytest.raises(TooManyRecords):
        json_mode.messages(b"[" + b"1," * (4 * MIB) + b"1]", count_max=10_000)
    assert made_count < 10_000 + 2 * json_slices.TOGETHER_MAX


def test_half_of_a_surrogate_pair_is_called_by_its_name_in_a_long_body_too() -> None:
    for element in (b'"\\ud800"', b'["\\ud800",' + b"1," * MIB + b"1]"):
        with pytest.raises(BadBody, match="surrogate pair"):
            json_mode.messages(b"[" + b"1," * 100_000 + element + b",2]")


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_utf8_is_checked_across_the_ends_of_pieces(cut: int) -> None:
    sign = "\U0001f30a".encode()
    before = b'["' + b"x" * (json_slices.PIECE_BYTES - 2 - cut)
    assert walked(before + sign + b'"]')[0] == [before[1:] + sign + b'"']
    with pytest.raises(BadBody, match="UTF-8"):
        walked(before + sign[:3] + b'"]')
