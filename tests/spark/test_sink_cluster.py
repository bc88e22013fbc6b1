"""The sink on a real standalone cluster: a worker is killed in the middle of a batch, then the driver, and every record
is there once. The node takes only so much until it is told to settle, so that "in the middle" is a fact."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import streams
from tests.support.node import Node

if TYPE_CHECKING:
    from tests.support.spark import Cluster

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

STREAMS = 8
BATCHES = 4
BATCH_ROWS = 6_000
PAD_BYTES = 5_000
BATCH_BYTES = BATCH_ROWS * (PAD_BYTES + 10)
"""Several requests for each of the two writers of a batch."""
HOT_BYTES_MAX = BATCH_BYTES * 6 // 5
"""What the node takes while nothing settles: the first batch and a part of the second; then a part of the third."""
WAIT_S = 180.0


def input_of(directory: Path) -> Path:
    directory.mkdir()
    for batch in range(BATCHES):
        path = directory / f"{batch}.json"
        path.write_text("".join(f'{{"n": {n}}}\n' for n in range(batch * BATCH_ROWS, (batch + 1) * BATCH_ROWS)))
        os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))  # Spark takes them by their age
    return directory


class Driver:
    """The query's program, and what its checkpoint and the node say of it."""

    def __init__(self, cluster: Cluster, node: Node, folder: Path) -> None:
        self.node = node
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self.report = folder / "report"
        self._given = {
            "master": cluster.url,
            "conf": dict(cluster.conf()),
            "url": node.url,
            "input": str(folder / "in"),
            "checkpoint": str(self.checkpoint),
            "report": str(self.report),
            "streams": STREAMS,
            "pad_bytes": PAD_BYTES,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        program = [sys.executable, str(Path(__file__).with_name("sink_driver.py")), json.dumps(self._given)]
        with (self.folder / "driver.log").open("ab") as log:
            # A group of its own: the program, its JVM and whatever they start end together.
            self._process = subprocess.Popen(program, stdout=log, stderr=log, start_new_session=True)
        try:
            yield self._process
        finally:
            self.kill()

    def kill(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def is_committed(self, batch: int) -> bool:
        return (self.checkpoint / "commits" / str(batch)).exists()

    def written_bytes(self) -> int:
        return sum(streams.tail(self.node, f"sink/s{s}") for s in range(STREAMS))

    def hot_bytes(self) -> int:
        """What records take in the node's memory: more than their payload."""
        found: int = self.node.request("GET", "/__headwater/metrics").json()["hot_bytes"]
        return found

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not is_so():
            assert self._process is not None
            assert self._process.poll() is None, f"the driver ended before {what}:\n{self.log()}"
            assert time.monotonic() < deadline_s, f"not within {WAIT_S} s: {what}\n{self.log()}"
            time.sleep(0.002)

    def log(self) -> str:
        return (self.folder / "driver.log").read_text(errors="replace")[-6_000:]

    @contextmanager
    def held_in_the_middle_of(self, batch: int) -> Iterator[None]:
        """While inside, some of the batch is on its streams, the rest is not, and the node takes nothing more."""
        with self.node.full():
            # It takes the append that goes beyond its ceiling, and none after it.
            self.until(f"the node is full in batch {batch}", lambda: self.hot_bytes() > HOT_BYTES_MAX)
            assert not self.is_committed(batch)
            yield
            assert batch * BATCH_BYTES < self.written_bytes() < (batch + 1) * BATCH_BYTES
            assert not self.is_committed(batch)
        answer = self.node.request("POST", "/__headwater/flush", {}, b"")
        assert answer.status == 200, answer


def test_a_killed_worker_and_a_killed_driver_cost_no_record_and_repeat_none(cluster: Cluster, tmp_path: Path) -> None:
    with Node.started(tmp_path / "node", flags=("--hot-bytes-max", str(HOT_BYTES_MAX))) as node:
        _killed_twice(cluster, node, tmp_path)


def _killed_twice(cluster: Cluster, node: Node, tmp_path: Path) -> None:
    input_of(tmp_path / "in")
    driver = Driver(cluster, node, tmp_path)
    with driver.running():
        with driver.held_in_the_middle_of(1):
            cluster.kill_worker(cluster.workers[0])
        with driver.held_in_the_middle_of(2):
            driver.kill()
    cluster.start_worker()
    cluster.wait_for_workers(2)

    with driver.running() as process:
        assert process.wait(WAIT_S) == 0, driver.log()
    assert all(driver.is_committed(batch) for batch in range(BATCHES))

    for s in range(STREAMS):
        body = streams.read(node, f"sink/s{s}")
        numbers = [int(text) for text in re.findall(rb"(\d{10})x+", body)]
        assert numbers == list(range(s, BATCHES * BATCH_ROWS, STREAMS)), f"stream {s}"
        assert len(body) == len(numbers) * (PAD_BYTES + 10)
    assert streams.names(node, "sink") == [f"s{s}" for s in range(STREAMS)]

    told = {commit["batch"]: commit for commit in map(json.loads, driver.report.read_text().splitlines())}
    # The second attempts found what the first ones had left, and wrote the rest. When one worker of two was lost, what
    # was there may be the other one's, which is not written again.
    assert told[1]["rows_known"] < BATCH_ROWS
    assert 0 < told[2]["rows_known"] < BATCH_ROWS
    assert told[3]["rows_known"] == 0
