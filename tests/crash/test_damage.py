"""A log that was damaged while nobody looked: flipped bits, missing ends, missing files.
It asserts that a node either keeps every promise or refuses to start and says why; never that it guesses."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.harness import SMALL_LOG
from tests.support.http import read_bytes
from tests.support.node import Node, NotReady
from tests.support.writer import record

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

PATH = "/v1/stream/damage/a"
TEXT = {"Content-Type": "text/plain"}
RECORDS = 60
FLIPS = int(os.environ.get("HEADWATER_CRASH_FLIPS", "8"))


def _records(count: int = RECORDS) -> list[bytes]:
    return [record("d", n, 2_000, 5) for n in range(count)]


def _written(directory: Path, stop: Callable[[Node], object], flags: tuple[str, ...] = (), copies: int = 1) -> Node:
    """A node that is stopped, and acknowledged `_records()`, each `copies` times larger."""
    with Node.started(directory, flags=flags) as node:
        with node.connect() as connection:
            assert connection.request("PUT", PATH, TEXT).status == 201
            for content in _records():
                assert connection.request("POST", PATH, TEXT, content * copies).status == 204
        stop(node)
        return node


def _log_files(node: Node) -> list[Path]:
    return sorted((node.data_directory / "wal").rglob("*.wal"))


def _used_bytes(file: Path) -> int:
    """Where the log ends in its preallocated file: zeros follow."""
    return len(file.read_bytes().rstrip(b"\0"))


def _copy(node: Node, directory: Path) -> Node:
    directory.mkdir()
    shutil.copytree(node.data_directory, directory / "data")
    return Node(directory, flags=node.flags)


def _content_or_refusal(node: Node) -> bytes | NotReady:
    """What the stream holds now; or the refusal of the node to start, which must name the log and change nothing."""
    before = {path: path.read_bytes() for path in _log_files(node)}
    try:
        node.start()
    except NotReady as refused:
        assert refused.exit_code not in (None, 0) and refused.exit_code > 0, refused
        assert "Traceback" not in refused.stderr, refused.stderr
        assert "log" in refused.stderr and "restore" in refused.stderr.lower(), refused.stderr
        assert {path: path.read_bytes() for path in _log_files(node)} == before, "a refused log was changed"
        return refused
    try:
        with node.connect() as connection:
            return read_bytes(connection, PATH)
    finally:
        node.kill()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Stopped in order. Tests damage a copy of it."""
    return _written(tmp_path_factory.mktemp("stopped"), Node.terminate)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Node:
    return _written(tmp_path_factory.mktemp("killed"), Node.kill)


@pytest.fixture(scope="module")
def several_files(tmp_path_factory: pytest.TempPathFactory) -> Node:
    return _written(tmp_path_factory.mktemp("several"), Node.terminate, SMALL_LOG, copies=220)


def test_a_flipped_bit_anywhere_is_refused_and_never_skipped(tmp_path: Path, stopped: Node) -> None:
    seed = int(os.environ.get("HEADWATER_CRASH_SEED", time.time_ns() % 10**9))
    print(f"seed {seed}")
    rng = random.Random(seed)
    used = _used_bytes(_log_files(stopped)[0])
    refusals = 0
    for flip in range(FLIPS):
        node = _copy(stopped, tmp_path / f"flip-{flip}")
        file = _log_files(node)[0]
        damaged = bytearray(file.read_bytes())
        at, bit = rng.randrange(used), rng.randrange(8)
        damaged[at] ^= 1 << bit
        file.write_bytes(damaged)
        result = _content_or_refusal(node)
        refusals += isinstance(result, NotReady)
        assert isinstance(result, NotReady) or result == b"".join(_records()), f"byte {at} bit {bit}, seed {seed}"
    # A flip in what follows the last promise may be harmless; in all else it may not.
    assert refusals > FLIPS // 2


@pytest.mark.parametrize("missing_bytes", [1, 7, 8, 31, 40, 200, 1_500, 4_000])
def test_a_log_that_lost_its_end_after_a_clean_stop_is_refused(
    tmp_path: Path, stopped: Node, missing_bytes: int
) -> None:
    node = _copy(stopped, tmp_path / "copy")
    file = _log_files(node)[0]
    os.truncate(file, _used_bytes(file) - missing_bytes)
    result = _content_or_refusal(node)
    # Only a last mark, which promises nothing by itself, may go unnoticed.
    assert isinstance(result, NotReady) or result == b"".join(_records()), result


@pytest.mark.parametrize("missing_bytes", [1, 8, 40, 150, 1_000, 2_500])
def test_a_torn_end_after_a_kill_costs_only_what_was_torn(tmp_path: Path, killed: Node, missing_bytes: int) -> None:
    node = _copy(killed, tmp_path / "copy")
    file = _log_files(node)[0]
    os.truncate(file, _used_bytes(file) - missing_bytes)
    result = _content_or_refusal(node)
    assert isinstance(result, bytes), result
    kept = [n for n in range(RECORDS + 1) if result == b"".join(_records(n))]
    assert kept, "what is left is not a prefix of whole records"
    lost_bytes = len(b"".join(_records())) - len(result)
    assert lost_bytes <= missing_bytes + len(max(_records(), key=len)), (lost_bytes, missing_bytes)
    # The log goes on behind the cut, and the next start finds both parts.
    node.start()
    try:
        assert node.request("POST", PATH, TEXT, b"after").status == 204
        node.restart()
        with node.connect() as connection:
            assert read_bytes(connection, PATH) == result + b"after"
    finally:
        node.kill()


@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_a_missing_log_file_is_refused(tmp_path: Path, several_files: Node, which: str) -> None:
    node = _copy(several_files, tmp_path / "copy")
    files = _log_files(node)
    assert len(files) >= 3, files
    files[{"first": 0, "middle": len(files) // 2, "last": -1}[which]].unlink()
    assert isinstance(_content_or_refusal(node), NotReady)


def test_a_catalog_that_is_gone_is_refused_or_rebuilt_from_the_log(tmp_path: Path, stopped: Node) -> None:
    node = _copy(stopped, tmp_path / "copy")
    for file in (node.data_directory / "catalog").glob("0.db*"):
        file.unlink()
    result = _content_or_refusal(node)
    assert isinstance(result, NotReady) or result == b"".join(_records())
