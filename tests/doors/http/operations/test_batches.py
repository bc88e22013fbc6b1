"""Many appends in one request: `append-batch` on one stream, and bulk append over many, in JSON and msgpack.
Each entry must be judged like a request of its own; bodies are packed here, by hand and by a library."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import msgspec
import pytest

from tests.doors.http.extensions.surface import (
    BYTES,
    JSON,
    TEXT,
    Stream,
    dashed,
    make_bucket,
    make_stream,
    next_offset,
    token,
)
from tests.doors.http.operations.conftest import New
from tests.support.http import Response
from tests.support.node import Node

BULK = "/__headwater/append"
MSGPACK = {"Content-Type": "application/msgpack"}


def framed(payloads: list[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(payload)) + payload for payload in payloads)


def batch(stream: Stream, payloads: list[bytes], **headers: str) -> Response:
    path = f"{stream.path}/append-batch"
    return stream.node.request("POST", path, stream.headers | dashed(headers), framed(payloads))


def bulk(node: Node, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    answer = node.request("POST", BULK, JSON, json.dumps(entries).encode())
    assert answer.status == 200, answer
    return answer.json()


def packed(node: Node, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    answer = node.request("POST", BULK, MSGPACK, msgspec.msgpack.encode(entries))
    assert answer.status == 200, answer
    return answer.json()


def statuses(answers: list[dict[str, Any]]) -> list[int]:
    return [one["status"] for one in answers]


@pytest.fixture(params=["/ds", ""], ids=["ds", "plain"])
def bucketed(request: pytest.FixtureRequest, node: Node) -> Stream:
    return make_stream(node, make_bucket(node), surface=request.param)


# --- append-batch -------------------------------------------------------------------------------------------


def test_every_frame_is_a_message_with_an_answer_of_its_own__append_batch(bucketed: Stream) -> None:
    answer = batch(bucketed, [b"one;", b"two;", b"three;"])
    assert answer.status == 200
    expected = [{"status": 204, "stream_next_offset": token(end)} for end in (4, 8, 14)]
    assert answer.json() == expected
    assert bucketed.read().body == b"one;two;three;"
    assert bucketed.read(token(4)).body == b"two;three;"


def test_a_json_frame_may_hold_one_value_or_an_array__append_batch(node: Node) -> None:
    stream = make_stream(node, make_bucket(node), headers=JSON)
    assert statuses(batch(stream, [b"1", b"[2,3]", b'{"a": 4}']).json()) == [204, 204, 204]
    assert stream.read().json() == [1, 2, 3, {"a": 4}]


def test_a_bad_frame_in_the_middle_leaves_the_others__append_batch(node: Node) -> None:
    stream = make_stream(node, make_bucket(node), headers=JSON)
    answers = batch(stream, [b"1", b"{", b"[]", b"\xff", b"2"]).json()
    assert statuses(answers) == [204, 400, 400, 400, 204]
    assert all(one["error"]["code"] == "bad_body" for one in answers[1:4])
    assert "stream_next_offset" not in answers[1]
    assert stream.read().json() == [1, 2]


def test_a_closed_stream_refuses_every_frame__append_batch(bucketed: Stream) -> None:
    bucketed.append(b"x", stream_closed="true")
    answers = batch(bucketed, [b"y", b"z"]).json()
    assert statuses(answers) == [409, 409]
    assert answers[0]["error"]["code"] == "stream_closed"
    assert answers[0]["stream_closed"] == "true"
    assert bucketed.read().body == b"x"


def test_another_content_type_refuses_every_frame__append_batch(bucketed: Stream) -> None:
    answer = bucketed.node.request("POST", f"{bucketed.path}/append-batch", BYTES, framed([b"x", b"y"]))
    assert (answer.status, statuses(answer.json())) == (200, [409, 409])
    assert bucketed.read().body == b""


def test_the_last_frame_closes_the_stream__append_batch(bucketed: Stream) -> None:
    answers = batch(bucketed, [b"one;", b"two;"], stream_closed="true").json()
    assert [one.get("stream_closed") for one in answers] == [None, "true"]
    answer = bucketed.read()
    assert (answer.body, answer.header("stream-closed")) == (b"one;two;", "true")
    assert statuses(batch(bucketed, [b"more"], stream_closed="true").json()) == [409]


def test_a_last_frame_that_is_refused_closes_nothing__append_batch(node: Node) -> None:
    stream = make_stream(node, make_bucket(node), headers=JSON)
    assert statuses(batch(stream, [b"1", b"{"], stream_closed="true").json()) == [204, 400]
    assert stream.head().header("stream-closed") is None


@pytest.mark.parametrize("name", ["producer_id", "producer_epoch", "producer_seq", "stream_seq", "if_match"])
def test_headers_that_judge_one_append_are_refused_not_ignored__append_batch(bucketed: Stream, name: str) -> None:
    answer = batch(bucketed, [b"one;"], **{name: "1"})
    assert (answer.status, answer.json()["error"]["code"]) == (400, "bad_header")
    assert name.replace("_", "-") in answer.json()["error"]["message"].lower()
    assert bucketed.read().body == b""


def test_512_frames_are_taken_and_513_are_400__append_batch(bucketed: Stream) -> None:
    assert len(batch(bucketed, [b"x"] * 512).json()) == 512
    assert batch(bucketed, [b"x"] * 513).status == 400
    assert next_offset(bucketed.head()) == token(512)


def test_32_mib_are_taken_and_one_byte_more_is_413__append_batch(bucketed: Stream) -> None:
    size = 32 * 1024 * 1024
    assert statuses(batch(bucketed, [b"x" * (size - 4)]).json()) == [204]
    assert batch(bucketed, [b"x" * (size - 3)]).status == 413
    assert next_offset(bucketed.head()) == token(size - 4)
    assert bucketed.delete().status == 204


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0",
        b"\0\0\0",
        b"\0\0\0\0",
        b"\0\0\0\1x\0\0\0\0",
        b"\0\0\0\2x",
        b"\0\0\0\1xy",
        b"\xff\xff\xff\xffx",
    ],
)
def test_a_body_that_is_not_whole_frames_is_400_and_appends_nothing__append_batch(
    bucketed: Stream, body: bytes
) -> None:
    assert bucketed.node.request("POST", f"{bucketed.path}/append-batch", TEXT, body).status == 400
    assert bucketed.read().body == b""


def test_a_batch_names_its_content_type_and_is_posted__append_batch(bucketed: Stream) -> None:
    path = f"{bucketed.path}/append-batch"
    assert bucketed.node.request("POST", path, {}, framed([b"x"])).status == 400
    for method in ("GET", "PUT", "DELETE"):
        assert bucketed.node.request(method, path, TEXT, framed([b"x"])).status == 405


def test_a_batch_and_single_appends_keep_one_order__append_batch(bucketed: Stream) -> None:
    for n in range(5):
        bucketed.append(b"a%d;" % n)
        assert statuses(batch(bucketed, [b"b%d;" % n, b"c%d;" % n]).json()) == [204, 204]
    assert bucketed.read().body == b"".join(b"a%d;b%d;c%d;" % (n, n, n) for n in range(5))


# --- bulk append --------------------------------------------------------------------------------------------


def test_one_request_reaches_many_streams_and_answers_in_order__bulk_append(new: New, node: Node) -> None:
    texts, numbers, raws = new(TEXT), new(JSON), new(BYTES)
    answers = bulk(
        node,
        [
            {"stream": texts.path, "content_type": "text/plain", "text": ["a", "é"]},
            {"stream": numbers.path, "records": [1, {"b": [2]}, [3]]},
            {
                "stream": raws.path,
                "content_type": "application/octet-stream",
                "binary": [base64.b64encode(b"\0\xff").decode()],
            },
            {"stream": texts.path, "content_type": "text/plain", "text": ["z"]},
        ],
    )
    assert statuses(answers) == [204] * 4
    assert [one["stream_next_offset"] for one in answers] == [token(3), token(14), token(2), token(4)]
    assert texts.read().body == "aéz".encode()
    assert numbers.read().json() == [1, {"b": [2]}, [3]]
    assert raws.read().body == b"\0\xff"


def test_msgpack_carries_bytes_as_they_are__bulk_append(new: New, node: Node) -> None:
    raws, texts = new(BYTES), new(TEXT)
    blob = bytes(range(256))
    answers = packed(
        node,
        [
            {"stream": raws.path, "content_type": "application/octet-stream", "binary": [blob, b"x"]},
            {"stream": texts.path, "content_type": "text/plain", "text": ["a", "b"]},
        ],
    )
    assert statuses(answers) == [204, 204]
    assert raws.read().body == blob + b"x"
    assert texts.read().body == b"ab"


@pytest.mark.parametrize("named", ["full", "flat"])
def test_a_stream_is_named_by_its_path_or_its_flat_name__bulk_append(new: New, node: Node, named: str) -> None:
    stream = new()
    name = stream.path if named == "full" else stream.path.removeprefix("/v1/stream/")
    assert statuses(bulk(node, [{"stream": name, "content_type": "text/plain", "text": ["x"]}])) == [204]
    assert stream.read().body == b"x"


@pytest.mark.parametrize("bucket", ["dsdata", "ds-1", "streams-of-ds"])
def test_bucketed_paths_name_their_streams_also_when_the_bucket_begins_with_ds__bulk_append(
    node: Node, bucket: str
) -> None:
    assert node.request("PUT", f"/ds/{bucket}").status == 201
    stream = make_stream(node, bucket, "s")
    entry = {"content_type": "text/plain", "text": ["x"]}
    answers = bulk(node, [{"stream": f"/{bucket}/s", **entry}, {"stream": f"/ds/{bucket}/s", **entry}])
    assert statuses(answers) == [204, 204]
    assert stream.read().body == b"xx"


def test_producer_fields_are_judged_per_entry__bulk_append(new: New, node: Node) -> None:
    first, second = new(JSON), new(JSON)

    def entry(stream: Stream, epoch: int, seq: int) -> dict[str, Any]:
        producer = {"producer_id": "p", "producer_epoch": epoch, "producer_seq": seq}
        return {"stream": stream.path, "records": [seq], **producer}

    answers = bulk(node, [entry(first, 0, 0), entry(first, 0, 1), entry(second, 0, 0), entry(first, 0, 1)])
    assert statuses(answers) == [200, 200, 200, 204]
    assert answers[3]["duplicate"] is True
    answers = bulk(node, [entry(first, 0, 5), entry(second, 0, 0), entry(second, 2, 0), entry(second, 1, 0)])
    assert statuses(answers) == [409, 204, 200, 403]
    assert (answers[0]["producer_expected_seq"], answers[0]["producer_received_seq"]) == ("2", "5")
    assert answers[3]["producer_epoch"] == "2"
    assert first.read().json() == [0, 1]
    assert second.read().json() == [0, 0]


def test_a_repeated_request_with_producers_appends_nothing_twice__bulk_append(new: New, node: Node) -> None:
    streams = [new(JSON) for _ in range(20)]
    producer = {"producer_id": "pipeline", "producer_epoch": 0, "producer_seq": 0}
    entries = [{"stream": stream.path, "records": [n], **producer} for n, stream in enumerate(streams)]
    assert statuses(bulk(node, entries)) == [200] * 20
    assert statuses(bulk(node, entries)) == [204] * 20
    assert [stream.read().json() for stream in streams] == [[n] for n in range(20)]


def test_one_failing_entry_leaves_the_others__bulk_append(new: New, nowhere: Stream, node: Node) -> None:
    good, closed = new(JSON), new(JSON, b"[0]", stream_closed="true")
    answers = bulk(
        node,
        [
            {"stream": good.path, "records": [1]},
            {"stream": nowhere.path, "records": [1]},
            {"stream": closed.path, "records": [1]},
            {"stream": good.path, "content_type": "text/plain", "text": ["x"]},
            {"stream": "", "records": [1]},
            {"stream": "/nobucket", "records": [1]},
            {"stream": good.path, "records": []},
            {"stream": good.path, "records": [1], "text": ["x"]},
            {"stream": good.path, "records": [1], "producer_id": "p"},
            {"stream": good.path, "records": [1], "content_type": "nonsense"},
            {"stream": good.path, "records": [2]},
        ],
    )
    assert statuses(answers) == [204, 404, 409, 409, 400, 400, 400, 400, 400, 400, 204]
    assert all(one["error"]["message"] for one in answers if one["status"] >= 400)
    assert good.read().json() == [1, 2]


def test_an_entry_may_close_its_stream__bulk_append(new: New, node: Node) -> None:
    last, bare = new(JSON), new(JSON)
    answers = bulk(
        node,
        [
            {"stream": last.path, "records": [1], "close": True},
            {"stream": bare.path, "close": True},
            {"stream": last.path, "records": [2]},
        ],
    )
    assert statuses(answers) == [204, 204, 409]
    assert last.read().header("stream-closed") == "true"
    assert bare.read().header("stream-closed") == "true"


def test_stream_seq_is_judged_per_entry__bulk_append(new: New, node: Node) -> None:
    stream = new(JSON)
    answers = bulk(node, [{"stream": stream.path, "records": [n], "stream_seq": seq} for n, seq in enumerate("abab")])
    assert statuses(answers) == [204, 204, 409, 409]
    assert stream.read().json() == [0, 1]


@pytest.mark.parametrize("text", ["not json", "1,2", "", "{", "[1", "nul"])
@pytest.mark.parametrize("named", ["application/json", None])
@pytest.mark.parametrize("field", ["text", "binary"])
def test_a_json_stream_takes_nothing_that_is_not_json_whatever_the_entry_calls_it__bulk_append(
    new: New, node: Node, field: str, named: str | None, text: str
) -> None:
    stream = new(JSON, b"[0]")
    value: object = text if field == "text" else text.encode()
    entry = {"stream": stream.path, "content_type": named, field: [value]}
    assert statuses(packed(node, [entry]))[0] in (400, 409)
    assert stream.read().json() == [0]


def test_text_that_is_json_may_go_to_a_json_stream__bulk_append(new: New, node: Node) -> None:
    stream = new(JSON)
    kind = "application/json; charset=utf-8"
    entry = {"stream": stream.path, "content_type": kind, "text": ['{"a":1}', " [2, 3] ", '"é"']}
    assert statuses(packed(node, [entry])) == [204]
    assert stream.read().json() == [{"a": 1}, [2, 3], "é"]


def test_text_and_binary_name_their_content_type_like_any_append__bulk_append(new: New, node: Node) -> None:
    stream = new(TEXT)
    assert statuses(bulk(node, [{"stream": stream.path, "text": ["x"]}])) == [400]
    assert statuses(packed(node, [{"stream": stream.path, "binary": [b"x"]}])) == [400]
    assert stream.read().body == b""


@pytest.mark.parametrize("field", ["producer_id", "stream_seq"])
def test_long_names_are_refused_as_they_are_in_headers__bulk_append(new: New, node: Node, field: str) -> None:
    stream = new(JSON)
    long = {"producer_id": "p", "producer_epoch": 0, "producer_seq": 0} | {field: "x" * 100_000}
    assert statuses(bulk(node, [{"stream": stream.path, "records": [1], **long}])) == [400]
    assert stream.read().json() == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"[1]",
        b"[{}]",
        b'[{"stream":1}]',
        b'[{"stream":"x","unknown":1}]',
        b'[{"stream":"x","records":1}]',
        b'[{"stream":"x","records":[1,]}]',
        b'[{"stream":"x","text":["\\ud800"]}]',
        b'[{"stream":"x","records":["\xff"]}]',
        b'[{"stream":"x","binary":["*"]}]',
        b'[{"stream":"x","producer_epoch":1.5,"records":[1]}]',
        b"[" * 100_000,
    ],
)
def test_a_body_that_is_no_list_of_entries_is_400__bulk_append(node: Node, body: bytes) -> None:
    answer = node.request("POST", BULK, JSON, body)
    if answer.status == 200:  # a fault of one entry may be told in its place
        assert all(status in (400, 404) for status in statuses(answer.json())), answer
    else:
        assert answer.status == 400, answer


def test_a_msgpack_body_that_is_none_is_400__bulk_append(node: Node) -> None:
    raw_records = msgspec.msgpack.encode([{"stream": "x", "records": [1]}])
    for body in (b"", b"\x90", b"\x80", b"\xc1", b"\x91\x81", raw_records):
        assert node.request("POST", BULK, MSGPACK, body).status == 400


def test_10000_entries_are_taken_and_one_more_is_400__bulk_append(new: New, node: Node) -> None:
    stream = new(JSON)
    entries = [{"stream": stream.path, "records": [1]}] * 10_000
    assert statuses(bulk(node, entries)) == [204] * 10_000
    assert node.request("POST", BULK, JSON, json.dumps([*entries, entries[0]]).encode()).status == 400
    assert next_offset(stream.head()) == token(10_000)


def test_bulk_append_is_posted__bulk_append(node: Node) -> None:
    for method in ("GET", "PUT", "DELETE"):
        assert node.request(method, BULK, JSON, b"[]").status == 405
