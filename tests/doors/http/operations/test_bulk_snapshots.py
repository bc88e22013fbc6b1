"""Snapshots of many streams in one request: each entry is judged like a PUT of its own, and answered in its place.
Blobs are looked for where a node keeps them: a refused entry leaves none behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.doors.http.snapshots import discard_refused
from headwater.engine.engine import Engine
from headwater.errors import LogUnavailable, StreamNotFound
from headwater.model.commands import PublishSnapshot
from tests.doors.http.extensions.surface import JSON, Stream, fresh_name, make_bucket, make_stream, token
from tests.doors.http.operations.conftest import New
from tests.engine import null_group
from tests.support.http import Response
from tests.support.node import Node

BULK = "/__headwater/snapshots"
WAIT_S = 30.0


def send(node: Node, value: Any) -> Response:
    body = value if isinstance(value, bytes) else msgspec.msgpack.encode(value)
    return node.request("POST", BULK, {"Content-Type": "application/msgpack"}, body)


def publish(node: Node, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    answer = send(node, entries)
    assert answer.status == 200, answer
    found = answer.json()
    assert len(found) == len(entries)
    return found


def entry(stream: Stream, offset: int, body: bytes = b"state", **more: Any) -> dict[str, Any]:
    return {"stream": stream.path, "offset": offset, "body": body, **more}


def statuses(answers: list[dict[str, Any]]) -> list[int]:
    return [one["status"] for one in answers]


def blobs_of(node: Node) -> set[str]:
    place = node.data_directory / "lake" / "snapshots"
    return {path.name for path in place.rglob("*") if path.is_file()}


def await_blobs(node: Node, expected: set[str]) -> None:
    """Blobs that nothing refers to go after the next checkpoint, which needs something to write."""
    deadline_s = time.monotonic() + WAIT_S
    while blobs_of(node) != expected:
        assert time.monotonic() < deadline_s, blobs_of(node) ^ expected
        name = fresh_name("nudge")
        assert node.request("PUT", f"/v1/stream/{name}", {"Content-Type": "text/plain"}).status == 201
        assert node.request("DELETE", f"/v1/stream/{name}").status == 204


@pytest.fixture
def stream(node: Node) -> Stream:
    """Three records that end at 4, 8 and 14, where snapshots have a path."""
    made = make_stream(node, make_bucket(node))
    for body in (b"one ", b"two ", b"three "):
        made.append(body)
    return made


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node of these tests alone, for those that look at every blob it keeps."""
    with Node.started(tmp_path_factory.mktemp("own"), flags=["--checkpoint-interval-ms", "50"]) as node:
        yield node
        assert "Traceback" not in node.stderr(), node.output()


def test_each_entry_becomes_the_latest_snapshot_of_its_stream(node: Node) -> None:
    bucket = make_bucket(node)
    streams = [make_stream(node, bucket) for _ in range(150)]
    for one in streams:
        one.append(b"hello")
    answers = publish(
        node, [entry(one, 5, b"state %d" % n, content_type=f"text/n{n}") for n, one in enumerate(streams)]
    )
    assert answers == [{"status": 204, "stream_snapshot_offset": token(5)}] * 150
    for n, one in enumerate(streams):
        answer = one.snapshot(token(5))
        assert (answer.body, answer.header("content-type")) == (b"state %d" % n, f"text/n{n}")


def test_a_stream_is_named_by_any_of_its_paths(node: Node, stream: Stream, new: New) -> None:
    flat = new(body=b"flat")
    name = flat.path.removeprefix("/v1/stream/")
    plain = stream.path.removeprefix("/ds")
    entries = [{"stream": one, "offset": 4, "body": b"x"} for one in (name, flat.path, plain, stream.path)]
    assert statuses(publish(node, entries)) == [204] * 4
    assert stream.snapshot(token(4)).header("content-type") == "application/octet-stream"


