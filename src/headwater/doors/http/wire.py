"""HTTP/1.1 requests out of bytes, however they are cut: sans-IO.

Owns parsing and its limits. Never writes a response, and never sees a socket.

httptools (llhttp) reads the heads, each fed up to its last byte. Bodies are counted and cut here: llhttp takes what
follows a request to upgrade for another protocol, and sets no limit to chunk extensions and trailers.
"""

from __future__ import annotations

import re
from io import BytesIO
from typing import Any

import httptools

from headwater.doors.http.chunked import ChunkedBody
from headwater.doors.http.request_kinds import is_encoded, is_snapshot, is_websocket
from headwater.doors.http.respond import METHODS
from headwater.errors import (
    BadRequest,
    BodyTooLarge,
    EncodedBody,
    ExpectationFailed,
    Failure,
    HeadTooLarge,
    MethodNotAllowed,
    Overloaded,
    TooManyHeaders,
    TransferCodingUnknown,
    VersionNotSupported,
)


class Request:
    """One complete request. Header names are lower case; the last of a repeated header counts."""

    __slots__ = ("body", "headers", "keep_alive", "known", "method", "target", "version")

    def __init__(self, method: bytes, target: bytes, headers: dict[bytes, bytes], version: str) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.version = version
        self.body = b""
        self.keep_alive = True
        self.known: KnownHead | None = None
        """Set when the head was seen before."""


class KnownHead:
    """A head that was parsed before, and what a handler wants to remember about every request that begins with it."""

    __slots__ = ("body_size", "epoch", "is_append", "memo", "needs", "principal", "request")

    def __init__(self, request: Request, body_size: int) -> None:
        self.request = request
        self.is_append = is_append(request)
        self.body_size = body_size
        self.memo: object = None
        self.epoch = 0
        """Up to which epoch of the guard its credential was judged, and allowed what it asks for. 0: no one asks."""
        self.principal: object = None
        self.needs: tuple[Any, ...] = ()
        """Who it was, and what it asked for."""


class Continue:
    """The client waits for `100 Continue` before it sends its body."""


Parsed = Request | Continue

IDLE, HEAD, BODY = 0, 1, 2
_ONCE = (
    *(b"producer-", b"stream-", b"content-type", b"content-encoding", b"transfer-encoding", b"host", b"if-match"),
    *(b"sec-websocket-key", b"sec-websocket-version", b"authorization"),
)
"""Headers whose repetition would leave it open which one is meant."""
_EVER_NEW = frozenset((b"producer-seq", b"stream-seq", b"x-request-id", b"traceparent"))
FORWARDING = frozenset((b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"))
"""What proxies say of a request. Only trusted ones are believed: of all other connections these are left out."""
_LISTS = (b"connection", b"upgrade", *FORWARDING)
"""Headers of which each line is one part of a list (RFC 9110, 5.3)."""
_HEAD_END = b"\r\n\r\n"
_NO_CHUNKS = b"0\r\n\r\n"
"""What llhttp is told of a chunked body, so that it is ready for the next head."""
_HOST = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]+|\[[0-9A-Za-z:.%_~-]+\])(?::[0-9]*)?")
_ABSOLUTE = re.compile(rb"https?://([^/?]*)(.*)", re.IGNORECASE | re.DOTALL)


class Budget:
    """Bytes of request bodies that are still arriving, over all connections. Overflow: the request is answered 503."""

    __slots__ = ("bytes_max", "held")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held = 0


class Heads:
    """Header blocks that were parsed before. Clients on kept-alive connections repeat theirs byte for byte.

    A block's meaning depends on nothing but its bytes, so a known one is not parsed again: 0.5 µs instead of 2.5 µs
    per request (`make bench ONLY=B12`). Bound: `count_max` blocks; overflow: all are forgotten.
    """

    __slots__ = ("_count_max", "known")

    def __init__(self, count_max: int = 1024) -> None:
        self._count_max = count_max
        self.known: dict[bytes, KnownHead] = {}

    def learn(self, data: bytes, request: Request) -> None:
        """Remembers the head of `data` if `data` is exactly one plain request that keeps its connection alive."""
        headers = request.headers
        if not request.keep_alive or b"transfer-encoding" in headers or b"expect" in headers:
            return
        if not headers.keys().isdisjoint(_EVER_NEW):
            return  # these change with every request
        size = len(request.body)
        like = Request(request.method, request.target, headers, request.version)
        head = data[: len(data) - size]
        if head.find(b"\r\n\r\n") == len(head) - 4:
            if len(self.known) >= self._count_max:
                self.known.clear()
            self.known[head] = KnownHead(like, size)


