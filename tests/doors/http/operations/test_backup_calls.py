"""The calls that a backup is made with: a hold, its two files, and what ends it. And a restore by hand, without Spark:
catalog, log and objects put where a node looks for them are the node at the moment of the call."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doors.http.extensions.surface import TEXT, Stream, make_bucket, make_stream, token
from tests.support.http import Response
from tests.support.node import Node

BACKUP = "/__headwater/groups/0/backup"
_held: list[tuple[Node, dict[str, Any]]] = []


@pytest.fixture(autouse=True)
def _nothing_stays_held() -> Iterator[None]:
    yield
    while _held:
        node, held = _held.pop()
        if node.running:
            drop(node, held)


def hold(node: Node, **wish: Any) -> dict[str, Any]:
    answer = node.request("POST", BACKUP, (), json.dumps(wish).encode() if wish else b"")
    assert answer.status == 200, answer
    _held.append((node, answer.json()))
    return answer.json()


def part(node: Node, held: dict[str, Any], what: str, start: int = 0, size: int = 1 << 20) -> bytes:
    answer = node.request("GET", f"{BACKUP}/{held['id']}/{what}?from={start}&size={size}")
    assert answer.status == 200, answer
    return answer.body


def whole(node: Node, held: dict[str, Any], what: str, size: int = 1 << 20) -> bytes:
    data = b""
    while found := part(node, held, what, len(data), size):
        data += found
    assert len(data) == held[f"{what}_bytes"]
    return data


def drop(node: Node, held: dict[str, Any]) -> Response:
    return node.request("DELETE", f"{BACKUP}/{held['id']}")


def put_back(node: Node, held: dict[str, Any], data: Path) -> None:
    """What a restore does, by hand."""
    (data / "wal" / "0").mkdir(parents=True)
    (data / "catalog.db").write_bytes(whole(node, held, "catalog", 5_000))
    log = whole(node, held, "log", 777)
    at = 0
    for file in held["log_files"]:
        (data / "wal" / "0" / f"{file['position']:020d}.wal").write_bytes(log[at : at + file["bytes"]])
        at += file["bytes"]
    assert held["lake"] == {"url": str(node.data_directory / "lake"), "endpoint": None, "region": None}
    for name in held["files"] + held["blobs"]:
        (data / "lake" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(node.data_directory / "lake" / name, data / "lake" / name)


def test_catalog_log_and_objects_put_together_are_the_node_at_that_moment(tmp_path: Path) -> None:
    with Node.started(tmp_path / "one", flags=["--log-file-bytes", "66MiB"]) as node:
        bucket = make_bucket(node)
        settled = make_stream(node, bucket)
        for n in range(20):
            settled.append(b"settled %d;" % n)
        assert settled.publish(settled.ends[4], b"state").status == 204
        assert node.request("POST", "/__headwater/flush").status == 200
        busy = [make_stream(node, bucket) for _ in range(3)]
        told: list[int] = [0, 0, 0]
        stop = threading.Event()

        def write(number: int) -> None:
            seq = 0
            while not stop.is_set():
                headers = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(seq), **TEXT}
                assert node.request("POST", busy[number].path, headers, b"%06d;" % seq).status == 200
                seq += 1
                told[number] = seq

        writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        for writer in writers:
            writer.start()
        while min(told) < 20:
            stop.wait(0.01)
        held = hold(node)
        before = list(told)  # at least these were answered when the call returned
        while min(told) < max(before) + 5:
            stop.wait(0.01)
        stop.set()
        for writer in writers:
            writer.join(30)
        put_back(node, held, tmp_path / "two" / "data")
        assert drop(node, held).status == 204
        node.kill()
        shutil.rmtree(tmp_path / "one" / "data")
    with Node.started(tmp_path / "two") as node:
        settled.node = node
        assert settled.read(settled.ends[4]).body == b"".join(b"settled %d;" % n for n in range(5, 20))
        assert settled.snapshot(settled.ends[4]).body == b"state"
        for number, stream in enumerate(busy):
            stream.node = node
            body = stream.read().body
            count = len(body) // 7
            assert body == b"".join(b"%06d;" % seq for seq in range(count))
            assert before[number] <= count <= told[number]
            headers = {"Producer-Id": "p", "Producer-Epoch": "0", **TEXT}
            again = node.request("POST", stream.path, {**headers, "Producer-Seq": str(count - 1)}, b"again")
            assert again.status == 204 and stream.read().body == body
            more = node.request("POST", stream.path, {**headers, "Producer-Seq": str(count)}, b"more")
            assert more.status == 200 and stream.read().body == body + b"more"
        assert node.request("POST", "/__headwater/flush").status == 200
        node.restart()
        assert settled.read(settled.ends[4]).body.endswith(b"settled 19;")
        assert node.terminate() == 0, node.output()


def test_a_backup_says_what_it_is_made_of(node: Node) -> None:
    stream = make_stream(node, make_bucket(node))
    stream.append(b"hello")
    assert stream.publish(token(5), b"state").status == 204
    stream.append(b"more")
    held = hold(node, hold_ms=60_000)
    facts = node.request("GET", f"{BACKUP}/{held['id']}").json()
    assert facts == {name: value for name, value in held.items() if name not in ("files", "blobs")}
    assert (held["group"], held["groups"], held["hold_ms"]) == (0, 1, 60_000)
    assert held["position"] <= node.request("GET", "/__headwater/groups").json()["groups"][0]["position"]
    assert sum(file["bytes"] for file in held["log_files"]) == held["log_bytes"]
    assert any(name.endswith(".parquet") for name in held["files"])
    assert any(f"/{token(5)}-" in name for name in held["blobs"])
    assert part(node, held, "catalog", 0, 16) == b"SQLite format 3\0"
    assert part(node, held, "catalog", held["catalog_bytes"] - 3) == whole(node, held, "catalog")[-3:]
    assert part(node, held, "catalog", held["catalog_bytes"] + 1) == b""
    assert drop(node, held).status == 204


def test_a_hold_that_ended_is_404(node: Node) -> None:
    held = hold(node)
    assert drop(node, held).status == 204
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/catalog"), ("GET", "/log")):
        assert node.request(method, f"{BACKUP}/{held['id']}{path}").status == 404
    assert not list((node.data_directory / "held" / "0").iterdir())


def test_a_third_hold_waits_for_one_to_end(node: Node) -> None:
    held = [hold(node), hold(node)]
    answer = node.request("POST", BACKUP)
    assert answer.status == 503 and answer.header("retry-after")
    for one in held:
        assert drop(node, one).status == 204
    assert drop(node, hold(node)).status == 204


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"hold_ms": "1"}', b'{"hold_ms": 1}', b'{"hold_ms": 1e9}', b'{"x": 1}', b"\xff", b"[" * 9_999],
)
def test_a_wish_that_is_none_is_400(node: Node, body: bytes) -> None:
    assert node.request("POST", BACKUP, (), body).status == 400


@pytest.mark.parametrize("path", ["x", "/a/b/c", "/a/else", "/../x", "/%ff", "/a/catalog", "//log"])
def test_paths_that_lead_nowhere_are_refused(node: Node, path: str) -> None:
    assert node.request("GET", BACKUP + path).status in (400, 404)


def test_parts_and_methods_that_make_no_sense_are_refused(node: Node) -> None:
    held = hold(node)
    for query in ("from=-1", "from=x", "size=1e3", "from=" + "9" * 30, "from=0&from=1"):
        assert node.request("GET", f"{BACKUP}/{held['id']}/log?{query}").status == 400
    assert node.request("GET", BACKUP).header("allow") == "POST, OPTIONS"
    assert node.request("PUT", f"{BACKUP}/{held['id']}").header("allow") == "GET, DELETE, OPTIONS"
    assert node.request("POST", f"{BACKUP}/{held['id']}/log").header("allow") == "GET, OPTIONS"
    assert drop(node, held).status == 204


def test_what_a_crash_left_of_a_hold_is_gone_after_the_start(tmp_path: Path) -> None:
    with Node.started(tmp_path) as node:
        Stream(node, "/v1/stream/s", TEXT).create(b"x")
        held = hold(node)
        assert list((node.data_directory / "held" / "0").iterdir())
        node.restart()
        assert not (node.data_directory / "held" / "0").exists()
        assert drop(node, held).status == 404
        assert drop(node, hold(node)).status == 204


def test_a_node_that_keeps_nothing_has_nothing_to_back_up(tmp_path: Path) -> None:
    with Node.started(tmp_path, memory=True) as node:
        answer = node.request("POST", BACKUP)
        assert answer.status == 400 and "keeps nothing" in answer.json()["error"]["message"]
