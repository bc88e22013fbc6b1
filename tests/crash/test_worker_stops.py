"""A node of several workers is told to stop while clients wait: whoever is connected gets an end, not a cut, wherever
the stream is served that he waits for."""

from __future__ import annotations

import os
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.data_directory import DataDirectory
from tests.crash.workers import TEXT, create, left_of, name_in, path_of, serving, until, workers
from tests.support.http import Connection, ConnectionEnded, EventStream, Response, encode_request, read_bytes
from tests.support.node import Node

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

WORKERS = 3
FLAGS = ["--workers", str(WORKERS)]
APPENDS = 40


@pytest.fixture
def sockets_directory() -> Iterator[Path]:
    """Where the node makes its directory of sockets: a short path, which nothing else uses."""
    with tempfile.TemporaryDirectory(prefix="hw") as path:
        yield Path(path)


class Reader(threading.Thread):
    """Reads a live stream to its end, whatever that is."""

    def __init__(self, events: EventStream) -> None:
        super().__init__(daemon=True)
        self.events = events
        self.got: list[str] = []

    def run(self) -> None:
        try:
            for event in self.events:
                self.got.append(event.name)
        except (ConnectionEnded, OSError) as cut:
            self.got.append(repr(cut))


def placed(node: Node, member: int, names: list[str]) -> Connection:
    """A connection that belongs to a worker, by its first request."""
    connection = node.connect(timeout_s=60)
    assert connection.request("HEAD", path_of(names[member])).status == 200
    assert serving(node, connection) == member
    return connection


def stop(node: Node, how: str) -> None:
    """`terminate`: the parent is told, as a service manager may; the others reach all of its processes at once."""
    if how == "terminate":
        node.signal(signal.SIGTERM)
    else:
        os.killpg(node.pid, {"interrupt all": signal.SIGINT, "terminate all": signal.SIGTERM}[how])


@pytest.mark.parametrize("how", ["terminate", "interrupt all", "terminate all"])
def test_a_stop_ends_what_clients_wait_for_and_leaves_nothing(
    tmp_path: Path, sockets_directory: Path, how: str
) -> None:
    names = [name_in(group, WORKERS, "stops") for group in range(WORKERS)]
    pairs = [(at, of) for at in range(WORKERS) for of in range(WORKERS)]
    env = {"XDG_RUNTIME_DIR": str(sockets_directory)}
    with Node.started(tmp_path, flags=FLAGS, env=env) as node:
        (made,) = sockets_directory.iterdir()
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
        expected = {f"member-{member}.{kind}" for member in range(WORKERS) for kind in ("http", "fds")}
        assert {path.name for path in made.iterdir()} == expected | {"lock"}
        create(node, names)
        followers, polls, appends = [], [], []
        for at, of in pairs:
            live = f"{path_of(names[of])}?offset=now&live="
            followers.append(Reader(EventStream.open(placed(node, at, names), f"{live}sse")))
            polls.append(placed(node, at, names))
            polls[-1].send(encode_request("GET", f"{live}long-poll"))
            appends.append(placed(node, at, names))
        for follower in followers:
            assert follower.events.head.status == 200
            follower.start()
        for connection, (at, of) in zip(appends, pairs, strict=True):
            bodies = [b"%d%d %d\n" % (at, of, n) for n in range(APPENDS)]
            connection.send(b"".join(encode_request("POST", path_of(names[of]), TEXT, body) for body in bodies))
            assert connection.read_response("POST").status == 204  # the others are under way
        before = workers(node)
        stop(node, how)
        answers = [answered(connection, "GET") for connection in polls]
        assert [[answer.status in (200, 204) for answer in found] for found in answers] == [[True]] * len(pairs)
        kept = [1 + acknowledged(answered(connection, "POST")) for connection in appends]
        for follower in followers:
            follower.join(60)
            assert follower.events.ended_cleanly, follower.got
        assert node.wait() == 0, node.output()
        assert "died" not in node.stderr() and "Traceback" not in node.stderr(), node.stderr()
        assert len(before) == WORKERS and left_of(node) == []
        assert list(sockets_directory.iterdir()) == []
        assert not DataDirectory(node.data_directory).is_in_use()
        node.start()
        for (at, of), count in zip(pairs, kept, strict=True):
            with node.connect() as connection:
                lines = read_bytes(connection, path_of(names[of])).splitlines()
            mine = [line for line in lines if line.startswith(b"%d%d " % (at, of))]
            assert mine[:count] == [b"%d%d %d" % (at, of, n) for n in range(count)]


def answered(connection: Connection, method: str) -> list[Response]:
    """All answers until the server closes the connection; one that is cut in the middle is no answer."""
    found = []
    with connection:
        while True:
            try:
                found.append(connection.read_response(method))
            except ConnectionEnded as ended:
                assert ended.received == b"", ended
                return found


def acknowledged(answers: list[Response]) -> int:
    """How many of the appends were, in order; those after it were refused, and the client was told so."""
    count = next((n for n, answer in enumerate(answers) if answer.status != 204), len(answers))
    assert all(answer.status == 503 for answer in answers[count:]), answers
    return count


def test_a_stop_while_a_worker_is_away_is_clean_as_well(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=FLAGS) as node:
        os.kill(workers(node)[1], signal.SIGKILL)
        until(lambda: "died" in node.stderr(), "the parent knows")
        assert node.terminate() == 0, node.output()
        assert left_of(node) == [] and not DataDirectory(node.data_directory).is_in_use()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_before_the_node_is_ready_leaves_nothing(tmp_path: Path, number: int) -> None:
    node = Node(tmp_path, flags=FLAGS)
    try:
        node.spawn()
        until(lambda: workers(node) or not node.running, "a worker is being started")
        os.killpg(node.pid, number)
        assert node.wait() == 0, node.output()
        assert "Traceback" not in node.stderr() and "died" not in node.stderr(), node.stderr()
        assert left_of(node) == [] and not DataDirectory(node.data_directory).is_in_use()
    finally:
        node.kill()
