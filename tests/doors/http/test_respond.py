"""Header blocks: whatever their values are, each stays one line of printable ASCII."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.doors.http.respond import Responder, header, path_of

ANY = st.text(max_size=30) | st.text("\r\n\0\x7f\x85 :aé\ud800", max_size=12)


@given(st.sampled_from(["Content-Type", "Location", "ETag"]), ANY)
def test_a_header_is_one_line_whatever_its_value(name: str, value: str) -> None:
    line = header(name, value)
    assert line.startswith(name.encode() + b": ") and line.endswith(b"\r\n")
    assert all(0x20 <= byte <= 0x7E for byte in line[:-2])


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E)))
def test_a_value_that_can_be_sent_is_sent_as_it_is(value: str) -> None:
    assert header("Location", value) == f"Location: {value}\r\n".encode()


@given(st.lists(st.tuples(st.just("Location"), ANY), max_size=3))
def test_a_block_has_the_headers_it_was_given_and_no_other(headers: list[tuple[str, str]]) -> None:
    responder = Responder("*", False)
    block = responder.head(200, headers, 0, True)
    given_none = responder.head(200, [], 0, True)
    assert block.count(b"\r\n") == given_none.count(b"\r\n") + len(headers)
    assert block.endswith(b"\r\n\r\n") and block.count(b"\r\n\r\n") == 1


def test_bytes_of_a_path_that_are_not_ascii_are_escaped() -> None:
    assert path_of("/v1/stream/é%20b?offset=-1".encode()) == "/v1/stream/%C3%A9%20b"
