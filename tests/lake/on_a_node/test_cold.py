"""What a node's clients see of records that only the lake holds: the same as before they settled.
Every test asks once while the records are in memory and again after they left it, and after a restart."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.doors.http.live_reads import STALLED_TICKS
from tests.lake.on_a_node.surface import (
    JSON,
    QUIET,
    TEXT,
    append,
    assert_table_is_http,
    content,
    create,
    flush,
    metric,
    path_of,
)
from tests.support.http import EventStream, read_messages
from tests.support.node import Node

FLAGS = (*QUIET, "--checkpoint-interval-ms", "50", "--read-bytes-max", "1KiB")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path, flags=FLAGS) as node:
        yield node
        assert node.running, node.output()
        assert "Traceback" not in node.stderr(), node.output()


def lines(count: int, size: int = 40) -> list[bytes]:
    return [f"{number:06d} ".encode().ljust(size - 1, b".") + b"\n" for number in range(count)]


def filled(node: Node, key: str, payloads: list[bytes]) -> list[int]:
    """A stream of these records; returns where each begins, and the tail."""
    edges = [0]
    with node.connect() as connection:
        create(connection, key)
        for payload in payloads:
            append(connection, key, payload)
            edges.append(edges[-1] + len(payload))
    return edges


def settled_and_restarted(node: Node) -> None:
    flush(node)
    assert node.terminate() == 0, node.output()
    node.start()
    assert metric(node, "hot_bytes") == 0


def test_a_stream_is_read_from_any_offset_after_it_settled_and_after_a_restart(node: Node, tmp_path: Path) -> None:
    payloads = lines(200)
    edges = filled(node, "cold/a", payloads)
    whole = b"".join(payloads)
    for prepare in (lambda: None, lambda: flush(node), lambda: settled_and_restarted(node)):
        prepare()
        with node.connect() as connection:
            for edge in edges[::17]:
                answer = connection.request("GET", f"{path_of('cold/a')}?offset={edge:020d}")
                following = int(answer.header("stream-next-offset") or -1)
                assert answer.status == 200 and answer.body == whole[edge:following]
                assert following > edge or edge == edges[-1]
                assert len(answer.body) <= 1024
            assert connection.request("GET", f"{path_of('cold/a')}?offset={edges[5] + 1:020d}").status == 400
            assert connection.request("GET", f"{path_of('cold/a')}?offset={edges[-1] - 1:020d}").status == 400
    assert_table_is_http(node, ["cold/a"], tmp_path / "data" / "lake")


def test_one_answer_spans_lake_and_memory(node: Node) -> None:
    filled(node, "cold/a", lines(10))
    flush(node)
    with node.connect() as connection:
        append(connection, "cold/a", b"and then")
        answer = connection.request("GET", path_of("cold/a"))
    assert answer.body == b"".join(lines(10)) + b"and then"
    assert answer.header("stream-up-to-date") == "true"


def test_one_answer_spans_a_chain_of_forks_in_the_lake(node: Node) -> None:
    forked = dict(JSON)
    with node.connect() as connection:
        assert connection.request("PUT", path_of("cold/0"), JSON, b"[1,2,3]").status == 201
        for level in (1, 2):
            forked["Stream-Forked-From"] = path_of(f"cold/{level - 1}")
            assert connection.request("PUT", path_of(f"cold/{level}"), forked).status == 201
            assert connection.request("POST", path_of(f"cold/{level}"), forked, b"[%d,5]" % (3 + level)).status == 204
        for prepare in (lambda: None, lambda: flush(node)):
            prepare()
            answer = connection.request("GET", path_of("cold/2"))
            assert answer.json() == [1, 2, 3, 4, 5, 5, 5] and answer.header("stream-up-to-date") == "true"
            parts = connection.request("GET", "/cold/2/bootstrap")
            assert parts.header("stream-next-offset") == answer.header("stream-next-offset")
            some = connection.request("GET", f"{path_of('cold/2')}?max_bytes=4")
            assert some.json() == [1, 2, 3, 4]


def test_a_json_stream_comes_back_message_by_message(node: Node, tmp_path: Path) -> None:
    messages = [{"n": number, "text": "ä" * (number % 7)} for number in range(60)]
    with node.connect() as connection:
        create(connection, "cold/json", JSON)
        for number in range(0, 60, 3):
            append(connection, "cold/json", json.dumps(messages[number : number + 3]).encode(), JSON)
        settled_and_restarted(node)
    with node.connect() as connection:
        assert read_messages(connection, path_of("cold/json")) == messages
    assert_table_is_http(node, ["cold/json"], tmp_path / "data" / "lake")


def test_a_follower_catches_up_from_the_lake_and_goes_on_live(node: Node) -> None:
    payloads = lines(60)
    filled(node, "cold/a", payloads)
    settled_and_restarted(node)
    with node.connect() as following, node.connect() as writing:
        events = EventStream.open(following, f"{path_of('cold/a')}?offset=-1&live=sse")
        append(writing, "cold/a", b"live\n")
        expected = b"".join(payloads) + b"live\n"
        seen = ""
        for event in events:
            if event.name == "data":
                seen += event.data + "\n"
            if len(seen) >= len(expected):
                break
    assert seen.encode().replace(b"\n\n", b"\n") == expected


@pytest.mark.parametrize("cold", [False, True], ids=["in memory", "in the lake"])
def test_a_fork_may_begin_anywhere_in_what_its_source_still_has(node: Node, cold: bool) -> None:
    payloads = lines(30)
    edges = filled(node, "cold/a", payloads)
    if cold:
        settled_and_restarted(node)
    with node.connect() as connection:
        for number, (at, sub) in enumerate([(0, 0), (7, 0), (7, 5), (29, 40), (30, 0)]):
            headers = {**TEXT, "Stream-Forked-From": path_of("cold/a"), "Stream-Fork-Offset": f"{edges[at]:020d}"}
            if sub:
                headers["Stream-Fork-Sub-Offset"] = str(sub)
            create(connection, f"cold/fork{number}", headers)
            append(connection, f"cold/fork{number}", b"own")
            expected = b"".join(payloads)[: edges[at] + sub] + b"own"
            assert content(node, f"cold/fork{number}") == expected
        inside = {**TEXT, "Stream-Forked-From": path_of("cold/a"), "Stream-Fork-Offset": f"{edges[3] + 1:020d}"}
        assert connection.request("PUT", path_of("cold/no"), inside).status == 400
    settled_and_restarted(node)
    assert content(node, "cold/fork2") == b"".join(payloads)[: edges[7] + 5] + b"own"


@pytest.mark.parametrize("cold", [False, True], ids=["in memory", "in the lake"])
def test_a_snapshot_lets_go_of_what_lies_before_it(node: Node, cold: bool) -> None:
    payloads = lines(30)
    edges = filled(node, "cold/a", payloads)
    if cold:
        settled_and_restarted(node)
    with node.connect() as connection:
        bad = connection.request("PUT", f"/ds/cold/a/snapshot/{edges[12] + 1:020d}", TEXT, b"state")
        assert bad.status == 400, bad
        answer = connection.request("PUT", f"/ds/cold/a/snapshot/{edges[12]:020d}", TEXT, b"state")
        assert answer.status == 204, answer
        assert connection.request("GET", f"{path_of('cold/a')}?offset={edges[3]:020d}").status == 410
        answer = connection.request("GET", f"{path_of('cold/a')}?offset={edges[12]:020d}")
        assert b"".join(payloads)[edges[12] :].startswith(answer.body) and answer.body
    settled_and_restarted(node)
    answer = node.request("GET", f"{path_of('cold/a')}?offset={edges[12]:020d}")
    assert b"".join(payloads)[edges[12] :].startswith(answer.body) and answer.body


def test_a_stream_that_was_deleted_and_made_again_shows_nothing_of_the_first(node: Node, tmp_path: Path) -> None:
    filled(node, "cold/a", lines(20))
    flush(node)
    assert node.request("DELETE", path_of("cold/a")).status == 204
    filled(node, "cold/a", lines(5, size=20))
    settled_and_restarted(node)
    assert content(node, "cold/a") == b"".join(lines(5, size=20))
    assert_table_is_http(node, ["cold/a"], tmp_path / "data" / "lake")


@pytest.mark.full
@pytest.mark.parametrize("kind", [TEXT, JSON], ids=["text", "json"])
def test_stalled_readers_of_settled_records_share_them_and_get_every_byte_later(
    tmp_path: Path, kind: dict[str, str]
) -> None:
    """Thirty readers stop for longer than a stall takes; memory grows by far less than thirty bodies of 4 MB."""
    with Node.started(tmp_path, flags=(*QUIET, "--lake-cache-bytes", "8MiB")) as node:
        record = json.dumps("x" * 9_998).encode()
        with node.connect() as connection:
            create(connection, "cold/a", kind)
            for _ in range(50):
                body = b"[" + b",".join([record] * 10) + b"]" if kind is JSON else record * 10
                append(connection, "cold/a", body, kind)
        settled_and_restarted(node)
        expected = node.request("GET", path_of("cold/a")).body
        assert len(expected) > 4_000_000
        before_bytes = node.rss_bytes()
        readers = [node.connect(60, receive_buffer_bytes=4_096) for _ in range(30)]
        try:
            for reader in readers:
                reader.send(f"GET {path_of('cold/a')} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            time.sleep((STALLED_TICKS + 4) * 0.5)
            assert node.rss_bytes() - before_bytes < 60 << 20
            for reader in readers:
                assert reader.read_response().body == expected
        finally:
            for reader in readers:
                reader.close()
        assert node.running, node.output()
