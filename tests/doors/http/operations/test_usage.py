"""`GET /__headwater/usage`: what each door gave is counted once, by bucket and day, and outlives the node.
Streams of each test lie in a bucket of its own, so that counts do not mix."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.doors.s3p.client import Client, s3p_node
from tests.support.http import EventStream
from tests.support.node import Node

TEXT = {"Content-Type": "text/plain"}
WAIT_S = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    flags = ("--checkpoint-interval-ms", "50", "--sse-lifetime-ms", "2000", "--sse-keepalive-ms", "300")
    with s3p_node(tmp_path_factory.mktemp("node"), flags=flags) as running:
        yield running
        assert "Traceback" not in running.stderr(), running.output()


def put(node: Node, stream: str, *bodies: bytes) -> str:
    bucket = stream.partition("/")[0]
    assert node.request("PUT", f"/ds/{bucket}", {}, b"").status in (200, 201)
    assert node.request("PUT", f"/ds/{stream}", TEXT, b"").status == 201
    for body in bodies:
        assert node.request("POST", f"/ds/{stream}", TEXT, body).status == 204
    return f"/ds/{stream}"


def counted(node: Node, bucket: str) -> tuple[int, int]:
    lines = node.request("GET", "/__headwater/usage").json()["days"]
    mine = [line for line in lines if line["bucket"] == bucket]
    return sum(line["reads"] for line in mine), sum(line["bytes"] for line in mine)


def assert_counted(node: Node, bucket: str, reads: int, size: int) -> None:
    """The counts come to be these, and stay so over two checkpoints more."""
    until_s = time.monotonic() + WAIT_S
    while counted(node, bucket) != (reads, size) and time.monotonic() < until_s:
        time.sleep(0.02)
    time.sleep(0.12)
    assert counted(node, bucket) == (reads, size)


def test_catch_up_answers_with_records_count_and_others_do_not(node: Node) -> None:
    path = put(node, "plain/s", b"abc", b"defg")
    whole = node.request("GET", f"{path}?offset=-1")
    node.request("GET", f"{path}?offset=-1&max_bytes=3")
    assert node.request("GET", f"{path}?offset=-1", {"If-None-Match": whole.header("etag") or ""}).status == 304
    assert node.request("GET", f"{path}?offset=now").body == b""
    assert node.request("HEAD", path).status == 200
    assert node.request("GET", f"{path}?offset=9999").status >= 400
    assert_counted(node, "plain", 2, 7 + 3)


def test_long_polls_count_when_they_bring_something(node: Node) -> None:
    path = put(node, "polled/s", b"abc")
    assert node.request("GET", f"{path}?offset=-1&live=long-poll").body == b"abc"
    assert_counted(node, "polled", 1, 3)


def test_an_sse_connection_is_one_read_of_all_it_was_sent(node: Node) -> None:
    path = put(node, "followed/s", b"abc")
    with node.connect() as connection:
        events = EventStream.open(connection, f"{path}?offset=-1&live=sse")
        assert node.request("POST", path, TEXT, b"defg").status == 204
        received = [event.data for event in events if event.name == "data"]
    assert "".join(received) == "abcdefg"
    with node.connect() as connection:
        assert [e for e in EventStream.open(connection, f"{path}?offset=now&live=sse") if e.name == "data"] == []
    assert_counted(node, "followed", 1, 7)


def test_a_connection_over_many_streams_counts_in_each_bucket(node: Node) -> None:
    put(node, "many-a/s", b"abc")
    put(node, "many-b/s", b"defg")
    with node.connect() as connection:
        query = "stream=many-a/s&stream=many-b/s&from=start"
        events = [e for e in EventStream.open(connection, f"/__headwater/tail?{query}") if e.name == "data"]
    assert len(events) == 2
    assert_counted(node, "many-a", 1, 3)
    assert_counted(node, "many-b", 1, 4)


def test_s3p_reads_count_also_when_they_waited_together(node: Node) -> None:
    with Client.of(node) as writer, Client.of(node) as one, Client.of(node) as other:
        assert writer.create(b"s3p-reads") == "OK"
        writer.append(b"s3p-reads", b"first")
        assert len(writer.read(b"s3p-reads")) == 1  # type: ignore[arg-type]
        assert writer.read(b"s3p-reads", min_id="99999999999999-0") == []
        reads, size = _default_after(node, 1)
        for reader in (one, other):
            reader.send(_blocked())
        _await_blocked(node, 2)
        writer.append(b"s3p-reads", b"second!", ms=90_000_000_000_000)
        assert [len(reader.records()) for reader in (one, other)] == [1, 1]  # type: ignore[arg-type]
        assert_counted(node, "_default", reads + 2, size + 2 * len(b"second!"))


def _blocked() -> bytes:
    from tests.doors.s3p.client import read_request

    return read_request(b"s3p-reads", block=20_000, min_id="90000000000000-0")


def _await_blocked(node: Node, count: int) -> None:
    until_s = time.monotonic() + WAIT_S
    while node.request("GET", "/__headwater/metrics").json()["s3p_reads_blocked"] < count:
        assert time.monotonic() < until_s
        time.sleep(0.01)


def _default_after(node: Node, reads: int) -> tuple[int, int]:
    until_s = time.monotonic() + WAIT_S
    while (found := counted(node, "_default"))[0] < reads:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    return found


def test_a_bootstrap_counts_with_its_snapshot(node: Node) -> None:
    path = put(node, "folded/s", b"abc", b"defg")
    assert node.request("PUT", f"{path}/snapshot/{3:020d}", TEXT, b"SNAP").status == 204
    assert node.request("HEAD", f"{path}/bootstrap").status == 200
    assert b"SNAP" in node.request("GET", f"{path}/bootstrap").body
    assert node.request("PUT", "/ds/folded/empty", TEXT, b"").status == 201
    assert node.request("GET", "/ds/folded/empty/bootstrap").status == 200
    assert_counted(node, "folded", 1, len(b"SNAP") + len(b"defg"))


def test_pages_hold_each_line_once(node: Node) -> None:
    for name in ("page-a", "page-b", "page-c"):
        node.request("GET", put(node, f"{name}/s", b"abc") + "?offset=-1")
        assert_counted(node, name, 1, 3)
    whole = node.request("GET", "/__headwater/usage").json()
    assert whole["next"] is None
    found: list[dict[str, Any]] = []
    query = "limit=1"
    while query:
        page = node.request("GET", f"/__headwater/usage?{query}").json()
        found += page["days"]
        query = f"limit=1&after={page['next']}" if page["next"] else ""
    assert found == whole["days"]
    assert found == sorted(found, key=lambda line: (line["day"], line["bucket"]))
    today = datetime.now(UTC).date().isoformat()
    assert {line["day"] for line in found} <= {today, min(line["day"] for line in found)}


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=-1", "after=yesterday", "after=/b", "limit=1&limit=2"])
def test_a_bad_question_is_refused_with_its_name(node: Node, query: str) -> None:
    answer = node.request("GET", f"/__headwater/usage?{query}")
    assert answer.status == 400
    assert query.partition("=")[0] in answer.json()["error"]["message"]


def test_other_methods_and_paths_are_refused(node: Node) -> None:
    assert node.request("POST", "/__headwater/usage", TEXT, b"x").status == 405
    assert node.request("GET", "/__headwater/usage/more").status == 404


def test_counts_outlive_a_stop_and_a_kill_keeps_those_of_the_last_checkpoint(tmp_path: Path) -> None:
    # No checkpoint comes by itself: a clean stop takes one, a kill does not.
    with Node.started(tmp_path, flags=("--checkpoint-interval-ms", "3600000")) as node:
        path = put(node, "kept/s", b"abc")
        node.request("GET", f"{path}?offset=-1")
        assert counted(node, "kept") == (0, 0)
        assert node.terminate() == 0
        node.start()
        assert counted(node, "kept") == (1, 3)
        node.request("GET", f"{path}?offset=-1")
        node.kill()
        node.start()
        assert counted(node, "kept") == (1, 3)
