"""HTTP/1.1 requests out of bytes, however they are cut: sans-IO, on httptools (llhttp).

Owns parsing and its limits. Never writes a response, and never sees a socket.
"""

from __future__ import annotations

from io import BytesIO

import httptools

from headwater.errors import (
    BadRequest,
    BodyTooLarge,
    ExpectationFailed,
    Failure,
    HeadTooLarge,
    Overloaded,
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

    __slots__ = ("body_size", "memo", "request")

    def __init__(self, request: Request, body_size: int) -> None:
        self.request = request
        self.body_size = body_size
        self.memo: object = None


class Continue:
    """The client waits for `100 Continue` before it sends its body."""


Parsed = Request | Continue

IDLE, HEAD, BODY = 0, 1, 2
_ONCE = (b"producer-", b"stream-", b"content-type", b"host", b"if-match")
"""Headers whose repetition would leave it open which one is meant."""


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
        if b"producer-seq" in headers or b"stream-seq" in headers:
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
        "_body",
        "_body_limit",
        "_body_max",
        "_body_size",
        "_budget",
        "_failure",
        "_head_max",
        "_head_size",
        "_header_count",
        "_headers",
        "_headers_max",
        "_heads",
        "_held",
        "_more",
        "_out",
        "_parser",
        "_request",
        "_snapshot_max",
        "_target",
        "_unfinished",
        "body_expected",
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
        self._heads = Heads() if heads is None else heads
        self._budget = Budget(1 << 62) if budget is None else budget
        self._head_max = head_bytes_max
        self._headers_max = header_count_max
        self._body_max = self._body_limit = body_bytes_max
        self._snapshot_max = snapshot_bytes_max
        self._parser = httptools.HttpRequestParser(self)
        self._out: list[Parsed] = []
        self._headers: dict[bytes, bytes] = {}
        self._target = b""
        self._body = b""
        """The first part of a body that is arriving."""
        self._more: BytesIO | None = None
        """All of it, once there is a second part. It gives its bytes away without a copy: to join the parts of 60 MiB
        would hold up everybody for 75 ms."""
        self._held = 0
        self._body_size = 0
        self._head_size = 0
        self._header_count = 0
        self._unfinished = 0
        self._request: Request | None = None
        self._failure: Failure | None = None
        self.state = IDLE
        self.body_expected = 0
        """Content-Length of the request whose body is arriving; 0 when it was not declared."""

    def feed(self, data: bytes) -> list[Parsed]:
        """What these bytes completed, in order. Raises a Failure that stands alone.

        A fault behind completed requests is left in `failure`, for after they were answered.
        """
        fresh = self.state == IDLE
        if fresh and self._failure is None:
            at = data.find(b"\r\n\r\n") + 4
            known = self._heads.known.get(data[:at])
            if known is not None and len(data) == at + known.body_size:
                like = known.request
                request = Request(like.method, like.target, like.headers, like.version)
                request.body = data[at:]
                request.known = known
                return [request]
        out: list[Parsed] = []
        self._out = out
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # A request to upgrade is answered as the plain request it also is; what follows it is not HTTP.
            self._failure = self._failure or BadRequest("upgrades are not spoken here")
        except httptools.HttpParserError as error:
            self._failure = self._failure or _explain(data, error)
        if self._failure is None and self.state == HEAD:
            self._count_unfinished(data)
        if self._failure is not None:
            if not out:
                raise self._failure
        elif fresh and len(out) == 1 and self.state == IDLE and type(out[0]) is Request:
            self._heads.learn(data, out[0])
        return out

    def _count_unfinished(self, data: bytes) -> None:
        """What stands behind the last line break belongs to a line that has not been reported yet."""
        newline = data.rfind(b"\n")
        self._unfinished = self._unfinished + len(data) if newline < 0 else len(data) - newline - 1
        if self._head_size + self._unfinished > self._head_max:
            self._failure = HeadTooLarge(self._head_max)

    @property
    def failure(self) -> Failure | None:
        """The fault behind the requests that the last `feed` returned; the connection ends after answering it."""
        return self._failure

    # ---- httptools calls these ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.state = HEAD
        self._head_size = 0
        self._unfinished = 0
        self._header_count = 0
        self._headers = {}
        self._target = b""
        self._body_size = 0

    def on_url(self, url: bytes) -> None:
        self._target = self._target + url if self._target else url
        if len(self._target) > self._head_max:
            self._fail(HeadTooLarge(self._head_max))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.state != HEAD:
            return  # a trailer: nothing it says counts
        name = name.lower()
        headers = self._headers
        if name in headers and name.startswith(_ONCE):
            self._fail(BadRequest(f"the header {name.decode('latin-1')} is given more than once"))
        headers[name] = value
        self._head_size += len(name) + len(value) + 4
        self._header_count += 1
        if self._header_count > self._headers_max or self._head_size > self._head_max:
            self._fail(HeadTooLarge(self._head_max))

    def on_headers_complete(self) -> None:
        parser = self._parser
        headers = self._headers
        version = parser.get_http_version()
        self._request = Request(parser.get_method(), self._target, headers, version)
        self.state = BODY
        length = headers.get(b"content-length")
        self.body_expected = int(length) if length else 0
        # Snapshots have a limit of their own, and it has to be known before the body arrives.
        limit = self._body_max
        if b"/snapshot/" in self._target and self._request.method == b"PUT" and _is_snapshot(self._target):
            limit = self._snapshot_max
        self._body_limit = limit
        if self.body_expected > limit:
            self._fail(BodyTooLarge(limit))
        if version != "1.1":
            if version != "1.0":
                self._fail(VersionNotSupported())
        elif b"host" not in headers:
            self._fail(BadRequest("HTTP/1.1 needs a Host header"))
        if b"expect" in headers and self._failure is None:
            if headers[b"expect"].lower() != b"100-continue":
                self._fail(ExpectationFailed())
            elif version == "1.1":
                self._out.append(Continue())

    def on_body(self, body: bytes) -> None:
        self._body_size += len(body)
        if self._body_size > self._body_limit:
            self._fail(BodyTooLarge(self._body_limit))
        budget = self._budget
        if budget.held + len(body) > budget.bytes_max:
            self._fail(Overloaded("too many request bodies arrive at once"))
        if self._failure is None:
            budget.held += len(body)
            self._held += len(body)
            if not self._body:
                self._body = body
            else:
                if self._more is None:
                    self._more = BytesIO()
                    self._more.write(self._body)
                self._more.write(body)

    def close(self) -> None:
        """The connection is gone: what had arrived of a body is dropped."""
        self._budget.held -= self._held
        self._held = 0
        self._body = b""
        self._more = None

    def on_message_complete(self) -> None:
        request = self._request
        if request is None or self._failure is not None:
            return
        if self._body:
            request.body = self._body if self._more is None else self._more.getvalue()
            self.close()
        request.keep_alive = self._parser.should_keep_alive()
        self._request = None
        self.state = IDLE
        self._out.append(request)

    def _fail(self, failure: Failure) -> None:
        if self._failure is None:
            self._failure = failure


def _is_snapshot(target: bytes) -> bool:
    """Below /v1/stream/ anything is a stream's name; elsewhere /{bucket}/{stream}/snapshot/{offset} is what it says."""
    path = target.partition(b"?")[0]
    return b"/snapshot/" in path and not path.startswith(b"/v1/")


def _explain(data: bytes, error: Exception) -> Failure:
    if data.startswith((b"PRI * HTTP/2", b"\x16\x03")):
        return VersionNotSupported()
    context = error.__context__
    return BadRequest(str(error) if context is None else str(context))
