"""A node that is killed while it swaps files: at each system call of the way, and with the table out of reach.
Afterwards every record is there once, over HTTP and in the table alike, and the same swap again ends it."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.lake.on_a_node.surface import QUIET, append, assert_table_is_http, content, create, flush
from tests.lake.on_a_node.swaps import assert_verified, merged, paths, swap, swapped
from tests.support.faults import killed_at
from tests.support.http import BadResponse, ConnectionEnded
from tests.support.node import Node

KEYS = ("swap/a", "swap/b")
# Syncs of the new file, of the catalog and of the table; the table's names; the catalog's writes.
CALLS = {
    "names": ("rename", "renameat2", "link", "linkat", "mkdir", "unlink", "unlinkat"),
    "syncs": ("fsync", "fdatasync"),
    "writes": ("pwrite64", "write"),
}
# Which of these calls ends the node; counted per thread.
POINTS = {"names": (1, 2, 4), "syncs": (1, 2, 3, 5), "writes": (2, 4, 8, 14)}
POINTS_SOAK = range(1, 25)


def fill(node: Node, number: int) -> None:
    """Three more files."""
    with node.connect() as connection:
        for part in range(3):
            for key in KEYS:
                append(connection, key, f"{key} {number} {part}\n".encode() * 20)
            flush(node)


def ask(node: Node, old: Sequence[str], new: str) -> None:
    try:
        swap(node, old, [new])
    except (OSError, ConnectionEnded, BadResponse):
        pass


def assert_all_there(node: Node, before: list[bytes], old: list[str], new: str) -> None:
    """The swap is done, or it is not; nobody can tell from what is read."""
    assert [content(node, key) for key in KEYS] == before
    found = paths(node)
    assert found in (sorted(old), [new]), found
    assert_table_is_http(node, KEYS, node.data_directory / "lake")


def kill_at(tmp_path: Path, kind: str, whens: Sequence[int], killed_min: int) -> None:
    killed = 0
    with Node.started(tmp_path, flags=QUIET) as node:
        place = node.data_directory / "lake"
        with node.connect() as connection:
            for key in KEYS:
                create(connection, key)
        for number, when in enumerate(whens):
            fill(node, number)
            before, old = [content(node, key) for key in KEYS], paths(node)
            new = merged(node, place, old, f"new{number}")
            assert node.terminate() == 0, node.output()
            killed += killed_at(node, CALLS[kind], when, partial(ask, node, old, new))
            assert_all_there(node, before, old, new)
            assert_verified(node)
            node.start()
            swapped(node, old, [new])
            assert paths(node) == [new]
            assert_all_there(node, before, old, new)
        assert_verified(node)
        assert killed >= killed_min, "the kills came after the swap, so they proved nothing"


@pytest.mark.traced
@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", CALLS)
def test_a_kill_at_each_call_of_a_swap_loses_and_doubles_nothing(tmp_path: Path, kind: str) -> None:
    kill_at(tmp_path, kind, POINTS[kind], len(POINTS[kind]) // 2)


@pytest.mark.traced
@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", CALLS)
def test_a_kill_at_many_more_calls_of_a_swap_loses_and_doubles_nothing(tmp_path: Path, kind: str) -> None:
    kill_at(tmp_path, kind, POINTS_SOAK, 3)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_kills_at_random_moments_of_swaps_lose_and_double_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("HEADWATER_CRASH_SEED", time.time_ns() % 10**9))
    print(f"crash seed {seed}")
    rng = random.Random(seed)
    with Node.started(tmp_path, flags=QUIET) as node:
        place = node.data_directory / "lake"
        with node.connect() as connection:
            for key in KEYS:
                create(connection, key)
        for number in range(6):
            fill(node, number)
            before, old = [content(node, key) for key in KEYS], paths(node)
            new = merged(node, place, old, f"new{number}")
            asking = threading.Thread(target=ask, args=(node, old, new))
            asking.start()
            time.sleep(rng.uniform(0.0, 0.25))
            node.kill()
            asking.join()
            node.start()
            assert_all_there(node, before, old, new)
            if rng.random() < 0.5:
                swapped(node, old, [new])
        assert_verified(node)


def lake(node: Node, command: str) -> int:
    """`headwater lake …` beside a stopped node; its exit code."""
    full = [sys.executable, "-m", "headwater", "lake", command, "--data", str(node.data_directory)]
    return subprocess.run(full, capture_output=True, timeout=300, check=False).returncode


@contextmanager
def table_out_of_reach(place: Path) -> Iterator[None]:
    """The next commit cannot be written: a folder has its name."""
    log = place / "_delta_log"
    taken = log / f"{max(int(path.stem) for path in log.glob('*.json')) + 1:020d}.json"
    taken.mkdir()
    (taken / "x").write_bytes(b"")
    try:
        yield
    finally:
        (taken / "x").unlink()
        taken.rmdir()


@pytest.mark.full
def test_a_table_that_was_out_of_reach_is_made_to_follow(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=QUIET) as node:
        place = node.data_directory / "lake"
        with node.connect() as connection:
            for key in KEYS:
                create(connection, key)
        fill(node, 0)
        before, old = [content(node, key) for key in KEYS], paths(node)
        new = merged(node, place, old, "new")
        with table_out_of_reach(place):
            answer = swap(node, old, [new])
            assert answer.status == 503, answer
            assert [content(node, key) for key in KEYS] == before, "the catalog knows the new file already"
            node.kill()
        assert lake(node, "verify") == 1, "records are missing from the table"
        as_it_was = shutil.copytree(node.data_directory, tmp_path / "as-it-was")
        for way in ("a start", "the same swap again", "gc of the stopped node"):
            shutil.rmtree(node.data_directory)
            shutil.copytree(as_it_was, node.data_directory)
            if way == "gc of the stopped node":
                assert lake(node, "gc") == 0 == lake(node, "verify")
            node.start()
            if way == "the same swap again":
                assert swapped(node, old, [new])["removed_rows"] == 6
            assert_all_there(node, before, old, new)
            assert_verified(node)
