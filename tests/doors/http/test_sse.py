"""Server-Sent Events read back by a parser written from the standard's own text: payloads arrive, and only payloads.
The parser below knows nothing of the encoder."""

from __future__ import annotations

import json
from base64 import b64decode

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.doors.http import sse
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.read_plan import Slice
from headwater.model.commands import Durability
from headwater.model.events import Created
from headwater.model.stream_state import born


def interpret(stream: bytes) -> list[tuple[str, str]]:
    """(type, data) of every event, as https://html.spec.whatwg.org/multipage/server-sent-events.html reads a stream."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    # Lines end with CRLF, LF or CR; what stands behind the last end is no line.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]
    events: list[tuple[str, str]] = []
    kind, data = "", list[str]()
    for line in lines:
        if not line:
            if data:
                events.append((kind or "message", "\n".join(data)))
            kind, data = "", []
            continue
        name, colon, value = line.partition(":")
        if colon and not name:
            continue  # a comment
        value = value.removeprefix(" ")
        if name == "event":
            kind = value
        elif name == "data":
            data.append(value)
        else:
            raise AssertionError(f"a payload reached the field {name!r}")
    return events


def unchunked(data: bytes) -> bytes:
    """The bytes of HTTP chunks."""
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        assert data[length : length + 2] == b"\r\n"
        body, data = body + data[:length], data[length + 2 :]
    return body


def part(content_type: str, payloads: list[bytes], closed: bool = False) -> Slice:
    stream = LoadedStream(born(Created("_default/s", 1, content_type, 1, Durability.FSYNC, []), 10))
    size = sum(map(len, payloads))
    return Slice(stream, payloads, 5, 5 + size, True, closed, len(payloads), size)


def told(content_type: str, payloads: list[bytes]) -> str:
    """The data of the one data event that these records make; its control event has to follow it."""
    found = interpret(unchunked(sse.events(part(content_type, payloads), 7)))
    assert [kind for kind, _ in found] == ["data", "control"]
    return found[0][1]


characters = st.sampled_from("ab :\n\r\u2028\x85\x0b\x0c\0é") | st.characters(codec="utf-8")
lively = st.text(characters, min_size=1, max_size=30)


@settings(max_examples=300)
@given(st.lists(lively, min_size=1, max_size=3))
@example(["\n"])
@example([" leading", "\n two"])
@example(["data: x\n\nevent: control\ndata: {}\n\n"])
@example(["a\r", "\nb"])
@example([":comment\nid: 7\nretry: 1"])
@example(["\ufeffbom"])
def test_any_text_comes_back_with_its_line_ends_made_plain(texts: list[str]) -> None:
    sent = "".join(texts)
    assert told("text/plain", [text.encode() for text in texts]) == sent.replace("\r\n", "\n").replace("\r", "\n")


@given(st.binary(min_size=1, max_size=60))
def test_no_bytes_of_a_text_stream_can_begin_or_end_an_event(payload: bytes) -> None:
    told("text/html", [payload])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(json_values, min_size=1, max_size=4), st.sampled_from([None, 1, "\t", "\r\n"]))
def test_messages_of_a_json_stream_arrive_as_an_array(values: list[object], indent: int | str | None) -> None:
    payloads = [json.dumps(value, indent=indent).encode() for value in values]
    assert json.loads(told("application/json", payloads)) == values
    assert json.loads(told("application/json; charset=utf-8", payloads)) == values


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=4))
def test_bytes_of_any_other_stream_arrive_as_base64(payloads: list[bytes]) -> None:
    for content_type in ("application/octet-stream", "image/png", "application/ndjson"):
        assert b64decode(told(content_type, payloads), validate=True) == b"".join(payloads)


@pytest.mark.parametrize(
    ("media", "text"),
    [("text/plain", True), ("text/x", True), ("application/json", True), ("image/png", False)],
)
def test_only_text_and_json_go_out_as_they_are(media: str, text: bool) -> None:
    assert sse.is_text(media) is text


def control(data: bytes) -> dict[str, object]:
    ((kind, text),) = interpret(data)
    assert kind == "control"
    found: dict[str, object] = json.loads(text)
    return found


@given(st.integers(0, (1 << 64) - 1), st.integers(0, 1 << 50))
def test_a_control_event_says_where_to_go_on(end: int, cursor: int) -> None:
    offset = f"{end:020d}"
    more = control(sse.control_event(end, cursor, up_to_date=False, closed=False))
    assert more == {"streamNextOffset": offset, "streamCursor": str(cursor)}
    assert control(sse.control_event(end, cursor, up_to_date=True, closed=False)) == more | {"upToDate": True}
    assert control(sse.control_event(end, cursor, up_to_date=True, closed=True)) == {
        "streamNextOffset": offset,
        "upToDate": True,
        "streamClosed": True,
    }


def test_nothing_new_is_a_control_event_alone() -> None:
    found = control(unchunked(sse.events(part("text/plain", []), 7)))
    assert found["streamNextOffset"] == f"{5:020d}"


def test_the_end_of_a_closed_stream_comes_with_its_last_data() -> None:
    found = interpret(unchunked(sse.events(part("text/plain", [b"bye"], closed=True), 7)))
    assert found[0] == ("data", "bye") and json.loads(found[1][1])["streamClosed"] is True


def test_a_keep_alive_is_a_comment_that_no_reader_sees() -> None:
    quiet = unchunked(sse.KEEP_ALIVE)
    assert interpret(quiet) == []
    event = unchunked(sse.events(part("text/plain", [b"x"]), 7))
    assert interpret(quiet + event + quiet + quiet + event) == interpret(event) * 2


def test_the_last_chunk_ends_the_body() -> None:
    assert sse.LAST_CHUNK == b"0\r\n\r\n"
