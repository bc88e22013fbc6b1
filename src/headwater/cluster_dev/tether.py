"""Runs a command that ends when the process that asked for it ends: `python tether.py PARENT COMMAND...`.

Owns nothing after that: it becomes the command. It imports the standard library alone, so that it starts at once. Not a
function that runs between fork and exec: those may hang in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent_pid: int, command: list[str]) -> None:
    # The kernel keeps this over exec. Only Linux can; elsewhere a killed parent leaves its children.
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == parent_pid:  # otherwise it ended before the kernel was told
        os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
