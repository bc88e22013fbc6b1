"""A raw, blocking HTTP/1.1 client for tests: it sends any bytes, and reads answers strictly.
It never repairs, retries or follows anything: what the server did wrong must be visible to the test."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

HEAD_BYTES_MAX = 256 * 1024
RECEIVE_BYTES = 256 * 1024
TIMEOUT_S = 60.0

Headers = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]


class ConnectionEnded(Exception):
    """The server closed or reset the connection before the answer was complete."""

    def __init__(self, received: bytes) -> None:
        super().__init__(f"connection ended after {received[-200:]!r}")
        self.received = received


class BadResponse(Exception):
    """The server sent something that is not HTTP/1.1."""


@dataclass(frozen=True, slots=True)
class Head:
    """A status line and its headers; names are in lower case, order and repetition as received."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    informational: tuple[int, ...] = ()

    def header(self, name: str) -> str | None:
        """The value of a header that may occur at most once."""
        values = [value for key, value in self.headers if key == name.lower()]
        if len(values) > 1:
            raise BadResponse(f"header {name} repeated: {values}")
        return values[0] if values else None

    @property
    def chunked(self) -> bool:
        return (self.header("transfer-encoding") or "").lower() == "chunked"

    @property
    def closes(self) -> bool:
        return (self.header("connection") or "").lower() == "close"


@dataclass(frozen=True, slots=True)
class Response(Head):
    """A whole answer, its body decoded from whatever framing it had."""

    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """One keep-alive connection. Usable as a context manager; closing is idempotent."""

    def __init__(
        self,
        host: str,
        port: int,
        timeout_s: float = TIMEOUT_S,
        receive_buffer_bytes: int | None = None,
        source: str | None = None,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        """`source`: the address that it comes from. `server_name`: whose certificate it wants, when not the host's."""
        self.authority = f"{host}:{port}"
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            # Set before connecting: only then does it bound the window that the server may fill.
            if receive_buffer_bytes is not None:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            self.socket.settimeout(timeout_s)
            if source is not None:
                self.socket.bind((source, 0))
            self.socket.connect((host, port))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname=server_name or host)
        except BaseException:
            self.socket.close()
            raise
        self._buffer = bytearray()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(
        self,
        method: str,
        path: str,
        headers: Headers = (),
        body: bytes | Iterable[bytes] | None = None,
    ) -> Response:
        """Send one request and read its answer. A body that is not bytes is sent chunked, piece by piece."""
        self.send(encode_request(method, path, headers, body, self.authority))
        return self.read_response(method)

    def read_response(self, method: str = "GET") -> Response:
        """The next final answer on the connection; 1xx answers before it are listed in `informational`."""
        head = self.read_head()
        body = b"".join(self.body_pieces(head, method))
        return Response(head.status, head.reason, head.headers, head.informational, body)

    def read_head(self) -> Head:
        """The next status line and headers, past any 1xx: the body is left on the connection."""
        informational: list[int] = []
        while True:
            head = self._read_one_head()
            if head.status >= 200:
                return Head(head.status, head.reason, head.headers, tuple(informational))
            if head.status == 101:
                raise BadResponse("101 was not asked for")
            informational.append(head.status)

    def body_pieces(self, head: Head, method: str = "GET") -> Iterator[bytes]:
        """The body that follows `head`, as it arrives; ends where the framing says and nowhere else."""
        length = head.header("content-length")
        if length is not None and head.chunked:
            raise BadResponse("both content-length and chunked")
        if method == "HEAD" or head.status in (204, 304):
            return
        if head.chunked:
            yield from self._chunks()
        elif length is not None:
            if not length.isascii() or not length.isdigit():
                raise BadResponse(f"content-length {length!r}")
            left = int(length)
            while left:
                if not self._buffer:
                    self._fill()
                piece = bytes(self._buffer[:left])
                del self._buffer[: len(piece)]
                left -= len(piece)
                yield piece
        elif head.closes:
            try:
                while True:
                    if self._buffer:
                        piece = bytes(self._buffer)
                        self._buffer.clear()
                        yield piece
                    self._fill()
            except ConnectionEnded:
                return
        else:
            raise BadResponse(f"{head.status} without a framing for its body: {head.headers}")

    def ended(self) -> bool:
        """Whether the server closes the connection without sending anything more. Blocks until one or the other."""
        if self._buffer:
            return False
        try:
            self._fill()
        except ConnectionEnded:
            return True
        return False

    def unread(self) -> bytes:
        """What has been received beyond what was parsed."""
        return bytes(self._buffer)

    def _read_one_head(self) -> Head:
        raw = self._take_until(b"\r\n\r\n")
        lines = raw.decode("latin-1").split("\r\n")
        parts = lines[0].split(" ", 2)
        if len(parts) < 2 or parts[0] != "HTTP/1.1" or len(parts[1]) != 3 or not parts[1].isdigit():
            raise BadResponse(f"status line {lines[0]!r}")
        headers = []
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip() or "\n" in line or "\r" in line:
                raise BadResponse(f"header line {line!r}")
            headers.append((name.lower(), value.strip()))
        return Head(int(parts[1]), parts[2] if len(parts) > 2 else "", tuple(headers))

    def _chunks(self) -> Iterator[bytes]:
        while True:
            line = self._take_until(b"\r\n")
            try:
                size = int(line.split(b";")[0], 16)
            except ValueError:
                raise BadResponse(f"chunk size {line!r}") from None
            if size == 0:
                if self._take_until(b"\r\n") != b"":
                    raise BadResponse("trailers were not announced")
                return
            while len(self._buffer) < size + 2:
                self._fill()
            if self._buffer[size : size + 2] != b"\r\n":
                raise BadResponse("chunk is longer than its size")
            piece = bytes(self._buffer[:size])
            del self._buffer[: size + 2]
            yield piece

    def _take_until(self, mark: bytes) -> bytes:
        searched = 0
        while True:
            at = self._buffer.find(mark, searched)
            if at >= 0:
                taken = bytes(self._buffer[:at])
                del self._buffer[: at + len(mark)]
                return taken
            searched = max(0, len(self._buffer) - len(mark) + 1)
            if len(self._buffer) > HEAD_BYTES_MAX:
                raise BadResponse(f"no {mark!r} in {HEAD_BYTES_MAX} bytes")
            self._fill()

    def _fill(self) -> None:
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            raise ConnectionEnded(bytes(self._buffer))
        self._buffer += data


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event; `data` lines are joined by newlines, as a browser does it."""

    name: str
    data: str
    id: str = ""

    def json(self) -> Any:
        return json.loads(self.data)


class EventStream:
    """Reads server-sent events off a connection whose request has been sent."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.head = connection.read_head()
        self.comments = 0
        # Whether the body ended where its framing says, not by a cut connection.
        self.ended_cleanly = False

    @classmethod
    def open(cls, connection: Connection, path: str, headers: Headers = ()) -> EventStream:
        connection.send(encode_request("GET", path, headers, None, connection.authority))
        return cls(connection)

    def __iter__(self) -> Iterator[Event]:
        """Events until the server ends the stream. A cut in the middle raises `ConnectionEnded`."""
        pending = bytearray()
        for piece in self.connection.body_pieces(self.head):
            pending += piece
            # Only "\n" ends a line here: the server under test never sends a carriage return in a frame.
            while (at := pending.find(b"\n\n")) >= 0:
                block = bytes(pending[:at])
                del pending[: at + 2]
                event = self._parse(block)
                if event is not None:
                    yield event
        if any(line and not line.startswith(b":") for line in pending.split(b"\n")):  # comments are no part of an event
            raise BadResponse(f"event stream ended inside an event: {bytes(pending)!r}")
        self.ended_cleanly = True

    def _parse(self, block: bytes) -> Event | None:
        name, data, known = "message", [], ""
        for line in block.decode("utf-8").split("\n"):
            if line.startswith(":"):
                self.comments += 1
                continue
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)
            elif field == "id":
                known = value
            elif field not in ("retry", ""):
                raise BadResponse(f"event field {line!r}")
        return Event(name, "\n".join(data), known) if data else None


