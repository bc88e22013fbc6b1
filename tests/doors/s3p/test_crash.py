"""Kills the server with SIGKILL at random moments while clients pipeline over S3P, and holds it to every reply.
It owns the clients, which live through the kills, and what their memory demands of the server afterwards."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.crash.harness import SMALL_LOG, UP_MAX_S, UP_MIN_S, kill_while_starting
from tests.doors.s3p import request
from tests.doors.s3p.client import OK, Client, Ended, Error, append_request, id_of, read_request, s3p_node, s3p_port
from tests.support.http import Connection, read_bytes
from tests.support.node import Node
from tests.support.server_place import ServerPlace, Stopped
from tests.support.writer import record

STREAMS = (b"crash/shared", b"crash/alone", b"crash/odd\xff")
KILLS = int(os.environ.get("HEADWATER_CRASH_KILLS", "8"))
KILLS_SOAK = 300
SMALL = (*SMALL_LOG, "--s3p-append-bytes-max", "512KiB")
EARLY_KILL_RATE = 0.3
PAGE_COUNT = 1_000
WAIT_S = 60.0


class Lost(Exception):
    """The server is gone: nothing is known about what was in flight."""


class Worker(threading.Thread):
    """One connection. A subclass does one unit of work in `work`, and may be cut off anywhere."""

    def __init__(self, server: ServerPlace) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.problems: list[str] = []
        self._client: Client | None = None

    def run(self) -> None:
        generation = 0
        while not self.server.stopping:
            try:
                if self._client is None:
                    port, generation = self.server.after(generation)
                    self._client = Client(port)
                self.work(self._client)
            except Stopped:
                return
            except (Lost, Ended, OSError):
                if self._client is not None:
                    self._client.close()
                    self._client = None
            except Exception as failure:
                self.problems.append(f"{type(self).__name__} failed: {failure!r}")
                with suppress(Stopped):
                    self.server.after(generation)  # counted among those that wait, so that the test goes on
                return

    def work(self, client: Client) -> None:
        raise NotImplementedError


class Writer(Worker):
    """Pipelines APPENDs of a few records each. What is cut off stays unknown and is never sent again."""

    def __init__(self, server: ServerPlace, name: str, stream: bytes, depth: int, batch: int, large_bytes: int) -> None:
        super().__init__(server)
        self.label, self.stream, self.depth, self.batch, self.large_bytes = name, stream, depth, batch, large_bytes
        self.sent: list[list[bytes]] = []
        self.acked: dict[int, str] = {}

    def work(self, client: Client) -> None:
        first = len(self.sent)
        for number in range(first, first + self.depth):
            numbers = range(number * self.batch, (number + 1) * self.batch)
            self.sent.append([record(self.label, n, self.large_bytes) for n in numbers])
        client.send(b"".join(append_request(self.stream, *records) for records in self.sent[first:]))
        for number in range(first, first + self.depth):
            reply = client.reply()
            if isinstance(reply, bytes):
                self.acked[number] = reply.decode()
            elif not isinstance(reply, Error) or reply.code != "ERR_UNAVAILABLE":
                self.problems.append(f"{self.label} {number}: {reply}")


class Reader(Worker):
    """Follows a stream with blocked READs: whatever it was shown has to stay."""

    def __init__(self, server: ServerPlace, stream: bytes) -> None:
        super().__init__(server)
        self.stream = stream
        self.seen: list[tuple[str, bytes]] = []

    def work(self, client: Client) -> None:
        ms, n = id_of(self.seen[-1][0]) if self.seen else (0, -1)
        client.send(read_request(self.stream, block=200, min_id=f"{ms}-{n + 1}", count=PAGE_COUNT))
        found = client.records()
        if isinstance(found, Error):
            self.problems.append(f"reader of {self.stream!r}: {found}")
        else:
            self.seen += found


@dataclass
class Life:
    """A stream of its own as it was last acknowledged, and as the step in flight would leave it."""

    exists: bool = False
    records: list[tuple[str, bytes]] = field(default_factory=list)


class Lives(Worker):
    """Creates, fills, trims and deletes streams of its own, each step repeated until it is answered."""

    def __init__(self, server: ServerPlace, name: str, seed: int) -> None:
        super().__init__(server)
        self.rng = random.Random(f"{seed} {name}")
        self.lives = {b"life/%b-%d" % (name.encode(), index): Life() for index in range(3)}
        self.unsure: dict[bytes, str] = {}
        """Streams with a step in flight, and which."""
        self.steps_count = 0

    def work(self, client: Client) -> None:
        for name, step in list(self.unsure.items()):
            self._again(client, name, step)
        name = self.rng.choice(sorted(self.lives))
        life = self.lives[name]
        step = self.rng.choice(["append"] * 4 + ["trim", "delete"]) if life.exists else "create"
        self.unsure[name] = step
        if step == "append":
            # Sent once: if its reply is lost, what became of it is asked for, not guessed.
            reply = client.append(name, b"r%d" % self.steps_count, b"s%d" % self.steps_count)
            assert isinstance(reply, bytes), reply
            ms, n = id_of(reply)
            life.records += [(f"{ms}-{n - 1}", b"r%d" % self.steps_count), (f"{ms}-{n}", b"s%d" % self.steps_count)]
        else:
            self._do(client, name, step, retried=False)
        del self.unsure[name]
        self.steps_count += 1

    def _do(self, client: Client, name: bytes, step: str, retried: bool) -> None:
        life = self.lives[name]
        if step == "create":
            reply, known = client.create(name), "ERR_STREAM_EXISTS"
            after = Life(True)
        elif step == "delete":
            reply, known = client.delete(name), "ERR_UNKNOWN_STREAM"
            after = Life()
        else:
            kept = life.records[len(life.records) // 2 :]
            reply, known = client.trim(name, kept[0][0] if kept else "0-0"), ""
            after = Life(True, kept)
        done = reply == OK or (retried and isinstance(reply, Error) and reply.code == known)
        assert done, f"{step} {name!r} (retried: {retried}): {reply}"
        self.lives[name] = after

    def _again(self, client: Client, name: bytes, step: str) -> None:
        if step == "append":
            found = client.read(name, count=10_000)
            assert not isinstance(found, Error), f"{name!r} is gone: {found}"
            known = self.lives[name].records
            assert found[: len(known)] == known and len(found) - len(known) in (0, 2), f"{name!r}: {found} not {known}"
            self.lives[name].records = found
        else:
            self._do(client, name, step, retried=True)
        del self.unsure[name]

    def check(self, client: Client) -> list[str]:
        problems = []
        for name, life in self.lives.items():
            found = client.read(name, count=10_000)
            now = Life() if isinstance(found, Error) else Life(True, found)
            if name not in self.unsure and now != life:
                problems.append(f"{name!r} is {now}, was acknowledged as {life}")
        return problems


def read_all(client: Client, stream: bytes) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    min_id = "0-0"
    while True:
        page = client.read(stream, count=PAGE_COUNT, min_id=min_id)
        assert not isinstance(page, Error), page
        if not page:
            return found
        found += page
        ms, n = id_of(page[-1][0])
        min_id = f"{ms}-{n + 1}"


def check_stream(
    stream: bytes, found: list[tuple[str, bytes]], writers: Sequence[Writer], readers: Sequence[Reader]
) -> list[str]:
    problems = []
    numbers = [id_of(record_id) for record_id, _ in found]
    if numbers != sorted(set(numbers)):
        problems.append(f"{stream!r}: ids do not grow strictly")
    at = {payload: index for index, (_, payload) in enumerate(found)}
    if len(at) != len(found):
        problems.append(f"{stream!r}: {len(found) - len(at)} records are there twice")
    known = set()
    for writer in writers:
        last = -1
        for number, payloads in enumerate(writer.sent):
            known.update(payloads)
            places = [at[payload] for payload in payloads if payload in at]
            if not places and number not in writer.acked:
                continue
            if places != list(range(places[0], places[0] + len(payloads))) if places else True:
                problems.append(f"{writer.label} {number} is lost or torn: {places} (acked: {number in writer.acked})")
            elif places[0] < last:
                problems.append(f"{writer.label} {number} comes before an earlier one")
            elif number in writer.acked and found[places[-1]][0] != writer.acked[number]:
                problems.append(f"{writer.label} {number} was {writer.acked[number]}, is {found[places[-1]][0]}")
            last = places[-1] if places else last
    if not at.keys() <= known:
        problems.append(f"{stream!r}: {len(at.keys() - known)} records that nobody sent")
    for reader in readers:
        if reader.seen != found[: len(reader.seen)]:
            problems.append(f"{stream!r}: a reader was shown what is not there any more")
    return problems


def check(node: Node, workers: Sequence[Worker], context: str) -> None:
    problems = [problem for worker in workers for problem in worker.problems]
    with Client.of(node) as client, Connection("127.0.0.1", node.port) as http:
        for stream in STREAMS:
            found = read_all(client, stream)
            writers = [one for one in workers if isinstance(one, Writer) and one.stream == stream]
            readers = [one for one in workers if isinstance(one, Reader) and one.stream == stream]
            problems += check_stream(stream, found, writers, readers)
            path = stream.decode() if stream.isascii() else f"~{stream.hex()}"
            if read_bytes(http, f"/v1/stream/{path}") != b"".join(payload for _, payload in found):
                problems.append(f"{stream!r} holds something else over HTTP")
        for worker in workers:
            if isinstance(worker, Lives):
                problems += worker.check(client)
    assert not problems, f"{context}:\n" + "\n".join(problems[:20]) + f"\n{node.output()}"


def survive(directory: Path, kills: int, flags: Sequence[str] = (), large_bytes: int = 4096) -> None:
    seed = int(os.environ.get("HEADWATER_CRASH_SEED", time.time_ns() % 10**9))
    print(f"crash seed {seed} (repeat with HEADWATER_CRASH_SEED={seed}), {kills} kills")
    rng = random.Random(seed)
    server = ServerPlace(8)
    writers = [
        Writer(server, "w1", STREAMS[0], 1, 1, large_bytes),
        Writer(server, "w2", STREAMS[0], 20, 1, large_bytes),
        Writer(server, "w3", STREAMS[0], 4, 3, large_bytes),
        Writer(server, "w4", STREAMS[1], 100, 1, large_bytes),
        Writer(server, "w5", STREAMS[2], 2, 10, large_bytes),
    ]
    workers: list[Worker] = [*writers, Reader(server, STREAMS[0]), Reader(server, STREAMS[1])]
    workers.append(Lives(server, "life", seed))
    check_every = max(1, kills // 10)
    with s3p_node(directory, flags=flags) as node:
        with Client.of(node) as client:
            assert [client.call(b"CREATE", stream, []) for stream in STREAMS] == [OK] * 3
        for worker in workers:
            worker.start()
        try:
            server.wait_until_all_wait(WAIT_S)
            server.moved(s3p_port(node))
            for kill in range(kills):
                time.sleep(rng.uniform(UP_MIN_S, UP_MAX_S))
                node.kill()
                server.wait_until_all_wait(WAIT_S)
                while rng.random() < EARLY_KILL_RATE:
                    kill_while_starting(node, rng.uniform(0.0, 0.7))
                node.start()
                if kill % check_every == 0:
                    check(node, workers, f"after kill {kill}, seed {seed}")
                server.moved(s3p_port(node))
            time.sleep(UP_MAX_S)
            node.kill()
            server.wait_until_all_wait(WAIT_S)
            node.start()
            check(node, workers, f"at the end, seed {seed}")
            assert node.terminate() == 0, node.output()
            node.start()
            check(node, workers, f"after a clean restart, seed {seed}")
        finally:
            server.stop()
            node.kill()
            for worker in workers:
                worker.join(WAIT_S)
    acked = {writer.label: len(writer.acked) for writer in writers}
    print(f"acknowledged: {acked}")
    assert all(acked.values()) and sum(acked.values()) > kills, acked


@pytest.mark.full
@pytest.mark.timeout(600)
def test_every_acknowledged_record_keeps_its_id_and_place_over_kills(tmp_path: Path) -> None:
    survive(tmp_path, KILLS)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_every_acknowledged_record_survives_kills_during_rotation_and_checkpoints(tmp_path: Path) -> None:
    survive(tmp_path, KILLS // 2, SMALL, 50_000)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("flags", [(), SMALL], ids=["default", "small-log"])
def test_every_acknowledged_record_survives_hundreds_of_kills(tmp_path: Path, flags: tuple[str, ...]) -> None:
    survive(tmp_path, max(KILLS, KILLS_SOAK), flags, 50_000 if flags else 4096)


def test_a_torn_or_lost_or_moved_record_is_found() -> None:
    """The check itself, on bad ends of a small run."""
    writer = Writer(ServerPlace(1), "w", b"s", 1, 2, 100)
    writer.sent = [[b"a", b"b"], [b"c", b"d"], [b"e", b"f"]]
    writer.acked = {0: "1-1", 1: "1-3"}
    good = [("1-0", b"a"), ("1-1", b"b"), ("1-2", b"c"), ("1-3", b"d")]
    assert check_stream(b"s", good, [writer], []) == []
    assert check_stream(b"s", [*good, ("1-4", b"e"), ("1-5", b"f")], [writer], []) == []
    reader = Reader(ServerPlace(1), b"s")
    reader.seen = [*good, ("1-4", b"x")]
    for bad, told in [
        ((good[:2], [writer], []), "lost or torn"),
        (([*good, ("1-4", b"e")], [writer], []), "lost or torn"),
        (([*good, ("1-4", b"zz")], [writer], []), "nobody sent"),
        (([*good[2:], *good[:2]], [writer], []), "grow strictly"),
        (([*good[:3], ("1-9", b"d")], [writer], []), "was 1-3, is 1-9"),
        (([*good, ("2-0", b"a")], [writer], []), "twice"),
        ((good, [writer], [reader]), "shown"),
    ]:
        assert any(told in problem for problem in check_stream(b"s", *bad)), told


def test_pipelined_writes_that_were_answered_are_there_after_a_kill(tmp_path: Path) -> None:
    with s3p_node(tmp_path) as node:
        with Client.of(node) as client:
            client.send(request(b"CREATE", b"s", []) + append_request(b"s", b"x") * 500)
            replies = [client.reply() for _ in range(501)]
            trimmed = replies[200]
            assert client.trim(b"s", trimmed.decode()) == OK
        node.kill()
        node.start()
        with Client.of(node) as client:
            assert [record_id for record_id, _ in client.read(b"s", count=1_000)] == [
                reply.decode() for reply in replies[200:]
            ]