def test_publishing_lets_go_of_what_lies_before_as_a_single_one_does(node: Node, stream: Stream) -> None:
    assert statuses(publish(node, [entry(stream, 8)])) == [204]
    assert stream.read(token(4)).status == 410
    assert stream.read(token(8)).body == b"three "


def test_refused_entries_are_told_why_and_leave_the_others_alone(node: Node, stream: Stream) -> None:
    other = make_stream(node, make_bucket(node))
    gone = make_stream(node, make_bucket(node))
    gone.append(b"12345678")
    gone.append(b"9")
    assert gone.publish(token(8), b"older").status == 204
    answers = publish(
        node,
        [
            entry(other, 0, b"first"),
            {"stream": "never/made", "offset": 0, "body": b""},
            entry(stream, 15),
            entry(stream, 5),
            entry(gone, 0),
            entry(stream, 4, content_type="text"),
            entry(stream, 4, content_type="text/plain; a=b\r\nSet-Cookie: x=y"),
            entry(stream, -1),
            {"stream": "", "offset": 0, "body": b""},
            {"stream": "/", "offset": 0, "body": b""},
            entry(stream, 14, b"last"),
        ],
    )
    assert statuses(answers) == [204, 404, 409, 400, 410, 400, 400, 400, 400, 400, 204]
    codes = [one["error"]["code"] for one in answers[1:-1]]
    assert codes[:4] == ["stream_not_found", "snapshot_beyond_tail", "bad_snapshot_offset", "offset_gone"]
    assert answers[2]["stream_next_offset"] == token(14)
    assert answers[4]["stream_earliest_offset"] == token(8)
    assert other.snapshot(token(0)).body == b"first" and stream.snapshot(token(14)).body == b"last"


def test_entries_of_one_stream_are_taken_in_their_order(node: Node, stream: Stream) -> None:
    answers = publish(node, [entry(stream, 4, b"a"), entry(stream, 8, b"b"), entry(stream, 4, b"c")])
    assert statuses(answers) == [204, 204, 410]
    assert stream.snapshot(token(8)).body == b"b"


def test_offsets_of_settled_records_are_looked_up_in_the_lake(node: Node) -> None:
    bucket = make_bucket(node)
    streams = [make_stream(node, bucket, headers=JSON) for _ in range(80)]
    for one in streams:
        one.append(b'["aaaa","bbbb"]')
    assert node.request("POST", "/__headwater/flush").status == 200
    good = publish(node, [entry(one, 6) for one in streams])
    assert statuses(good) == [204] * 80
    assert statuses(publish(node, [entry(one, 9) for one in streams])) == [400] * 80


def test_a_refused_entry_leaves_no_blob_behind(own: Node) -> None:
    before = blobs_of(own)
    stream = make_stream(own, make_bucket(own))
    for body in (b"one ", b"two "):
        stream.append(body)
    assert own.request("POST", "/__headwater/flush").status == 200
    # Whether 2 is the end of a message only the lake knows: its blob is stored by then.
    assert statuses(publish(own, [entry(stream, 2), entry(stream, 4, b"kept"), entry(stream, 9)])) == [400, 204, 409]
    (name,) = [name for name in blobs_of(own) - before if name.startswith(token(4))]
    await_blobs(own, {*before, name})
    assert stream.snapshot(token(4)).body == b"kept"


def test_a_superseded_blob_goes(own: Node) -> None:
    before = blobs_of(own)
    stream = make_stream(own, make_bucket(own))
    stream.append(b"one ")
    assert statuses(publish(own, [entry(stream, 0, b"a"), entry(stream, 4, b"b")])) == [204, 204]
    (name,) = [name for name in blobs_of(own) - before if name.startswith(token(4))]
    await_blobs(own, {*before, name})
    assert stream.snapshot(token(4)).body == b"b"


