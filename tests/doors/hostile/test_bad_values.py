"""Well-formed HTTP that asks for nonsense: header values, query parameters and bodies, one table for each.
It asserts that each is refused in the one shape of errors and changes nothing, or is kept exactly."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.doors.hostile.shapes import JSON, JSON_PATH, PATH, TEXT, assert_well_shaped, raw
from tests.support.http import encode_request
from tests.support.node import Node

# --- headers and query parameters ---------------------------------------------------------------------------

WHOLE_NUMBERS_WRONG = [
    "",
    "-1",
    "+1",
    "01",
    "1.0",
    "1e3",
    "0x1",
    " ",
    "one",
    "1 2",
    "1,2",
    "٣",
    "9" * 30,
    "NaN",
]
SEQUENCES_WRONG = [*WHOLE_NUMBERS_WRONG, str(2**53), str(2**64)]


@pytest.mark.parametrize("value", [value for value in WHOLE_NUMBERS_WRONG if value != "9" * 30])
def test_a_wrong_ttl_is_refused(node: Node, value: str) -> None:
    answer = node.request("PUT", "/v1/stream/bad/ttl", {**TEXT, "Stream-TTL": value})
    assert answer.status == 400, answer
    assert_well_shaped(answer)
    assert node.request("HEAD", "/v1/stream/bad/ttl").status == 404


@pytest.mark.parametrize("value", ["9" * 30, "9" * 300, str(2**63), str(2**31)])
def test_an_enormous_ttl_is_refused_or_kept(node: Node, value: str) -> None:
    answer = node.request("PUT", "/v1/stream/bad/ttl-large", {**TEXT, "Stream-TTL": value})
    assert answer.status in (201, 400), answer
    assert_well_shaped(answer)
    if answer.status == 201:
        assert node.request("HEAD", "/v1/stream/bad/ttl-large").status == 200
        assert node.request("DELETE", "/v1/stream/bad/ttl-large").status == 204


@pytest.mark.parametrize(
    "value",
    [
        "",
        "tomorrow",
        "0",
        "2030-13-01T00:00:00Z",
        "2030-02-30T00:00:00Z",
        "2030-01-01",
        "2030-01-01T25:00:00Z",
        "2030-01-01T00:00:00",
        "2030-01-01 00:00:00Z",
        "99999-01-01T00:00:00Z",
        "-2030-01-01T00:00:00Z",
        "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00Z",
        "0001-01-01T00:00:00+23:59",
        "é" * 10,
    ],
)
def test_a_wrong_expiry_is_refused(node: Node, value: str) -> None:
    answer = node.request("PUT", "/v1/stream/bad/expiry", {**TEXT, "Stream-Expires-At": value})
    assert_well_shaped(answer)
    # RFC 3339 lets a space stand for the T.
    assert answer.status == 400 or (answer.status == 201 and " " in value), answer
    node.request("DELETE", "/v1/stream/bad/expiry")


@pytest.mark.parametrize("header", [{"Stream-Expires-At": "9999-12-31T23:59:59.999Z"}, {"Stream-TTL": "999999999999"}])
def test_the_furthest_expiry_is_shown_as_it_was_given(node: Node, header: dict[str, str]) -> None:
    (given,) = header.items()
    path = f"/v1/stream/bad/far-{given[0]}"
    assert node.request("PUT", path, {**TEXT, **header}).status == 201
    for _ in range(2):
        assert node.request("HEAD", path).header(given[0]) == given[1]
        assert node.request("GET", path).status == 200
    assert node.request("DELETE", path).status == 204


def test_two_ways_to_expire_at_once_are_refused(node: Node) -> None:
    headers = {**TEXT, "Stream-TTL": "60", "Stream-Expires-At": "2099-01-01T00:00:00Z"}
    answer = node.request("PUT", "/v1/stream/bad/both", headers)
    assert answer.status == 400, answer
    assert_well_shaped(answer)


@pytest.mark.parametrize("field", ["Producer-Epoch", "Producer-Seq"])
@pytest.mark.parametrize("value", SEQUENCES_WRONG)
def test_a_wrong_producer_number_is_refused_and_appends_nothing(node: Node, field: str, value: str) -> None:
    headers = {**TEXT, "Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0", field: value}
    answer = node.request("POST", PATH, headers, b"no")
    assert answer.status == 400, answer
    assert_well_shaped(answer)
    assert node.request("GET", f"{PATH}?offset=-1").body == b"hello"


@pytest.mark.parametrize("value", ["", " ", "a" * 5_000])
def test_a_wrong_producer_id_is_refused(node: Node, value: str) -> None:
    headers = {**TEXT, "Producer-Id": value, "Producer-Epoch": "0", "Producer-Seq": "0"}
    answer = node.request("POST", PATH, headers, b"no")
    assert answer.status == 400, answer
    assert_well_shaped(answer)


@pytest.mark.parametrize("missing", ["Producer-Id", "Producer-Epoch", "Producer-Seq"])
def test_a_producer_named_by_half_is_refused(node: Node, missing: str) -> None:
    headers = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
    del headers[missing]
    answer = node.request("POST", PATH, {**TEXT, **headers}, b"no")
    assert answer.status == 400, answer
    assert_well_shaped(answer)


@pytest.mark.parametrize("header", ["Producer-Id", "Producer-Seq", "Stream-Seq", "Stream-TTL", "Content-Type"])
def test_a_header_that_decides_something_may_not_be_said_twice(node: Node, header: str) -> None:
    path = f"/v1/stream/bad/twice-{header}"
    values = ("text/plain", "application/json") if header == "Content-Type" else ("7", "0")
    needed = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"} if "Producer" in header else {}
    pairs = [(name, value) for name, value in {**TEXT, **needed}.items() if name != header]
    pairs += [(header, value) for value in values]
    if header == "Stream-TTL":
        answer = node.request("PUT", path, pairs)
        assert node.request("HEAD", path).status == 404, answer
    else:
        assert node.request("PUT", path, TEXT).status == 201
        answer = node.request("POST", path, pairs, b"twice")
        assert node.request("GET", f"{path}?offset=-1").body == b"", answer
    assert answer.status in (400, 409), answer
    assert_well_shaped(answer)


@pytest.mark.parametrize("value", [b"a" * 5_000, b"\xff\xfe"])
def test_a_wrong_stream_sequence_is_refused(node: Node, value: bytes) -> None:
    answer = node.request("POST", PATH, [*TEXT.items(), ("Stream-Seq", value)], b"no")
    assert answer.status == 400, answer
    assert_well_shaped(answer)
    assert node.request("GET", f"{PATH}?offset=-1").body == b"hello"


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "text",
        "/",
        "text/",
        "/plain",
        "a" * 5_000 + "/b",
        "text plain",
        "té/xt",
        "a/b/c;;;=",
        "\x01/x",
    ],
)
def test_a_wrong_content_type_never_makes_a_server_error(node: Node, value: str) -> None:
    answer = node.request("PUT", "/v1/stream/bad/type", {"Content-Type": value})
    assert answer.status in (201, 400), answer
    assert_well_shaped(answer)
    if answer.status == 201:
        assert node.request("HEAD", "/v1/stream/bad/type").status == 200
        assert node.request("DELETE", "/v1/stream/bad/type").status == 204


OFFSETS_WRONG = [
    "",
    "-2",
    "x",
    "1,2",
    "1&offset=2",
    "99999999999999999999999999",
    "0_0_0",
    "1.5",
    "%00",
    "%ff",
    "..",
    "NOW",
    "00000000000000000005/1",
    "+5",
    "5 ",
    "-1 ",
    "now now",
    "０",
    "-00000000000000000001",
    "1e3",
]


@pytest.mark.parametrize("live", ["", "&live=long-poll", "&live=sse"])
@pytest.mark.parametrize("value", OFFSETS_WRONG)
def test_a_wrong_offset_is_refused(node: Node, value: str, live: str) -> None:
    escaped = quote(value, safe="%&=/+,")
    answer = raw(node, encode_request("GET", f"{PATH}?offset={escaped}{live}"))
    assert answer.status == 400, answer
    assert_well_shaped(answer)


@pytest.mark.parametrize(
    "query",
    [
        "live=sse",
        "live=long-poll",
        "live=",
        "offset=-1&live=yes",
        "offset=-1&live=SSE",
        "offset=-1&live=sse&live=long-poll",
        "offset=-1&live=%00",
        "offset=-1&live=%ff",
    ],
)
def test_a_wrong_live_mode_is_refused(node: Node, query: str) -> None:
    answer = raw(node, encode_request("GET", f"{PATH}?{query}"))
    # An empty value may also be read as no live mode at all.
    assert answer.status == 400 or (query == "live=" and answer.status == 200), answer
    assert_well_shaped(answer)


@pytest.mark.parametrize("cursor", ["", "-1", "x", "9" * 40, "%00", "%ff", "1.5", "1&cursor=2", "a" * 3_000])
def test_a_strange_cursor_never_makes_a_server_error(node: Node, cursor: str) -> None:
    answer = raw(node, encode_request("GET", f"{PATH}?offset=-1&live=long-poll&cursor={cursor}"))
    assert answer.status in (200, 400), answer
    assert_well_shaped(answer)


@pytest.mark.parametrize("value", ["", "no", "1", "yes", "false", "true, true", "truee", "\xff"])
def test_closing_takes_the_word_true_only(node: Node, value: str) -> None:
    path = "/v1/stream/bad/closing"
    assert node.request("PUT", path, TEXT).status in (200, 201)
    answer = node.request("POST", path, {"Stream-Closed": value})
    assert answer.status == 400, answer
    assert_well_shaped(answer)
    assert node.request("HEAD", path).header("stream-closed") is None


@pytest.mark.parametrize("value", ["*", '"', "W/", '"a", "b"', "a" * 3_000, "\x01", "é"])
def test_a_strange_precondition_never_makes_a_server_error(node: Node, value: str) -> None:
    for name in (
        "If-None-Match",
        "If-Match",
        "If-Modified-Since",
        "Range",
        "Accept",
        "Accept-Encoding",
        "Origin",
    ):
        answer = node.request("GET", f"{PATH}?offset=-1", {name: value})
        assert answer.status in (200, 304, 400, 412), (name, answer)
        assert_well_shaped(answer)


# --- bodies -------------------------------------------------------------------------------------------------

JSON_WRONG: dict[str, bytes] = {
    "empty array": b"[]",
    "nothing but space": b"  \n ",
    "a word": b"hello",
    "trailing comma": b"[1,2,]",
    "trailing comma in an object": b'{"a":1,}',
    "two values": b"1 2",
    "trailing bytes": b'{"a":1}x',
    "NaN": b"NaN",
    "NaN inside": b"[NaN]",
    "Infinity": b"[-Infinity]",
    "leading zero": b"[01]",
    "plus": b"[+1]",
    "hex": b"[0x10]",
    "single quotes": b"{'a':1}",
    "unquoted key": b"{a:1}",
    "unterminated string": b'["abc',
    "unterminated array": b"[1",
    "unterminated object": b'{"a":',
    "bare comma": b"[,]",
    "comment": b"[1] // no",
    "control character in a string": b'["a\nb"]',
    "NUL in a string": b'["a\0b"]',
    "bad escape": b'["\\x41"]',
    "half an escape": b'["\\u12"]',
    "invalid UTF-8": b'["\xff\xfe"]',
    "invalid UTF-8 alone": b'"\xc3"',
    "overlong UTF-8": b'["\xc0\xaf"]',
    "a surrogate in UTF-8": b'["\xed\xa0\x80"]',
    "byte order mark": b"\xef\xbb\xbf[1]",
    "UTF-16": '["a"]'.encode("utf-16"),
    "nested beyond reason, unterminated": b"[" * 100_000,
    "nested objects beyond reason, unterminated": b'{"a":' * 100_000,
}


@pytest.mark.parametrize("name", JSON_WRONG)
def test_a_body_that_is_not_json_is_refused_and_appends_nothing(node: Node, name: str) -> None:
    answer = node.request("POST", JSON_PATH, JSON, JSON_WRONG[name])
    assert answer.status == 400, answer
    assert_well_shaped(answer)
    if name != "empty array":
        created = node.request("PUT", "/v1/stream/bad/json-new", JSON, JSON_WRONG[name])
        assert created.status == 400, created
        assert node.request("HEAD", "/v1/stream/bad/json-new").status == 404
    assert node.request("GET", f"{JSON_PATH}?offset=-1").json() == []


@pytest.mark.parametrize("body", [b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000])
def test_json_nested_a_hundred_thousand_deep_is_refused_or_kept_whole(node: Node, body: bytes) -> None:
    path = "/v1/stream/bad/json-deep"
    assert node.request("PUT", path, JSON).status in (200, 201)
    answer = node.request("POST", path, JSON, body)
    assert answer.status in (204, 400), answer
    assert_well_shaped(answer)
    if answer.status == 204:
        assert body.strip(b"[]") in node.request("GET", f"{path}?offset=-1").body
    assert node.request("DELETE", path).status == 204


def test_a_lone_surrogate_escape_is_refused_or_comes_back_as_it_was(node: Node) -> None:
    path = "/v1/stream/bad/json-surrogate"
    assert node.request("PUT", path, JSON).status == 201
    answer = node.request("POST", path, JSON, b'["\\ud800"]')
    assert answer.status in (204, 400), answer
    assert_well_shaped(answer)
    if answer.status == 204:
        assert node.request("GET", f"{path}?offset=-1").body == b'["\\ud800"]'


def test_an_empty_append_is_refused(node: Node) -> None:
    for headers in (TEXT, {}, {**TEXT, "Transfer-Encoding": "chunked"}):
        body = b"0\r\n\r\n" if "Transfer-Encoding" in headers else b""
        answer = node.request("POST", PATH, headers, body)
        assert answer.status == 400, answer
        assert_well_shaped(answer)
