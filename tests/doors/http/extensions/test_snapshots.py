"""Extension spec §2: publishing, reading and deleting snapshots, and what publishing does to what lies before.
Bootstrap, which delivers them, is §3 and has its own file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doors.http.extensions.surface import (
    BYTES,
    JSON,
    PLAIN,
    TEXT,
    Stream,
    fresh_name,
    make_bucket,
    make_stream,
    next_offset,
    token,
)
from tests.support.http import EventStream, Response
from tests.support.node import Node

CALLS = ["PUT", "GET", "HEAD", "DELETE"]


@pytest.fixture
def three(node: Node, bucket: str, surface: str) -> Stream:
    """A text stream of three records that end at 4, 8 and 14."""
    stream = make_stream(node, bucket, surface=surface)
    for body in (b"one ", b"two ", b"three "):
        stream.append(body)
    return stream


# --- §2.1: offsets ------------------------------------------------------------------------------------------


def test_offsets_are_zero_padded_byte_positions_whose_order_is_their_text_order__section_2_1(three: Stream) -> None:
    assert three.ends == [token(4), token(8), token(14)]
    assert sorted(three.ends) == three.ends
    for start, end, body in zip(("-1", *three.ends), three.ends, (b"one ", b"two ", b"three "), strict=False):
        size = int(end) - max(int(start), 0)
        assert size == len(body)


@pytest.mark.parametrize("headers", [TEXT, BYTES, JSON], ids=["text", "bytes", "json"])
def test_reads_snapshots_and_bootstrap_share_one_model_of_message_boundaries__section_2_1(
    node: Node, bucket: str, headers: dict[str, str]
) -> None:
    """Every offset in a stream is either a boundary for all three or for none."""
    stream = make_stream(node, bucket, headers=headers)
    for body in (b"[10]", b"[200]", b"[3000]"):
        stream.append(body)
    tail = int(stream.ends[-1])
    boundaries = {0, *map(int, stream.ends)}
    for offset in range(tail + 1):
        expected = 200 if offset in boundaries else 400
        assert stream.read(token(offset)).status == expected, offset
    for offset in range(tail + 1):
        expected = 204 if offset in boundaries else 400
        answer = stream.publish(token(offset), b"state")
        assert answer.status == expected, (offset, answer)


# --- §2.2: publish ------------------------------------------------------------------------------------------


def test_publishing_is_204_and_names_the_snapshot__section_2_2(three: Stream) -> None:
    answer = three.publish(three.ends[1], b"state")
    assert answer.status == 204
    assert answer.header("stream-snapshot-offset") == three.ends[1]
    assert next_offset(answer) == three.ends[2]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_any_message_boundary_up_to_the_tail_can_be_published__section_2_2(three: Stream, which: int) -> None:
    assert three.publish(three.ends[which], b"state").status == 204
    assert three.snapshot(three.ends[which]).body == b"state"


@pytest.mark.parametrize("offset", ["-1", token(0)])
def test_a_snapshot_of_nothing_can_be_published__section_2_2(three: Stream, offset: str) -> None:
    assert three.publish(offset, b"empty state").status == 204
    assert three.snapshot(token(0)).body == b"empty state"
    assert three.read().body == b"one two three "


def test_the_content_type_is_stored_and_returned_as_given__section_2_2(three: Stream) -> None:
    kind = 'application/vnd.example+json; charset=utf-8; v="2"'
    assert three.publish(three.ends[0], b"{}", {"Content-Type": kind}).status == 204
    assert three.snapshot(three.ends[0]).header("content-type") == kind


def test_the_content_type_defaults_to_octet_stream__section_2_2(three: Stream) -> None:
    assert three.publish(three.ends[0], b"\x00\xff").status == 204
    assert three.snapshot(three.ends[0]).header("content-type") == "application/octet-stream"


@pytest.mark.parametrize("kind", ["text", "text/", "a b/c", ""])
def test_a_content_type_that_is_none_is_400__section_2_2(three: Stream, kind: str) -> None:
    assert three.publish(three.ends[0], b"x", {"Content-Type": kind}).status == 400
    assert three.snapshot().status == 404


@pytest.mark.parametrize("offset", ["abc", "4", "now", "-2", "+1", "9" * 20, "9" * 40, "0x4", "%20", token(4) + "x"])
@pytest.mark.parametrize("method", CALLS)
def test_an_invalid_snapshot_offset_is_400__section_2_2(three: Stream, method: str, offset: str) -> None:
    answer = three.node.request(method, f"{three.path}/snapshot/{offset}", (), b"x")
    assert answer.status == 400
    if method != "HEAD":
        error = answer.json()["error"]
        assert error["code"] == "bad_snapshot_offset" and "query" not in error["message"]


@pytest.mark.parametrize("offset", [1, 3, 5, 13])
def test_an_offset_inside_a_message_is_400__section_2_2(three: Stream, offset: int) -> None:
    assert three.publish(token(offset), b"x").status == 400
    assert three.head().header("stream-snapshot-offset") is None


def test_an_unknown_stream_is_404__section_2_2(node: Node, bucket: str, surface: str) -> None:
    stream = Stream(node, f"{surface}/{bucket}/never", TEXT)
    assert stream.publish(token(0), b"x").status == 404


@pytest.mark.parametrize("beyond", [15, 10**15])
def test_an_offset_beyond_the_tail_is_409__section_2_2(three: Stream, beyond: int) -> None:
    assert three.publish(token(beyond), b"x").status == 409
    assert three.read().body == b"one two three "


def test_an_offset_before_the_earliest_is_410__section_2_2(three: Stream) -> None:
    assert three.publish(three.ends[1], b"second").status == 204
    for offset in ("-1", token(0), three.ends[0]):
        answer = three.publish(offset, b"older")
        assert answer.status == 410
        assert answer.header("stream-earliest-offset") == three.ends[1]
    assert three.snapshot(three.ends[1]).body == b"second"


@pytest.fixture(scope="module")
def small_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    flags = ("--body-bytes-max", "16KiB", "--snapshot-bytes-max", "64KiB")
    with Node.started(tmp_path_factory.mktemp("small"), flags=flags) as node:
        yield node


def test_a_snapshot_above_the_servers_limit_is_413__section_2_2(small_node: Node, surface: str) -> None:
    stream = make_stream(small_node, make_bucket(small_node), surface=surface)
    end = stream.append(b"x")
    assert stream.publish(end, b"s" * (64 * 1024 + 1)).status == 413
    assert stream.snapshot().status == 404
    assert stream.publish(end, b"s" * (64 * 1024)).status == 204
    assert len(stream.snapshot(end).body) == 64 * 1024


def test_the_limit_of_a_snapshot_is_128_mib_unless_set__section_2_2(three: Stream) -> None:
    """Judged by its announced length, before any of it is sent."""
    for length, expected in ((128 * 1024 * 1024, b"100"), (128 * 1024 * 1024 + 1, b"413")):
        with three.node.connect() as connection:
            head = f"PUT {three.path}/snapshot/{three.ends[0]} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            connection.send(f"{head}Content-Length: {length}\r\n\r\n".encode())
            assert connection.socket.recv(12) == b"HTTP/1.1 " + expected


BIG_BUT_NO_SNAPSHOT = ["/v1/stream/{bucket}/snapshot/x", "/{bucket}/x?live=/snapshot/", "/ds/{bucket}/x?/snapshot/"]


@pytest.mark.parametrize("path", BIG_BUT_NO_SNAPSHOT)
def test_only_snapshots_have_the_limit_of_snapshots__section_2_2(small_node: Node, path: str) -> None:
    path = path.format(bucket=make_bucket(small_node))
    assert small_node.request("PUT", path, TEXT).status == 201
    assert small_node.request("POST", path, TEXT, b"x" * (16 * 1024 + 1)).status == 413


# --- §2.2: retention effect ---------------------------------------------------------------------------------


def gone(answer: Response, earliest: str) -> None:
    assert answer.status == 410, answer
    assert answer.header("stream-earliest-offset") == earliest


@pytest.mark.parametrize("live", ["", "long-poll", "sse"])
@pytest.mark.parametrize("offset", ["-1", token(0), token(4), token(3)])
def test_every_read_below_the_snapshot_is_410_with_the_earliest_offset__section_2_2(
    three: Stream, offset: str, live: str
) -> None:
    assert three.publish(three.ends[1], b"state").status == 204
    gone(three.read(offset, live), three.ends[1])


def test_a_read_without_an_offset_starts_at_the_beginning_and_is_410_too__section_2_2(three: Stream) -> None:
    assert three.publish(three.ends[1], b"state").status == 204
    gone(three.node.request("GET", three.path), three.ends[1])


def test_reads_at_and_behind_the_snapshot_go_on__section_2_2(three: Stream) -> None:
    assert three.publish(three.ends[1], b"state").status == 204
    assert three.read(three.ends[1]).body == b"three "
    assert three.read(three.ends[1], "long-poll").body == b"three "
    assert three.read(three.ends[2]).body == b""
    assert three.read("now").status == 200
    three.append(b"four")
    assert three.read(three.ends[1]).body == b"three four"


def test_head_tells_the_earliest_offset__section_2_2(three: Stream) -> None:
    assert three.head().header("stream-earliest-offset") == token(0)
    assert three.publish(three.ends[1], b"state").status == 204
    assert three.head().header("stream-earliest-offset") == three.ends[1]
    assert next_offset(three.head()) == three.ends[2]


def test_a_snapshot_at_the_tail_leaves_an_empty_stream_that_grows_on__section_2_2(three: Stream) -> None:
    assert three.publish(three.ends[2], b"all of it").status == 204
    gone(three.read(), three.ends[2])
    assert three.read(three.ends[2]).body == b""
    assert three.append(b"more") == token(18)
    assert three.read(three.ends[2]).body == b"more"


def test_a_closed_stream_takes_snapshots__section_2_2(three: Stream) -> None:
    assert three.node.request("POST", three.path, {"Stream-Closed": "true"}).status == 204
    assert three.publish(three.ends[2], b"final").status == 204
    answer = three.read(three.ends[2])
    assert (answer.status, answer.header("stream-closed")) == (200, "true")


def test_publishing_replaces_the_visible_snapshot_at_once__section_2_2(three: Stream) -> None:
    assert three.publish(three.ends[0], b"first").status == 204
    assert three.publish(three.ends[2], b"second").status == 204
    assert three.head().header("stream-snapshot-offset") == three.ends[2]
    assert three.snapshot(three.ends[2]).body == b"second"
    assert three.snapshot(three.ends[0]).status == 404


def test_publishing_again_at_the_same_offset_replaces_the_blob__section_2_2(three: Stream) -> None:
    assert three.publish(three.ends[1], b"first", TEXT).status == 204
    assert three.publish(three.ends[1], b"again", JSON).status == 204
    answer = three.snapshot(three.ends[1])
    assert (answer.body, answer.header("content-type")) == (b"again", "application/json")


def test_a_follower_at_the_tail_is_not_disturbed_by_a_publish__section_2_2(node: Node, three: Stream) -> None:
    with node.connect() as connection:
        events = iter(EventStream.open(connection, f"{three.path}?offset=now&live=sse"))
        assert next(events).json()["streamNextOffset"] == three.ends[2]
        assert three.publish(three.ends[2], b"state").status == 204
        three.append(b"after")
        assert next(events).data == "after"


# --- §2.2: concurrency --------------------------------------------------------------------------------------


def test_appends_and_publishes_do_not_disturb_each_other__section_2_2(node: Node, bucket: str) -> None:
    """Appends go on while snapshots are published; what is behind the last snapshot is exactly what was appended."""
    stream = make_stream(node, bucket)
    ends: list[str] = []
    stop = threading.Event()

    def write() -> None:
        with node.connect() as connection:
            while not stop.is_set():
                answer = connection.request("POST", stream.path, TEXT, b"%06d;" % len(ends))
                assert answer.status == 204, answer
                ends.append(next_offset(answer))

    writer = threading.Thread(target=write)
    writer.start()
    published = 0
    try:
        while published < 30:
            count = len(ends)
            if count:
                assert stream.publish(ends[count - 1], b"state of %d" % count).status == 204
                published += 1
    finally:
        stop.set()
        writer.join()
    at = stream.head().header("stream-snapshot-offset")
    assert at in ends
    count = ends.index(at) + 1
    assert stream.snapshot(at).body == b"state of %d" % count
    assert stream.read(at).body == b"".join(b"%06d;" % n for n in range(count, len(ends)))
    assert ends == [token(7 * (n + 1)) for n in range(len(ends))]


@pytest.mark.traced
def test_appends_are_answered_while_a_snapshot_is_still_being_stored__section_2_2(tmp_path: Path) -> None:
    """A disk that takes two seconds to sync the blob holds up the publish, and nothing else."""
    delay = ["-e", "trace=fsync", "-e", "inject=fsync:delay_enter=2000000:when=1"]
    # The log and the catalog sync by another call; only blobs are synced by this one.
    with Node.started(tmp_path, flags=("--checkpoint-interval-ms", "3600000")) as node:
        stream = make_stream(node, make_bucket(node), "s")
        for _ in range(3):
            stream.append(b"before;")
        node.restart(["strace", "-D", "-f", "-qq", "-o", "/dev/null", *delay])
        with node.connect() as publishing:
            path = f"{stream.path}/snapshot/{stream.ends[2]}"
            publishing.send(f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nstate".encode())
            for _ in range(20):
                stream.append(b"during;")
                assert stream.head().header("stream-snapshot-offset") is None
            assert publishing.read_response("PUT").status == 204
        assert stream.head().header("stream-snapshot-offset") == stream.ends[2]
        assert stream.read(stream.ends[2]).body == b"during;" * 20


# --- §2.3: latest snapshot ----------------------------------------------------------------------------------


def test_the_latest_snapshot_is_a_redirect_to_its_offset__section_2_3(three: Stream) -> None:
    for end in three.ends[:2]:
        assert three.publish(end, b"state").status == 204
        answer = three.snapshot()
        assert answer.status == 307
        assert (answer.header("location") or "").removeprefix(three.node.url) == f"{three.path}/snapshot/{end}"


def test_the_redirect_keeps_the_escapes_of_the_streams_name__section_2_3(node: Node, bucket: str, surface: str) -> None:
    stream = Stream(node, f"{surface}/{bucket}/a%20b%C3%A9%25", TEXT)
    assert stream.create(b"x").status == 201
    assert stream.publish(token(1), b"state").status == 204
    location = stream.snapshot().header("location") or ""
    assert node.request("GET", location.removeprefix(node.url)).body == b"state"


def test_without_a_snapshot_there_is_no_latest_one__section_2_3(three: Stream) -> None:
    assert three.snapshot().status == 404


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_the_latest_snapshot_is_only_read__section_2_3(three: Stream, method: str) -> None:
    assert three.node.request(method, f"{three.path}/snapshot", TEXT, b"x").status == 405


# --- §2.4: HEAD ---------------------------------------------------------------------------------------------


def test_head_has_no_snapshot_offset_without_a_snapshot__section_2_4(three: Stream) -> None:
    assert three.head().header("stream-snapshot-offset") is None


def test_head_names_the_snapshot_that_the_redirect_leads_to__section_2_4(three: Stream) -> None:
    for end in three.ends:
        assert three.publish(end, b"state").status == 204
        offset = three.head().header("stream-snapshot-offset")
        assert offset == end
        assert (three.snapshot().header("location") or "").endswith(f"/snapshot/{offset}")


def test_a_recreated_stream_has_no_snapshot__section_2_4(node: Node, bucket: str) -> None:
    stream = make_stream(node, bucket)
    stream.append(b"old")
    assert stream.publish(token(3), b"state").status == 204
    assert stream.delete().status == 204
    assert stream.create(b"new").status == 201
    assert stream.head().header("stream-snapshot-offset") is None
    assert stream.snapshot(token(3)).status == 404
    assert stream.read().body == b"new"


# --- §2.5: read ---------------------------------------------------------------------------------------------


def test_reading_a_snapshot_returns_its_bytes_and_where_to_go_on__section_2_5(three: Stream) -> None:
    blob = bytes(range(256)) * 8
    assert three.publish(three.ends[1], blob, {"Content-Type": "image/png"}).status == 204
    answer = three.snapshot(three.ends[1])
    assert (answer.status, answer.body, answer.header("content-type")) == (200, blob, "image/png")
    assert answer.header("stream-snapshot-offset") == three.ends[1]
    assert three.read(next_offset(answer)).body == b"three "


def test_up_to_date_says_whether_the_stream_has_more_than_the_snapshot__section_2_5(three: Stream) -> None:
    assert three.publish(three.ends[1], b"state").status == 204
    assert three.snapshot(three.ends[1]).header("stream-up-to-date") == "false"
    assert three.publish(three.ends[2], b"state").status == 204
    assert three.snapshot(three.ends[2]).header("stream-up-to-date") == "true"
    three.append(b"more")
    assert three.snapshot(three.ends[2]).header("stream-up-to-date") == "false"


def test_a_snapshot_may_be_empty_or_large__section_2_5(three: Stream) -> None:
    for blob in (b"", b"x" * 3_000_000):
        assert three.publish(three.ends[0], blob).status == 204
        assert three.snapshot(three.ends[0]).body == blob
        head = three.node.request("HEAD", f"{three.path}/snapshot/{three.ends[0]}")
        assert (head.status, head.header("content-length")) == (200, str(len(blob)))


def test_a_snapshot_that_does_not_exist_is_404__section_2_5(three: Stream) -> None:
    assert three.snapshot(three.ends[0]).status == 404
    assert three.publish(three.ends[1], b"state").status == 204
    assert three.snapshot(three.ends[0]).status == 404
    assert three.snapshot(three.ends[2]).status == 404


# --- §2.6: delete -------------------------------------------------------------------------------------------


def test_the_latest_snapshot_cannot_be_deleted__section_2_6(three: Stream) -> None:
    assert three.publish(three.ends[1], b"state").status == 204
    assert three.node.request("DELETE", f"{three.path}/snapshot/{three.ends[1]}").status == 409
    assert three.snapshot(three.ends[1]).body == b"state"


def test_a_superseded_or_unknown_snapshot_is_404_to_delete__section_2_6(three: Stream) -> None:
    assert three.node.request("DELETE", f"{three.path}/snapshot/{three.ends[0]}").status == 404
    for end in three.ends[:2]:
        assert three.publish(end, b"state").status == 204
    for end in (three.ends[0], three.ends[2]):
        assert three.node.request("DELETE", f"{three.path}/snapshot/{end}").status == 404


def test_the_flat_surface_has_no_snapshots_only_streams_of_such_names__section_2(node: Node) -> None:
    bucket = fresh_name()
    path = f"/v1/stream/{bucket}/s/snapshot/{token(0)}"
    assert node.request("PUT", path, TEXT, b"a stream").status == 201
    assert node.request("GET", path).body == b"a stream"
    assert node.request("GET", f"{PLAIN}/{bucket}/s/snapshot").status == 404
