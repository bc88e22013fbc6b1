"""A process of a local cluster: its ends, its signals and its output.
The commands are small Python programs; nothing here is a part of a cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headwater.cluster_dev.child import CannotRun, Child
from tests.support.process_table import is_gone
from tests.support.waiting import until

ENDLESS = "import time; print('up', flush=True); time.sleep(1e6)"
IGNORES_SIGTERM = "import signal; signal.signal(15, signal.SIG_IGN); " + ENDLESS
PARENT = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from headwater.cluster_dev.child import Child
child = Child("child", Path(sys.argv[1]), ThreadPoolExecutor(1))
child.spawn([sys.executable, "-c", sys.argv[2]], {})
child.wait_until(lambda: "up" in child.output(), "up", 60)
print(child.pid, flush=True)
time.sleep(1e6)
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    with ThreadPoolExecutor(1) as spawner:
        child = Child("child", tmp_path / "logs" / "child.log", spawner)
        yield child
        child.kill()


def run(child: Child, program: str = ENDLESS) -> None:
    child.spawn([sys.executable, "-c", program], dict(os.environ))
    child.wait_until(lambda: "up" in child.output(), "up", 60)


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log"), ENDLESS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        parent.kill()
    until(lambda: is_gone(pid))


def test_it_outlives_the_thread_that_asked_for_it(child: Child) -> None:
    thread = threading.Thread(target=run, args=(child,))
    thread.start()
    thread.join()
    child.pause()  # a process that is being ended cannot be stopped and go on
    child.resume()
    assert child.running
    assert child.state == "runs"


def test_it_ends_when_its_cluster_is_given_up_without_being_closed(tmp_path: Path) -> None:
    spawner = ThreadPoolExecutor(1)
    child = Child("child", tmp_path / "log", spawner)
    run(child)
    spawner.shutdown()
    assert child.ended(60)
    assert child.exit_code == -signal.SIGKILL


def test_told_to_stop_it_ends(child: Child) -> None:
    assert child.state == "was not started"
    run(child)
    child.stop()
    assert (child.running, child.pid, child.exit_code) == (False, None, -signal.SIGTERM)
    assert child.state == "was ended by signal 15"


def test_a_paused_one_can_be_stopped(child: Child) -> None:
    run(child)
    child.pause()
    assert (child.running, child.state) == (True, "is paused")
    child.stop()
    assert not child.running
    assert not child.paused


def test_a_paused_one_can_be_killed(child: Child) -> None:
    run(child)
    child.pause()
    child.kill()
    assert child.state == "was ended by signal 9"


def test_one_that_does_not_stop_is_killed_and_that_is_told(child: Child) -> None:
    run(child, IGNORES_SIGTERM)
    child.stop_s_max = 0.2
    with pytest.raises(CannotRun, match=r"child did not stop within 0\.2 s and was killed"):
        child.stop()
    assert not child.running


def test_one_that_ends_before_it_is_ready_is_told_with_what_it_said(child: Child) -> None:
    with pytest.raises(CannotRun, match=r"child ended with 3 before it was up\n.*child\.log:\nno luck"):
        run(child, "import sys; print('no luck'); sys.exit(3)")


def test_one_that_never_gets_ready_is_told(child: Child) -> None:
    run(child)
    with pytest.raises(CannotRun, match=r"child was not ready within 0\.1 s"):
        child.wait_until(lambda: False, "ready", 0.1)


def test_signals_reach_whatever_stands_around_the_command(child: Child) -> None:
    """A shell or a tracer: both processes end."""
    child.spawn(["sh", "-c", f'"{sys.executable}" -c "{ENDLESS}"; true'], dict(os.environ))
    child.wait_until(lambda: "up" in child.output(), "up", 60)
    assert child.pid is not None
    inner = [int(pid) for pid in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()]
    child.kill()
    assert inner
    until(lambda: all(map(is_gone, inner)))


def test_a_second_life_writes_behind_the_first_and_shows_only_itself(child: Child) -> None:
    run(child, "print('first up', flush=True); " + ENDLESS)
    child.kill()
    run(child, "print('second up', flush=True); " + ENDLESS)
    assert "first" not in child.output()
    assert child.log.read_text().startswith("first up\n")


def test_one_that_runs_is_not_started_twice(child: Child) -> None:
    run(child)
    with pytest.raises(RuntimeError, match="child runs already"):
        run(child)