def encode_request(
    method: str,
    path: str,
    headers: Headers = (),
    body: bytes | Iterable[bytes] | None = None,
    authority: str = "localhost",
) -> bytes:
    """The bytes of one request. Nothing is checked or escaped, so a test can say anything."""
    pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    names = {name.lower() for name, _ in pairs}
    out = [f"{method} {path} HTTP/1.1\r\n".encode("utf-8", "surrogateescape")]
    if "host" not in names:
        out.append(f"Host: {authority}\r\n".encode())
    for name, value in pairs:
        raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
        out.append(name.encode("latin-1") + b": " + raw + b"\r\n")
    if body is None:
        out.append(b"\r\n")
    elif isinstance(body, bytes):
        if not names & {"content-length", "transfer-encoding"}:
            out.append(b"Content-Length: %d\r\n" % len(body))
        out += [b"\r\n", body]
    else:
        out.append(b"Transfer-Encoding: chunked\r\n\r\n")
        out += [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in body if piece]
        out.append(b"0\r\n\r\n")
    return b"".join(out)


def request(
    port: int,
    method: str,
    path: str,
    headers: Headers = (),
    body: bytes | Iterable[bytes] | None = None,
    host: str = "127.0.0.1",
) -> Response:
    """One request on a connection of its own."""
    with Connection(host, port) as connection:
        return connection.request(method, path, headers, body)


def read_pages(connection: Connection, path: str, offset: str = "-1") -> Iterator[Response]:
    """Catch-up reads from `offset`, page by page, until the server says there is no more."""
    while True:
        answer = connection.request("GET", f"{path}?offset={offset}")
        if answer.status != 200:
            raise BadResponse(f"GET {path}?offset={offset}: {answer.status} {answer.body[:200]!r}")
        yield answer
        following = answer.header("stream-next-offset")
        if following is None:
            raise BadResponse("a read without Stream-Next-Offset")
        if answer.header("stream-up-to-date") == "true":
            return
        if following == offset:
            raise BadResponse(f"a read at {offset} neither advances nor is up to date")
        offset = following


def read_bytes(connection: Connection, path: str, offset: str = "-1") -> bytes:
    """Everything a byte stream holds from `offset` on."""
    return b"".join(page.body for page in read_pages(connection, path, offset))


def read_messages(connection: Connection, path: str, offset: str = "-1") -> list[Any]:
    """Every message a JSON stream holds from `offset` on."""
    return [message for page in read_pages(connection, path, offset) for message in page.json()]
