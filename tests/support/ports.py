"""Ports on loopback that stay a test's own, also while the process that listens on one is down.

It owns a bound socket for each, which never listens: a port that is only looked for and let go may be given to another
process at once. Linux lets a server with SO_REUSEADDR listen there all the same; NATS, SeaweedFS and Java have it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def reserved(count: int) -> Iterator[list[int]]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", 0))
        yield [one.getsockname()[1] for one in sockets]
