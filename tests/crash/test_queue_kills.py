"""Kills the server with SIGKILL while producers put jobs and workers claim and ack them: no job is lost, none is acked
twice. It owns producers and workers as threads; each writes down only what it was told."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash.harness import SMALL_LOG
from tests.support.http import Connection, ConnectionEnded
from tests.support.node import Node

KILLS = int(os.environ.get("HEADWATER_QUEUE_KILLS", "8"))
ACKS_BETWEEN = 30
PRODUCERS, WORKERS = 2, 4
WITHIN_S = 60.0
PATH = "/v0/topics/crash/jobs"
WORKER = """
import sys
from tests.support.http import Connection, EventStream
with Connection("127.0.0.1", int(sys.argv[1])) as connection:
    for event in EventStream.open(connection, sys.argv[2]):
        print(event.data if event.name == "job" else "open", flush=True)
"""


class Client:
    """A connection that is made again whenever it breaks."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._connection: Connection | None = None

    def post(self, path: str, body: Any) -> dict[str, Any] | None:
        """The answer; None when nobody knows what became of the request, or it was refused for now."""
        try:
            if self._connection is None:
                self._connection = self._connected()
            answer = self._connection.request("POST", PATH + path, {}, json.dumps(body).encode())
            if answer.status == 503:
                return None
            assert answer.status == 200, answer
            found: dict[str, Any] = answer.json()
            return found
        except (OSError, ConnectionEnded):
            self.close()
            time.sleep(0.01)
            return None

    def _connected(self) -> Connection:
        try:
            return self._node.connect()
        except AssertionError:
            raise ConnectionRefusedError("it is being started") from None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Run:
    def __init__(self, node: Node, lease_ms: int) -> None:
        self._node = node
        self._lease_ms = lease_ms
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.put: set[str] = set()
        """Jobs whose write was acknowledged."""
        self.acked: list[str] = []
        """Jobs whose ack was acknowledged."""
        self.unsure: set[str] = set()
        """Jobs that somebody tried to ack, and was not told."""
        self.faults: list[BaseException] = []
        work = [(self._produce, number) for number in range(PRODUCERS)]
        work += [(self._work, number) for number in range(WORKERS)]
        self._threads = [threading.Thread(target=self._guarded, args=one) for one in work]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(WITHIN_S)
        assert not any(thread.is_alive() for thread in self._threads)
        assert not self.faults, self.faults

    def until_acked(self, more: int) -> None:
        """Returns when so many acks were acknowledged since the call."""
        begun, end_s = len(self.acked), time.monotonic() + WITHIN_S
        while len(self.acked) < begun + more:
            assert not self.faults, self.faults
            assert time.monotonic() < end_s, f"{len(self.acked) - begun} acks in {WITHIN_S} s"
            time.sleep(0.002)

    def _guarded(self, work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except BaseException as fault:
            self.faults.append(fault)

    def _produce(self, number: int) -> None:
        client, seq = Client(self._node), 0
        while not self._stop.is_set():
            names = [f"p{number}-{seq}-{index}" for index in range(1 + seq % 3)]
            body = {
                "records": [{"data": name, "key": name} for name in names],
                "producer": {"id": f"p{number}", "epoch": 0, "seq": seq},
            }
            # The same tuple until the server has said yes: it is written once, however often it is sent.
            while client.post("/records", body) is None:
                pass
            with self._lock:
                self.put.update(names)
            seq += 1
        client.close()

    def _work(self, number: int) -> None:
        client = Client(self._node)
        while not self._stop.is_set():
            claimed = client.post("/claim", {"max": 1 + number, "lease_ms": self._lease_ms, "wait_ms": 100})
            jobs = {} if claimed is None else {job["seq"]: job for job in claimed["jobs"]}
            if not jobs:
                continue
            acks = [{"seq": seq, "lease_id": job["lease_id"]} for seq, job in jobs.items()]
            told = client.post("/ack", {"acks": acks})
            with self._lock:
                if told is None:
                    self.unsure.update(job["data"] for job in jobs.values())
                else:
                    self.acked += [jobs[seq]["data"] for seq in told["acked"]]
        client.close()


def drain(node: Node, lease_ms: int) -> list[str]:
    """Whatever is left, each acked. Leases of workers that ended may have to end first."""
    client, left, empty = Client(node), [], 0
    while empty < 2:
        claimed = client.post("/claim", {"max": 100, "wait_ms": min(2 * lease_ms, 5_000) if lease_ms < 5_000 else 0})
        assert claimed is not None
        jobs = claimed["jobs"]
        if jobs:
            acks = [{"seq": job["seq"], "lease_id": job["lease_id"]} for job in jobs]
            told = client.post("/ack", {"acks": acks})
            assert told is not None and len(told["acked"]) == len(jobs), told
            left += [job["data"] for job in jobs]
        empty = 0 if jobs else empty + 1
    client.close()
    return left


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("flags", [(), SMALL_LOG], ids=["default", "small-log"])
@pytest.mark.parametrize("durable", [False, True], ids=["leases-forgotten", "leases-kept"])
def test_no_job_is_lost_and_none_is_acked_twice_when_the_node_is_killed(
    tmp_path: Path, durable: bool, flags: tuple[str, ...]
) -> None:
    # Without durable leases a restart frees them: an hour proves that nobody waits for one.
    lease_ms = 500 if durable else 3_600_000
    rng = random.Random(7)
    with Node.started(tmp_path, flags=flags) as node:
        config = {"queue": {"leases_durable": durable, "lease_ms": lease_ms}}
        assert node.request("PUT", PATH, {}, json.dumps(config).encode()).status == 201
        run = Run(node, lease_ms)
        run.start()
        try:
            for _ in range(KILLS):
                run.until_acked(1 + rng.randrange(ACKS_BETWEEN))
                node.kill()
                node.start()
            run.until_acked(1)
        finally:
            run.stop()
        node.kill()
        node.start()
        left = drain(node, lease_ms)
        twice = [name for name, times in Counter(run.acked).items() if times > 1]
        assert not twice, twice
        assert not Counter(left) - Counter(set(left)), "a job was handed out twice after it was acked"
        acked = set(run.acked)
        assert not acked & set(left), "a job that was acked came back"
        missing = run.put - acked - run.unsure - set(left)
        assert not missing, f"lost: {sorted(missing)[:10]}"
        assert len(acked) > KILLS
        assert node.terminate() == 0, node.output()


@pytest.mark.full
@pytest.mark.timeout(120)
def test_the_job_of_a_worker_that_is_killed_is_claimed_again(tmp_path: Path) -> None:
    with Node.started(tmp_path) as node:
        client = Client(node)
        assert node.request("PUT", PATH, {}, b'{"queue":{"lease_ms":3600000}}').status == 201
        for round_number in range(5):
            assert client.post("/records", {"records": [{"data": round_number}]}) is not None
            arguments = [sys.executable, "-c", WORKER, str(node.port), f"{PATH}/work?max=1"]
            root = Path(__file__).resolve().parents[2]
            with subprocess.Popen(arguments, stdout=subprocess.PIPE, cwd=root, text=True) as worker:
                assert worker.stdout is not None
                try:
                    assert worker.stdout.readline().strip() == "open"
                    assert f'"data":{round_number}' in worker.stdout.readline()
                finally:
                    worker.send_signal(signal.SIGKILL)
            claimed = client.post("/claim", {"wait_ms": 20_000})
            assert claimed is not None
            (job,) = claimed["jobs"]
            assert (job["data"], job["deliveries"]) == (round_number, 2)
            told = client.post("/ack", {"acks": [{"seq": job["seq"], "lease_id": job["lease_id"]}]})
            assert told is not None and told["acked"] == [job["seq"]]
        client.close()
