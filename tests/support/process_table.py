"""Which processes there are on this machine, for tests that nothing is left behind.
It reads /proc and ends nothing."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def processes() -> list[int]:
    """The ids of all that there are. Each of them may have ended when it is looked at: the other functions say so by
    what they return, and never raise."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def stat_fields(pid: int) -> list[str]:
    """State, parent, process group and so on; nothing when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def command_of(pid: int) -> list[bytes]:
    """The words of its command line, each with a zero behind it, so that the last one is empty; nothing of a process
    that is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def open_files(pid: int) -> list[str]:
    """What its open files are, as the system names them; nothing when the process is gone."""
    found = []
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def is_gone(pid: int) -> bool:
    """A zombie is gone too: nothing of it runs, and whoever adopted it has not looked yet."""
    return stat_fields(pid)[:1] in ([], ["Z"], ["X"])


def running_with(text: str) -> dict[int, str]:
    """Processes whose command line has the text, by id."""
    found = {}
    for pid in processes():
        command = b" ".join(command_of(pid)).decode(errors="replace")
        if text in command and not is_gone(pid):
            found[pid] = command
    return found
