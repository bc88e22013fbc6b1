"""The parent of workers: ready when all are, a dead one is started again, they stop together.
The workers here are small scripts: what a real one does is not this module's business."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.cluster.supervisor import CannotListen, SocketDirectory, listen
from tests.support.process_table import is_gone
from tests.support.waiting import until

WITHIN_S = 30.0
WORKER = textwrap.dedent(
    """
    import json, os, pathlib, sys
    order = json.loads(sys.stdin.readline())
    folder = pathlib.Path(order["directory"])
    if (folder / "refuse").exists() and order["member"] == 1:
        print("cannot", file=sys.stderr)
        sys.exit(3)
    (folder / f"{order['member']}.pid").write_text(str(os.getpid()))
    sys.stdout.write("ready\\n"); sys.stdout.flush()
    sys.stdin.read()   # its end is the parent's
    """
)
PARENT = textwrap.dedent(
    """
    import asyncio, sys
    from headwater.cluster.supervisor import Order, supervise
    folder, worker = sys.argv[1], sys.argv[2]
    orders = [Order(member, 2, 2, folder, {}, ("127.0.0.1", 1)) for member in range(2)]
    sys.exit(asyncio.run(supervise(orders, [sys.executable, worker], [], 1.0, lambda: print("all ready", flush=True))))
    """
)


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = started(tmp_path)
    yield process
    process.kill()
    process.wait(WITHIN_S)


def started(folder: Path) -> subprocess.Popen[str]:
    (folder / "worker.py").write_text(WORKER)
    (folder / "parent.py").write_text(PARENT)
    command = [sys.executable, str(folder / "parent.py"), str(folder), str(folder / "worker.py")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def pid(folder: Path, member: int) -> int:
    return int((folder / f"{member}.pid").read_text() or 0)


def alive(number: int) -> bool:
    return not is_gone(number)


def test_it_is_ready_when_all_workers_are_and_stops_with_them(parent: subprocess.Popen[str], tmp_path: Path) -> None:
    assert parent.stdout is not None and parent.stdout.readline() == "all ready\n"
    workers = [pid(tmp_path, member) for member in range(2)]
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(WITHIN_S) == 0
    assert not any(map(alive, workers))


def test_a_worker_that_is_killed_is_started_again_and_the_others_go_on(
    parent: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert parent.stdout is not None and parent.stdout.readline() == "all ready\n"
    first, second = pid(tmp_path, 0), pid(tmp_path, 1)
    os.kill(second, signal.SIGKILL)
    until(lambda: pid(tmp_path, 1) not in (0, second))
    assert alive(first) and pid(tmp_path, 0) == first and alive(pid(tmp_path, 1))


def test_a_worker_hears_of_the_end_of_its_parent(parent: subprocess.Popen[str], tmp_path: Path) -> None:
    assert parent.stdout is not None and parent.stdout.readline() == "all ready\n"
    workers = [pid(tmp_path, member) for member in range(2)]
    parent.kill()
    until(lambda: not any(map(alive, workers)))


def test_a_worker_that_cannot_start_ends_the_others_and_fails_the_start(tmp_path: Path) -> None:
    (tmp_path / "refuse").touch()
    process = started(tmp_path)
    assert process.wait(WITHIN_S) == 1
    assert process.stdout is not None and process.stdout.read() == ""
    assert not (tmp_path / "0.pid").exists() or not alive(pid(tmp_path, 0))


def test_a_directory_of_sockets_is_for_its_user_only_and_gone_when_closed(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    directory = SocketDirectory()
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    (directory.path / "member-0.http").touch()
    directory.close()
    assert list(tmp_path.iterdir()) == []


def test_directories_that_killed_parents_left_are_removed_and_others_are_not(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    used = SocketDirectory()
    names = ("headwater-sockets-made", "headwater-sockets-left", "other")
    being_made, left, other = (tmp_path / name for name in names)
    for path in (being_made, left, other):
        path.mkdir()
    full = tmp_path / "headwater-sockets-full"
    full.mkdir()
    for path in (left, other, full):
        (path / "sockets.lock").touch()
    (full / "notes").touch()  # whatever it is, no node made it
    os.mknod(left / "member-0.http", stat.S_IFSOCK | 0o600)  # not bound: its path may be longer than a socket's
    (tmp_path / "headwater-sockets-link").symlink_to(other)
    mine = SocketDirectory()
    assert not left.exists()
    assert all(path.is_dir() for path in (used.path, mine.path, being_made, other)) and (full / "notes").exists()
    used.close()
    mine.close()


def test_an_address_is_the_nodes_as_soon_as_it_has_it() -> None:
    held, port = listen("127.0.0.1", 0)
    with pytest.raises(CannotListen, match="in use"):
        listen("127.0.0.1", port)
    for sock in held:
        sock.close()
    for sock in listen("127.0.0.1", port)[0]:
        sock.close()
