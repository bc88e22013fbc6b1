"""Extension spec §3: one request that brings a snapshot and everything behind it, then a live tail without a seam.
Multipart bodies are read by Python's own MIME parser, not by anything that knows the server."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from tests.doors.http.extensions.surface import (
    BYTES,
    JSON,
    TEXT,
    WAIT_S,
    Part,
    Stream,
    make_stream,
    next_offset,
    parts_of,
    token,
)
from tests.support.http import EventStream, Response
from tests.support.node import Node

NO_SNAPSHOT = Part("application/octet-stream", b"")


def updates(answer: Response) -> list[bytes]:
    return [part.body for part in parts_of(answer)[1:]]


# --- §3.1: request ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("live", ["sse", "long-poll", "", "true", "anything"])
def test_any_live_parameter_is_400__sections_3_1_and_3_3(stream: Stream, live: str) -> None:
    assert stream.node.request("GET", f"{stream.path}/bootstrap?live={live}").status == 400
    assert stream.node.request("GET", f"{stream.path}/bootstrap?offset=-1&live={live}").status == 400


def test_bootstrap_has_no_parameters_of_its_own__section_3_1(stream: Stream) -> None:
    stream.append(b"x")
    answer = stream.node.request("GET", f"{stream.path}/bootstrap?offset={token(1)}&cursor=1")
    assert (answer.status, updates(answer)) == (200, [b"x"])


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_bootstrap_is_only_read__section_3_1(stream: Stream, method: str) -> None:
    assert stream.node.request(method, f"{stream.path}/bootstrap", TEXT, b"x").status == 405


# --- §3.2: response -----------------------------------------------------------------------------------------


def test_headers_name_boundary_snapshot_next_offset_and_up_to_date__section_3_2(
    node: Node, bucket: str, surface: str
) -> None:
    stream = make_stream(node, bucket, surface=surface)
    for body in (b"one", b"two", b"three"):
        stream.append(body)
    assert stream.publish(stream.ends[0], b"state").status == 204
    answer = stream.bootstrap()
    assert answer.status == 200
    kind, _, boundary = (answer.header("content-type") or "").partition("; boundary=")
    assert kind == "multipart/mixed" and 0 < len(boundary) <= 70
    assert answer.header("stream-snapshot-offset") == stream.ends[0]
    assert next_offset(answer) == stream.ends[2]
    assert answer.header("stream-up-to-date") == "true"
    assert answer.header("cache-control") == "no-store"


def test_the_first_part_is_the_snapshot_with_its_own_content_type__section_3_2(stream: Stream) -> None:
    stream.append(b"one")
    stream.append(b"two")
    kind = 'image/svg+xml; charset="utf-8"'
    assert stream.publish(stream.ends[0], b"<svg/>", {"Content-Type": kind}).status == 204
    assert parts_of(stream.bootstrap()) == [Part(kind, b"<svg/>"), Part("text/plain", b"two")]


def test_without_a_snapshot_the_first_part_is_empty_octets_and_the_offset_minus_one__section_3_2(
    node: Node, bucket: str, surface: str
) -> None:
    stream = make_stream(node, bucket, surface=surface)
    answer = stream.bootstrap()
    assert (answer.header("stream-snapshot-offset"), next_offset(answer)) == ("-1", token(0))
    assert parts_of(answer) == [NO_SNAPSHOT]
    stream.append(b"one")
    answer = stream.bootstrap()
    assert (answer.header("stream-snapshot-offset"), next_offset(answer)) == ("-1", token(3))
    assert parts_of(answer) == [NO_SNAPSHOT, Part("text/plain", b"one")]


@pytest.mark.parametrize("headers", [TEXT, BYTES, {"Content-Type": "application/vnd.x+cbor; v=1"}])
def test_each_update_is_one_part_with_the_streams_content_type__section_3_2(
    node: Node, bucket: str, headers: dict[str, str]
) -> None:
    stream = make_stream(node, bucket, headers=headers)
    bodies = [b"a", b"bb", b"a", b"\r\n", b"\n", b"--", b"ends with a newline\r\n", b"\r\n--boundary\r\n\r\nx"]
    for body in bodies:
        stream.append(body)
    assert parts_of(stream.bootstrap())[1:] == [Part(headers["Content-Type"], body) for body in bodies]


def test_each_message_of_a_json_array_is_a_part_of_its_own__section_3_2(node: Node, bucket: str) -> None:
    stream = make_stream(node, bucket, headers=JSON)
    stream.append(b'[{"op":"set"}, [1,2], "x"]')
    stream.append(b'{"op":"insert"}')
    bodies = [b'{"op":"set"}', b"[1,2]", b'"x"', b'{"op":"insert"}']
    assert parts_of(stream.bootstrap())[1:] == [Part("application/json", body) for body in bodies]


def test_binary_payloads_are_neither_reframed_nor_reinterpreted__section_3_2(node: Node, bucket: str) -> None:
    stream = make_stream(node, bucket, headers=BYTES)
    rng = random.Random(3)
    bodies = [bytes(range(256)), b"\0" * 7, b"\r", *(rng.randbytes(rng.randrange(1, 2000)) for _ in range(50))]
    for body in bodies:
        stream.append(body)
    blob = rng.randbytes(5000)
    assert stream.publish("-1", blob).status == 204
    answer = stream.bootstrap()
    assert parts_of(answer)[0].body == blob
    assert updates(answer) == bodies
    assert b"".join(bodies) == stream.read().body, "bootstrap and ordinary reads tell the same story"


def test_nothing_wraps_the_multipart_body__section_3_2(stream: Stream) -> None:
    stream.append(b"one")
    answer = stream.bootstrap()
    boundary = (answer.header("content-type") or "").partition("boundary=")[2].encode()
    assert answer.body.startswith(b"--" + boundary + b"\r\n")
    assert answer.body.rstrip(b"\r\n").endswith(b"\r\n--" + boundary + b"--")
    assert answer.header("content-encoding") is None


def test_updates_before_the_snapshot_are_left_out_and_those_behind_it_kept__section_3_2(stream: Stream) -> None:
    for n in range(10):
        stream.append(b"%d;" % n)
    for at in (0, 4, 9):
        assert stream.publish(stream.ends[at], b"0 to %d" % at, TEXT).status == 204
        assert parts_of(stream.bootstrap()) == [
            Part("text/plain", b"0 to %d" % at),
            *(Part("text/plain", b"%d;" % n) for n in range(at + 1, 10)),
        ]


def test_a_large_bootstrap_arrives_whole__section_3_2(node: Node, bucket: str) -> None:
    stream = make_stream(node, bucket, headers=BYTES)
    bodies = [bytes([n]) * 100_000 for n in range(60)]
    with node.connect() as connection:
        for body in bodies:
            assert connection.request("POST", stream.path, BYTES, body).status == 204
    assert stream.publish("-1", b"s" * 3_000_000).status == 204
    answer = stream.bootstrap()
    assert answer.header("stream-up-to-date") == "true"
    found = parts_of(answer)
    assert len(found[0].body) == 3_000_000
    assert [part.body for part in found[1:]] == bodies


def test_a_closed_stream_says_so_and_head_sends_no_body__section_3_2(stream: Stream) -> None:
    stream.append(b"last", stream_closed="true")
    assert stream.bootstrap().header("stream-closed") == "true"
    head = stream.node.request("HEAD", f"{stream.path}/bootstrap")
    assert (head.status, head.body, next_offset(head)) == (200, b"", token(4))


def test_an_unknown_stream_is_404__section_3_2(node: Node, bucket: str, surface: str) -> None:
    assert node.request("GET", f"{surface}/{bucket}/never/bootstrap").status == 404


# --- §3.3: follow-up live reads -----------------------------------------------------------------------------


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_bootstrap_then_tail_has_no_gap_and_no_overlap_while_others_write_and_publish__section_3_3(
    node: Node, bucket: str, live: str
) -> None:
    """Snapshots hold all the text before them, so each client can rebuild the whole stream and compare."""
    stream = make_stream(node, bucket)
    written: list[bytes] = []
    stop = threading.Event()

    def write() -> None:
        with node.connect() as connection:
            while not stop.is_set():
                body = b"%05d;" % len(written)
                assert connection.request("POST", stream.path, TEXT, body).status == 204
                written.append(body)
                if len(written) % 25 == 0:
                    end = token(6 * len(written))
                    path = f"{stream.path}/snapshot/{end}"
                    assert connection.request("PUT", path, TEXT, b"".join(written)).status == 204

    writer = threading.Thread(target=write)
    writer.start()
    try:
        rebuilt = [rebuild(stream, live) for _ in range(8)]
    finally:
        stop.set()
        writer.join()
    whole = b"".join(written)
    for text in rebuilt:
        assert text == whole[: len(text)]
        assert len(text) > 0


def rebuild(stream: Stream, live: str) -> bytes:
    """State as a client rebuilds it: snapshot, updates, and the first few live deliveries."""
    answer = stream.bootstrap()
    assert answer.status == 200, answer
    text = b"".join(part.body for part in parts_of(answer))
    offset = next_offset(answer)
    if live == "sse":
        with stream.node.connect() as connection:
            feed = EventStream.open(connection, f"{stream.path}?offset={offset}&live=sse")
            if feed.head.status == 410:  # a snapshot overtook this client: begin again, as §3.4 says
                return rebuild(stream, live)
            datas = 0
            for event in feed:
                if event.name == "data":
                    text += event.data.encode()
                    datas += 1
                    if datas == 5:
                        break
        return text
    for _ in range(5):
        answer = stream.read(offset, "long-poll")
        if answer.status == 410:
            return rebuild(stream, live)
        assert answer.status in (200, 204), answer
        text += answer.body
        offset = next_offset(answer)
    return text


# --- §3.4: compatibility ------------------------------------------------------------------------------------


def test_ordinary_reads_never_return_snapshot_bytes__section_3_4(node: Node, stream: Stream) -> None:
    stream.append(b"one;")
    stream.append(b"two;")
    assert stream.publish(stream.ends[0], b"SNAPSHOT", TEXT).status == 204
    assert stream.read(stream.ends[0]).body == b"two;"
    assert stream.read(stream.ends[0], "long-poll").body == b"two;"
    with node.connect() as connection:
        events = iter(EventStream.open(connection, f"{stream.path}?offset={stream.ends[0]}&live=sse"))
        assert next(events).data == "two;"
    assert b"SNAPSHOT" not in stream.read().body


def test_whoever_is_told_410_can_start_from_bootstrap__section_3_4(stream: Stream) -> None:
    for n in range(4):
        stream.append(b"%d;" % n)
        assert stream.publish(stream.ends[n], b"0 to %d" % n).status == 204
        refused = stream.read()
        assert refused.status == 410
        answer = stream.bootstrap()
        assert answer.status == 200
        assert answer.header("stream-snapshot-offset") == refused.header("stream-earliest-offset")
        assert parts_of(answer)[0].body == b"0 to %d" % n
        assert stream.read(next_offset(answer)).status == 200


def test_the_earliest_offset_that_410_names_can_be_read__section_3_4(stream: Stream) -> None:
    stream.append(b"one;")
    stream.append(b"two;")
    assert stream.publish(stream.ends[0], b"state").status == 204
    earliest = stream.read().header("stream-earliest-offset")
    assert earliest is not None
    assert stream.read(earliest).body == b"two;"


def kept_to(node: Node, path: str, records: int) -> Stream:
    """A stream that keeps so many records, with one record and a snapshot behind it."""
    stream = Stream(node, path, TEXT)
    assert stream.create(stream_retention_records=str(records)).status == 201
    stream.append(b"0;")
    assert stream.publish(stream.ends[0], b"state at 0", TEXT).status == 204
    return stream


def await_earliest(stream: Stream, offset: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while stream.head().header("stream-earliest-offset") != offset:
        assert time.monotonic() < deadline_s, stream.head()


def assert_outrun(stream: Stream, snapshot: str, earliest: str) -> None:
    """The snapshot is there, and bootstrap says that it is not enough."""
    answer = stream.bootstrap()
    assert (answer.status, answer.json()["error"]["code"]) == (410, "bootstrap_incomplete"), answer
    assert answer.header("stream-earliest-offset") == earliest
    assert answer.header("stream-snapshot-offset") == snapshot
    assert snapshot in answer.json()["error"]["message"] and earliest in answer.json()["error"]["message"]
    assert stream.snapshot().status == 307
    assert stream.snapshot(snapshot).body == b"state at 0"
    assert stream.head().header("stream-snapshot-offset") == snapshot
    assert stream.read(snapshot).status == 410


def test_a_snapshot_that_covers_what_retention_took_is_all_a_bootstrap_needs__section_3_4(
    node: Node, bucket: str
) -> None:
    stream = kept_to(node, f"/ds/{bucket}/covered", 2)
    for n in range(1, 6):
        stream.append(b"%d;" % n)
    await_earliest(stream, stream.ends[3])
    assert stream.publish(stream.ends[4], b"state at 4", TEXT).status == 204
    stream.append(b"6;")
    other = kept_to(node, f"/ds/{bucket}/other", 2)
    for n in range(1, 4):
        other.append(b"%d;" % n)
    await_earliest(other, other.ends[1])  # the policies were looked at since: they took nothing behind the snapshot
    answer = stream.bootstrap()
    assert [part.body for part in parts_of(answer)] == [b"state at 4", b"5;", b"6;"]
    assert answer.header("stream-snapshot-offset") == stream.ends[4]


def test_a_snapshot_that_retention_passed_stays_and_bootstrap_is_410_until_a_newer_one__section_3_4(
    node: Node, bucket: str
) -> None:
    stream = kept_to(node, f"/ds/{bucket}/outrun", 2)
    for n in range(1, 4):
        stream.append(b"%d;" % n)
    await_earliest(stream, stream.ends[1])
    assert_outrun(stream, stream.ends[0], stream.ends[1])
    assert stream.node.request("HEAD", f"{stream.path}/bootstrap").status == 410
    assert stream.publish(stream.ends[2], b"state at 2", TEXT).status == 204
    assert [part.body for part in parts_of(stream.bootstrap())] == [b"state at 2", b"3;"]
    assert stream.snapshot(stream.ends[0]).status == 404


def test_a_fork_of_a_stream_that_retention_passed_says_the_same__section_3_4(node: Node, bucket: str) -> None:
    stream = kept_to(node, f"/ds/{bucket}/source", 2)
    for n in range(1, 4):
        stream.append(b"%d;" % n)
    await_earliest(stream, stream.ends[1])
    fork = Stream(node, f"{stream.path}-fork", TEXT)
    assert fork.create(stream_forked_from=stream.path).status == 201
    assert_outrun(fork, stream.ends[0], stream.ends[1])
    assert stream.delete().status == 204
    assert_outrun(fork, stream.ends[0], stream.ends[1])


def test_a_snapshot_that_retention_passed_survives_a_kill__section_3_4(tmp_path: Path) -> None:
    with Node.started(tmp_path) as node:
        assert node.request("PUT", "/ds/bucket").status == 201
        stream = kept_to(node, "/ds/bucket/outrun", 2)
        for n in range(1, 4):
            stream.append(b"%d;" % n)
        await_earliest(stream, stream.ends[1])
        for _ in range(2):
            assert_outrun(stream, stream.ends[0], stream.ends[1])
            node.restart()


def test_without_any_snapshot_bootstrap_says_where_its_records_begin__section_3_2(node: Node, bucket: str) -> None:
    stream = Stream(node, f"/ds/{bucket}/ring", TEXT)
    assert stream.create(stream_retention_records="2").status == 201
    for n in range(4):
        stream.append(b"%d;" % n)
    await_earliest(stream, stream.ends[1])
    answer = stream.bootstrap()
    assert (answer.status, answer.header("stream-snapshot-offset")) == (200, "-1")
    assert answer.header("stream-earliest-offset") == stream.ends[1]
    assert updates(answer) == [b"2;", b"3;"]


def test_a_fork_of_a_snapshotted_stream_can_be_bootstrapped__section_3_4(node: Node, bucket: str) -> None:
    stream = make_stream(node, bucket)
    stream.append(b"one;")
    stream.append(b"two;")
    assert stream.publish(stream.ends[0], b"state").status == 204
    fork = Stream(node, f"{stream.path}-fork", TEXT)
    assert fork.create(stream_forked_from=stream.path).status == 201
    assert fork.read().status == 410
    answer = fork.bootstrap()
    assert answer.header("stream-snapshot-offset") == stream.ends[0]
    assert [part.body for part in parts_of(answer)] == [b"state", b"two;"]
