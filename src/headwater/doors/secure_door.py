"""TLS in front of a door: accepts, has the handshake made, and only then gives the connection to the door's protocol.

Owns the time and the number of handshakes under way, and the answer to who speaks without TLS. Never looks at what is
said inside. A connection that brings nothing costs a socket; one whose handshake has begun costs the state of OpenSSL.
Both are bounded apart, and the oldest makes room: whoever is slow on purpose gives way to whoever is not.

    accept -> silent:          waits, at most WAITING_MAX of them, until the time limit
           -> a ClientHello:   the handshake, at most HANDSHAKES_MAX of them, until the time limit -> the door
           -> anything else:   the plain answer, then the end
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

import structlog

ACCEPTS_PER_TURN = 8
"""A handshake takes up to a millisecond of the event loop; other workers accept from the same socket."""
WAITING_MAX = 4096
HANDSHAKES_MAX = 512
PLAIN_READ_BYTES = 64 * 1024
PLAIN_END_S = 2.0
"""How long who speaks without TLS has to take the answer."""
SHUTDOWN_S = 300.0
"""How long what was written may take to leave. Who has taken it all is not waited for (see `farewell`)."""
TELL_S = 10.0
"""Of the handshakes that fail within this time one is logged."""
HANDSHAKE_BYTE = 0x16
"""The first byte of a TLS record with a ClientHello (RFC 8446, 5.1)."""

log = structlog.get_logger("headwater.tls")

Factory = Callable[[], asyncio.Protocol]


class SecureDoor:
    """Counters are plain ints: `observe` exports them."""

    def __init__(
        self,
        accept: Factory,
        context: Callable[[], ssl.SSLContext],
        plain_answer: Callable[[], bytes],
        timeout_s: float,
    ) -> None:
        """`context` gives the one that a connection begins with now, `plain_answer` what is said to who has none."""
        self._loop = asyncio.get_running_loop()
        self._accept_protocol = accept
        self._context = context
        self._plain_answer = plain_answer
        self._timeout_s = timeout_s
        self._listening: list[socket.socket] = []
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}
        """Those that have said nothing yet, and those that are being told to use TLS. The oldest comes first."""
        self._handshakes: dict[asyncio.Task[None], None] = {}
        """The oldest comes first."""
        self._told_s = -TELL_S
        self.accepted_count = 0
        self.failed_count = 0
        """Handshakes that ended without a connection, whoever ended them."""
        self.displaced_count = 0
        """Connections that made room for others."""
        self.plain_count = 0

    @property
    def handshakes_count(self) -> int:
        return len(self._handshakes)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def listen(self, listening: socket.socket) -> None:
        """Accepts from a socket that listens, until `close`."""
        listening.setblocking(False)
        self._listening.append(listening)
        self._loop.add_reader(listening.fileno(), self._accept, listening)

    def close(self) -> None:
        """Accepts no more. Whoever has no connection yet gets none."""
        for listening in self._listening:
            self._loop.remove_reader(listening.fileno())
            listening.close()
        self._listening = []
        for sock in list(self._waiting):
            self._end(sock)
        for task in list(self._handshakes):
            task.cancel()

    # ---- before the handshake -------------------------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # No descriptors left, most likely. Later some may be free again.
                log.warning("cannot accept", reason=str(error))
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(0.2, self._accept_again, listening)
                return
            self.accepted_count += 1
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            first = _peek(sock)
            if first is None:
                self._wait(sock, self._timeout_s, self._readable)
            else:
                self._begin(sock, first)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _wait(self, sock: socket.socket, limit_s: float, readable: Callable[[socket.socket], None]) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self.displaced_count += 1
            self._end(next(iter(self._waiting)))
        self._waiting[sock] = self._loop.call_later(limit_s, self._end, sock)
        self._loop.add_reader(sock.fileno(), readable, sock)

    def _let_go(self, sock: socket.socket) -> None:
        self._waiting.pop(sock).cancel()
        self._loop.remove_reader(sock.fileno())

    def _end(self, sock: socket.socket) -> None:
        self._let_go(sock)
        sock.close()

    def _readable(self, sock: socket.socket) -> None:
        first = _peek(sock)
        if first is not None:
            self._let_go(sock)
            self._begin(sock, first)

    def _begin(self, sock: socket.socket, first: bytes) -> None:
        if not first:
            sock.close()
        elif first[0] == HANDSHAKE_BYTE:
            if len(self._handshakes) >= HANDSHAKES_MAX:
                self.displaced_count += 1
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                oldest.cancel()
            task = self._loop.create_task(self._handshake(sock))
            self._handshakes[task] = None
            task.add_done_callback(self._handshake_ended)
        else:
            self._answer_plainly(sock)

    # ---- who speaks without TLS -------------------------------------------------------------------------------------

    def _answer_plainly(self, sock: socket.socket) -> None:
        self.plain_count += 1
        try:
            # What it sent is read first: closing over unread bytes would wipe the answer out.
            sock.recv(PLAIN_READ_BYTES)
            sock.send(self._plain_answer())
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            sock.close()
            return
        self._wait(sock, PLAIN_END_S, self._discard)

    def _discard(self, sock: socket.socket) -> None:
        try:
            if sock.recv(PLAIN_READ_BYTES):
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        self._end(sock)

    # ---- the handshake ----------------------------------------------------------------------------------------------

    async def _handshake(self, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._accept_protocol,
                sock,
                ssl=self._context(),
                ssl_handshake_timeout=self._timeout_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError as why:  # ssl.SSLError among them
            self.failed_count += 1
            sock.close()
            self._tell(why)
        except asyncio.CancelledError:
            self.failed_count += 1
            sock.close()
            raise

    def _tell(self, why: OSError) -> None:
        """Whoever runs the node has to find out why a client is not let in, and no client may fill the log."""
        now_s = self._loop.time()
        if isinstance(why, ssl.SSLError) and now_s >= self._told_s + TELL_S:
            self._told_s = now_s
            log.info("a TLS handshake failed", reason=why.reason or type(why).__name__, failed=self.failed_count)

    def _handshake_ended(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)


def _peek(sock: socket.socket) -> bytes | None:
    """The first byte of a connection, which it keeps; b"" when it is over, None when there is none yet."""
    try:
        return sock.recv(1, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        return b""
