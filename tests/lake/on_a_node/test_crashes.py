"""A node that is killed while it settles: at each system call of the way into the lake, and at random moments.
Afterwards every acknowledged record is there once and in order, over HTTP and in the table alike."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.crash.harness import STREAMS, CrashRun
from tests.lake.on_a_node.surface import (
    QUIET,
    SMALL,
    TEXT,
    assert_rows_are_http,
    assert_table_is_http,
    assert_verified,
    create,
    flush,
    incarnation,
    path_of,
    table_rows,
    tabled,
)
from tests.support.faults import killed_at
from tests.support.http import BadResponse, ConnectionEnded, read_bytes
from tests.support.node import Node
from tests.support.writer import record

KILLS = int(os.environ.get("HEADWATER_LAKE_KILLS", "6"))
KILLS_SOAK = 200
# One stream's records fill several row groups and files; a flush is asked for, so that its calls are the ones counted.
ASKED = (*QUIET, "--lake-file-bytes", "64KiB", "--log-file-bytes", "2MiB", "--body-bytes-max", "512KiB")
KEYS = ("settle/a", "settle/b")
# Every call on the way: folders and temporary files, names, syncs of lake, log and catalog.
CALLS = {
    "names": ("rename", "renameat2", "link", "linkat", "mkdir", "unlink", "unlinkat"),
    "syncs": ("fsync", "fdatasync"),
    "writes": ("pwrite64", "write"),
}
# Which of these calls ends the node; counted per thread.
POINTS = {"names": (1, 2, 3, 5), "syncs": (1, 2, 3, 5), "writes": (2, 5, 9)}
POINTS_SOAK = range(1, 25)


def fill(node: Node, n_from: int, count: int) -> int:
    """Appends records to both streams until done or the node is gone; returns how many both have acknowledged."""
    try:
        with node.connect() as connection:
            for n in range(n_from, n_from + count):
                for key in KEYS:
                    headers = {**TEXT, "Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(n)}
                    answer = connection.request("POST", path_of(key), headers, record(key, n, 3_000))
                    assert answer.status in (200, 204), answer
                n_from = n + 1
    except (OSError, ConnectionEnded):
        pass
    return n_from


def ask_for_flush(node: Node) -> None:
    try:
        node.request("POST", "/__headwater/flush")
    except (OSError, ConnectionEnded, BadResponse):
        pass


def assert_all_there(node: Node, acknowledged: int) -> int:
    """Returns how many records there are: one more than acknowledged may have been on its way."""
    with node.connect() as connection:
        contents = [read_bytes(connection, path_of(key)) for key in KEYS]
    kept = 0
    for key, content in zip(KEYS, contents, strict=True):
        lines = content.splitlines(keepends=True)
        assert lines == [record(key, n, 3_000) for n in range(len(lines))]
        assert acknowledged <= len(lines) <= acknowledged + 1
        kept = max(kept, len(lines))
    return kept


@pytest.mark.traced
@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", CALLS)
def test_a_kill_at_each_call_of_a_flush_loses_and_doubles_nothing(tmp_path: Path, kind: str) -> None:
    kill_at(tmp_path, kind, POINTS[kind], len(POINTS[kind]) // 2)


@pytest.mark.traced
@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", CALLS)
def test_a_kill_at_many_more_calls_of_a_flush_loses_and_doubles_nothing(tmp_path: Path, kind: str) -> None:
    kill_at(tmp_path, kind, POINTS_SOAK, 3)


def kill_at(tmp_path: Path, kind: str, whens: Sequence[int], killed_min: int) -> None:
    place = tmp_path / "data" / "lake"
    killed = 0
    with Node.started(tmp_path, flags=ASKED) as node:
        with node.connect() as connection:
            for key in KEYS:
                create(connection, key)
        acknowledged = 0
        for when in whens:
            node.kill()
            node.wrapper = []
            node.start()
            acknowledged = fill(node, acknowledged, 8)
            assert node.terminate() == 0, node.output()
            killed += killed_at(node, CALLS[kind], when, lambda: ask_for_flush(node))
            assert assert_all_there(node, acknowledged) == acknowledged
            flush(node)
            assert_all_there(node, acknowledged)
            assert_table_is_http(node, KEYS, place)
            assert node.terminate() == 0, node.output()
            assert_verified(node)
        assert killed >= killed_min, "the kills came after the flush, so they proved nothing"


@pytest.mark.full
@pytest.mark.timeout(600)
def test_kills_while_a_full_flush_runs_lose_and_double_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("HEADWATER_CRASH_SEED", time.time_ns() % 10**9))
    print(f"crash seed {seed}")
    rng = random.Random(seed)
    with Node.started(tmp_path, flags=SMALL) as node:
        with node.connect() as connection:
            for key in KEYS:
                create(connection, key)
        acknowledged = 0
        for _ in range(max(4, KILLS // 2)):
            acknowledged = fill(node, acknowledged, 40)
            time.sleep(rng.uniform(0.0, 0.3))
            node.kill()
            node.start()
            acknowledged = assert_all_there(node, acknowledged)
        flush(node)
        assert_table_is_http(node, KEYS, tmp_path / "data" / "lake")
        assert node.terminate() == 0, node.output()
        assert_verified(node)


def run_writers(directory: Path, kills: int) -> None:
    """The writers of the crash tests, on a node that settles all the time."""
    verifier = CrashRun(directory, kills, SMALL, 20_000).run()
    assert verifier.acknowledged("plain") and verifier.acknowledged("producer") and verifier.acknowledged("life")
    with Node.started(directory / "node", flags=SMALL) as node:
        flush(node)
        verifier.check(node, settled=True, context="after everything settled")
        rows = table_rows(directory / "node" / "data" / "lake")
        with node.connect() as connection:
            lives = [key for key, _ in tabled(rows) if key.startswith("life/") and incarnation(connection, key)]
        assert_rows_are_http(node, [*STREAMS, *lives], rows)
        assert node.terminate() == 0, node.output()
        assert_verified(node)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_what_writers_were_told_holds_when_kills_meet_settling(tmp_path: Path) -> None:
    run_writers(tmp_path, KILLS)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_what_writers_were_told_holds_through_hundreds_of_kills(tmp_path: Path) -> None:
    run_writers(tmp_path, max(KILLS, KILLS_SOAK))
