"""Operations spec, "Create Stream" and "Delete Stream": every sentence of the two sections.
The official suite covers the same ground from the protocol's side; this file follows the text."""

from __future__ import annotations

import pytest

from tests.doors.http.extensions.surface import BYTES, JSON, TEXT, Stream, next_offset, token
from tests.doors.http.operations.conftest import New
from tests.support.node import Node

# --- Create Stream: idempotent behaviour --------------------------------------------------------------------


def test_put_creates_a_stream_at_its_url__create_stream(nowhere: Stream) -> None:
    answer = nowhere.create()
    assert answer.status == 201
    assert answer.header("location") == f"{nowhere.node.url}{nowhere.path}"
    assert answer.header("content-type") == "text/plain"
    assert next_offset(answer) == token(0)
    assert answer.header("stream-closed") is None
    assert nowhere.head().status == 200


MATCHING: list[dict[str, str]] = [
    {},
    {"stream_ttl": "3600"},
    {"stream_expires_at": "2099-01-01T00:00:00Z"},
    {"stream_closed": "true"},
    {"stream_durability": "disk"},
    {"stream_retention_records": "10"},
]


@pytest.mark.parametrize("configuration", MATCHING)
def test_the_same_configuration_again_is_200_and_changes_nothing__create_stream(
    new: New, configuration: dict[str, str]
) -> None:
    stream = new(TEXT, b"once", **configuration)
    answer = stream.create(b"once", **configuration)
    assert (answer.status, next_offset(answer)) == (200, token(4))
    assert answer.header("location") is None
    assert answer.header("stream-closed") == configuration.get("stream_closed")
    assert stream.read().body == b"once"


@pytest.mark.parametrize(
    ("first", "second"),
    [(first, second) for first in MATCHING[:4] for second in MATCHING[:4] if first != second]
    + [({"stream_ttl": "3600"}, {"stream_ttl": "3601"})]
    + [({"stream_durability": "disk"}, {"stream_durability": "memory"})]
    + [({"stream_retention_records": "10"}, {"stream_retention_records": "11"})],
)
def test_another_ttl_expiry_or_closure_is_409__create_stream(
    new: New, first: dict[str, str], second: dict[str, str]
) -> None:
    stream = new(**first)
    assert stream.create(**second).status == 409
    assert stream.create(**first).status == 200


def test_another_content_type_is_409__create_stream(new: New, node: Node) -> None:
    stream = new(TEXT)
    assert node.request("PUT", stream.path, JSON).status == 409
    assert node.request("PUT", stream.path, {"Content-Type": "TEXT/Plain; charset=utf-8"}).status == 200


def test_a_stream_that_was_closed_since_no_longer_matches__create_stream(new: New, node: Node) -> None:
    stream = new()
    assert node.request("POST", stream.path, {"Stream-Closed": "true"}).status == 204
    assert stream.create().status == 409
    assert stream.create(stream_closed="true").status == 200


# --- Create Stream: request headers and body ----------------------------------------------------------------


def test_without_a_content_type_it_is_octet_stream__create_stream(nowhere: Stream) -> None:
    answer = nowhere.node.request("PUT", nowhere.path)
    assert (answer.status, answer.header("content-type")) == (201, "application/octet-stream")
    assert nowhere.node.request("PUT", nowhere.path, BYTES).status == 200


@pytest.mark.parametrize("ttl", ["+3600", "03600", "3600.0", "3.6e3", "-1", "", "1h", "0x10", " 5 5"])
def test_a_ttl_that_is_no_plain_decimal_is_400__create_stream(nowhere: Stream, ttl: str) -> None:
    assert nowhere.create(stream_ttl=ttl).status == 400
    assert nowhere.head().status == 404


def test_a_ttl_of_zero_is_valid_and_over_at_once__create_stream(nowhere: Stream) -> None:
    assert nowhere.create(stream_ttl="0").status == 201
    assert nowhere.head().status == 404
    assert nowhere.create().status == 201


def test_ttl_and_expiry_together_are_400__create_stream(nowhere: Stream) -> None:
    assert nowhere.create(stream_ttl="5", stream_expires_at="2099-01-01T00:00:00Z").status == 400
    assert nowhere.head().status == 404


def test_create_and_close_is_one_step_with_the_final_content__create_stream(new: New, node: Node) -> None:
    stream = new(TEXT, b"all there ever was", stream_closed="true")
    answer = stream.read()
    assert (answer.body, answer.header("stream-closed")) == (b"all there ever was", "true")
    assert node.request("POST", stream.path, TEXT, b"more").status == 409
    empty = new(TEXT, None, stream_closed="true")
    assert (empty.read().body, empty.read().header("stream-closed")) == (b"", "true")