class RequestParser:
    """Feed it bytes; it returns what became complete. After it raised a Failure it takes no more."""

    __slots__ = (
        "_believes",
        "_body",
        "_body_max",
        "_budget",
        "_chunks",
        "_expected_bytes",
        "_failure",
        "_head_end",
        "_head_max",
        "_head_size",
        "_header_count",
        "_headers",
        "_headers_max",
        "_held",
        "_host",
        "_in_step",
        "_line",
        "_more",
        "_out",
        "_over",
        "_parser",
        "_request",
        "_snapshot_max",
        "_target",
        "body_bytes",
        "heads",
        "rest",
        "state",
    )

    def __init__(
        self,
        head_bytes_max: int,
        header_count_max: int,
        body_bytes_max: int,
        snapshot_bytes_max: int,
        heads: Heads | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.heads = Heads() if heads is None else heads
        """Those of clients whose same bytes mean the same."""
        self._believes = False
        """Forwarding headers are kept."""
        self._budget = Budget(1 << 62) if budget is None else budget
        self._head_max = head_bytes_max
        self._headers_max = header_count_max
        self._body_max = body_bytes_max
        self._snapshot_max = snapshot_bytes_max
        self._parser = httptools.HttpRequestParser(self)
        self._in_step = True
        """llhttp waits for the body that is arriving."""
        self._out: list[Parsed] = []
        self._headers: dict[bytes, bytes] = {}
        self._target = b""
        self._host: bytes | None = None
        """The last Host that was found to be one: connections repeat theirs."""
        self._body = b""
        """The first part of a body that is arriving."""
        self._more: BytesIO | None = None
        """All of it, once there is a second part. It gives its bytes away without a copy: to join the parts of 60 MiB
        would hold up everybody for 75 ms."""
        self._held = 0
        self._chunks: ChunkedBody | None = None
        self._expected_bytes = 0
        self._head_size = 0
        self._line = b""
        """The request's first line, as far as it has come."""
        self._head_end = b""
        """The last bytes of an unfinished head: its end may be cut."""
        self._header_count = 0
        self._request: Request | None = None
        """The request whose head is complete and whose body is not."""
        self._failure: Failure | None = None
        self._over = False
        """No more requests are taken: one could not be read, or said that it is the last."""
        self.state = IDLE
        self.body_bytes = 0
        """How much of the body that is arriving has come."""
        self.rest: bytearray | None = None
        """What came after a request for a WebSocket. It is the last request of its connection, whatever the answer."""

    def believe(self, heads: Heads) -> None:
        """The client is a trusted proxy. Its heads are remembered apart: of others they would mean something else."""
        self._believes = True
        self.heads = heads

    def feed(self, data: bytes) -> list[Parsed]:
        """What these bytes completed, in order. Raises a Failure that stands alone.

        A fault after completed requests is left in `failure`, for after they were answered.
        """
        fresh = self.state == IDLE
        if fresh and not self._over:
            at = data.find(_HEAD_END) + 4
            known = self.heads.known.get(data[:at])
            if known is not None and len(data) == at + known.body_size:
                like = known.request
                request = Request(like.method, like.target, like.headers, like.version)
                request.body = data[at:]
                request.known = known
                return [request]
        out: list[Parsed] = []
        self._out = out
        at, size = 0, len(data)
        while at < size and not self._over:
            at = self._take_head(data, at) if self._request is None else self._take_body(data, at)
        if self.rest is not None:
            self.rest += memoryview(data)[at:]
        if self._failure is not None:
            if not out:
                raise self._failure
        elif fresh and len(out) == 1 and self.state == IDLE and type(out[0]) is Request:
            self.heads.learn(data, out[0])
        return out

    @property
    def failure(self) -> Failure | None:
        """The fault after the requests that the last `feed` returned; the connection ends after answering it."""
        return self._failure

    @property
    def method(self) -> bytes:
        """That of the request whose body has not come yet, or could not be taken."""
        return b"" if self._request is None else self._request.method

    @property
    def headers(self) -> dict[bytes, bytes]:
        """Of the same request, once they are complete."""
        return {} if self._request is None else self._request.headers

    @property
    def target(self) -> bytes:
        """Of the same request, as far as it has come."""
        return self._target if self._request is None else self._request.target

    def close(self) -> None:
        """The connection is gone: what had arrived of a body is dropped."""
        self._budget.held -= self._held
        self._held = 0
        self._body = b""
        self._more = None

    # ---- heads --------------------------------------------------------------------------------------------------

    def _take_head(self, data: bytes, at: int) -> int:
        """Gives llhttp what belongs to this head; returns where that ends."""
        end = self._end_of_head(data, at)
        limit = at + self._head_max - self._head_size
        part = data[at : min(end, limit)]
        if not self._line.endswith(b"\n"):
            line = (self._line + part).lstrip(b"\r\n")  # blank lines before a request are skipped (RFC 9112, 2.2)
            self._line = line[: line.find(b"\n") + 1 or len(line)]
        upgrade = False
        try:
            self._parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            # An upgrade that is not spoken is ignored (RFC 9110, 7.8): the request is the plain one that it also is.
            upgrade = True
        except httptools.HttpParserCallbackError:
            raise
        except httptools.HttpParserError as error:
            self._fail(self._explain(str(error)))
            return end
        request = self._request
        if request is None:
            self._head_size += len(part)
            self._head_end = (self._head_end + part)[-3:]
            if end > limit:
                self._fail(HeadTooLarge(self._head_max))
            return end
        self._head_size = 0
        self._head_end = b""
        line, self._line = self._line, b""
        if b" HTTP/" not in line:
            self._fail(VersionNotSupported())  # llhttp takes RTSP and ICE for HTTP
        if upgrade:
            self._parser = httptools.HttpRequestParser(self)
        self._in_step = not upgrade
        if self._failure is None:
            if self._chunks is not None:
                if not upgrade:
                    self._parser.feed_data(_NO_CHUNKS)
            elif not self._expected_bytes:
                self._complete(request)
        return end

    def _end_of_head(self, data: bytes, at: int) -> int:
        """Where the head ends that goes on at `at`, or the end of `data`."""
        before = self._head_end
        if before:
            found = (before + data[at : at + 3]).find(_HEAD_END)
            if found >= 0:
                return at + found + 4 - len(before)
        found = data.find(_HEAD_END, at)
        return len(data) if found < 0 else found + 4

    # httptools calls these.

    def on_message_begin(self) -> None:
        self.state = HEAD
        self._header_count = 0
        self._headers = {}
        self._target = b""

    def on_url(self, url: bytes) -> None:
        self._target = self._target + url if self._target else url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        headers = self._headers
        if name in headers and name.startswith(_ONCE):
            self._fail(BadRequest(f"the header {name.decode('latin-1')} is given more than once"))
        self._header_count += 1
        if self._header_count > self._headers_max:
            self._fail(TooManyHeaders(self._headers_max))
        if name in FORWARDING and not self._believes:
            return
        value = value.rstrip()  # llhttp leaves the blanks behind a value in it
        headers[name] = headers[name] + b", " + value if name in _LISTS and name in headers else value

    def on_headers_complete(self) -> None:
        parser = self._parser
        headers = self._headers
        version = parser.get_http_version()
        request = Request(parser.get_method(), self._target, headers, version)
        # HTTP/1.0 has no word in the answer for a connection that stays: it would have to be said to be understood.
        request.keep_alive = version == "1.1" and parser.should_keep_alive()
        self._request = request
        self.state = BODY
        self.body_bytes = 0
        try:
            self._judge(request)
        except Failure as failure:
            self._fail(failure)

    def _judge(self, request: Request) -> None:
        """Refuses what cannot be served whatever its body is, and makes ready for the body. Raises Failure."""
        headers, version, method = request.headers, request.version, request.method
        if version != "1.1" and version != "1.0":
            raise VersionNotSupported
        if method == b"CONNECT":
            raise MethodNotAllowed(METHODS)
        if version == "1.1" and b"host" not in headers:
            raise BadRequest("HTTP/1.1 needs a Host header")
        target = request.target
        if not target.startswith(b"/") or b"#" in target:
            _resolve_target(request)
        host = headers.get(b"host")
        if host != self._host and host is not None:
            if _HOST.fullmatch(host) is None:
                raise BadRequest("the Host header names no host")
            self._host = host
        # Snapshots have a limit of their own, and it has to be known before the body arrives.
        limit, setting = self._body_max, "body_bytes_max"
        if method == b"PUT" and is_snapshot(request.target):
            limit, setting = self._snapshot_max, "snapshot_bytes_max"
        length = headers.get(b"content-length")
        # llhttp has seen that it is a number, but any count of zeros may stand in front of it.
        self._expected_bytes = 0 if length is None else int(length.lstrip(b"0") or b"0")
        if self._expected_bytes > limit:
            raise BodyTooLarge(limit, setting)
        coding = headers.get(b"transfer-encoding")
        if coding is not None:
            if version != "1.1":
                raise BadRequest("HTTP/1.0 has no Transfer-Encoding")
            if coding.lower() != b"chunked":
                raise TransferCodingUnknown
            self._chunks = ChunkedBody(limit, setting, self._head_max, self._headers_max)
        if b"content-encoding" in headers and method in (b"PUT", b"POST", b"PATCH") and is_encoded(headers):
            raise EncodedBody
        if b"expect" in headers:
            if headers[b"expect"].lower() != b"100-continue":
                raise ExpectationFailed
            if version == "1.1" and self._failure is None:
                self._out.append(Continue())

    def _explain(self, words: str) -> Failure:
        """llhttp's words for what it found."""
        if "PRI/Upgrade" in words or "HTTP version" in words:
            return VersionNotSupported()
        if "overflow" in words:
            return BodyTooLarge(self._body_max, "body_bytes_max")
        return BadRequest(words)

    # ---- bodies -------------------------------------------------------------------------------------------------

    def _take_body(self, data: bytes, at: int) -> int:
        """Takes what belongs to this body; returns where that ends."""
        chunks = self._chunks
        if chunks is None:
            part = data[at : at + self._expected_bytes - self.body_bytes]
            if self._in_step:
                self._parser.feed_data(part)
            at += len(part)
            self._keep(part)
            done = self.body_bytes == self._expected_bytes
        else:
            parts: list[bytes] = []
            try:
                at = chunks.take(data, at, parts)
            except Failure as failure:
                self._fail(failure)
            for part in parts:
                self._keep(part)
            done = chunks.done
        if done and not self._over and self._request is not None:
            self._complete(self._request)
        return at

    def _keep(self, part: bytes) -> None:
        budget = self._budget
        if budget.held + len(part) > budget.bytes_max:
            self._fail(Overloaded("too many request bodies arrive at once"))
        if not self._over:
            budget.held += len(part)
            self.body_bytes += len(part)
            self._held += len(part)
            if not self._body:
                self._body = part
            else:
                if self._more is None:
                    self._more = BytesIO()
                    self._more.write(self._body)
                self._more.write(part)

    def _complete(self, request: Request) -> None:
        if self._body:
            request.body = self._body if self._more is None else self._more.getvalue()
            self.close()
        self._request = None
        self._target = b""
        self._chunks = None
        self.state = IDLE
        if b"upgrade" in request.headers and is_websocket(request.method, request.target, request.headers):
            # What follows may be frames already: it is kept until the request has had its turn.
            request.keep_alive = False
            self.rest = bytearray()
        self._over = not request.keep_alive
        self._out.append(request)

    def _fail(self, failure: Failure) -> None:
        self._over = True
        if self._failure is None:
            self._failure = failure


def is_append(request: Request) -> bool:
    """A POST to a stream, or one that brings records to a topic or to many streams."""
    is_post, target = request.method == b"POST", request.target
    if target.startswith((b"/__headwater/", b"/v1/stream/__ds/")):
        return is_post and target == b"/__headwater/append"
    return is_post and (not target.startswith(b"/v0/") or target.partition(b"?")[0].endswith(b"/records"))


def _resolve_target(request: Request) -> None:
    """Makes the target a path (RFC 9112, 3.2). The authority of an absolute one takes the place of Host."""
    target = request.target
    if b"#" in target:
        raise BadRequest("a fragment (#) is not part of a target; write it as %23 in a name")
    found = _ABSOLUTE.fullmatch(target)
    if found is not None:
        rest = found[2]
        request.target = rest if rest.startswith(b"/") else b"/" + rest
        request.headers[b"host"] = found[1]
    elif target != b"*" or request.method != b"OPTIONS":
        raise BadRequest("the target is neither a path nor an http URL")
