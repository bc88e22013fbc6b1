"""Header blocks: whatever their values are, each stays one line of printable ASCII."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.doors.http.respond import REASONS, Responder, header, path_of
from headwater.errors import TABLE

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


def values(block: bytes, name: bytes) -> list[bytes]:
    lines = block.partition(b"\r\n\r\n")[0].split(b"\r\n")
    return [value for field, _, value in (line.partition(b": ") for line in lines) if field == name]


A, B = "https://a.example", "https://b.example"


def test_with_one_origin_every_answer_is_made_out_to_it() -> None:
    responder = Responder(A, False, credentials=True)
    assert responder.origins is None
    block = responder.head(200, [], 0, True)
    assert values(block, b"Access-Control-Allow-Origin") == [A.encode()]
    assert values(block, b"Access-Control-Allow-Credentials") == [b"true"]
    assert values(block, b"Access-Control-Expose-Headers") != [b"*"]
    assert values(block, b"Vary") == []


def test_with_several_origins_an_answer_is_made_out_to_the_one_that_asked_and_caches_are_told() -> None:
    responder = Responder(f"{A},{B}", False, credentials=True)
    block = responder.head(200, [], 5, True) + b"Access-Control-Allow-Origin: in a body\r\n"
    for origin, expected in ((A, A), (B, B), ("https://evil.example", A), ("null", A), ("*", A)):
        made_out = responder.for_origin(block, {b"origin": origin.encode()})
        assert values(made_out, b"Access-Control-Allow-Origin") == [expected.encode()]
        assert values(made_out, b"Vary") == [b"Origin"]
        assert made_out.endswith(b"\r\n\r\nAccess-Control-Allow-Origin: in a body\r\n")
    assert responder.for_origin(block, {}) == block


def test_an_answer_of_another_process_without_the_header_stays_as_it_is() -> None:
    responder = Responder(f"{A},{B}", False)
    other = b"HTTP/1.1 204 No Content\r\n\r\nAccess-Control-Allow-Origin: x\r\n"
    assert responder.for_origin(other, {b"origin": B.encode()}) == other


def test_the_plain_append_carries_the_same_headers_as_any_answer() -> None:
    responder = Responder(f"{A},{B}", False, credentials=True, hsts_s=60)
    common = responder.head(204, [], None, True)
    for tail in responder.appended:
        for name in (b"Vary", b"Access-Control-Allow-Origin", b"Strict-Transport-Security", b"X-Content-Type-Options"):
            assert values(b"x" + tail, name) == values(common, name) != []


def test_what_a_browser_would_run_is_put_into_a_sandbox() -> None:
    responder = Responder("*", False)
    for content_type in ("text/html", "image/svg+xml", "TEXT/HTML", "application/xhtml+xml"):
        policy = values(responder.head(200, [("Content-Type", content_type)], 0, True), b"Content-Security-Policy")
        assert policy == [b"default-src 'none'; sandbox"], content_type
    for content_type in ("application/json", "text/plain; charset=utf-8", "text/event-stream"):
        block = responder.head(200, [("Content-Type", content_type)], 0, True)
        assert values(block, b"Content-Security-Policy") == []


def test_every_status_of_a_failure_has_its_words() -> None:
    assert {entry.status for entry in TABLE.values()} <= REASONS.keys()
