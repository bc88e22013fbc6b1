"""Which processes there are on this machine, for tests that nothing is left behind.
It reads /proc and ends nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

WITHIN_S = 60.0


def is_gone(pid: int) -> bool:
    """A zombie is gone too: nothing of it runs, and whoever adopted it has not looked yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in ("Z", "X")


def running_with(text: str) -> dict[int, str]:
    """Processes whose command line has the text, by id."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        if text in command and not is_gone(int(entry.name)):
            found[int(entry.name)] = command
    return found


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline_s, "it never came to hold"
        time.sleep(0.02)