def test_closed_at_creation_is_told_in_the_answer__create_stream(nowhere: Stream) -> None:
    answer = nowhere.create(b"x", stream_closed="true")
    assert (answer.status, answer.header("stream-closed"), next_offset(answer)) == (201, "true", token(1))


def test_initial_bytes_are_the_first_content__create_stream(new: New) -> None:
    stream = new(TEXT, b"first;")
    stream.append(b"second;")
    assert stream.read().body == b"first;second;"
    assert stream.read(token(6)).body == b"second;"
    numbers = new(JSON, b"[1, 2]")
    numbers.append(b"3")
    assert numbers.read().json() == [1, 2, 3]


@pytest.mark.parametrize(
    "headers",
    [
        {"content_type": "nonsense"},
        {"stream_expires_at": "soon"},
        {"stream_durability": "always"},
        {"stream_retention_age": "-1"},
        {"stream_retention_bytes": "many"},
        {"stream_retention_records": "0"},
        {"stream_retention_records": "1.5"},
        {"stream_fork_offset": "-1"},
        {"stream_fork_sub_offset": "0"},
    ],
)
def test_invalid_headers_are_400_and_create_nothing__create_stream(nowhere: Stream, headers: dict[str, str]) -> None:
    bare = Stream(nowhere.node, nowhere.path, {} if "content_type" in headers else TEXT)
    assert bare.create(**headers).status == 400
    assert nowhere.head().status == 404


def test_a_body_that_is_not_json_is_400_on_a_json_stream__create_stream(nowhere: Stream) -> None:
    for body in (b"{", b"[1,", b"NaN", b"\xff"):
        assert nowhere.node.request("PUT", nowhere.path, JSON, body).status == 400
    assert nowhere.head().status == 404


# --- Delete Stream ------------------------------------------------------------------------------------------


def test_deleting_takes_the_stream_and_all_its_data__delete_stream(new: New) -> None:
    stream = new(TEXT, b"old")
    stream.append(b"er", producer_id="p", producer_epoch="3", producer_seq="0", stream_seq="9")
    assert stream.delete().status == 204
    for answer in (stream.read(), stream.read("-1", "long-poll"), stream.read("-1", "sse"), stream.head()):
        assert answer.status == 404
    assert stream.node.request("POST", stream.path, TEXT, b"x").status == 404
    assert stream.create(b"new").status == 201
    # Nothing of the former stream binds the new one: no data, no producer, no sequence, no type.
    stream.append(b"er", producer_id="p", producer_epoch="0", producer_seq="0", stream_seq="1")
    assert stream.read().body == b"newer"


def test_a_recreated_stream_may_be_of_another_kind__delete_stream(new: New, node: Node) -> None:
    stream = new(TEXT, b"text", stream_ttl="60")
    assert stream.delete().status == 204
    assert node.request("PUT", stream.path, JSON, b"[1]").status == 201
    assert stream.read().json() == [1]
    assert stream.head().header("stream-ttl") is None


def test_deleting_an_unknown_stream_is_404__delete_stream(nowhere: Stream) -> None:
    assert nowhere.delete().status == 404


def test_a_deleted_stream_is_404_to_delete_again__delete_stream(new: New) -> None:
    stream = new()
    assert stream.delete().status == 204
    assert stream.delete().status == 404


@pytest.mark.parametrize("method", ["PATCH", "TRACE", "LINK"])
def test_other_methods_are_405_and_name_those_that_are_not__delete_stream(new: New, node: Node, method: str) -> None:
    stream = new()
    answer = node.request(method, stream.path)
    assert answer.status in (405, 501)
    if answer.status == 405:
        allowed = set((answer.header("allow") or "").split(", "))
        assert {"GET", "HEAD", "PUT", "POST", "DELETE"} <= allowed


@pytest.mark.parametrize("name", ["producer_id", "producer_epoch", "producer_seq", "stream_seq", "if_match"])
def test_a_creation_refuses_the_headers_of_an_append__create(nowhere: Stream, name: str) -> None:
    """A body of a repeated PUT is not appended: whether its producer's number counts as taken would be a guess."""
    answer = nowhere.create(b"first", **{name: "0"})
    assert (answer.status, answer.json()["error"]["code"]) == (400, "bad_header")
    assert name.replace("_", "-") in answer.json()["error"]["message"].lower()
    assert nowhere.head().status == 404
