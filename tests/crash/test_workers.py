"""Workers and their parent are killed while clients write: what was acknowledged stays, and only the groups of the
killed worker pause. `pytest -m soak tests/crash/test_workers.py` kills for longer."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.crash.workers import (
    CUT,
    TEXT,
    Writer,
    alive,
    all_get_on,
    check_records,
    create,
    left_of,
    name_in,
    path_of,
    serving,
    until,
    workers,
    writing,
)
from tests.support.http import read_bytes
from tests.support.node import Node, NotReady

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

KILLS, KILLS_SOAK = 8, 50
WORKERS, GROUPS = 3, 6
FLAGS = ["--workers", str(WORKERS), "--groups", str(GROUPS)]
DIED = "a worker died and is started again"


def read(node: Node):
    def content(path: str) -> bytes:
        with node.connect() as connection:
            return read_bytes(connection, path)

    return content


def writers_of(node: Node) -> list[Writer]:
    """Three for each group: two that ask their stream's worker, and one whose connection belongs to another one."""
    names = [name_in(group, GROUPS, "kills") for group in range(GROUPS)]
    create(node, names)
    found = []
    for group, name in enumerate(names):
        found += [Writer(node, f"a{group}", name, name), Writer(node, f"b{group}", name, name)]
        found.append(Writer(node, f"c{group}", name, names[(group + 1) % GROUPS]))
    return found


def kill_one(node: Node, writers: list[Writer], victim: int) -> None:
    """Kills a worker under load, and returns when it serves again and every writer gets on.

    - A writer whose stream and whose connection belong to others sees no error and keeps its connection.
    - One whose connection belonged to it is cut.
    - Where only the connection belonged to it, nothing else than cut connections is seen.
    - Of its own streams, writers may also be told to try again (see `Writer`), until it serves them.
    """
    all_get_on(writers)
    places = {writer: (serving(node, writer.connection), writer.connection) for writer in writers if writer.connection}
    assert len(places) == len(writers)
    seen = {writer: len(writer.errors) for writer in writers}
    before = workers(node)
    os.kill(before[victim], signal.SIGKILL)
    until(lambda: workers(node).get(victim, before[victim]) != before[victim], "another process for the worker")
    all_get_on(writers)
    for writer, (place, connection) in places.items():
        owner = int(writer.name[1:]) % GROUPS % WORKERS
        errors = writer.errors[seen[writer] :]
        if victim not in (owner, place):
            assert errors == [] and writer.connection is connection, (writer.name, errors)
        elif place == victim:
            assert errors[0] == CUT, (writer.name, errors)
        if owner != victim:
            assert set(errors) <= {CUT}, (writer.name, errors)
    assert {member: pid for member, pid in workers(node).items() if member != victim} == {
        member: pid for member, pid in before.items() if member != victim
    }


def run_kills(directory: Path, kills: int) -> None:
    seed = int(os.environ.get("HEADWATER_CRASH_SEED", time.time_ns() % 10**9))
    print(f"crash seed {seed} (repeat with HEADWATER_CRASH_SEED={seed}), {kills} kills")
    rng = random.Random(seed)
    with Node.started(directory, flags=FLAGS) as node:
        writers = writers_of(node)
        with writing(writers):
            for kill in range(kills):
                # Every worker is killed, some of them again at once.
                kill_one(node, writers, kill if kill < WORKERS else rng.randrange(WORKERS))
        print(f"acknowledged: {sum(writer.acknowledged for writer in writers)}")
        check_records(read(node), writers)
        assert node.stderr().count(DIED) == kills
        assert node.terminate() == 0, node.output()
        assert "Traceback" not in node.stderr()
        node.start()
        check_records(read(node), writers)


def test_a_killed_worker_loses_and_doubles_nothing_and_only_its_own_groups_pause(tmp_path: Path) -> None:
    run_kills(tmp_path, KILLS)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_worker_killed_many_times_loses_and_doubles_nothing(tmp_path: Path) -> None:
    run_kills(tmp_path, KILLS_SOAK)


