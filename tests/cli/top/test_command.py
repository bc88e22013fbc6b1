"""`headwater top` as a user runs it, against a node with workers: one look, lines, a terminal, and nobody there."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node import Node

TEXT = {"Content-Type": "text/plain"}
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Somebody writes to it all the time, to one stream more than to the other."""
    with Node.started(tmp_path_factory.mktemp("node"), flags=["--workers", "2", "--groups", "3"]) as started:
        for name in ("busy", "calm"):
            started.request("PUT", f"/v1/stream/top/{name}", TEXT)
        over = threading.Event()

        def write() -> None:
            while not over.is_set():
                for name in ("busy", "busy", "busy", "calm"):
                    started.request("POST", f"/v1/stream/top/{name}", TEXT, b"x" * 10)

        writer = threading.Thread(target=write)
        writer.start()
        yield started
        over.set()
        writer.join()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "headwater", "top", *arguments]


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=WITHIN_S, env={**os.environ, **(env or {})}
    )


def test_one_look_tells_rates_and_the_hottest_streams(node: Node) -> None:
    for _ in range(5):  # a machine that is busy may have written nothing in between
        done = run("--url", node.url, "--once", "--json", "--interval", "1")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        streams = [line["stream"] for line in found["streams"]]
        if streams[:2] == ["top/busy", "top/calm"]:
            break
    assert streams[:2] == ["top/busy", "top/calm"]
    assert found["rates"]["appends"] > 0 and found["paces"]["append"]["p99_ms"] > 0
    assert len(found["processes"]) == 2 and len(found["groups"]) == 3
    shown = run("--url", node.url, "--once", env={"COLUMNS": "90"}).stdout
    assert "appends" in shown and "top/busy" in shown and max(map(len, shown.splitlines())) <= 90


def test_it_draws_on_a_terminal_and_ends_by_its_key(node: Node) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(command("--url", node.url), stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        try:
            seen, asked, deadline_s = b"", False, time.monotonic() + WITHIN_S
            while process.poll() is None:
                assert time.monotonic() < deadline_s, seen
                if select.select([ours], [], [], 0.1)[0]:
                    try:
                        seen += os.read(ours, 65536)
                    except OSError:
                        break  # the terminal's other end is closed
                if b"q quit" in seen and b"appends" in seen and not asked:
                    asked = True
                    os.write(ours, b"q")
            assert process.wait(WITHIN_S) == 0
        finally:
            process.kill()
            os.close(ours)


def test_failures_say_what_to_do(node: Node, tmp_path: Path) -> None:
    gone = run("--url", "http://127.0.0.1:1", "--once")
    assert gone.returncode == 1 and "headwater serve" in gone.stderr and "Traceback" not in gone.stderr
    no_terminal = run("--url", node.url)
    assert no_terminal.returncode == 1 and "--once" in no_terminal.stderr
    assert run("--url", "nonsense").returncode == 2
