"""A worker process: `python -m headwater.cluster.worker`, started by the supervisor and by nobody else.

Owns its life: it takes its orders from standard input, says when it is ready, and ends with its parent, however that
ends. Never restarts itself.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys

import msgspec

from headwater.cluster.supervisor import Order

_PR_SET_PDEATHSIG = 1


def main() -> int:
    parent = os.getppid()
    _die_with_parent()
    line = sys.stdin.buffer.readline()
    if os.getppid() != parent or not line:
        return 1  # the parent was gone before this process could tie itself to it
    order = msgspec.json.decode(line, type=Order)
    from headwater.app import serve_worker

    return serve_worker(order, _ready)


def _ready() -> None:
    """Tells the parent, and watches for its end."""
    os.write(1, b"ready\n")
    loop = asyncio.get_running_loop()
    fd = sys.stdin.fileno()
    os.set_blocking(fd, False)

    def ended() -> None:
        try:
            if os.read(fd, 1024):
                return
        except BlockingIOError:
            return
        # Not a stop: the parent would have asked for one. What is acknowledged is durable, and nothing else counts.
        os._exit(1)

    loop.add_reader(fd, ended)


def _die_with_parent() -> None:
    """Linux ends this process when its parent ends, also when it is stuck; elsewhere the end of its input does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
