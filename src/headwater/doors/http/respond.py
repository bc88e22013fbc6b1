"""Responses as bytes. Owns header blocks, the CORS and security headers, and the error body.

Never writes to a socket and never judges a request. Every header that is not fixed text goes through `header`.
"""

from __future__ import annotations

from email.utils import formatdate
from urllib.parse import quote

import msgspec

from headwater.doors.http import failures
from headwater.errors import Failure, Row, row
from headwater.model import content_types

REASONS = {
    101: b"Switching Protocols",
    200: b"OK",
    201: b"Created",
    204: b"No Content",
    304: b"Not Modified",
    307: b"Temporary Redirect",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    409: b"Conflict",
    410: b"Gone",
    412: b"Precondition Failed",
    413: b"Content Too Large",
    415: b"Unsupported Media Type",
    417: b"Expectation Failed",
    422: b"Unprocessable Content",
    426: b"Upgrade Required",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
    505: b"HTTP Version Not Supported",
    507: b"Insufficient Storage",
}

EXPOSED = (
    "Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, Stream-Closed, Stream-Earliest-Offset, "
    "Stream-Snapshot-Offset, Stream-SSE-Data-Encoding, Stream-TTL, Stream-Expires-At, Stream-Durability, "
    "Producer-Epoch, Producer-Seq, Producer-Expected-Seq, Producer-Received-Seq, ETag, Location, Retry-After, Allow, "
    "Date, WWW-Authenticate, Headwater-Request-Id, X-Request-Id, Headwater-Next, Headwater-Log, Headwater-Position, "
    "Headwater-Lake-Position, Headwater-Settled-Position"
)
"""Of an answer's headers, those that pages of a named origin may read: whatever is sent, but what every page may."""
ALLOWED_HEADERS = (
    "Content-Type, Authorization, If-None-Match, If-Match, Last-Event-ID, Stream-Seq, Stream-TTL, "
    "Stream-Expires-At, Stream-Closed, Stream-Durability, Stream-Forked-From, Stream-Fork-Offset, "
    "Stream-Fork-Sub-Offset, Stream-Retention-Age, Stream-Retention-Bytes, Stream-Retention-Records, "
    "Producer-Id, Producer-Epoch, Producer-Seq, X-Request-Id, traceparent, tracestate"
)
METHODS = "GET, HEAD, PUT, POST, PATCH, DELETE, OPTIONS"
CLOSE = b"Connection: close\r\n"
_INERT = ("application/json", "text/plain", "application/octet-stream", "text/event-stream")
"""Types that a browser shows or hands on, and never runs."""
_SANDBOX = b"Content-Security-Policy: default-src 'none'; sandbox\r\n"
"""A stream of HTML or SVG is what some client stored: opened as a page, it has no scripts and no origin."""
ALLOWED_ORIGIN = b"Access-Control-Allow-Origin: "

_PRINTABLE = bytes(range(0x20, 0x7F)).decode()
_encode = msgspec.json.Encoder().encode


def header(name: str, value: str) -> bytes:
    """One header line. Whatever the value is, it stays one line of printable ASCII.

    Doors let nothing else in, but a directory that an earlier version wrote may hold it: such a content type is shown
    without its parameters or as `application/octet-stream`, and of any other value what cannot be sent is escaped.
    """
    if not (value.isascii() and value.isprintable()):
        if name == "Content-Type":
            value = content_types.shown(value)
        else:
            value = quote(value, safe=_PRINTABLE, errors="replace")
    return f"{name}: {value}\r\n".encode()


def path_of(target: bytes) -> str:
    """The path of a request's target, for a Location: bytes that are not ASCII are escaped."""
    return quote(target.partition(b"?")[0], safe=_PRINTABLE)


