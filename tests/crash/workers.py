"""The workers of a real node as the system shows them, and writers that go on when one of them is killed.
It owns the writers' threads; it knows which group a name belongs to, and never looks inside a process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from xxhash import xxh3_64_intdigest

from headwater.model.names import flat_key
from tests.support.http import Connection, ConnectionEnded, Response
from tests.support.node import HOST, Node
from tests.support.process_table import command_of, is_gone, open_files, processes, stat_fields
from tests.support.waiting import Deadline, until

WITHIN_S = 60.0
PAUSE_S = 0.01
TEXT = {"Content-Type": "text/plain"}
CUT = "cut"
"""What a writer notes when its connection ended; a refusal is noted by its code."""
PASSING = ("member_unavailable", "outcome_unknown")


# --- processes --------------------------------------------------------------------------------------------------


def alive(pid: int) -> bool:
    return not is_gone(pid)


def workers(node: Node) -> dict[int, int]:
    """The process of each worker that lives, by its number."""
    found = {}
    for pid in processes():
        fields = stat_fields(pid)
        if fields and fields[0] != "Z" and int(fields[1]) == node.pid:
            words = command_of(pid)
            if b"headwater.worker" in words:  # before its exec it is a copy of the parent
                found[int(words[-2])] = pid
    return found


def left_of(node: Node) -> list[int]:
    """Processes of the node that live, or that it left behind."""
    states = {pid: stat_fields(pid) for pid in processes()}
    return [pid for pid, fields in states.items() if fields and fields[0] != "Z" and int(fields[2]) == node.pid]


def serving(node: Node, connection: Connection) -> int:
    """The number of the worker that holds the server's end of a connection."""
    ends = (f":{node.port:04X}", f":{connection.socket.getsockname()[1]:04X}")
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {row[9] for row in rows if row[1].endswith(ends[0]) and row[2].endswith(ends[1])}
    for member, pid in workers(node).items():
        if inodes & {target.removeprefix("socket:[").removesuffix("]") for target in open_files(pid)}:
            return member
    raise AssertionError("nobody serves the connection")


# --- streams ----------------------------------------------------------------------------------------------------


def name_in(group: int, groups: int, folder: str, number: int = 0) -> str:
    """The name of a stream that belongs to a group: another one for each number."""
    fitting = (name for i in range(10_000) if _home(name := f"{folder}/s{i}", groups) == group)
    return [next(fitting) for _ in range(number + 1)][-1]


def _home(name: str, groups: int) -> int:
    return xxh3_64_intdigest(flat_key(name, 1024).encode()) % groups


def path_of(name: str) -> str:
    return f"/v1/stream/{name}"


def create(node: Node, names: Sequence[str], headers: dict[str, str] = TEXT) -> None:
    for name in names:
        answer = node.request("PUT", path_of(name), headers)
        assert answer.status == 201, answer


# --- writers ----------------------------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Appends to one stream as an idempotent producer, one record after another, each until it is acknowledged.

    `first` is what its connections are first asked: they belong to the worker of that stream then.
    """

    def __init__(self, node: Node, name: str, stream: str, first: str) -> None:
        super().__init__(name=name, daemon=True)
        self.stream = stream
        self.acknowledged = 0
        self.errors: list[str] = []
        """Of all tries that were not acknowledged; each is followed by another try of the same record."""
        self.broken: str | None = None
        """An answer that no server may give."""
        self.connection: Connection | None = None
        self.port: int | None = node.port
        """Where its next connection is made to; None while there is no server."""
        self._first = first
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends it once the record under way is acknowledged."""
        self._stopping.set()

    def record(self, n: int) -> bytes:
        return f"{self.name} {n} {'.' * (n % 300)}\n".encode()

    def run(self) -> None:
        try:
            while not self._stopping.is_set() and self.broken is None:
                self._append(self.acknowledged)
        except BaseException as failure:
            self.broken = repr(failure)
        finally:
            if self.connection is not None:
                self.connection.close()

    def _append(self, n: int) -> None:
        tries = 0
        deadline = Deadline(WITHIN_S)
        while self.broken is None:
            deadline.check(lambda: f"{self.name} {n} is not acknowledged: {self.errors[-5:]}")
            tries += 1
            try:
                self._judge(self._post(n), tries)
            except TimeoutError:
                raise  # an answer that never comes is not a cut connection
            except (ConnectionEnded, OSError):
                self._failed(CUT)
                if self.connection is not None:
                    self.connection.close()
                    self.connection = None
            if self.acknowledged > n:
                return
            time.sleep(PAUSE_S)

    def _post(self, n: int) -> Response:
        if self.connection is None:
            self.connection = Connection(HOST, until(lambda: self.port, "a server"))
            if self._first != self.stream:
                self.connection.request("HEAD", path_of(self._first))
        headers = {**TEXT, "Producer-Id": self.name, "Producer-Epoch": "0", "Producer-Seq": str(n)}
        return self.connection.request("POST", path_of(self.stream), headers, self.record(n))

    def _judge(self, answer: Response, tries: int) -> None:
        if answer.status == 200 or (answer.status == 204 and tries > 1):
            self.acknowledged += 1
        elif answer.status == 503 and (code := answer.json()["error"]["code"]) in PASSING:
            assert answer.header("retry-after") is not None, answer
            self._failed(code)
        else:
            self.broken = f"try {tries} of {self.acknowledged}: {answer}"

    def _failed(self, what: str) -> None:
        self.errors.append(what)


@contextmanager
def writing(writers: Sequence[Writer]) -> Iterator[None]:
    """While inside, all of them write; afterwards each knows what became of all that it sent."""
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        for writer in writers:
            writer.stop()
        for writer in writers:
            writer.join(2 * WITHIN_S)
    assert not any(writer.is_alive() for writer in writers)
    assert [writer.broken for writer in writers if writer.broken is not None] == []


def all_get_on(writers: Sequence[Writer], count: int = 3) -> None:
    """Returns when each has `count` more records acknowledged."""
    wanted = [writer.acknowledged + count for writer in writers]

    def reached() -> bool:
        assert [writer.broken for writer in writers if writer.broken is not None] == []
        return all(writer.acknowledged >= one for writer, one in zip(writers, wanted, strict=True))

    until(reached, "every writer gets on")


def check_records(read: Callable[[str], bytes], writers: Sequence[Writer]) -> None:
    """Every stream holds what its writers were told it holds: each record once, in order, and nothing else."""
    for stream in sorted({writer.stream for writer in writers}):
        lines = read(path_of(stream)).splitlines(keepends=True)
        mine = [writer for writer in writers if writer.stream == stream]
        for writer in mine:
            found = [line for line in lines if line.startswith(writer.name.encode() + b" ")]
            assert found == [writer.record(n) for n in range(writer.acknowledged)], writer.name
        assert len(lines) == sum(writer.acknowledged for writer in mine), stream
