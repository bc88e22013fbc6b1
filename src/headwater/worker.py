"""One worker of a node: told who it is on standard input, ready on standard output, gone with its parent.

Owns the end of this process when the parent ends. Never serves anything itself: `process.serve_worker` does.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys

EXIT_FAILED = 1
_PR_SET_PDEATHSIG = 1


def main() -> int:
    _die_with_parent()
    # Imported after that: it takes a while, in which the parent may end.
    import msgspec

    from headwater.cluster.supervisor import Order
    from headwater.process import serve_worker

    line = sys.stdin.buffer.readline()
    if not line:
        return EXIT_FAILED
    order = msgspec.json.decode(line, type=Order)
    return serve_worker(order, _ready, _watch_parent, announce)


def announce(text: str) -> None:
    """Has the parent print a line: what a worker prints is for the parent."""
    print(f"say {text}", flush=True)


def _ready() -> None:
    print("ready", flush=True)


def _die_with_parent() -> None:
    """The kernel kills this process when its parent ends, even while it is busy. Only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _watch_parent() -> None:
    """Standard input ends with the parent: nothing is left to do then that a crash would not do as well."""

    def readable() -> None:
        if not os.read(descriptor, 4096):
            os._exit(EXIT_FAILED)

    descriptor = sys.stdin.fileno()
    asyncio.get_running_loop().add_reader(descriptor, readable)


if __name__ == "__main__":
    sys.exit(main())
