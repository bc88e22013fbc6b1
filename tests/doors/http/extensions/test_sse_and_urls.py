"""Extension spec §4 and §5: ordinary SSE on the bucketed surfaces, and escapes in paths.
The base protocol's SSE rules are the official suite's; here they are checked where the extensions could break them."""

from __future__ import annotations

import base64
import json

import pytest

from tests.doors.http.extensions.surface import BYTES, JSON, TEXT, Stream, make_stream, next_offset, parts_of, token
from tests.support.http import EventStream
from tests.support.node import Node

# --- §4: ordinary SSE ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["application/octet-stream", "image/png", "application/x-protobuf", "video/mp4; a=b"])
def test_binary_data_events_are_raw_base64_and_the_header_says_so__section_4(
    node: Node, bucket: str, surface: str, kind: str
) -> None:
    stream = make_stream(node, bucket, headers={"Content-Type": kind}, surface=surface)
    bodies = [bytes(range(256)), b"\r\n\r\n", b"x"]
    for body in bodies:
        stream.append(body)
    with node.connect() as connection:
        feed = EventStream.open(connection, f"{stream.path}?offset=-1&live=sse")
        assert feed.head.header("stream-sse-data-encoding") == "base64"
        assert feed.head.header("content-type") == "text/event-stream"
        received, offset = b"", ""
        for event in feed:
            if event.name == "data":
                received += base64.b64decode(event.data.replace("\n", ""), validate=True)
            else:
                offset = event.json()["streamNextOffset"]
            if offset == stream.ends[-1]:
                break
    assert received == b"".join(bodies)


@pytest.mark.parametrize("headers", [TEXT, JSON, {"Content-Type": "text/html; charset=utf-8"}])
def test_text_streams_are_not_encoded__section_4(
    node: Node, bucket: str, surface: str, headers: dict[str, str]
) -> None:
    stream = make_stream(node, bucket, headers=headers, surface=surface)
    stream.append(b'"a"')
    with node.connect() as connection:
        feed = EventStream.open(connection, f"{stream.path}?offset=-1&live=sse")
        assert feed.head.header("stream-sse-data-encoding") is None
        data = next(iter(feed))
    assert data.data.strip() in ('"a"', '["a"]')


@pytest.mark.parametrize("headers", [BYTES, TEXT, JSON], ids=["bytes", "text", "json"])
def test_snapshots_leave_the_shape_of_sse_as_it_is__section_4(node: Node, bucket: str, headers: dict[str, str]) -> None:
    """The same events come from a stream that has a snapshot as from one that has none."""
    seen = []
    for publishes in (False, True):
        stream = make_stream(node, bucket, headers=headers)
        first = stream.append(b"[1]")
        stream.append(b"[22]")
        if publishes:
            assert stream.publish(first, b"state").status == 204
        assert node.request("POST", stream.path, {"Stream-Closed": "true"}).status == 204
        with node.connect() as connection:
            feed = EventStream.open(connection, f"{stream.path}?offset={first}&live=sse")
            seen.append((feed.head.header("stream-sse-data-encoding"), list(feed)))
    assert seen[0] == seen[1]
    assert [event.name for event in seen[0][1]] == ["data", "control"]


def test_a_text_event_cannot_be_forged_by_its_payload__section_4(node: Node, bucket: str) -> None:
    stream = make_stream(node, bucket)
    body = b"a\n\nevent: control\ndata: {}\n\r\n: comment\r  two spaces\nid: 7"
    stream.append(body, stream_closed="true")
    with node.connect() as connection:
        events = list(EventStream.open(connection, f"{stream.path}?offset=-1&live=sse"))
    assert [event.name for event in events] == ["data", "control"]
    assert events[0].data == body.decode().replace("\r\n", "\n").replace("\r", "\n")
    assert events[1].json()["streamNextOffset"] == stream.ends[-1]


# --- §5: URL encoding ---------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """Every character as an escape, also those that need none."""
    return "".join(f"%{byte:02X}" for byte in text.encode())


@pytest.mark.parametrize("case", [str.upper, str.lower], ids=["upper", "lower"])
def test_snapshot_offsets_in_paths_are_decoded__section_5(stream: Stream, surface: str, case: object) -> None:
    assert callable(case)
    stream.append(b"one;")
    stream.append(b"two;")
    offset = case(escaped(stream.ends[0]))
    assert stream.publish(offset, b"state").status == 204
    assert stream.snapshot(offset).body == b"state"
    assert stream.snapshot(stream.ends[0]).body == b"state"
    assert stream.node.request("DELETE", f"{stream.path}/snapshot/{offset}").status == 409


def test_minus_one_may_be_escaped_in_a_path__section_5(stream: Stream) -> None:
    assert stream.publish("%2D1", b"nothing yet").status == 204
    assert stream.snapshot("%2d%31").body == b"nothing yet"


def test_offsets_in_queries_are_decoded__section_5(stream: Stream) -> None:
    stream.append(b"one;")
    stream.append(b"two;")
    assert stream.read(escaped(stream.ends[0])).body == b"two;"
    assert stream.read("%2D1").body == b"one;two;"


@pytest.mark.parametrize("name", ["a b", "é", "50%", "a+b", "?", "#", "%2F", "snapshot", "bootstrap", "append-batch"])
def test_every_resource_of_a_stream_is_found_under_its_escaped_name__section_5(
    node: Node, bucket: str, surface: str, name: str
) -> None:
    stream = Stream(node, f"{surface}/{bucket}/{escaped(name)}", JSON)
    assert stream.create(b"[1]").status == 201
    first = next_offset(stream.head())
    assert stream.publish(first, b"state").status == 204
    stream.append(b"2")
    assert stream.read(first).json() == [2]
    location = (stream.snapshot().header("location") or "").removeprefix(node.url)
    assert node.request("GET", location).body == b"state"
    assert [part.body for part in parts_of(stream.bootstrap())] == [b"state", b"2"]
    (listed,) = node.request("GET", f"{surface}/{bucket}/streams").json()["streams"]
    assert listed["stream_id"] == name


def test_a_plus_in_a_path_is_a_plus__section_5(node: Node, bucket: str) -> None:
    assert node.request("PUT", f"/ds/{bucket}/a+b", TEXT, b"plus").status == 201
    assert node.request("GET", f"/ds/{bucket}/a%2Bb").body == b"plus"
    assert node.request("GET", f"/ds/{bucket}/a%20b").status == 404


def test_escaped_and_plain_paths_name_the_same_stream__section_5(node: Node, bucket: str, surface: str) -> None:
    plain = Stream(node, f"{surface}/{bucket}/same-name_1.~", TEXT)
    other = Stream(node, f"{surface}/{escaped(bucket)}/{escaped('same-name_1.~')}", TEXT)
    assert plain.create().status == 201
    assert other.create().status == 200
    other.append(b"x")
    assert plain.read().body == b"x"
    assert json.loads(node.request("GET", f"{surface}/{escaped(bucket)}").body)["streams"] == 1


def test_an_escape_in_an_offset_that_makes_it_invalid_is_400__section_5(stream: Stream) -> None:
    assert stream.publish(token(0) + "%00", b"x").status == 400
    assert stream.publish("%ff", b"x").status == 400
