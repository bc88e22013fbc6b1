"""How many records one append, and one request, may bring. More are refused with 413 and the name of the setting, at
every door, before memory is spent on them. Long bodies are read in slices; requests are judged in their order."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headwater.model.timeline import RECORD_BYTES
from tests.doors.http.extensions.surface import BYTES, JSON, Stream, make_bucket, make_stream
from tests.support.http import Response, encode_request
from tests.support.node import Node

MIB = 1024 * 1024
LIMIT = 1_000
BULK = "/__headwater/append"
MSGPACK = {"Content-Type": "application/msgpack"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    flags = ["--append-records-max", str(LIMIT)]
    with Node.started(tmp_path_factory.mktemp("small"), memory=True, flags=flags) as node:
        yield node
        assert node.terminate() == 0, node.output()


@pytest.fixture
def stream(small: Node) -> Stream:
    return make_stream(small, make_bucket(small), headers=JSON)


def ones(count: int) -> bytes:
    return b"[" + b",".join([b"11"] * count) + b"]"


def records_of(stream: Stream) -> int:
    return len(stream.read().json())


def assert_told(answer: Response, most: str) -> None:
    assert answer.status == 413, answer
    error = answer.json()["error"]
    assert error["code"] == "too_many_records" and not error["retryable"]
    assert "append_records_max" in error["message"] and most in error["message"]


# ---- every door ---------------------------------------------------------------------------------------------------


def test_one_record_too_many_is_413_with_the_setting_and_the_limit__append(stream: Stream) -> None:
    with stream.node.connect() as connection:
        for _ in range(2):  # the second time the head is known, and is not looked at again
            assert_told(connection.request("POST", stream.path, JSON, ones(LIMIT + 1)), "1000 ")
            assert connection.request("POST", stream.path, JSON, ones(LIMIT)).status == 204
    assert records_of(stream) == 2 * LIMIT


@pytest.mark.parametrize("count", [LIMIT + 1, 200_000])
def test_one_record_too_many_is_413_with_the_setting_and_the_limit__create(small: Node, count: int) -> None:
    path = f"/v1/stream/limits/made-{count}"
    assert_told(small.request("PUT", path, JSON, ones(count)), "1000 ")
    assert small.request("HEAD", path).status == 404
    assert small.request("PUT", path, JSON, ones(LIMIT)).status == 201


def test_a_frame_with_too_many_records_is_refused_alone__append_batch(stream: Stream) -> None:
    frames = [ones(LIMIT), ones(LIMIT + 1), ones(1)]
    body = b"".join(struct.pack(">I", len(frame)) + frame for frame in frames)
    answer = stream.node.request("POST", f"{stream.path}/append-batch", JSON, body)
    first, second, third = answer.json()
    assert [first["status"], second["status"], third["status"]] == [204, 413, 204]
    assert second["error"]["code"] == "too_many_records" and "append_records_max" in second["error"]["message"]
    assert records_of(stream) == LIMIT + 1


def test_all_frames_together_bring_at_most_ten_full_appends__append_batch(stream: Stream) -> None:
    frame = ones(LIMIT)
    body = (struct.pack(">I", len(frame)) + frame) * 12
    answers = stream.node.request("POST", f"{stream.path}/append-batch", JSON, body).json()
    assert [one["status"] for one in answers] == [204] * 10 + [413] * 2
    assert "10 x append_records_max" in answers[-1]["error"]["message"]
    assert records_of(stream) == 10 * LIMIT


def bulk_bodies(entries: list[list[str]], path: str) -> dict[str, tuple[dict[str, str], bytes]]:
    """The same entries in each form a bulk append has."""
    plain = [{"stream": path, "records": [int(one) for one in records]} for records in entries]
    text = [{"stream": path, "content_type": "application/json", "text": records} for records in entries]
    binary = [
        {"stream": path, "content_type": "application/json", "binary": [record.encode() for record in records]}
        for records in entries
    ]
    return {
        "records": (JSON, json.dumps(plain).encode()),
        "text": (JSON, json.dumps(text).encode()),
        "packed text": (MSGPACK, msgspec.msgpack.encode(text)),
        "packed binary": (MSGPACK, msgspec.msgpack.encode(binary)),
    }


@pytest.mark.parametrize("form", ["records", "text", "packed text", "packed binary"])
@pytest.mark.parametrize("count", [LIMIT + 1, 300_000])
def test_an_entry_with_too_many_records_refuses_the_whole_request__bulk(stream: Stream, form: str, count: int) -> None:
    headers, body = bulk_bodies([["11"], ["11"] * count, ["11"]], stream.path)[form]
    assert_told(stream.node.request("POST", BULK, headers, body), "1000 ")
    assert records_of(stream) == 0


@pytest.mark.parametrize("form", ["records", "text", "packed text", "packed binary"])
def test_all_entries_together_bring_at_most_ten_full_appends__bulk(stream: Stream, form: str) -> None:
    headers, body = bulk_bodies([["11"] * LIMIT] * 10 + [["11"]], stream.path)[form]
    answer = stream.node.request("POST", BULK, headers, body)
    assert_told(answer, "10000 ")
    assert records_of(stream) == 0
    headers, body = bulk_bodies([["11"] * LIMIT] * 10, stream.path)[form]
    answers = stream.node.request("POST", BULK, headers, body).json()
    assert [one["status"] for one in answers] == [204] * 10
    assert records_of(stream) == 10 * LIMIT


@pytest.mark.parametrize("form", ["records", "packed text"])
def test_entries_are_counted_before_they_are_read__bulk(stream: Stream, form: str) -> None:
    headers, body = bulk_bodies([["1"]] * 10_001, stream.path)[form]
    answer = stream.node.request("POST", BULK, headers, body)
    assert answer.status == 400 and "at most 10000 entries" in answer.json()["error"]["message"]


@pytest.mark.parametrize("form", ["records", "packed binary"])
@pytest.mark.parametrize("cut", [1, 1000, 100_000])
def test_a_long_request_that_is_cut_short_or_goes_on_is_refused_whole__bulk(
    stream: Stream, form: str, cut: int
) -> None:
    headers, body = bulk_bodies([["12345678"] * 500] * 19, stream.path)[form]
    assert len(body) > 64 * 1024
    for wrong in (body[:-cut], body + b"1" * cut):
        answer = stream.node.request("POST", BULK, headers, wrong)
        assert answer.status == 400 and answer.json()["error"]["code"] == "bad_body", answer
    assert records_of(stream) == 0


def test_an_entry_longer_than_a_piece_is_taken_whole__bulk(small: Node) -> None:
    stream = make_stream(small, make_bucket(small))
    records = [bytes([65 + n]) * 200_000 for n in range(3)]
    entries = [{"stream": stream.path, "content_type": "text/plain", "binary": records}] * 2
    answer = small.request("POST", BULK, MSGPACK, msgspec.msgpack.encode(entries))
    assert [one["status"] for one in answer.json()] == [204, 204]
    assert stream.read().body == b"".join(records * 2)


# ---- memory -------------------------------------------------------------------------------------------------------


def peak_bytes(node: Node) -> int:
    for line in Path(f"/proc/{node.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def test_millions_of_records_are_refused_before_memory_is_spent_on_them(tmp_path: Path) -> None:
    with Node.started(tmp_path, memory=True) as node:
        stream = make_stream(node, make_bucket(node), headers=JSON)
        body = b"[" + b"11," * (32 * MIB // 3) + b"11]"
        before = peak_bytes(node)
        assert_told(node.request("POST", stream.path, JSON, body), "10000 ")
        # The body arrives in parts and is joined: twice its size. Each of its records would take eighty bytes more.
        assert peak_bytes(node) - before < 4 * len(body)


def test_a_node_that_takes_tiny_records_until_it_refuses_them_stays_within_its_ceiling(tmp_path: Path) -> None:
    ceiling = 64 * MIB
    flags = ["--hot-bytes-max", str(ceiling), "--read-bytes-max", "1MiB"]
    with Node.started(tmp_path, memory=True, flags=flags) as node:
        stream = make_stream(node, make_bucket(node), headers=JSON)
        body = b"[" + b",".join(b"%d" % (10 + n % 90) for n in range(10_000)) + b"]"
        with node.connect() as connection:
            assert connection.request("POST", stream.path, JSON, body).status == 204
            before, accepted = node.rss_bytes(), 1
            while (answer := connection.request("POST", stream.path, JSON, body)).status == 204:
                accepted += 1
        assert answer.status == 503 and "memory" in answer.json()["error"]["message"]
        assert ceiling <= accepted * 10_000 * (2 + RECORD_BYTES) <= ceiling + 10_000 * (2 + RECORD_BYTES)
        assert node.rss_bytes() - before < 1.5 * ceiling


def test_bodies_behind_a_request_that_waits_are_not_taken_without_bound(tmp_path: Path) -> None:
    flags = ["--long-poll-timeout-ms", "2000"]
    with Node.started(tmp_path, memory=True, flags=flags) as node:
        stream = make_stream(node, make_bucket(node), headers=BYTES)
        body, count, nowhere = b"x" * MIB, 100, f"{stream.path}-missing"
        with node.connect(timeout_s=60.0) as connection:
            wait = f"{stream.path}?offset=now&live=long-poll"
            connection.send(encode_request("GET", wait, (), None, connection.authority))
            posts = encode_request("POST", nowhere, BYTES, body, connection.authority) * count
            before = peak_bytes(node)
            sending = threading.Thread(target=connection.send, args=(posts,))
            sending.start()
            assert connection.read_response().status == 204
            assert [connection.read_response("POST").status for _ in range(count)] == [404] * count
            sending.join()
        assert peak_bytes(node) - before < 40 * MIB


# ---- order and turns ----------------------------------------------------------------------------------------------


def long_body(size: int) -> bytes:
    record = b'{"long":"' + b"x" * 8_000 + b'"}'
    return b"[" + b",".join([record] * (size // len(record))) + b"]"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("node"), memory=True) as node:
        yield node
        assert node.terminate() == 0, node.output()


def first_records(stream: Stream, count: int) -> list[object]:
    found = stream.node.request("GET", f"{stream.path}?offset=-1").json()
    return found[:count]


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_what_a_connection_brings_behind_a_long_body_is_judged_after_it(node: Node, method: str) -> None:
    path = f"/v1/stream/order/{method}"
    if method == "POST":
        assert node.request("PUT", path, JSON).status == 201
    body = long_body(3 * MIB)
    with node.connect() as connection:
        small = encode_request("POST", path, JSON, b'"behind"', connection.authority)
        connection.send(encode_request(method, path, JSON, body, connection.authority) + small * 3)
        answers = [connection.read_response(method) for _ in range(4)]
    assert [answer.status for answer in answers] == [204 if method == "POST" else 201, 204, 204, 204]
    ends = [int(answer.header("stream-next-offset") or "") for answer in answers]
    assert ends == sorted(ends)
    count = len(json.loads(body))
    found = node.request("GET", f"{path}?offset=-1").json()
    assert found == json.loads(body) + ["behind"] * 3 and len(found) == count + 3


def test_a_long_body_that_is_refused_lets_those_behind_it_go_on(node: Node) -> None:
    stream = make_stream(node, make_bucket(node), headers=JSON)
    with node.connect() as connection:
        wrong = long_body(MIB)[:-1] + b"}"
        requests = [encode_request("POST", stream.path, JSON, body, connection.authority) for body in (wrong, b"1")]
        connection.send(b"".join(requests))
        refused, taken = connection.read_response("POST"), connection.read_response("POST")
    assert (refused.status, refused.json()["error"]["code"], taken.status) == (400, "bad_body", 204)
    assert stream.read().json() == [1]


def test_others_have_their_turn_while_a_long_body_is_read(node: Node) -> None:
    """Both write to one stream: its order tells who was judged first."""
    stream = make_stream(node, make_bucket(node), headers=JSON)
    with node.connect() as slow, node.connect() as quick:
        request = encode_request("POST", stream.path, JSON, long_body(60 * MIB), slow.authority)
        other = encode_request("POST", stream.path, JSON, b'"other"', quick.authority)
        slow.send(request[:-1])
        assert quick.request("GET", "/healthz").status == 200
        slow.send(request[-1:])
        quick.send(other)
        assert quick.read_response("POST").status == 204
        assert slow.read_response("POST").status == 204
    assert first_records(stream, 1) == ["other"]


def test_a_client_that_goes_away_ends_the_reading_of_its_body(node: Node) -> None:
    stream = make_stream(node, make_bucket(node), headers=JSON)
    with node.connect() as connection:
        connection.send(encode_request("POST", stream.path, JSON, long_body(20 * MIB), connection.authority))
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # Judged or not, the node goes on; a body of a client that is gone holds nobody up and is let go of.
    with node.connect() as connection:
        for _ in range(5):
            assert connection.request("POST", stream.path, JSON, long_body(MIB)).status == 204
