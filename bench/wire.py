"""The few bytes of HTTP/1.1 that a load generator needs: requests to send, responses to recognise.

Sans-IO but for `Exchange`, the blocking connection that prepares streams before a timed window.
"""

import socket
import ssl
from collections.abc import Iterable
from http.client import HTTPConnection
from typing import NamedTuple
from urllib.parse import urlsplit

STREAM_ROOT = "/v1/stream/"
CREATED_OK = (200, 201)


class Response(NamedTuple):
    status: int
    body: bytes


class Malformed(Exception):
    """The server sent something that is not a complete, delimited HTTP/1.1 response."""


def request(
    method: str, path: str, port: int, headers: Iterable[tuple[str, str]] = (), body: bytes | None = None
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


class ResponseReader:
    """Bytes in, whole responses out, however the bytes were cut. Interim 1xx responses are dropped."""

    def __init__(self) -> None:
        self._held = b""

    @property
    def partial(self) -> bool:
        return bool(self._held)

    def feed(self, data: bytes) -> list[Response]:
        self._held += data
        responses = []
        while (parsed := self._next()) is not None:
            response, used = parsed
            self._held = self._held[used:]
            if response.status >= 200:
                responses.append(response)
        return responses

    def _next(self) -> tuple[Response, int] | None:
        head_end = self._held.find(b"\r\n\r\n")
        if head_end < 0:
            return None
        status_line, *rows = self._held[:head_end].split(b"\r\n")
        if not status_line.startswith(b"HTTP/1.1 ") or not status_line[9:12].isdigit():
            raise Malformed(f"status line {status_line[:80]!r}")
        status, body_at = int(status_line[9:12]), head_end + 4
        pairs = (row.partition(b":") for row in rows)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if status < 200 or status in (204, 304):
            return Response(status, b""), body_at
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            return self._chunked(status, body_at)
        if b"content-length" not in headers:
            raise Malformed(f"status {status} without a length")
        body_end = body_at + int(headers[b"content-length"])
        if len(self._held) < body_end:
            return None
        return Response(status, self._held[body_at:body_end]), body_end

    def _chunked(self, status: int, at: int) -> tuple[Response, int] | None:
        parts = []
        while True:
            line_end = self._held.find(b"\r\n", at)
            if line_end < 0:
                return None
            size = int(self._held[at:line_end].split(b";")[0], 16)
            at = line_end + 2
            if len(self._held) < at + size + 2:
                return None
            if size == 0:  # no peer sends trailers
                return Response(status, b"".join(parts)), at + 2
            parts.append(self._held[at : at + size])
            at += size + 2


class Exchange:
    """One blocking keep-alive connection for the work around a timed window."""

    def __init__(
        self, port: int, timeout_s: float = 30, tls: ssl.SSLContext | None = None, authorization: str | None = None
    ) -> None:
        self._port = port
        self._authorization = _credential(authorization)
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="127.0.0.1")
        self._reader = ResponseReader()

    def __enter__(self) -> "Exchange":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, raw: bytes) -> Response:
        self._socket.sendall(raw)
        while True:
            data = self._socket.recv(1 << 16)
            if not data:
                raise Malformed("connection closed before the response was complete")
            if responses := self._reader.feed(data):
                return responses[0]

    def create(self, stream: str, content_type: str) -> None:
        headers = [("Content-Type", content_type), *self._authorization]
        raw = request("PUT", STREAM_ROOT + stream, self._port, headers, b"")
        answer = self.send(raw)
        if answer.status not in CREATED_OK:
            raise Malformed(f"PUT {stream} answered {answer.status} {answer.body[:200]!r}")

    def append(self, stream: str, content_type: str, body: bytes) -> None:
        answer = self.send(append_request(stream, self._port, content_type, body))
        if answer.status // 100 != 2:
            raise Malformed(f"POST {stream} answered {answer.status} {answer.body[:200]!r}")


def owner_port(stream: str, port: int) -> int:
    """The port of the node that owns the stream: the one that is asked, or where it says that the owner is."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("HEAD", STREAM_ROOT + stream, headers={"Headwater-Redirect": "307"})
        answer = connection.getresponse()
        if answer.status == 307:
            return int(urlsplit(answer.headers["Location"]).port or 80)
        if answer.status != 200:
            raise Malformed(f"HEAD {stream} answered {answer.status}")
        return port
    finally:
        connection.close()


def append_request(stream: str, port: int, content_type: str, body: bytes, authorization: str | None = None) -> bytes:
    headers = [("Content-Type", content_type), *_credential(authorization)]
    return request("POST", STREAM_ROOT + stream, port, headers, body)


def _credential(authorization: str | None) -> list[tuple[str, str]]:
    return [] if authorization is None else [("Authorization", authorization)]