def test_a_killed_parent_takes_its_workers_with_it_and_loses_nothing(tmp_path: Path) -> None:
    second = Node(tmp_path / "second", flags=FLAGS)
    with Node.started(tmp_path / "first", flags=FLAGS) as node, ExitStack() as held:
        held.callback(second.kill)
        second.data_directory = node.data_directory
        writers = writers_of(node)
        assert not is_let_in(second)
        old = workers(node)
        assert len(old) == WORKERS
        with writing(writers):
            all_get_on(writers)
            for writer in writers:
                writer.port = None  # it may be another server's soon
            os.kill(node.pid, signal.SIGKILL)
            node.wait()
            until(lambda: is_let_in(second), "a second node has the directory")
            assert not any(map(alive, old.values()))
            until(lambda: not left_of(node), "no process of the first node is left")
            for writer in writers:
                writer.port = second.port
            all_get_on(writers)
        check_records(read(second), writers)
        assert second.terminate() == 0, second.output()


def is_let_in(node: Node) -> bool:
    """Starts it; False when it is told that another one has the directory. It must be told nothing else."""
    try:
        node.start()
    except NotReady as refused:
        assert refused.exit_code == 1 and "another node already serves" in refused.stderr, refused
        return False
    return True


# --- workers that cannot start ----------------------------------------------------------------------------------


class Damaged:
    """Half of what is in a group's log, overwritten: nobody can tell what it said."""

    def __init__(self, node: Node, group: int) -> None:
        (self._path,) = (node.data_directory / "wal" / str(group)).glob("*.wal")
        self._kept = b""

    def damage(self) -> None:
        self._kept = self._path.read_bytes()
        used = len(self._kept.rstrip(b"\0"))
        with self._path.open("r+b") as file:
            file.seek(used // 4)
            file.write(b"\xa5" * (used // 2))

    def repair(self) -> None:
        self._path.write_bytes(self._kept)


def filled(node: Node, records: int = 30) -> dict[str, bytes]:
    """A stream in each group, with records."""
    names = [name_in(group, GROUPS, "filled") for group in range(GROUPS)]
    create(node, names)
    for name in names:
        with node.connect() as connection:
            for n in range(records):
                answer = connection.request("POST", path_of(name), TEXT, f"{name} {n}\n".encode())
                assert answer.status == 204, answer
    return {name: b"".join(f"{name} {n}\n".encode() for n in range(records)) for name in names}


def test_a_worker_that_cannot_start_ends_the_start_with_one_line_that_says_why(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=FLAGS) as node:
        contents = filled(node)
        node.kill()
        damaged = Damaged(node, 4)
        damaged.damage()
        with pytest.raises(NotReady) as refused:
            node.start()
        assert refused.value.exit_code == 1
        lines = [line for line in refused.value.stderr.splitlines() if '"recovered"' not in line]
        assert len(lines) == 1 and lines[0].startswith("error: "), refused.value.stderr
        assert str(node.data_directory / "wal" / "4") in lines[0], lines
        assert left_of(node) == []
        damaged.repair()
        node.start()
        assert {name: read(node)(path_of(name)) for name in contents} == contents


def test_a_worker_that_cannot_start_again_is_tried_on_while_the_others_serve(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=FLAGS) as node:
        contents = filled(node)
        victim = 1
        damaged = Damaged(node, victim)
        pid = workers(node)[victim]
        os.kill(pid, signal.SIGSTOP)
        damaged.damage()
        os.kill(pid, signal.SIGKILL)

        def pauses() -> list[float]:
            lines = [line for line in node.stderr().splitlines(keepends=True) if DIED in line and line.endswith("\n")]
            return [json.loads(line)["seconds"] for line in lines]

        until(lambda: len(pauses()) >= 4, "four tries")
        assert pauses()[:4] == [0.1, 0.2, 0.4, 0.8]
        for name, content in contents.items():
            group = list(contents).index(name)
            answer = node.request("POST", path_of(name), TEXT, b"more\n")
            if group % WORKERS == victim:
                assert answer.status == 503 and answer.json()["error"]["code"] == "member_unavailable", answer
                assert answer.header("retry-after") is not None
            else:
                assert answer.status == 204, answer
                contents[name] = content + b"more\n"
        assert node.request("GET", "/readyz").status == 503
        assert node.request("GET", "/__headwater/metrics").json()["workers_answering"] == WORKERS - 1
        damaged.repair()
        until(lambda: node.request("GET", "/readyz").status == 200, "the worker serves again")
        assert {name: read(node)(path_of(name)) for name in contents} == contents
        assert node.terminate() == 0, node.output()
