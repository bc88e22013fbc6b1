"""Kills the server with SIGKILL at random moments, hundreds of times when asked, and holds it to every promise.
It owns which runs there are; the loop is in `harness`, the promises in `verify`."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.crash.harness import SMALL_LOG, CrashRun, kill_while_starting, short_lives
from tests.support.faults import killing
from tests.support.http import read_bytes
from tests.support.node import Node, NotReady
from tests.support.writer import record

KILLS = int(os.environ.get("HEADWATER_CRASH_KILLS", "12"))
KILLS_SOAK = 300
KILL_POINTS_MAX = 20

SMALL_LOG_LARGE_BYTES = 100_000
FILE_CHANGES = ("fdatasync", "fsync", "ftruncate", "fallocate", "unlink", "unlinkat", "rename", "renameat2")


def _run(directory: Path, kills: int, flags: tuple[str, ...] = (), large_bytes: int = 4096) -> None:
    verifier = CrashRun(directory, kills, flags, large_bytes).run()
    acknowledged = {kind: verifier.acknowledged(kind) for kind in ("plain", "producer", "sequenced", "life")}
    print(f"acknowledged: {acknowledged}")
    assert all(acknowledged.values()), acknowledged
    assert sum(acknowledged.values()) > kills, acknowledged


def _run_short_lives(directory: Path, kills: int) -> None:
    verifier = CrashRun(directory, kills, SMALL_LOG, SMALL_LOG_LARGE_BYTES, plan=short_lives).run()
    print(f"acknowledged: {verifier.acknowledged('life')}")
    first = min((directory / "node" / "data" / "wal").rglob("*.wal"))
    assert int(first.stem) > 0, "the run never let go of a log file, so it proved nothing about that"


@pytest.mark.full
@pytest.mark.timeout(600)
def test_every_acknowledged_record_survives_kills_at_random_moments(tmp_path: Path) -> None:
    _run(tmp_path, KILLS)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_every_acknowledged_record_survives_kills_during_rotation_and_checkpoints(tmp_path: Path) -> None:
    _run(tmp_path, KILLS // 2, SMALL_LOG, SMALL_LOG_LARGE_BYTES)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_nothing_comes_back_or_goes_missing_when_kills_meet_deletion_of_log_files(tmp_path: Path) -> None:
    _run_short_lives(tmp_path, KILLS // 2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("flags", [(), SMALL_LOG], ids=["default", "small-log"])
def test_every_acknowledged_record_survives_hundreds_of_kills(tmp_path: Path, flags: tuple[str, ...]) -> None:
    # Every restart replays the whole log: smaller records keep hundreds of them bearable.
    _run(tmp_path, max(KILLS, KILLS_SOAK), flags, SMALL_LOG_LARGE_BYTES // 5 if flags else 4096)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_nothing_comes_back_or_goes_missing_in_hundreds_of_kills(tmp_path: Path) -> None:
    _run_short_lives(tmp_path, max(KILLS, KILLS_SOAK))


def _fill(node: Node, path: str, records: int) -> bytes:
    """Append `records` records one after another: exactly what the stream must hold from now on."""
    with node.connect() as connection:
        created = connection.request("PUT", path, {"Content-Type": "text/plain"})
        assert created.status == 201, created
        for n in range(records):
            headers = {
                "Content-Type": "text/plain",
                "Producer-Id": "p",
                "Producer-Epoch": "0",
                "Producer-Seq": str(n),
            }
            answer = connection.request("POST", path, headers, record("p", n, 50_000))
            assert answer.status == 200, answer
        return read_bytes(connection, path)


def _assert_intact(node: Node, path: str, content: bytes, records: int) -> None:
    """The stream, its tail and its producer are as `_fill` left them."""
    with node.connect() as connection:
        assert read_bytes(connection, path) == content
        assert connection.request("HEAD", path).header("stream-next-offset") == f"{len(content):020d}"
        headers = {"Content-Type": "text/plain", "Producer-Id": "p", "Producer-Epoch": "0"}
        repeated = connection.request("POST", path, {**headers, "Producer-Seq": str(records - 1)}, b"again")
        assert repeated.status == 204, repeated
        assert repeated.header("producer-seq") == str(records - 1)
        gap = connection.request("POST", path, {**headers, "Producer-Seq": str(records + 1)}, b"gap")
        assert gap.status == 409, gap
        assert gap.header("producer-expected-seq") == str(records)
        assert read_bytes(connection, path) == content


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("flags", [(), SMALL_LOG], ids=["default", "small-log"])
def test_kills_while_starting_lose_nothing(tmp_path: Path, flags: tuple[str, ...]) -> None:
    seed = int(os.environ.get("HEADWATER_CRASH_SEED", time.time_ns() % 10**9))
    print(f"crash seed {seed}")
    rng = random.Random(seed)
    with Node.started(tmp_path, flags=flags) as node:
        content = _fill(node, "/v1/stream/start/a", 300)
        node.kill()
        began_s = time.monotonic()
        node.start()
        start_s = time.monotonic() - began_s
        node.kill()
        for attempt in range(max(KILLS // 2, 5)):
            # Half of them within a few milliseconds, the rest anywhere up to the end of recovery.
            kill_while_starting(node, rng.uniform(0.0, 0.01) if attempt % 2 else rng.uniform(0.0, start_s * 1.1))
        node.start()
        _assert_intact(node, "/v1/stream/start/a", content, 300)


@pytest.mark.traced
@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_kill_at_each_file_change_of_recovery_loses_nothing(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=SMALL_LOG) as node:
        content = _fill(node, "/v1/stream/recovery/a", 300)
        node.kill()
        reached_ready = False
        for when in range(1, KILL_POINTS_MAX):
            node.wrapper = killing(FILE_CHANGES, when)
            try:
                node.start()
            except NotReady as ended:
                assert ended.exit_code == -9, ended
                continue
            # Past the last change of start-up: what else is killed now happens while it serves.
            node.kill()
            reached_ready = True
            break
        assert reached_ready, f"start-up changes files more than {KILL_POINTS_MAX} times"
        node.wrapper = []
        node.start()
        _assert_intact(node, "/v1/stream/recovery/a", content, 300)


@pytest.mark.traced
@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_kill_at_each_file_change_of_rotation_and_checkpoint_loses_nothing(tmp_path: Path) -> None:
    path = "/v1/stream/rotation/a"
    large = record("p", 96, 400_000)
    with Node.started(tmp_path, flags=SMALL_LOG) as node:
        assert node.request("PUT", path, {"Content-Type": "text/plain"}).status == 201
        acknowledged = 0
        for when in (*range(2, 12), 20, 35):
            node.kill()
            node.wrapper = killing([call for call in FILE_CHANGES if call != "fdatasync"], when)
            try:
                node.start()
            except NotReady as ended:
                assert ended.exit_code == -9, ended
                continue
            acknowledged += _append_until_killed(node, path, large, appends_max=24)
            node.wrapper = []
            node.restart()
            with node.connect() as connection:
                kept, rest = divmod(len(read_bytes(connection, path)), len(large))
            assert rest == 0
            # The one in flight when the kill came may be there too; from here on it counts as known.
            assert acknowledged <= kept <= acknowledged + 1
            acknowledged = kept
        assert acknowledged > 0


def _append_until_killed(node: Node, path: str, body: bytes, appends_max: int) -> int:
    """How many appends were acknowledged before the server was gone, or `appends_max`."""
    try:
        with node.connect() as connection:
            for n in range(appends_max):
                try:
                    answer = connection.request("POST", path, {"Content-Type": "text/plain"}, body)
                except Exception:
                    return n
                assert answer.status == 204, answer
    except OSError:
        return 0
    return appends_max