def test_what_was_answered_survives_a_crash(tmp_path: Path) -> None:
    with Node.started(tmp_path) as node:
        bucket = make_bucket(node)
        streams = [make_stream(node, bucket) for _ in range(40)]
        for one in streams:
            one.append(b"hello")
        assert statuses(publish(node, [entry(one, 5, one.path.encode()) for one in streams])) == [204] * 40
        node.restart()
        for one in streams:
            assert one.snapshot(token(5)).body == one.path.encode()


def test_a_store_that_takes_nothing_is_503_for_each_entry_and_changes_nothing(tmp_path: Path) -> None:
    with Node.started(tmp_path) as node:
        stream = make_stream(node, make_bucket(node))
        stream.append(b"hello")
        (node.data_directory / "lake").mkdir(exist_ok=True)
        (node.data_directory / "lake" / "snapshots").write_text("in the way of a folder")
        answers = publish(node, [entry(stream, 5), entry(stream, 1)])
        assert statuses(answers) == [503, 400]
        assert answers[0]["error"]["retryable"] is True
        assert stream.snapshot().status == 404 and stream.read().body == b"hello"
        (node.data_directory / "lake" / "snapshots").unlink()
        assert statuses(publish(node, [entry(stream, 5)])) == [204]


def test_a_blob_stays_when_its_reference_may_be_in_the_log_after_a_restart() -> None:
    group = null_group()
    command = PublishSnapshot(0, "text/plain", "snapshots/1/a", 1)
    owned: Any = {0: SimpleNamespace(group=group)}
    engine = Engine(owned, 1, group.clock)
    discard_refused(engine, command, LogUnavailable("the disk is full"))
    assert not group.loaded.blobs_discarded
    discard_refused(engine, command, StreamNotFound())
    assert [blob for _, blob in group.loaded.blobs_discarded] == ["snapshots/1/a"]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xc1",
        b"[]",
        [],
        {},
        None,
        [1],
        [{}],
        [{"stream": "a", "offset": 0}],
        [{"stream": "a", "offset": "0", "body": b""}],
        [{"stream": "a", "offset": 0.5, "body": b""}],
        [{"stream": 5, "offset": 0, "body": b""}],
        [{"stream": "a", "offset": 0, "body": b"", "more": 1}],
        [{"stream": "a", "offset": 0, "body": b""}] * 1_001,
        msgspec.msgpack.encode([{"stream": "a", "offset": 0, "body": b""}]) + b"x",
        b"\x91" * 10_000,
    ],
    ids=repr,
)
def test_a_body_that_is_no_list_of_snapshots_is_400(node: Node, value: Any) -> None:
    answer = send(node, value)
    assert answer.status == 400, answer
    assert answer.json()["error"]["code"] == "bad_body"


def test_more_than_32_megabytes_are_413(node: Node, stream: Stream) -> None:
    assert send(node, [entry(stream, 4, bytes(17 << 20)), entry(stream, 8, bytes(17 << 20))]).status == 413
    assert stream.snapshot().status == 404


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_another_method_is_405(node: Node, method: str) -> None:
    answer = node.request(method, BULK)
    assert (answer.status, answer.header("allow")) == (405, "POST, OPTIONS")


names = (
    st.sampled_from(["", "/", "a", "/v1/stream/a", "/ds/none/x", "/none/x", "..", "a/../b", "\0", "é" * 700])
    | st.text()
)
odd = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary()


@settings(max_examples=150)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"stream": names | odd, "offset": st.integers(-5, 1 << 64 - 1) | odd, "body": st.binary() | odd},
            optional={"content_type": st.text() | odd, "else": odd},
        ),
        max_size=4,
    )
    | odd
)
def test_nothing_a_client_sends_is_a_fault_of_the_server(own: Node, value: Any) -> None:
    answer = send(own, value)
    assert answer.status in (200, 400), answer
    if answer.status == 200:
        assert all(one["status"] in (400, 404, 409, 410) for one in answer.json()), answer.json()
