"""Extension spec §1.1 to §1.3, §1.5 and §1.6: identifiers, creating, looking at and deleting buckets.
Listing them, §1.4, has its own file; what streams do inside is the base protocol's."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.doors.http.extensions.surface import (
    BUCKETED,
    BYTES,
    JSON,
    PLAIN,
    TEXT,
    Stream,
    fresh_name,
    make_bucket,
    make_stream,
    names_of,
    next_offset,
    stream_count,
)
from tests.support.http import EventStream
from tests.support.node import Node

NAME_BYTES_MAX = 122

# --- §1 and §1.1: identifiers -------------------------------------------------------------------------------


def test_a_stream_lives_at_ds_bucket_stream__section_1(node: Node) -> None:
    bucket = make_bucket(node)
    answer = node.request("PUT", f"/ds/{bucket}/hello", TEXT)
    assert answer.status == 201
    assert answer.header("location") == f"{node.url}/ds/{bucket}/hello"


@pytest.mark.parametrize("name", ["abcd", "0123", "a_b-", "-_-_", "z" * 64])
def test_a_bucket_id_of_the_pattern_is_accepted__section_1_1(node: Node, name: str) -> None:
    assert node.request("PUT", f"/ds/{name}").status == 201
    assert node.request("GET", f"/ds/{name}").json()["bucket_id"] == name
    assert node.request("DELETE", f"/ds/{name}").status == 204


INVALID_BUCKETS = ["abc", "a", "z" * 65, "Abcd", "ab.cd", "ab%20cd", "ab%2Fcd", "abc%00", "abcé", "ab%0Acd", "abcd%0A"]


@pytest.mark.parametrize("name", INVALID_BUCKETS)
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
def test_a_bucket_id_outside_the_pattern_is_400__sections_1_1_1_2_1_3_1_5(node: Node, method: str, name: str) -> None:
    assert node.request(method, f"/ds/{quote(name, safe='%')}").status == 400


@pytest.mark.parametrize("name", INVALID_BUCKETS)
def test_a_listing_of_an_invalid_bucket_is_400__section_1_4(node: Node, name: str) -> None:
    assert node.request("GET", f"/ds/{quote(name, safe='%')}/streams").status == 400


@pytest.mark.parametrize("name", [name for name in INVALID_BUCKETS if len(name) > 3])
def test_the_plain_surface_keeps_the_same_pattern__section_1_1(node: Node, name: str) -> None:
    assert node.request("PUT", f"/{quote(name, safe='%')}").status == 400


def test_a_bucket_id_is_unique_in_the_service_whatever_the_surface__section_1_1(node: Node) -> None:
    name = fresh_name()
    assert node.request("PUT", f"/{name}").status == 201
    assert node.request("PUT", f"/ds/{name}").status == 409
    make_stream(node, name, "one", surface=PLAIN)
    assert node.request("HEAD", f"/ds/{name}/one").status == 200
    assert node.request("HEAD", f"/v1/stream/{name}/one").status == 200


@pytest.mark.parametrize(
    "name",
    ["a", "A.b", "with space", "é", "日本語", "🙂", "a:b?c#d", "%", "~!@$&'()*+,;=", "\x01", "\x7f", ".", "'\"<>"],
)
def test_a_stream_id_may_be_any_utf8__section_1_1(node: Node, bucket: str, surface: str, name: str) -> None:
    path = f"{surface}/{bucket}/{quote(name, safe='')}"
    assert node.request("PUT", path, TEXT, b"x").status == 201
    assert node.request("GET", path).body == b"x"
    (listed,) = node.request("GET", f"/ds/{bucket}/streams").json()["streams"]
    assert listed["stream_id"] == name


@pytest.mark.parametrize("name", ["%ff", "%c3", "%ed%a0%80", "%c0%80"])
def test_a_stream_id_that_is_not_utf8_is_400__section_1_1(node: Node, bucket: str, surface: str, name: str) -> None:
    assert node.request("PUT", f"{surface}/{bucket}/{name}", TEXT).status == 400
    assert stream_count(node, bucket) == 0


@pytest.mark.parametrize("name", ["a%2Fb", "%2F", "a%00b", "%00", "..", "a..b", "..a", "%2E%2E", "a..."])
def test_slash_nul_and_two_dots_are_refused_in_a_stream_id__section_1_1(
    node: Node, bucket: str, surface: str, name: str
) -> None:
    assert node.request("PUT", f"{surface}/{bucket}/{name}", TEXT).status == 400
    assert stream_count(node, bucket) == 0


@pytest.mark.parametrize("letter", ["x", "é", "語", "🙂"])
def test_bucket_and_stream_together_are_at_most_122_bytes_not_characters__section_1_1(
    node: Node, bucket: str, surface: str, letter: str
) -> None:
    room = NAME_BYTES_MAX - len(bucket) - 1
    count, padding = divmod(room, len(letter.encode()))
    name = letter * count + "y" * padding
    assert len(f"{bucket}/{name}".encode()) == NAME_BYTES_MAX
    path = f"{surface}/{bucket}/{quote(name, safe='')}"
    assert node.request("PUT", path, TEXT).status == 201
    assert node.request("HEAD", path).status == 200
    assert node.request("PUT", path + "y", TEXT).status == 400
    assert stream_count(node, bucket) == 1


def test_a_stream_id_of_123_bytes_is_refused_whatever_its_bucket__section_1_1(node: Node, surface: str) -> None:
    bucket = make_bucket(node, "q" * 64)
    try:
        for size in (58, 122, 123, 1000):
            assert node.request("PUT", f"{surface}/{bucket}/{'x' * size}", TEXT).status == 400
        assert node.request("PUT", f"{surface}/{bucket}/{'x' * 57}", TEXT).status == 201
        assert node.request("DELETE", f"{surface}/{bucket}/{'x' * 57}").status == 204
    finally:
        assert node.request("DELETE", f"{BUCKETED}/{bucket}").status == 204


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_the_stream_id_streams_is_reserved_for_the_listing__section_1_1(
    node: Node, bucket: str, surface: str, method: str
) -> None:
    answer = node.request(method, f"{surface}/{bucket}/streams", TEXT, b"x")
    assert answer.status == 405
    assert "GET" in (answer.header("allow") or "")
    assert stream_count(node, bucket) == 0


# --- §1.2: create -------------------------------------------------------------------------------------------


def test_creating_a_bucket_is_201__section_1_2(node: Node, surface: str) -> None:
    name = fresh_name()
    assert node.request("PUT", f"{surface}/{name}").status == 201
    assert stream_count(node, name) == 0


def test_creating_it_again_is_409_on_ds_and_200_on_the_plain_surface__section_1_2(node: Node, bucket: str) -> None:
    assert node.request("PUT", f"/ds/{bucket}").status == 409
    assert node.request("PUT", f"/{bucket}").status == 200
    assert node.request("PUT", f"/ds/{bucket}").status == 409


def test_a_stream_does_not_create_its_bucket__section_1_2(node: Node, surface: str) -> None:
    name = fresh_name()
    assert node.request("PUT", f"{surface}/{name}/s", TEXT).status == 404
    assert node.request("GET", f"{surface}/{name}").status == 404
    assert node.request("PUT", f"/ds/{name}").status == 201


# --- §1.3: metadata -----------------------------------------------------------------------------------------


def test_metadata_names_the_bucket_and_counts_its_streams__section_1_3(node: Node, bucket: str, surface: str) -> None:
    for count in range(4):
        answer = node.request("GET", f"{surface}/{bucket}")
        assert answer.status == 200
        assert (answer.header("content-type") or "").startswith("application/json")
        assert answer.json()["bucket_id"] == bucket
        assert answer.json()["streams"] == count
        make_stream(node, bucket, f"s{count}", surface=surface)
    for count in (3, 2, 1, 0):
        assert node.request("DELETE", f"{surface}/{bucket}/s{count}").status == 204
        assert stream_count(node, bucket) == count


def test_refused_and_repeated_creations_are_not_counted__section_1_3(node: Node, bucket: str) -> None:
    stream = make_stream(node, bucket, "s")
    assert stream.create().status == 200
    assert node.request("PUT", stream.path, JSON).status == 409
    assert node.request("PUT", f"/ds/{bucket}/t", {**TEXT, "Stream-TTL": "x"}).status == 400
    assert stream_count(node, bucket) == 1


def test_metadata_of_an_unknown_bucket_is_404__section_1_3(node: Node, surface: str) -> None:
    assert node.request("GET", f"{surface}/{fresh_name('never')}").status == 404


# --- §1.5: delete -------------------------------------------------------------------------------------------


def test_an_empty_bucket_is_deleted_and_then_unknown__section_1_5(node: Node, bucket: str, surface: str) -> None:
    assert node.request("DELETE", f"{surface}/{bucket}").status == 204
    assert node.request("GET", f"{surface}/{bucket}").status == 404
    assert node.request("GET", f"{surface}/{bucket}/streams").status == 404
    assert node.request("PUT", f"{surface}/{bucket}/s", TEXT).status == 404
    assert node.request("DELETE", f"{surface}/{bucket}").status == 404
    assert node.request("PUT", f"/ds/{bucket}").status == 201


def test_a_bucket_with_streams_is_409_and_stays__section_1_5(node: Node, bucket: str, surface: str) -> None:
    stream = make_stream(node, bucket)
    assert node.request("DELETE", f"{surface}/{bucket}").status == 409
    stream.append(b"still here")
    assert stream.read().body == b"still here"
    assert stream.delete().status == 204
    assert node.request("DELETE", f"{surface}/{bucket}").status == 204


def test_deleting_an_unknown_bucket_is_404__section_1_5(node: Node, surface: str) -> None:
    assert node.request("DELETE", f"{surface}/{fresh_name('never')}").status == 404


# --- §1.6: stream operations --------------------------------------------------------------------------------

EVERY_OPERATION = [
    ("PUT", ""),
    ("POST", ""),
    ("GET", ""),
    ("GET", "?offset=-1&live=long-poll"),
    ("GET", "?offset=-1&live=sse"),
    ("HEAD", ""),
    ("DELETE", ""),
    ("PUT", "/snapshot/-1"),
    ("GET", "/snapshot"),
    ("GET", "/snapshot/-1"),
    ("DELETE", "/snapshot/-1"),
    ("GET", "/bootstrap"),
    ("POST", "/append-batch"),
]


@pytest.mark.parametrize(("method", "suffix"), EVERY_OPERATION)
def test_every_operation_in_an_unknown_bucket_is_404__section_1_6(
    node: Node, surface: str, method: str, suffix: str
) -> None:
    body = b"\0\0\0\1x" if method in ("PUT", "POST") else None
    assert node.request(method, f"{surface}/{fresh_name('never')}/s{suffix}", BYTES, body).status == 404


@pytest.mark.parametrize(("method", "suffix"), EVERY_OPERATION)
def test_every_operation_in_a_deleted_bucket_is_404__section_1_6(
    node: Node, bucket: str, surface: str, method: str, suffix: str
) -> None:
    path = f"{surface}/{bucket}/s"
    stream = Stream(node, path, BYTES)
    assert stream.create(b"x").status == 201
    for warm in ("GET", "HEAD", "POST"):
        assert node.request(warm, path, BYTES, b"y" if warm == "POST" else None).status < 300
    assert stream.delete().status == 204
    assert node.request("DELETE", f"{surface}/{bucket}").status == 204
    body = b"\0\0\0\1x" if method in ("PUT", "POST") else None
    assert node.request(method, path + suffix, BYTES, body).status == 404


@pytest.mark.parametrize(("method", "suffix"), [one for one in EVERY_OPERATION if one != ("PUT", "")])
def test_every_operation_on_an_unknown_stream_of_a_bucket_is_404__section_1_6(
    node: Node, bucket: str, surface: str, method: str, suffix: str
) -> None:
    body = b"\0\0\0\1x" if method in ("PUT", "POST") else None
    answer = node.request(method, f"{surface}/{bucket}/never{suffix}", BYTES, body)
    if suffix == "/append-batch":
        assert [one["status"] for one in answer.json()] == [404]
    else:
        assert answer.status == 404


def test_all_operations_of_the_base_protocol_apply__section_1_6(node: Node, bucket: str, surface: str) -> None:
    stream = Stream(node, f"{surface}/{bucket}/s", TEXT)
    assert stream.create().status == 201
    assert stream.create().status == 200
    first = stream.append(b"one ")
    producer = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
    assert node.request("POST", stream.path, TEXT | producer, b"two").status == 200
    assert node.request("POST", stream.path, TEXT | producer, b"two").status == 204
    assert stream.read().body == b"one two"
    assert stream.read(first).body == b"two"
    assert stream.read(first, "long-poll").body == b"two"
    waited = stream.read("now", "long-poll")
    assert (waited.status, next_offset(waited)) == (204, next_offset(stream.head()))
    assert node.request("POST", stream.path, {"Stream-Closed": "true"}).status == 204
    with node.connect() as connection:
        events = list(EventStream.open(connection, f"{stream.path}?offset=-1&live=sse"))
    assert [event.name for event in events] == ["data", "control"]
    assert events[0].data == "one two"
    assert events[1].json()["streamClosed"] is True
    assert stream.head().header("stream-closed") == "true"
    assert stream.delete().status == 204
    assert stream.head().status == 404


@pytest.mark.parametrize("name", ["cli", "x", "Größe", "UPPER", "a" * 70, "__own", "a.b", "b c"])
def test_a_bucket_that_only_flat_paths_can_name_is_listed_by_a_route_that_names_any(node: Node, name: str) -> None:
    bucket = quote(name)
    for stream in ("one", "two", "streams"):
        assert node.request("PUT", f"/v1/stream/{bucket}/{stream}", TEXT).status == 201
    path = f"/__headwater/buckets/{bucket}"
    found = node.request("GET", path).json()
    assert (found["bucket_id"], found["streams"]) == (name, 3)
    page = node.request("GET", f"{path}/streams?limit=2").json()
    assert names_of(page) == ["one", "streams"] and page["has_more"]
    assert names_of(node.request("GET", f"{path}/streams?after={page['next_cursor']}").json()) == ["two"]
    assert node.request("DELETE", path).status == 405


@pytest.mark.parametrize("path", ["", "/", "/none", "/none/streams", "/cli/other", "//streams"])
def test_the_route_that_names_any_bucket_knows_no_other(node: Node, path: str) -> None:
    assert node.request("GET", f"/__headwater/buckets{path}").status == 404


def test_both_routes_list_a_bucket_alike(node: Node, bucket: str) -> None:
    make_stream(node, bucket, "one")
    expected = node.request("GET", f"/{bucket}/streams").body
    assert node.request("GET", f"/__headwater/buckets/{bucket}/streams").body == expected