class Responder:
    """Builds responses that share one origin setting and a Date that is renewed once a second."""

    def __init__(self, cors_origin: str, keeps_nothing: bool, credentials: bool = False, hsts_s: int = 0) -> None:
        """`cors_origin`, `credentials`, `hsts_s`: see the settings `cors_origin`, `cors_credentials`, `tls_hsts_s`."""
        self.durability_names = ("memory",) * 4 if keeps_nothing else ("fsync", "disk", "memory", "ephemeral")
        """What an acknowledgement has reached, by durability class."""
        everybody = cors_origin == "*"
        origins = [origin.encode() for origin in cors_origin.split(",")]
        self.origins = frozenset(origins[1:]) if len(origins) > 1 else None
        """Origins that answers have to be made out to, when there is more than one. They are made out to the first."""
        lines = [
            ALLOWED_ORIGIN + origins[0] + b"\r\n",
            header("Access-Control-Expose-Headers", "*" if everybody else EXPOSED),
            b"X-Content-Type-Options: nosniff\r\n",
            b"Cross-Origin-Resource-Policy: %b\r\n" % (b"cross-origin" if everybody else b"same-origin"),
        ]
        if credentials:
            lines.append(b"Access-Control-Allow-Credentials: true\r\n")
        if self.origins is not None:
            lines.append(b"Vary: Origin\r\n")
        if hsts_s:
            lines.append(b"Strict-Transport-Security: max-age=%d\r\n" % hsts_s)
        self._fixed = b"".join(lines)
        self.statuses = [0] * 600
        """Headers that were made, by status. Answers to plain appends are made elsewhere."""
        self.failures: dict[Row, int] = {}
        """Failures that were answered, by what the table of errors says of them."""
        self.common = b""
        """Headers every response carries, ending a header line."""
        self.appended: list[bytes] = []
        """Everything of a plain append's answer after its offset, by durability class."""
        self.renew(0)

    def renew(self, now_s: int) -> None:
        self.common = b"Date: " + formatdate(now_s, usegmt=True).encode() + b"\r\n" + self._fixed
        self.appended = [
            b"\r\nStream-Durability: %s\r\n%s\r\n" % (name.encode(), self.common) for name in self.durability_names
        ]

    def for_origin(self, data: bytes, headers: dict[bytes, bytes]) -> bytes:
        """An answer, made out to the origin that asked. One that may not see it gets it made out to another."""
        origin = headers.get(b"origin")
        if origin is None or self.origins is None or origin not in self.origins:
            return data
        at = data.find(ALLOWED_ORIGIN, 0, data.find(b"\r\n\r\n") + 2)
        if at < 0:
            return data
        at += len(ALLOWED_ORIGIN)
        return b"%b%b%b" % (data[:at], origin, data[data.find(b"\r\n", at) :])

    def head(self, status: int, headers: list[tuple[str, str]], length: int | None, keep_alive: bool) -> bytes:
        """A header block. `length` None leaves Content-Length out: 204, 304, or a body of unknown length."""
        self.statuses[status] += 1
        lines = [f"HTTP/1.1 {status} ".encode(), REASONS[status], b"\r\n"]
        for name, value in headers:
            lines.append(header(name, value))
            if name == "Content-Type" and not value.startswith(_INERT):
                lines.append(_SANDBOX)
        if length is not None:
            lines.append(b"Content-Length: %d\r\n" % length)
        if not keep_alive:
            lines.append(CLOSE)
        lines.append(self.common)
        lines.append(b"\r\n")
        return b"".join(lines)

    def full(self, status: int, headers: list[tuple[str, str]], body: bytes, keep_alive: bool) -> bytes:
        return self.head(status, headers, len(body), keep_alive) + body

    def to_member(self, status: int, headers: list[tuple[str, str]], body: bytes, keep_alive: bool) -> bytes:
        """As `full`, for another process of the node: counted with no client's answers."""
        self.statuses[status] -= 1
        return self.full(status, headers, body, keep_alive)

    def failure(
        self,
        failure: Failure,
        keep_alive: bool,
        head_only: bool = False,
        target: bytes = b"",
        request_id: str = "",
        named: bool = False,
    ) -> bytes:
        """`target` is the request's: what the body looks like depends on its route. The body says what the request is
        called when its client `named` it, or when this server made a mistake."""
        meaning = row(failure)
        self.failures[meaning] = self.failures.get(meaning, 0) + 1
        told = request_id if named or meaning.status >= 500 else ""
        body = _encode(failures.body(failure, target, told))
        headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store"), *failures.headers(failure)]
        if request_id:
            headers.append(("X-Request-Id", request_id))
        head = self.head(meaning.status, headers, len(body), keep_alive)
        return head if head_only else head + body

    def json(self, status: int, value: object, keep_alive: bool) -> bytes:
        headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
        return self.full(status, headers, _encode(value), keep_alive)

    def preflight(self, keep_alive: bool) -> bytes:
        headers = [
            ("Access-Control-Allow-Methods", METHODS),
            ("Access-Control-Allow-Headers", ALLOWED_HEADERS),
            ("Access-Control-Max-Age", "86400"),
        ]
        return self.head(204, headers, None, keep_alive)
