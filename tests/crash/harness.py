"""Drives the crash tests: a server that is killed, a writer process that lives through it, what both agreed on.
It owns the writer process and the layout of the streams; what the journals must mean is in `verify`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.verify import Verifier
from tests.support.node import Node, NotReady
from tests.support.writer import JSON, TEXT

REPOSITORY = Path(__file__).resolve().parents[2]
ANSWER_TIMEOUT_S = 60.0
UP_MIN_S, UP_MAX_S = 0.02, 0.4

# Files so small, and checkpoints so frequent, that faults fall into rotation, checkpoint and deletion of log files.
SMALL_LOG = ("--log-file-bytes", "2MiB", "--body-bytes-max", "512KiB", "--checkpoint-interval-ms", "50")

STREAMS = {"crash/shared": TEXT, "crash/deep": TEXT, "crash/json": JSON, "crash/sequenced": TEXT}


def plans(large_bytes: int, seed: int) -> list[dict[str, Any]]:
    """Who writes what: several writers share each stream, plain and as producers, alone and pipelined."""
    workers: list[dict[str, Any]] = [
        {"kind": "plain", "name": "plain1", "stream": "crash/shared"},
        {"kind": "plain", "name": "plain2", "stream": "crash/shared"},
        {"kind": "producer", "name": "producer1", "stream": "crash/shared"},
        {"kind": "plain", "name": "deepplain", "stream": "crash/deep", "depth": 8},
        {"kind": "producer", "name": "deepproducer", "stream": "crash/deep", "depth": 8},
        {"kind": "plain", "name": "jsonplain", "stream": "crash/json", "content_type": JSON, "batch": 3},
        {"kind": "producer", "name": "jsonproducer", "stream": "crash/json", "content_type": JSON},
        {"kind": "sequenced", "name": "sequenced", "stream": "crash/sequenced"},
        {"kind": "life", "name": "life", "stream": "life/"},
        {"kind": "observer", "name": "observer1", "stream": "crash/shared"},
        {"kind": "observer", "name": "observer2", "stream": "crash/deep"},
    ]
    return [{**worker, "large_bytes": large_bytes, "seed": seed} for worker in workers]


def short_lives(large_bytes: int, seed: int) -> list[dict[str, Any]]:
    """Only streams that are soon deleted again, so that the log can let go of its oldest files."""
    names = ("life1", "life2", "life3", "life4")
    return [
        {"kind": "life", "name": name, "stream": "life/", "large_bytes": large_bytes, "seed": seed} for name in names
    ]


class WriterProcess:
    """The writer as a child process. `started` ends it whatever happens."""

    def __init__(self, directory: Path, workers: Sequence[dict[str, Any]]) -> None:
        directory.mkdir(parents=True)
        plan = directory / "plan.json"
        plan.write_text(json.dumps(list(workers)))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.writer", "--journal", str(directory), "--plan", str(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
        )
        self._lines = threading.Semaphore(0)
        self._gone = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @classmethod
    @contextmanager
    def started(cls, directory: Path, workers: Sequence[dict[str, Any]]) -> Iterator[WriterProcess]:
        writer = cls(directory, workers)
        try:
            yield writer
        finally:
            writer._process.kill()
            writer._process.wait()
            writer._reader.join()

    def wait_until_waiting(self) -> None:
        """Return once every connection of the writer has lost its server: from then on its journals stand still."""
        if not self._lines.acquire(timeout=ANSWER_TIMEOUT_S) or self._gone:
            raise AssertionError(f"the writer is stuck or gone (exit code {self._process.poll()})")

    def move_to(self, port: int) -> None:
        self._say(f"port {port}")

    def stop(self) -> None:
        """Let it settle what it does not know, and end."""
        self._say("stop")
        code = self._process.wait(ANSWER_TIMEOUT_S)
        assert code == 0, f"the writer ended with {code}"

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == b"waiting":
                self._lines.release()
        self._gone = True
        self._lines.release()


@dataclass
class CrashRun:
    """One bounded loop of kills over one data folder."""

    directory: Path
    kills: int
    flags: Sequence[str] = ()
    large_bytes: int = 4096
    # How often, on average, a restart is itself killed before the server is ready.
    early_kill_rate: float = 0.3
    plan: Callable[[int, int], list[dict[str, Any]]] = plans
    seed: int = field(default_factory=lambda: int(os.environ.get("HEADWATER_CRASH_SEED", time.time_ns() % 10**9)))

    def run(self) -> Verifier:
        """Kill, restart, check, over and over; returns the verifier of the settled end for further questions."""
        print(f"crash seed {self.seed} (repeat with HEADWATER_CRASH_SEED={self.seed}), {self.kills} kills")
        rng = random.Random(self.seed)
        workers = self.plan(self.large_bytes, self.seed)
        verifier = Verifier(self.directory / "journal", workers)
        # Reading everything back after every single kill would be most of the run.
        check_every = max(1, self.kills // 10)
        with (
            Node.started(self.directory / "node", flags=self.flags) as node,
            WriterProcess.started(self.directory / "journal", workers) as writer,
        ):
            for name, content_type in STREAMS.items():
                answer = node.request("PUT", f"/v1/stream/{name}", {"Content-Type": content_type})
                assert answer.status == 201, answer
            writer.wait_until_waiting()
            writer.move_to(node.port)
            start_s = 0.5
            for kill in range(self.kills):
                time.sleep(rng.uniform(UP_MIN_S, UP_MAX_S))
                node.kill()
                writer.wait_until_waiting()
                while rng.random() < self.early_kill_rate:
                    kill_while_starting(node, rng.uniform(0.0, start_s * 1.1))
                began_s = time.monotonic()
                node.start()
                start_s = time.monotonic() - began_s
                if kill % check_every == 0:
                    verifier.check(node, settled=False, context=f"after kill {kill}, seed {self.seed}")
                writer.move_to(node.port)
            time.sleep(UP_MAX_S)
            writer.stop()
            verifier.check(node, settled=True, context=f"at the end, seed {self.seed}")
            assert node.terminate() == 0, node.output()
            node.start()
            verifier.check(node, settled=True, context=f"after a clean restart, seed {self.seed}")
        return verifier


def kill_while_starting(node: Node, after_s: float) -> None:
    """Start the node and kill it before, during or just after its recovery, whichever the moment hits."""
    node.spawn()
    time.sleep(after_s)
    if not node.running:
        raise NotReady(f"the server ended by itself while starting\n{node.output()}", None, node.stderr())
    node.kill()
