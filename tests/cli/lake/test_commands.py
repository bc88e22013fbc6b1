"""`headwater lake` on what a real node left behind, whole and spoiled; and gc in a node that runs."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headwater.cli.main import app
from headwater.lake.info import read_table
from headwater.lake.local import LocalStore
from tests.support.node import Node
from tests.support.waiting import until

TEXT = {"Content-Type": "text/plain"}
WAIT_S = 30.0


def lake(command: str, *words: str, code: int = 0) -> Any:
    """What a command prints as JSON; its error when it fails otherwise than by findings."""
    done = CliRunner().invoke(app, ["lake", command, *words, "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout) if done.stdout else done.output


def grow(node: Node, name: str, count: int = 10) -> None:
    node.request("PUT", f"/v1/stream/{name}", TEXT, b"")
    for number in range(count):
        assert node.request("POST", f"/v1/stream/{name}", TEXT, b"%s-%d" % (name.encode(), number)).status == 204


def whole(node: Node, name: str) -> bytes:
    """A stream from its beginning to its end, in as many answers as it takes."""
    body, offset = b"", "-1"
    while True:
        answer = node.request("GET", f"/v1/stream/{name}?offset={offset}")
        assert answer.status == 200, answer.body
        body += answer.body
        offset = answer.header("stream-next-offset") or ""
        if answer.header("stream-up-to-date") == "true":
            return body


def flush(node: Node) -> None:
    """Settles everything, and waits until the log says so durably: a kill before that leaves a file it never knew."""
    assert node.request("POST", "/__headwater/flush").status == 200

    def synced() -> bool:
        metrics = node.request("GET", "/__headwater/metrics").json()
        return bool(metrics["log_synced_position"] == metrics["log_tail_position"])

    until(synced)


def table(node: Node) -> set[str]:
    found = read_table(LocalStore(node.data_directory / "lake"))
    return set() if found is None else set(found[1])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path, flags=["--checkpoint-interval-ms", "50", "--lake-gc-interval-ms", "100"]) as node:
        yield node


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("left")
    with Node.started(folder) as node:
        for _ in range(2):
            grow(node, "one")
            grow(node, "two")
            flush(node)
        tail = node.request("HEAD", "/v1/stream/two").header("stream-next-offset")
        assert node.request("PUT", f"/_default/two/snapshot/{tail}", TEXT, b"state").status == 204
        grow(node, "one", 3)
        assert node.terminate() == 0
    return folder / "data"


@pytest.fixture
def left(template: Path, tmp_path: Path) -> Path:
    """The data directory of a stopped node: two files of two streams, a snapshot, and records not settled yet."""
    return shutil.copytree(template, tmp_path / "data")


def test_the_statistics_of_the_table_are_shown_beside_a_running_node(node: Node) -> None:
    grow(node, "stats/one")
    flush(node)
    found = lake("stats", "--data", str(node.data_directory))
    assert (found["files"], found["rows"]) == (1, 10)
    assert [(one["bucket"], one["rows"]) for one in found["buckets"]] == [("stats", 10)]
    assert found["earliest_ms"] == found["buckets"][0]["earliest_ms"] > 0
    shown = CliRunner().invoke(app, ["lake", "stats", "--data", str(node.data_directory)])
    assert shown.exit_code == 0 and "seq\t1\t0\t9\t0" in shown.stdout, shown.output


def test_a_stopped_node_is_described_and_found_clean(left: Path) -> None:
    facts = lake("info", "--data", str(left))
    assert (facts["files"], facts["rows"], facts["rows_live"], facts["served"]) == (2, 40, 20, False)
    assert (facts["snapshots"], facts["snapshot_bytes"], facts["streams"]) == (1, 5, 2)
    assert facts["groups"][0]["position_max"] == facts["position_max"] > facts["position_min"]
    for deep in ([], ["--deep"]):
        report = lake("verify", "--data", str(left), *deep)
        assert (report["findings"], report["rows"], report["extents"], report["snapshots"]) == ([], 20, 2, 1)


def test_a_killed_node_is_found_clean_though_its_catalog_is_behind(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=["--checkpoint-interval-ms", "3600000"]) as node:
        grow(node, "one")
        flush(node)
        node.kill()
    report = lake("verify", "--data", str(tmp_path / "data"), "--deep")
    assert (report["findings"], report["rows"], report["files"]) == ([], 10, 1)
    assert lake("gc", "--data", str(tmp_path / "data"), "--grace-ms", "0")["removed"] == []


def test_a_running_node_is_described_but_neither_verified_nor_swept(node: Node) -> None:
    grow(node, "one")
    flush(node)
    until(lambda: lake("info", "--url", node.url)["rows_live"] == 10)
    facts = lake("info", "--data", str(node.data_directory))
    assert (facts["rows_live"], facts["served"]) == (10, True)
    for command in ("verify", "gc"):
        done = CliRunner().invoke(app, ["lake", command, "--data", str(node.data_directory)])
        assert done.exit_code == 1 and "stop the node first" in done.output


def test_a_directory_without_a_node_is_refused(tmp_path: Path) -> None:
    for command in ("info", "verify", "gc"):
        done = CliRunner().invoke(app, ["lake", command, "--data", str(tmp_path / "none")])
        assert done.exit_code == 1 and "no directory.json" in done.output
    assert not (tmp_path / "none").exists()


def first_file(data: Path) -> Path:
    return sorted((data / "lake" / "data" / "0").iterdir())[0]


def change_catalog(data: Path, statement: str) -> None:
    with sqlite3.connect(data / "catalog" / "0.db") as db:
        assert db.execute(statement).rowcount == 1
    db.close()


def flip_a_byte(data: Path) -> None:
    path = first_file(data)
    content = bytearray(path.read_bytes())
    at = content.index(b"one-0")
    content[at] ^= 1
    path.write_bytes(content)


OLDEST = "(select min(start) from extents where sid = 1)"
SPOILED: list[tuple[str, Callable[[Path], object], list[str]]] = [
    ("store", lambda data: first_file(data).unlink(), []),
    ("store", lambda data: os.truncate(first_file(data), 100), []),
    ("gap", lambda data: change_catalog(data, f"delete from extents where sid = 1 and start = {OLDEST}"), []),
    ("catalog", lambda data: change_catalog(data, "delete from files where id = 1"), []),
    ("extent", lambda data: change_catalog(data, "delete from streams where sid = 1"), []),
    ("snapshot", lambda data: next((data / "lake" / "snapshots" / "0" / "2").iterdir()).unlink(), []),
    ("damage", flip_a_byte, ["--deep"]),
]


@pytest.mark.parametrize(("kind", "spoil", "flags"), SPOILED)
def test_what_does_not_agree_is_found(left: Path, kind: str, spoil: Callable[[Path], object], flags: list[str]) -> None:
    spoil(left)
    report = lake("verify", "--data", str(left), *flags, code=1)
    assert kind in {finding["kind"] for finding in report["findings"]}
    assert report["findings_count"] == len(report["findings"])


def test_a_damaged_row_is_not_seen_without_reading_it(left: Path) -> None:
    flip_a_byte(left)
    assert lake("verify", "--data", str(left))["findings"] == []


def test_gc_shows_first_and_then_does_what_it_showed(tmp_path: Path) -> None:
    with Node.started(tmp_path) as node:
        grow(node, "one")
        flush(node)
        node.request("DELETE", "/v1/stream/one")
        grow(node, "two")
        flush(node)
        node.terminate()
        data, before = str(node.data_directory), table(node)
        planned = lake("gc", "--data", data, "--dry-run")
        assert [one["what"] for one in planned["removed"]] == ["leaves the table"]
        assert table(node) == before
        assert lake("gc", "--data", data)["removed"] == planned["removed"]
        assert len(table(node)) == 1 and len(list((node.data_directory / "lake/data/0").iterdir())) == 2
        assert lake("gc", "--data", data)["removed"] == []
        assert [one["what"] for one in lake("gc", "--data", data, "--grace-ms", "0")["removed"]] == ["dead file"]
        assert lake("verify", "--data", data, "--deep")["findings"] == []
        node.start()
        assert node.request("GET", "/v1/stream/two").body.startswith(b"two-0two-1")


def test_a_running_node_takes_dead_files_out_of_the_table_and_deletes_old_orphans(node: Node) -> None:
    grow(node, "one")
    flush(node)
    assert len(table(node)) == 1
    orphan = node.data_directory / "lake" / "data" / "0" / "orphan.parquet"
    orphan.write_bytes(b"left by a crash")
    until(lambda: json.loads(node.request("GET", "/__headwater/metrics").body)["lake_gc_runs"] >= 2)
    assert orphan.exists() and len(table(node)) == 1
    os.utime(orphan, (0, 0))
    until(lambda: not orphan.exists())
    node.request("DELETE", "/v1/stream/one")
    until(lambda: table(node) == set())
    # Its grace period has only begun.
    assert len(list(orphan.parent.iterdir())) == 1
    assert node.terminate() == 0 and "gc" not in node.stderr()


def test_a_fork_keeps_the_file_of_its_deleted_source(node: Node) -> None:
    grow(node, "source")
    flush(node)
    forked = node.request("PUT", "/v1/stream/fork", {**TEXT, "Stream-Forked-From": "/v1/stream/source"}, b"")
    assert forked.status == 201, forked.body
    node.request("DELETE", "/v1/stream/source")

    def runs() -> int:
        return int(json.loads(node.request("GET", "/__headwater/metrics").body)["lake_gc_runs"])

    seen = runs()
    until(lambda: runs() >= seen + 3)
    assert len(table(node)) == 1
    assert node.request("GET", "/v1/stream/fork").body.startswith(b"source-0")
    node.request("DELETE", "/v1/stream/fork")
    until(lambda: table(node) == set())


def test_an_age_policy_reaches_settled_records_of_a_stream_nobody_looks_at(node: Node) -> None:
    node.request("PUT", "/v1/stream/aging", {**TEXT, "Stream-Retention-Age": "1"}, b"")
    for number in range(5):
        node.request("POST", "/v1/stream/aging", TEXT, b"%d" % number)
    flush(node)
    until(lambda: node.request("GET", "/v1/stream/aging?offset=-1").status == 410)
    until(lambda: table(node) == set())


def test_a_node_that_is_killed_while_gc_runs_is_found_clean_each_time(node: Node) -> None:
    data = str(node.data_directory)
    for number in range(4):
        grow(node, f"source-{number}")
        grow(node, f"going-{number}")
        flush(node)
        forked = {**TEXT, "Stream-Forked-From": f"/v1/stream/source-{number}"}
        assert node.request("PUT", f"/v1/stream/fork-{number}", forked, b"own").status == 201
        for name in (f"source-{number}", f"going-{number}", f"fork-{number - 2}"):
            node.request("DELETE", f"/v1/stream/{name}")
        flush(node)
        # Somewhere between nothing and several runs of gc.
        time.sleep(0.07 * number)
        node.kill()
        report = lake("verify", "--data", data, "--deep")
        assert (report["findings"], report["extents"] > 0) == ([], True)
        node.start()
    for number in (2, 3):
        expected = b"".join(b"source-%d-%d" % (number, n) for n in range(10)) + b"own"
        assert whole(node, f"fork-{number}") == expected
    assert lake("gc", "--data", data, code=1)
    node.terminate()
    lake("gc", "--data", data, "--grace-ms", "0")
    lake("gc", "--data", data, "--grace-ms", "0")
    assert lake("verify", "--data", data, "--deep")["findings"] == []
    assert {path.name for path in (node.data_directory / "lake/data/0").iterdir()} == {
        Path(name).name for name in table(node)
    }


def test_a_directory_that_cannot_be_locked_is_told_in_a_line(left: Path) -> None:
    (left / "lock").unlink(missing_ok=True)
    (left / "lock").mkdir()
    done = CliRunner().invoke(app, ["lake", "verify", "--data", str(left)])
    assert done.exit_code == 1 and "cannot use the data directory" in done.output
