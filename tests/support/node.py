"""A real `headwater serve` process under test: start, wait until ready, kill, terminate, restart.
It owns the process and its output; it never leaves one behind and never looks inside it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from headwater.data_directory import DataDirectory
from tests.support.http import TIMEOUT_S, Connection, Headers, Response
from tests.support.http import request as http_request
from tests.support.waiting import Deadline

HOST = "127.0.0.1"
READY = re.compile(r"^headwater ready on https?://127\.0\.0\.1:(\d+)(?: with \d+ workers)?\s*$", re.MULTILINE)
WORKERS = ["--workers", os.environ["TEST_WORKERS"]] if "TEST_WORKERS" in os.environ else []
"""Any test can be run against several workers: TEST_WORKERS=3 pytest tests/doors/http/operations"""
START_TIMEOUT_S = 60.0
EXIT_TIMEOUT_S = 60.0
POLL_S = 0.002
OUTPUT_BYTES_SHOWN = 8_000


class NotReady(Exception):
    """The server ended or stayed silent before it was ready; the message holds what it wrote."""

    def __init__(self, message: str, exit_code: int | None, stderr: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.stderr = stderr


class Node:
    """One server and the folder it keeps. `Node.started` is the usual way to have one."""

    def __init__(
        self,
        directory: Path,
        memory: bool = False,
        wrapper: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
        listen: str = f"{HOST}:0",
    ) -> None:
        self.directory = Path(directory)
        self.data_directory = self.directory / "data"
        self.memory = memory
        self.wrapper = list(wrapper)
        self.env = dict(env or {})
        self.flags = list(flags)
        self.listen = listen
        self._process: subprocess.Popen[bytes] | None = None
        self._port: int | None = None
        self._starts = 0

    @classmethod
    @contextmanager
    def started(
        cls,
        directory: Path,
        memory: bool = False,
        wrapper: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
    ) -> Iterator[Node]:
        """A ready node; whatever became of it inside, no process of it is left afterwards."""
        node = cls(directory, memory, wrapper, env, flags)
        try:
            node.start()
            yield node
        finally:
            node.kill()

    @property
    def port(self) -> int:
        assert self._port is not None, "the node was never ready"
        return self._port

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the node was never started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Spawn and wait for the ready line. Raises `NotReady`, with nothing left running."""
        self.spawn()
        self.wait_ready(timeout_s)

    def spawn(self) -> None:
        """Only start the process: for tests that kill it while it is still coming up."""
        assert not self.running, "the node already runs"
        self.directory.mkdir(parents=True, exist_ok=True)
        self._starts += 1
        self._port = None
        keep = ["--memory"] if self.memory else ["--data", str(self.data_directory)]
        # The other door has a port of its own by default, which two nodes could not share; `flags` may open it again.
        serve = ["serve", "--listen", self.listen, "--s3p", "off", *keep, *WORKERS]
        command = [*self.wrapper, sys.executable, "-m", "headwater", *serve]
        # A setting in the caller's environment must not reach the server under test.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
        with self._output("out").open("wb") as out, self._output("err").open("wb") as err:
            self._process = subprocess.Popen(
                [*command, *self.flags],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**inherited, "PYTHONUNBUFFERED": "1", **self.env},
                # A group of its own, so that a kill reaches a tracer around the server as well.
                start_new_session=True,
            )

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return once the ready line is out and its port known."""
        assert self._process is not None
        deadline_s = time.monotonic() + timeout_s
        while True:
            # Asked before the output is read: a line written just before the end still counts.
            exit_code = self._process.poll()
            found = READY.search(self._output("out").read_text(errors="replace"))
            if found:
                self._port = int(found.group(1))
                return
            if exit_code is not None:
                raise NotReady(f"server ended with {exit_code}\n{self.output()}", exit_code, self.stderr())
            if time.monotonic() > deadline_s:
                shown = self.output()
                self.kill()
                raise NotReady(f"server not ready after {timeout_s} s\n{shown}", None, self.stderr())
            time.sleep(POLL_S)

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone. Does nothing when it already is."""
        if not self.running:
            return
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(EXIT_TIMEOUT_S)
        # Its workers were killed as well, and hold the directory until they are gone.
        deadline = Deadline(EXIT_TIMEOUT_S)
        while not self.memory and DataDirectory(self.data_directory).is_in_use():
            deadline.check("a process of the node ends")
            time.sleep(POLL_S)

    def terminate(self, timeout_s: float = EXIT_TIMEOUT_S) -> int:
        """SIGTERM, and wait: the exit code. Raises `TimeoutExpired` when the server ignores it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout_s)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, timeout_s: float = EXIT_TIMEOUT_S) -> int:
        """Wait for the process to end by itself: its exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def restart(self, wrapper: Sequence[str] | None = None) -> None:
        """Kill whatever runs and start again on the same folder, on a new port."""
        self.kill()
        if wrapper is not None:
            self.wrapper = list(wrapper)
        self.start()

    def connect(self, timeout_s: float = TIMEOUT_S, receive_buffer_bytes: int | None = None) -> Connection:
        return Connection(HOST, self.port, timeout_s, receive_buffer_bytes)

    def request(self, method: str, path: str, headers: Headers = (), body: bytes | None = None) -> Response:
        """One request on a connection of its own."""
        return http_request(self.port, method, path, headers, body, HOST)

    @contextmanager
    def full(self) -> Iterator[None]:
        """While inside, nothing settles: once `--hot-bytes-max` is reached the node refuses every append.

        Where the lake would put its files there stands one, which also keeps out a node that runs as root.
        """
        data = self.data_directory / "lake" / "data"
        data.parent.mkdir(parents=True, exist_ok=True)
        if data.exists():
            data.rename(data.with_name("data-away"))
        data.touch()
        try:
            yield
        finally:
            data.unlink()
            if data.with_name("data-away").exists():
                data.with_name("data-away").rename(data)

    def rss_bytes(self) -> int:
        """Resident memory of the server process right now."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the server has no resident memory: it is gone")

    def stderr(self) -> str:
        return self._output("err").read_text(errors="replace")

    def output(self) -> str:
        """The ends of both outputs of the current process, for a failure message."""
        out = self._output("out").read_text(errors="replace")
        return f"stdout: {out[-OUTPUT_BYTES_SHOWN:]}\nstderr: {self.stderr()[-OUTPUT_BYTES_SHOWN:]}"

    def _output(self, kind: str) -> Path:
        return self.directory / f"node.{self._starts}.{kind}"
