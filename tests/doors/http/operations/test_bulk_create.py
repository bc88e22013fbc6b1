"""Bulk append with `create`: a stream that is missing is made in the same request, and both are judged in order.
Requests go to a real node; what a crash may find is asked of a node that is killed right after its answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.doors.http.extensions.surface import JSON, TEXT, Stream, fresh_name, make_bucket, make_stream, token
from tests.doors.http.operations.conftest import New
from tests.doors.http.operations.test_batches import BULK, bulk, packed, statuses
from tests.support.node import Node

TEXTS = {"content_type": "text/plain", "create": True}


def test_a_missing_stream_is_made_and_the_append_is_its_first__bulk_create(nowhere: Stream, node: Node) -> None:
    answers = bulk(node, [{"stream": nowhere.path, "text": ["a", "b"], **TEXTS}])
    assert answers == [{"status": 204, "stream_next_offset": token(2), "created": True}]
    assert nowhere.read().body == b"ab"
    assert nowhere.head().header("content-type") == "text/plain"


def test_only_the_first_entry_of_a_stream_makes_it__bulk_create(nowhere: Stream, node: Node) -> None:
    producer = {"producer_id": "p", "producer_epoch": 3}
    entries = [{"stream": nowhere.path, "text": [str(n)], "producer_seq": n, **producer, **TEXTS} for n in range(3)]
    answers = packed(node, entries)
    assert statuses(answers) == [200, 200, 200]
    assert [one.get("created", False) for one in answers] == [True, False, False]
    assert nowhere.read().body == b"012"
    again = packed(node, entries)
    assert [(one["status"], one["duplicate"], one.get("created")) for one in again] == [(204, True, None)] * 3
    assert nowhere.read().body == b"012"


def test_an_existing_stream_keeps_its_configuration__bulk_create(new: New, node: Node) -> None:
    kept = new(TEXT, b"x", stream_ttl="600")
    other = new(JSON, b"[0]")
    answers = bulk(
        node, [{"stream": kept.path, "text": ["y"], **TEXTS}, {"stream": other.path, "text": ["y"], **TEXTS}]
    )
    assert statuses(answers) == [204, 409]
    assert answers[1]["error"]["code"] == "content_type_mismatch"
    assert not any("created" in one for one in answers)
    assert kept.read().body == b"xy"
    assert kept.head().header("stream-ttl") == "600"
    assert other.read().json() == [0]


def test_a_stream_whose_time_has_passed_is_made_anew__bulk_create(new: New, node: Node) -> None:
    gone = new(TEXT, b"old", stream_expires_at="2020-01-01T00:00:00Z")
    assert statuses(bulk(node, [{"stream": gone.path, "text": ["new"], **TEXTS}])) == [204]
    assert gone.read().body == b"new"


def test_a_closed_stream_stays_closed__bulk_create(new: New, node: Node) -> None:
    closed = new(TEXT, b"x", stream_closed="true")
    answers = bulk(node, [{"stream": closed.path, "text": ["y"], **TEXTS}])
    assert [(one["status"], one["error"]["code"]) for one in answers] == [(409, "stream_closed")]


def test_a_stream_may_be_made_and_closed_at_once__bulk_create(nowhere: Stream, node: Node) -> None:
    assert statuses(bulk(node, [{"stream": nowhere.path, "text": ["all"], "close": True, **TEXTS}])) == [204]
    found = nowhere.read()
    assert (found.body, found.header("stream-closed")) == (b"all", "true")


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": [""]},
        {"text": []},
        {"text": ["x"], "content_type": "nonsense"},
        {"text": ["x"], "content_type": None},
        {"text": ["{"], "content_type": "application/json"},
        {"text": ["x"], "producer_id": "p"},
    ],
)
def test_an_entry_that_is_refused_as_such_makes_no_stream__bulk_create(
    nowhere: Stream, node: Node, wrong: dict[str, Any]
) -> None:
    assert statuses(bulk(node, [{"stream": nowhere.path, **TEXTS, **wrong}])) == [400]
    assert nowhere.head().status == 404


def test_an_append_that_a_new_stream_refuses_makes_none__bulk_create(nowhere: Stream, node: Node) -> None:
    producer = {"producer_id": "p", "producer_epoch": 0, "producer_seq": 5}
    answers = bulk(node, [{"stream": nowhere.path, "text": ["x"], **producer, **TEXTS}])
    assert [(one["status"], one["error"]["code"]) for one in answers] == [(409, "producer_seq_conflict")]
    assert "created" not in answers[0]
    assert nowhere.head().status == 404


def test_a_bucketed_path_needs_its_bucket_and_a_flat_one_does_not__bulk_create(node: Node) -> None:
    bucket, missing = make_bucket(node), fresh_name("missing")
    paths = [f"/{bucket}/a", f"/ds/{bucket}/b", f"/{missing}/a", f"/ds/{missing}/b", f"{missing}/c"]
    answers = bulk(node, [{"stream": path, "text": ["x"], **TEXTS} for path in paths])
    assert statuses(answers) == [204, 204, 404, 404, 204]
    assert answers[2]["error"]["code"] == "bucket_not_found"
    assert node.request("GET", f"/v1/stream/{missing}/c").body == b"x"


def test_without_create_a_missing_stream_is_404__bulk_create(nowhere: Stream, node: Node) -> None:
    entry = {"stream": nowhere.path, "content_type": "text/plain", "text": ["x"]}
    assert statuses(bulk(node, [entry, entry | {"create": False}])) == [404, 404]
    assert nowhere.head().status == 404


def test_records_make_a_json_stream__bulk_create(nowhere: Stream, node: Node) -> None:
    assert statuses(bulk(node, [{"stream": nowhere.path, "records": [1, [2]], "create": True}])) == [204]
    assert nowhere.read().json() == [1, [2]]


@pytest.mark.parametrize("parts", [["[1", "2]"], ["[1", "2]", "3,4"], ["1,2", "[3", "4]"], ['"a', 'b"'], ["1", " "]])
def test_records_that_are_json_only_together_are_refused__bulk_create(
    nowhere: Stream, node: Node, parts: list[str]
) -> None:
    entry = {"stream": nowhere.path, "content_type": "application/json", "text": parts, "create": True}
    assert statuses(packed(node, [entry])) == [400]
    assert nowhere.head().status == 404


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_creation_and_append_are_there_after_a_kill__bulk_create(tmp_path: Path, durability: str) -> None:
    with Node.started(tmp_path, flags=["--durability", durability]) as node:
        entries = [{"stream": f"made/{n}", "text": [f"first {n}"], **TEXTS} for n in range(200)]
        answer = node.request("POST", BULK, JSON, json.dumps(entries).encode())
        assert statuses(answer.json()) == [204] * 200
        node.restart()
        for n in range(200):
            found = node.request("GET", f"/v1/stream/made/{n}")
            assert found.status == 200, (n, found)
            # A creation is always synced; the classes below fsync promise less of the append.
            assert found.body == b"first %d" % n or durability != "fsync"


def test_every_stream_is_told_busy_when_memory_is_full__bulk_create(tmp_path: Path) -> None:
    flags = ["--hot-bytes-max", "1MiB", "--read-bytes-max", "64KiB", "--flush-interval-ms", "600000"]
    with Node.started(tmp_path, memory=True, flags=flags) as node:
        stream = make_stream(node, make_bucket(node))
        stream.append(b"x" * (2 << 20))
        answers = bulk(node, [{"stream": "made/late", "text": ["x"], **TEXTS}])
        assert [(one["status"], one["error"]["code"]) for one in answers] == [(503, "overloaded")]
        assert node.request("HEAD", "/v1/stream/made/late").status == 404


@pytest.mark.parametrize(
    "kind",
    ["text/plain; a=b\r\nX-Injected: yes", "text/plain\r\n\r\n", "text/plain; a=\0", 'text/plain; a="é"', "text", ""],
)
def test_a_content_type_that_is_none_makes_no_stream__bulk_create(nowhere: Stream, node: Node, kind: str) -> None:
    entry = {"stream": nowhere.path, "text": ["x"], "create": True, "content_type": kind}
    for answers in (bulk(node, [entry]), packed(node, [entry])):
        assert [(one["status"], one["error"]["code"]) for one in answers] == [(400, "bad_content_type")]
    assert nowhere.head().status == 404


@pytest.mark.parametrize("field", ["stream", "content_type", "producer_id", "stream_seq"])
def test_half_of_a_surrogate_pair_is_refused_by_its_name__bulk_create(node: Node, field: str) -> None:
    body = b'[{"stream":"x","text":["x"],"content_type":"text/plain","%s":"\\ud800"}]' % field.encode()
    answer = node.request("POST", "/__headwater/append", {"Content-Type": "application/json"}, body)
    assert answer.status == 400
    assert "surrogate pair" in answer.json()["error"]["message"]
