"""One process of a local cluster: started, told to stop, killed, paused and resumed, by its process id.

Owns the process and the file that its output goes to. Never decides when it is ready: the parts of a cluster do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from headwater.cluster_dev import tether

POLL_S = 0.02
HOST = "127.0.0.1"
OUTPUT_CHARS_SHOWN = 2_000


class CannotRun(Exception):
    """A part of the cluster does not start or does not get ready; the message says why and what to do."""


class Child:
    """May be started again after it has ended. All methods but `running` and `output` are for one thread at a time."""

    stop_s_max = 30.0

    def __init__(self, name: str, log: Path, spawner: Executor) -> None:
        self.name = name
        self.log = log
        """Standard output and standard error of all its lives, one after the other."""
        self.host = HOST
        """Where it listens. Whoever changes it does so before anything is started."""
        self.wrapper: Sequence[str] = ()
        """What stands before its command: it may put the process into a network of its own."""
        self._spawner = spawner
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self.paused = False

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def running(self) -> bool:
        """A paused one runs too."""
        return self.pid is not None

    @property
    def exit_code(self) -> int | None:
        """Of its last life; negative: the signal that ended it. None while it runs, and before it ever did."""
        return None if self._process is None else self._process.poll()

    @property
    def state(self) -> str:
        """For people."""
        if self._process is None:
            return "was not started"
        code = self.exit_code
        if code is not None:
            return f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
        return "is paused" if self.paused else "runs"

    def spawn(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        if self.running:
            raise RuntimeError(f"{self.name} runs already")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        tethered = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), *self.wrapper, *command]
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            # By a thread that lives as long as the cluster: the kernel ends the child when the thread that made it
            # ends. In a session of its own: Ctrl-C is for the parent, which then stops its children in order.
            self._process = self._spawner.submit(
                subprocess.Popen,
                tethered,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                start_new_session=True,
            ).result()
        self.paused = False

    def output(self) -> str:
        """What it wrote in its present or last life."""
        try:
            with self.log.open("rb") as log:
                log.seek(self._log_start)
                return log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def terminate(self) -> None:
        """SIGTERM, without waiting. A paused one is resumed, so that it can hear it."""
        self._signal(signal.SIGTERM)
        self.resume()

    def ended(self, within_s: float) -> bool:
        """Waits for its end; whether it came in time."""
        if self._process is not None:
            try:
                self._process.wait(within_s)
            except subprocess.TimeoutExpired:
                return False
        self.paused = False
        return True

    def stop(self) -> None:
        """SIGTERM, and waits. Raises CannotRun, with nothing left of it, when that takes too long."""
        self.terminate()
        if not self.ended(self.stop_s_max):
            self.kill()
            raise CannotRun(f"{self.name} did not stop within {self.stop_s_max:g} s and was killed\n{self.tail()}")

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone. Does nothing when it is already."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self.paused = False

    def pause(self) -> None:
        """SIGSTOP: its connections stay open and nothing answers on them."""
        self._signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self.paused = False

    def wait_until(self, holds: Callable[[], bool], what: str, within_s: float) -> None:
        """Returns when it holds. Raises CannotRun when the process ends before, or time runs out."""
        deadline_s = time.monotonic() + within_s
        while True:
            # Asked first: what it did just before its end counts. One that ends now is found to have ended next time.
            code = self.exit_code
            if holds():
                return
            if code is not None:
                raise CannotRun(f"{self.name} ended with {code} before it was {what}\n{self.tail()}")
            if time.monotonic() > deadline_s:
                raise CannotRun(f"{self.name} was not {what} within {within_s:g} s\n{self.tail()}")
            time.sleep(POLL_S)

    def tail(self) -> str:
        """The end of what it wrote, for a message."""
        return f"the end of {self.log}:\n{self.output()[-OUTPUT_CHARS_SHOWN:].strip()}"

    def _signal(self, number: int) -> None:
        """To its whole session: a tracer or a shell may stand around the command."""
        pid = self.pid
        if pid is not None:
            os.killpg(pid, number)
