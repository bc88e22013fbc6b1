"""New connections go to the member that owns what their first request is about, socket and all.

Owns accepting, the look at the first bytes (which stay in the socket) and the hand-over. Never reads a byte that the
connection's protocol would need, and never holds up others: who sends nothing is looked at when it does.

    accept -> readable -> MSG_PEEK -> owner here:      protocol of this process
                                   -> owner elsewhere: SCM_RIGHTS over its Unix socket. Its queue is short, and tried
                                                       again when it is full; at last, or when the owner is away, the
                                                       connection stays here, and what it asks is forwarded
"""

from __future__ import annotations

import asyncio
import enum
import os
import socket
from array import array
from collections.abc import Callable

import structlog

from headwater.cluster.members import Members

PEEK_BYTES = 4096
WAITING_MAX = 4096
"""Accepted connections that have sent nothing yet; more are not accepted until some have."""
WAIT_S = 10.0
"""A connection that stays silent for so long is served here: its own time limits apply then."""
ACCEPTS_PER_TURN = 64
FULL_WAIT_S, FULL_TRIES_MAX = 0.002, 50
"""The system lets few sockets wait for a member (10 by default), which takes all of them in one turn of its loop."""
_RECEIVE_FDS_MAX = 64

log = structlog.get_logger("headwater.handover")

Owner = Callable[[bytes], int | None]
"""The member that the first bytes of a connection are for; None when any may serve it."""
Factory = Callable[[], asyncio.Protocol]


class Sent(enum.Enum):
    """What became of a socket that was to be handed over."""

    YES = enum.auto()
    FULL = enum.auto()
    """Too many wait for the member now."""
    AWAY = enum.auto()


class Door:
    """One protocol's way in: who owns its first bytes, and what serves a connection."""

    __slots__ = ("accept", "owner")

    def __init__(self, owner: Owner, accept: Factory) -> None:
        self.owner = owner
        self.accept = accept


class Acceptor:
    """Accepts on one listening socket and places each connection. `close` stops accepting."""

    def __init__(self, listening: socket.socket, kind: str, door: Door, handover: Handover) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._kind = kind
        self._door = door
        self._handover = handover
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}
        """Connections that have sent nothing yet, or whose owner takes none now."""
        self._accepting = False
        self._closed = False
        listening.setblocking(False)
        self._accept_more()

    def close(self) -> None:
        self._closed = True
        self._stop_accepting()
        self._listening.close()
        for sock in list(self._waiting):
            self._stop_waiting(sock)
            sock.close()

    @property
    def is_idle(self) -> bool:
        """True when no connection waits to be placed."""
        return not self._waiting

    def _accept_more(self) -> None:
        if not self._accepting and not self._closed and len(self._waiting) < WAITING_MAX:
            self._accepting = True
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def _stop_accepting(self) -> None:
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._listening.fileno())

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # No descriptors left, most likely. Later some may be free again.
                log.warning("cannot accept", reason=str(error))
                self._stop_accepting()
                self._loop.call_later(0.2, self._accept_more)
                return
            sock.setblocking(False)
            # The request mostly came with the connection: a look now saves a turn of the event loop.
            first = _peek(sock)
            if first is None:
                self._wait(sock)
            else:
                self._place(sock, first)

    def _wait(self, sock: socket.socket) -> None:
        self._waiting[sock] = self._loop.call_later(WAIT_S, self._waited, sock)
        self._loop.add_reader(sock.fileno(), self._readable, sock)
        if len(self._waiting) >= WAITING_MAX:
            self._stop_accepting()

    def _stop_waiting(self, sock: socket.socket) -> None:
        self._waiting.pop(sock).cancel()
        self._loop.remove_reader(sock.fileno())
        self._accept_more()

    def _readable(self, sock: socket.socket) -> None:
        first = _peek(sock)
        if first is not None:
            self._stop_waiting(sock)
            self._place(sock, first)

    def _waited(self, sock: socket.socket) -> None:
        self._stop_waiting(sock)
        serve(self._loop, self._door.accept, sock)

    def _place(self, sock: socket.socket, first: bytes) -> None:
        if not first:
            sock.close()
            return
        member = self._door.owner(first)
        if member is None or member == self._handover.me:
            serve(self._loop, self._door.accept, sock)
        else:
            self._hand_over(sock, member, FULL_TRIES_MAX)

    def _hand_over(self, sock: socket.socket, member: int, tries_left: int) -> None:
        self._waiting.pop(sock, None)
        sent = self._handover.send(member, self._kind, sock)
        if sent is Sent.FULL and tries_left:
            again = self._loop.call_later(FULL_WAIT_S, self._hand_over, sock, member, tries_left - 1)
            self._waiting[sock] = again
            return
        if sent is not Sent.YES:
            serve(self._loop, self._door.accept, sock)
        self._accept_more()


def _peek(sock: socket.socket) -> bytes | None:
    """The first bytes of a connection, which it keeps; b"" when it is over, None when there are none yet."""
    try:
        return sock.recv(PEEK_BYTES, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        return b""


def serve(loop: asyncio.AbstractEventLoop, accept: Factory, sock: socket.socket) -> None:
    """Gives a connected socket to its protocol."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    task = loop.create_task(_connected(loop, accept, sock))
    _serving.add(task)
    task.add_done_callback(_serving.discard)


_serving: set[asyncio.Task[None]] = set()
"""The event loop itself holds tasks only weakly."""


async def _connected(loop: asyncio.AbstractEventLoop, accept: Factory, sock: socket.socket) -> None:
    try:
        await loop.connect_accepted_socket(accept, sock)
    except OSError:
        sock.close()


class Handover:
    """This member's end of the hand-over: sends sockets to others, and serves those that others send."""

    def __init__(self, members: Members) -> None:
        self._loop = asyncio.get_running_loop()
        self._members = members
        self.me = members.me
        self._doors: dict[str, Factory] = {}
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._channel.setblocking(False)
        self.sent_count = 0
        self.received_count = 0

    def open(self, doors: dict[str, Factory]) -> None:
        """Starts to take sockets from others; `doors` serve them, by kind."""
        path = self._members.sockets_path(self.me)
        if os.path.exists(path):
            os.unlink(path)
        self._channel.bind(path)
        self._doors = doors
        self._loop.add_reader(self._channel.fileno(), self._receive)

    def send(self, member: int, kind: str, sock: socket.socket) -> Sent:
        """Hands a socket over and closes it here; when the member does not take it now, it is still open."""
        try:
            # Not `socket.send_fds`: it leaves flags and address out.
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [sock.fileno()]))
            path = self._members.sockets_path(member)
            self._channel.sendmsg([kind.encode()], [rights], socket.MSG_DONTWAIT, path)
        except BlockingIOError:
            return Sent.FULL
        except OSError:
            return Sent.AWAY
        self.sent_count += 1
        sock.close()
        return Sent.YES

    def _receive(self) -> None:
        while True:
            try:
                kind, fds, _, _ = socket.recv_fds(self._channel, 16, _RECEIVE_FDS_MAX, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                log.warning("a handed-over connection was lost", reason=str(error))
                return
            accept = self._doors.get(kind.decode("latin-1"))
            for fd in fds:
                sock = socket.socket(fileno=fd)
                sock.setblocking(False)
                if accept is None:
                    sock.close()
                else:
                    self.received_count += 1
                    serve(self._loop, accept, sock)

    def close(self) -> None:
        if self._doors:
            self._loop.remove_reader(self._channel.fileno())
        self._channel.close()
