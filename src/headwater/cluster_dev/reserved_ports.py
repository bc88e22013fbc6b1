"""Ports on loopback that stay this cluster's own, also while the process that listens on one is down.

Owns a bound socket for each, which never listens. Such a socket keeps the port from being given to anyone who asks for
any free one. Linux lets a server that sets SO_REUSEADDR listen there all the same: NATS, SeaweedFS and asyncio set it.
"""

from __future__ import annotations

import socket
import sys

from headwater.cluster_dev.child import CannotRun

HOST = "127.0.0.1"


class ReservedPorts:
    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def take(self, port: int = 0) -> int:
        """A free port, or the one asked for. Raises CannotRun when somebody listens on that."""
        held = socket.socket()
        try:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((HOST, port))
        except (OSError, OverflowError) as error:
            held.close()
            why = getattr(error, "strerror", None) or str(error)
            what = "stop what listens there, or choose another"
            raise CannotRun(f"cannot use port {port} of {HOST} ({why}): {what}") from None
        self._sockets.append(held)
        found = int(held.getsockname()[1])
        if sys.platform != "linux":
            self.release()  # elsewhere a bound socket keeps the server out too
        return found

    def release(self) -> None:
        for held in self._sockets:
            held.close()
        self._sockets.clear()
