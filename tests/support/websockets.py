"""WebSocket frames by hand, and one WebSocket on a transport and a clock that the test moves.
Frames are coded here from RFC 6455 alone, so that a fault of the package under test does not hide itself."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from headwater.config import Settings
from headwater.doors.http.access import Access
from headwater.doors.http.client_address import Proxies
from headwater.doors.http.connection import Connection
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.respond import Responder
from headwater.doors.http.slices import Slicer
from headwater.doors.http.watch import Watch
from headwater.doors.http.websocket import WebSocket, WebSockets
from headwater.doors.http.wire import Budget, Heads
from headwater.errors import Failure

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
KEY, ACCEPT = "dGhlIHNhbXBsZSBub25jZQ==", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
"""The example of RFC 6455, 1.3."""
ASKED = {
    "Host": "a.example",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
}


class Got(NamedTuple):
    """A frame that came whole."""

    opcode: int
    payload: bytes
    fin: bool = True


def request(method: str = "GET", path: str = "/v0/ws", version: str = "1.1", **changed: str | None) -> bytes:
    """An opening handshake; a header is changed, or left out with None: `sec_websocket_key=None`."""
    headers: dict[str, str | None] = dict(ASKED)
    for name, value in changed.items():
        headers[next((known for known in ASKED if known.lower() == name.replace("_", "-")), name)] = value
    lines = [f"{method} {path} HTTP/{version}", *(f"{n}: {v}" for n, v in headers.items() if v is not None)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def frame(
    opcode: int, payload: bytes = b"", fin: bool = True, reserved: int = 0, mask: bytes | None = b"\x01\x80\xffz"
):
    """A frame as a client sends it (RFC 6455, 5.2); `mask` None leaves the mask out."""
    head = bytes([(0x80 if fin else 0) | reserved << 4 | opcode])
    masked, size = 0 if mask is None else 0x80, len(payload)
    if size < 126:
        head += bytes([masked | size])
    elif size < 1 << 16:
        head += struct.pack("!BH", masked | 126, size)
    else:
        head += struct.pack("!BQ", masked | 127, size)
    if mask is None:
        return head + payload
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def close(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, struct.pack("!H", code) + reason)


def parse(data: bytes) -> tuple[list[Got], bytes]:
    """A server's frames, and what does not make a whole one. A server never masks (RFC 6455, 5.1)."""
    found = []
    while len(data) >= 2:
        assert not data[1] & 0x80, "the server masks"
        assert not data[0] & 0x70, "a reserved bit is set, and no extension was agreed on"
        size, at = data[1] & 0x7F, 2
        if size >= 126:
            wide = 2 if size == 126 else 8
            if len(data) < 2 + wide:
                break
            size, at = int.from_bytes(data[2 : 2 + wide], "big"), 2 + wide
            assert size > (125 if wide == 2 else 65535), "not the shortest way to write the length (RFC 6455, 5.2)"
        if len(data) < at + size:
            break
        found.append(Got(data[0] & 0x0F, data[at : at + size], bool(data[0] & 0x80)))
        data = data[at + size :]
    return found, data


class Echo:
    """Sends each message back, and keeps what `send` refused until it is told to go on."""

    def __init__(self, socket: WebSocket) -> None:
        self.socket = socket
        self.messages: list[str] = []
        self.refused: list[str] = []
        self.writable_count = self.closed_count = 0

    def message(self, text: str) -> None:
        assert not self.closed_count, "a message after the end"
        self.messages.append(text)
        if text == "raise":
            raise ValueError("a fault of the handler")
        if text == "leave":
            self.socket.close(4000, "é" * 100)
        elif not self.socket.send(text):
            self.refused.append(text)

    def writable(self) -> None:
        assert not self.closed_count, "told after the end"
        self.writable_count += 1
        refused, self.refused = self.refused, []
        for text in refused:
            if not self.socket.send(text):
                self.refused.append(text)

    def closed(self) -> None:
        self.closed_count += 1


