"""JSON mode: messages keep their bytes, and a body that a strict reader could not take is never taken.
The strict reader is the standard library's, told to refuse what JSON does not have."""

from __future__ import annotations

import json
from typing import NoReturn

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.errors import BadBody
from headwater.model.content_types import normalise
from headwater.model.json_mode import are_values, array, fault, messages

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
space = st.text(" \t\r\n", max_size=3).map(str.encode)


@st.composite
def spelled(draw: st.DrawFn) -> bytes:
    """One value, written down in one of the ways JSON allows."""
    text = json.dumps(draw(values), ensure_ascii=draw(st.booleans()), indent=draw(st.none() | st.integers(0, 2)))
    return text.encode("utf-8", "surrogatepass") if text.isascii() else text.encode("utf-8", "replace")


def refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def strictly(body: bytes) -> object:
    """The value of a JSON text. Raises ValueError when it is none, or is not UTF-8."""
    text = body.decode("utf-8")
    value = json.loads(text, parse_constant=refuse)
    # A lone surrogate cannot be written down again: no reader could be given it.
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


@given(st.lists(spelled(), min_size=1, max_size=5), st.lists(space, min_size=12, max_size=12))
def test_an_array_becomes_its_elements_byte_for_byte(elements: list[bytes], spaces: list[bytes]) -> None:
    gap = iter(spaces)
    inside = b",".join(next(gap, b"") + element + next(gap, b"") for element in elements)
    assert messages(spaces[-1] + b"[" + inside + b"]" + spaces[-2]) == elements


@given(spelled().filter(lambda body: not body.startswith(b"[")), space, space)
def test_a_single_value_is_one_message_without_the_space_around_it(body: bytes, before: bytes, after: bytes) -> None:
    assert messages(before + body + after) == [body]


@given(st.lists(spelled(), max_size=5))
def test_what_was_split_is_joined_into_the_same_array(elements: list[bytes]) -> None:
    body = array(elements)
    assert messages(body, allow_empty=True) == elements
    assert json.loads(body) == [json.loads(element) for element in elements]


def test_only_the_outermost_array_is_split() -> None:
    assert messages(b"[[1,2],[3]]") == [b"[1,2]", b"[3]"]
    assert messages(b"[[]]") == [b"[]"]


def test_an_empty_array_creates_an_empty_stream_but_appends_nothing() -> None:
    assert messages(b" [ ] ", allow_empty=True) == []
    with pytest.raises(BadBody):
        messages(b"[]")


TOKENS = (
    *(b"[", b"]", b"{", b"}", b",", b":", b'"', b'"a"', b'"\\u12', b'"\\ud83d\\ude00"', b'"\\ud800"', b'"\\x"'),
    *(b"0", b"01", b"-", b"-0", b"1.", b".5", b"1e5", b"1E+", b"true", b"nul", b"null", b"NaN", b"Infinity"),
    *(b" ", b"\n", b"\x00", b"\x0b", b"\x1f", b'"\t"', b"\x7f", "é".encode(), '"é"'.encode(), b"\xff", b'"\xff"'),
    *(b'"\xed\xa0\x80"', b"\xef\xbb\xbf", b"//", b"'a'", b'"a', b'{"a":1}', b'{"a":1,}', b"[1,]", b"[1 2]"),
)


@settings(max_examples=800)
@given(st.lists(st.sampled_from(TOKENS), max_size=6).map(b"".join) | st.binary(max_size=8))
@example(b"")
@example(b" \n")
@example(b"[1,2")
@example(b'["\xff"]')
@example(b"\xef\xbb\xbf[1]")
def test_a_body_is_taken_exactly_when_a_strict_reader_takes_it(body: bytes) -> None:
    try:
        value = strictly(body)
    except ValueError:
        with pytest.raises(BadBody):
            messages(body, allow_empty=True)
        return
    expected = value if isinstance(value, list) else [value]
    assert [strictly(message) for message in messages(body, allow_empty=True)] == expected


@pytest.mark.parametrize("depth", [10_000, 2_000_000])
@pytest.mark.parametrize(
    ("open_", "inner", "close"), [(b"[", b"", b"]"), (b'{"a":', b"1", b"}"), (b"[", b"", b""), (b'[{"a":', b"", b"")]
)
def test_a_body_nested_beyond_all_measure_is_refused_like_any_other(
    depth: int, open_: bytes, inner: bytes, close: bytes
) -> None:
    with pytest.raises(BadBody):
        messages(open_ * depth + inner + close * depth)


@given(st.lists(st.binary(min_size=1, max_size=6) | st.sampled_from([b"1", b"[", b"]", b'"', b"{}", b",", b"null"])))
@example([b'"a', b'b",1'])
@example([b"[1", b"2]"])
@example([b"[" * 100_000])
def test_records_are_json_values_together_when_each_is(payloads: list[bytes]) -> None:
    if payloads:
        assert are_values(payloads) == all(are_values([payload]) for payload in payloads)


@pytest.mark.parametrize("where", [b'["%s"]', b'"%s"', b'{"%s":1}', b'{"a":"%s"}', b'[1,["%s"]]'])
@pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\x80"])
def test_invalid_utf8_is_refused_wherever_it_hides(where: bytes, bad: bytes) -> None:
    with pytest.raises(BadBody, match="UTF-8"):
        messages(where % bad)


@pytest.mark.parametrize(
    ("given_", "normal"),
    [("application/json; charset=utf-8", "application/json"), (" Text/Plain ", "text/plain"), ("a/b;", "a/b")],
)
def test_content_types_are_compared_without_case_and_parameters(given_: str, normal: str) -> None:
    assert normalise(given_) == normal


@pytest.mark.parametrize(
    "body",
    [rb'{"a":"\ud800"}', rb'{"\ud800":1}', rb'"\ud800x"', rb'"\ud800xxxxxxxx"', rb'"\udc00"', rb'"\ud800\ud800"'],
)
def test_half_of_a_surrogate_pair_is_called_by_its_name(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(body)
    assert "surrogate" in fault(caught.value, body)


@pytest.mark.parametrize("body", [b'{"a":', b'"abc', rb'"\ud83d\ude00', rb'"\\ud800'])
def test_a_body_that_is_cut_off_is_called_truncated(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(body)
    assert "truncated" in fault(caught.value, body)
