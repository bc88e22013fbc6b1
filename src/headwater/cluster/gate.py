"""The address where a node listens for the other nodes of its cluster.

Owns accepting there, and that nobody comes further who does not know the secret. Never looks at what an introduced
connection says: it belongs to the door that it asked for.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Protocol

from headwater.cluster.introduction import ACCEPTED, BYTES_MAX, REFUSED, wanted_door
from headwater.cluster.supervisor import listen

INTRODUCTION_S_MAX = 10.0
WAITING_MAX = 1024
"""Connections that have not introduced themselves yet. Overflow: further ones are closed at once."""
BACKLOG = 4096
_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))

Factory = Callable[[], asyncio.Protocol]


class Accepting(Protocol):
    """What accepts connections with TLS."""

    def listen(self, listening: socket.socket) -> None: ...

    def close(self) -> None: ...


class Gate:
    """`doors` make the protocol objects of introduced connections, by name (`membership.HTTP`, `membership.S3P`)."""

    def __init__(
        self,
        node_id: str,
        secret: bytes,
        doors: Mapping[str, Factory],
        secure: Callable[[Factory], Accepting] | None = None,
    ) -> None:
        """`secure` makes what accepts with TLS and gives connections to guests; None without TLS."""
        self._secure = secure
        self.node_id = node_id
        self.secret = secret
        self.doors = doors
        self.waiting: set[_Guest] = set()
        self.refused_count = 0
        self._server: asyncio.Server | Accepting | None = None

    async def listen(self, host: str, port: int) -> int:
        """Starts to accept; returns the port. Raises OSError."""
        if self._secure is not None:
            sockets, port = listen(host, port, BACKLOG)
            self._server = accepting = self._secure(lambda: _Guest(self))
            for sock in sockets:
                accepting.listen(sock)
            return port
        loop = asyncio.get_running_loop()
        self._server = server = await loop.create_server(lambda: _Guest(self), host, port, backlog=BACKLOG)
        return int(server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stops accepting. Connections that were introduced belong to their doors, and go on."""
        if self._server is not None:
            self._server.close()
        for guest in list(self.waiting):
            guest.abort()


class _Guest(asyncio.Protocol):
    """A connection that has not introduced itself."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._transport: asyncio.Transport | None = None
        self._said = b""
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports are not asyncio's by class
        if len(self._gate.waiting) >= WAITING_MAX:
            self.abort()
            return
        self._gate.waiting.add(self)
        self._late = asyncio.get_running_loop().call_later(INTRODUCTION_S_MAX, self.abort)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._said += data
        end = self._said.find(b"\r\n\r\n", 0, BYTES_MAX)
        if end < 0 and len(self._said) < BYTES_MAX:
            return
        self._forget()
        gate = self._gate
        door = None if end < 0 else wanted_door(self._said[: end + 2], gate.secret, gate.node_id)
        accept = None if door is None else gate.doors.get(door)
        if accept is None:
            gate.refused_count += 1
            transport.write(REFUSED)
            transport.close()
            return
        keep_alive(transport)
        transport.write(ACCEPTED)
        protocol = accept()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        rest = self._said[end + 4 :]
        if rest:
            protocol.data_received(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()

    def abort(self) -> None:
        self._forget()
        if self._transport is not None:
            self._transport.abort()

    def _forget(self) -> None:
        self._gate.waiting.discard(self)
        if self._late is not None:
            self._late.cancel()


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Has the kernel notice when the other machine is gone: connections between nodes have no time limits."""
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
