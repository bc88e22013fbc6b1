"""Disk faults for a server under test: wrappers that make chosen system calls fail, kill, or be written down.
It owns the use of strace; it never touches the files of the server itself."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.support.node import Node, NotReady

# Every call a log could use to put bytes into a file.
WRITES = ("pwrite64", "pwritev", "pwritev2", "write", "writev")


@functools.cache
def why_not_traceable() -> str | None:
    """None when strace works here; otherwise the reason, for a skip message."""
    path = shutil.which("strace")
    if path is None:
        return "strace is not installed"
    probe = [*_strace(["fdatasync"]), "-e", "inject=fdatasync:error=EIO", sys.executable, "-c"]
    script = "import os, sys, tempfile\nwith tempfile.TemporaryFile() as f:\n try: os.fdatasync(f.fileno())\n"
    script += " except OSError: sys.exit(7)"
    try:
        result = subprocess.run([*probe, script], capture_output=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return "strace hangs on this machine"
    if result.returncode != 7:
        return f"strace cannot inject here: {result.stderr.decode(errors='replace').strip() or result.returncode}"
    return None


def failing(
    calls: Iterable[str], error: str, when: str, paths: Sequence[Path] = (), trace: Path | None = None
) -> list[str]:
    """A wrapper under which `calls` fail with `error`; `when` is strace's ("3" once, "3+" from then on).

    Counted per thread. With `paths`, only calls on exactly these files count and fail. `trace` tells of each call.
    """
    names = ",".join(calls)
    output = str(trace) if trace is not None else "/dev/null"
    return [*_strace([names], paths, output), "-e", f"inject={names}:error={error}:when={when}"]


def killing(calls: Iterable[str], when: int) -> list[str]:
    """A wrapper under which each thread's call number `when` among `calls` ends the server with SIGKILL."""
    names = ",".join(calls)
    return [*_strace([names]), "-e", f"inject={names}:signal=SIGKILL:when={when}"]


def killed_at(node: Node, calls: Iterable[str], when: int, act: Callable[[], None]) -> bool:
    """Has a stopped node start and act, killed at that call, and starts it again without faults.

    Whether the kill came before the act was over; either way the node was not stopped in order."""
    node.wrapper = killing(calls, when)
    try:
        node.start()
        act()
    except NotReady as ended:
        assert ended.exit_code == -9, ended
    killed = not node.running
    node.kill()
    node.wrapper = []
    node.start()
    return killed


def recording(calls: Iterable[str], trace: Path) -> list[str]:
    """A wrapper that writes every one of `calls`, in order and with the files it touches, to `trace`."""
    return [*_strace([",".join(calls)], output=str(trace)), "-y", "-s", "64"]


def _strace(calls: Sequence[str], paths: Sequence[Path] = (), output: str = "/dev/null") -> list[str]:
    # -D keeps the server the direct child, so that its pid and its signals are the server's own.
    # Not --seccomp-bpf, which would halve the time of a start: strace 6.1 then does not send the signals of `killing`.
    command = ["strace", "-D", "-f", "-qq", "-o", output, "-e", "trace=" + ",".join(calls)]
    for path in paths:
        command += ["-P", str(path)]
    return command
