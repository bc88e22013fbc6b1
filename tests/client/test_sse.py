"""The SSE parser: pure, so it is held to the format byte by byte and to a slow, obvious model.
It needs no server and no socket."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.client.sse import SseEvent, sse_events


def events(*chunks: bytes) -> list[tuple[str, bytes]]:
    return [(event.name, event.data) for event in sse_events(chunks)]


def obvious(text: bytes) -> list[SseEvent]:
    """The format, read off its text, with everything at hand at once."""
    found = []
    lines = re.split(rb"\r\n|\r|\n", text.removeprefix(b"\xef\xbb\xbf"))[:-1]
    name, data = "", []
    for line in lines:
        if line == b"":
            if data:
                found.append(SseEvent(name or "message", b"\n".join(data)))
            name, data = "", []
        elif line.startswith((b"data:", b"event:")):
            field, value = line.split(b":", 1)
            value = value[1:] if value.startswith(b" ") else value
            if field == b"data":
                data.append(value)
            else:
                name = value.decode("utf-8", "replace")
        elif line == b"data":
            data.append(b"")
        elif line == b"event":
            name = ""
    return found


def test_an_event_has_its_name_and_its_data() -> None:
    assert events(b"event: data\ndata: hello\n\n") == [("data", b"hello")]


def test_an_event_without_a_name_is_a_message() -> None:
    assert events(b"data: x\n\n") == [("message", b"x")]


def test_several_data_lines_are_joined_by_line_ends() -> None:
    assert events(b"event: data\ndata: [\ndata: 1,\ndata: 2\ndata: ]\n\n") == [("data", b"[\n1,\n2\n]")]


def test_exactly_one_space_after_the_colon_is_dropped() -> None:
    assert events(b"data:  x \n\n", b"data:y\n\n") == [("message", b" x "), ("message", b"y")]


def test_empty_data_lines_are_data() -> None:
    assert events(b"data: a\ndata:\n\n", b"data\n\n") == [("message", b"a\n"), ("message", b"")]


def test_comments_ids_retries_and_unknown_fields_are_passed_over() -> None:
    assert events(b": keep-alive\n\nid: 7\nretry: 5\nodd: 1\ndata: x\n\n") == [("message", b"x")]


def test_a_name_without_data_is_no_event_and_does_not_leak_into_the_next() -> None:
    assert events(b"event: data\n\ndata: x\n\n") == [("message", b"x")]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_every_kind_of_line_end_is_understood(end: bytes) -> None:
    assert events(end.join([b"event: data", b"data: a", b"data: b", b"", b""])) == [("data", b"a\nb")]


def test_an_unfinished_event_is_dropped() -> None:
    assert events(b"data: a\n\ndata: b\n") == [("message", b"a")]


def test_a_byte_order_mark_at_the_start_is_no_part_of_the_first_field() -> None:
    assert events(b"\xef\xbb\xbfdata: a\n\n") == [("message", b"a")]


def test_data_stays_bytes_even_where_it_is_no_text() -> None:
    assert events(b"data: \xff\xfe\n\n") == [("message", b"\xff\xfe")]


def test_an_event_is_out_before_the_next_chunk_is_asked_for() -> None:
    asked = []

    def chunks():  # type: ignore[no-untyped-def]
        for number, chunk in enumerate((b"data: a\r", b"\r", b"\ndata: b\n\n")):
            asked.append(number)
            yield chunk

    parsed = sse_events(chunks())
    assert next(parsed).data == b"a"
    assert asked == [0, 1]
    assert next(parsed).data == b"b"


pieces = st.lists(
    st.sampled_from([b"data: ", b"data", b"event: control", b":", b"a", b" ", b"\n", b"\r", b"\r\n", b"\n\n", b"\xff"])
)


@given(pieces.map(b"".join), st.lists(st.integers(0, 60), max_size=8))
def test_cut_anywhere_the_events_are_those_of_the_obvious_parser(text: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    chunks = [text[start:end] for start, end in itertools.pairwise(places)]
    assert list(sse_events(chunks)) == obvious(text)


@given(pieces.map(b"".join))
def test_byte_by_byte_the_events_are_the_same(text: bytes) -> None:
    assert list(sse_events(bytes([byte]) for byte in text)) == obvious(text)
