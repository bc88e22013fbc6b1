"""Nodes that are processes of their own: one that is killed, one that stands still and wakes, one that stops."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

from headwater.model.names import DEFAULT_BUCKET
from tests.support.cluster_nodes import GROUPS, HOST
from tests.support.http import Connection

WITHIN_S = 60.0


class Process:
    def __init__(self, root: Path, name: str, group: int) -> None:
        command = [sys.executable, "-m", "tests.cluster.node_process", str(root), name, str(group)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lines: queue.Queue[bytes] = queue.Queue()
        self.seen: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """What it sees, once that holds."""
        while not self.seen or not holds(self.seen[-1]):
            self.seen.append(json.loads(self._lines.get(timeout=WITHIN_S)))
        return self.seen[-1]

    def sees(self, alive: list[int], **owners: int) -> dict[str, Any]:
        wanted = {name[1:]: member for name, member in owners.items()}
        return self.until(
            lambda seen: (
                seen["alive"] == alive and {group: claim[0] for group, claim in seen["owners"].items()} == wanted
            )
        )

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self) -> int:
        if self._process.stdin is not None:
            self._process.stdin.close()
        return self._process.wait(WITHIN_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(WITHIN_S)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Process]]:
    made = []
    try:
        for group, name in enumerate("abc"):
            made.append(Process(tmp_path, name, group))
            made[-1].until(lambda seen: True)  # numbers are taken in this order
        for one in made:
            one.sees([0, 1, 2], g0=0, g1=1, g2=2)
        yield made
    finally:
        for one in made:
            one.kill()


def read(asked: Process, group: int) -> int:
    """The status of a read, from a node, of a stream whose home is that group and which is not there."""
    names = (f"s{n}" for n in range(1000))
    name = next(one for one in names if xxh3_64_intdigest(f"{DEFAULT_BUCKET}/{one}".encode()) % GROUPS == group)
    with Connection(HOST, asked.seen[-1]["port"]) as connection:
        return connection.request("GET", f"/v1/stream/{name}").status


def until_reads_are(asked: Process, statuses: list[int]) -> None:
    """By group. A busy machine may make a node miss another one for a while."""
    while [read(asked, group) for group in range(GROUPS)] != statuses:
        time.sleep(0.05)


def test_a_killed_node_is_missed_and_a_node_that_stops_is_not_waited_for(three: list[Process]) -> None:
    a, b, c = three
    b.kill()
    for one in (a, c):
        one.sees([0, 2], g0=0, g2=2)
    assert c.stop() == 0
    a.sees([0], g0=0)


def test_a_node_that_stands_still_is_missed_until_it_wakes(three: list[Process]) -> None:
    a, b, c = three
    until_reads_are(a, [404, 404, 404, 503])
    b.signal(signal.SIGSTOP)
    for one in (a, c):
        one.sees([0, 2], g0=0, g2=2)
    until_reads_are(a, [404, 503, 404, 503])
    b.signal(signal.SIGCONT)
    for one in (a, c):
        one.sees([0, 1, 2], g0=0, g1=1, g2=2)
    assert b.stop() == 0
    for one in (a, c):
        one.sees([0, 2], g0=0, g2=2)