class Line(Connection):
    """A connection whose turns the test gives."""

    def after_others(self, act: Callable[[], None]) -> None:
        self._server.turns.append(act)  # type: ignore[attr-defined]


class Rig:
    """A server and a transport, as a connection sees them. /v0/ws echoes; /later is answered when the test says so."""

    def __init__(self, bodies_bytes_max: int = 1 << 30, internal: bool = False, **settings: Any) -> None:
        self.settings = Settings(**settings)
        self.responder = Responder("*", keeps_nothing=True)
        self.access = Access()
        self.heads, self.proxy_heads, self.bodies = Heads(), Heads(), Budget(bodies_bytes_max)
        self.proxies = Proxies(self.settings)
        self.access, self.admitted = Access(), None
        self.slicer = Slicer(self.bodies)
        self.watch = Watch(self.settings, lambda: 0.0)
        self.closing = self.winding_down = False
        self.internal = internal
        self.head_bytes_max = self.settings.head_bytes_max
        self.header_count_max = self.settings.header_count_max
        self.body_bytes_max = self.settings.body_bytes_max
        self.now_s = 1_000.0
        self.exchanges: list[Exchange] = []
        self.echoes: list[Echo] = []
        self.turns: list[Callable[[], None]] = []
        self.sockets = WebSockets(self.settings, self.bodies)
        self.written = bytearray()
        self.reading, self.eof, self.closed, self.aborted = True, False, False, False
        self.connection = Line(self)  # type: ignore[arg-type]
        self.connection.connection_made(self)  # type: ignore[arg-type]

    @classmethod
    def opened(cls, **settings: Any) -> Rig:
        rig = cls(**settings)
        rig.send(request())
        assert rig.head().startswith(b"HTTP/1.1 101 "), rig.written
        return rig

    # ---- as the server

    def admit(self, connection: Connection) -> bool:
        return True

    def forget(self, connection: Connection) -> None: ...

    def handle(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        path = exchange.request.target.partition(b"?")[0]
        if path == b"/v0/ws":
            try:
                self.sockets.upgrade(exchange, self.make)
            except Failure as failure:
                exchange.fail(failure)
        elif path != b"/later" and path != b"/v0/later/ws":
            exchange.empty(200, [])

    def make(self, socket: WebSocket) -> Echo:
        self.echoes.append(Echo(socket))
        return self.echoes[-1]

    # ---- as the transport

    def get_extra_info(self, name: str) -> object:
        return None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 1  # large writes come here too

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes) -> None:
        assert not self.closed and not self.eof, "written to after the end"
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        if not self.aborted:
            self.closed = self.aborted = True
            self.connection.connection_lost(None)

    # ---- as the client, and as the loop

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.connection.data_received(piece)

    def pass_turns(self) -> int:
        """Gives every turn that is asked for; returns how many there were."""
        count = 0
        while self.turns:
            self.turns.pop(0)()
            count += 1
        return count

    def pass_time(self, seconds: float, step_s: float = 0.5) -> None:
        for _ in range(round(seconds / step_s)):
            self.now_s += step_s
            self.connection.tick(self.now_s)

    def head(self) -> bytes:
        head, mark, _ = bytes(self.written).partition(b"\r\n\r\n")
        return head + mark

    def frames(self) -> list[Got]:
        """What was written after the handshake's answer; all of it is whole frames."""
        found, rest = parse(bytes(self.written)[len(self.head()) :])
        assert not rest, rest
        return found

    def texts(self) -> list[str]:
        return [got.payload.decode() for got in self.frames() if got.opcode == TEXT]

    def close_code(self) -> int | None:
        """That of the Close which was written last, if one was."""
        frames = self.frames()
        if not frames or frames[-1].opcode != CLOSE:
            return None
        return int.from_bytes(frames[-1].payload[:2], "big")

    @property
    def echo(self) -> Echo:
        return self.echoes[-1]
