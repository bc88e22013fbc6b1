"""A small synchronous client for the command line; its HTTP is the standard library's.
Owns HTTP requests, paging, the SSE parser and following with reconnects; failures carry a message and advice.
Never prints, never retries a write by itself, and never sleeps but through the function it was given."""

from __future__ import annotations

import base64
import http.client
import json
import select
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from headwater.model.names import is_bucket

REQUEST_TIMEOUT_S = 120.0
# A server sends a keep-alive line every 15 s or ends the connection after 60 s; longer silence is a lost one.
EVENTS_TIMEOUT_S = 90.0
CHUNK_BYTES = 64 * 1024
MESSAGE_CHARS_MAX = 500
LIST_PAGE_COUNT = 1_000
PAUSE_FIRST_S, PAUSE_DOUBLINGS_MAX = 0.2, 5


class ClientError(Exception):
    """A failure to tell the user about; `advice` is what they can do, empty when there is nothing."""

    exit_code = 1

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.message, self.advice = message, advice


class BadUsage(ClientError):
    """The command cannot be sent at all as it was given."""

    exit_code = 2


class Unreachable(ClientError):
    """No connection came about: the server certainly did nothing."""


class ConnectionLost(ClientError):
    """The connection ended before the answer was complete: what the server did is not known."""


class NotUnderstood(ClientError):
    """The answer is not one of a durable streams server."""


class Refused(ClientError):
    """The server answered with an error; `facts` are its response headers, names in lower case."""

    def __init__(self, status: int, code: str, message: str, facts: Mapping[str, str]) -> None:
        super().__init__(message)
        self.status, self.code, self.facts = status, code, facts

    @property
    def passing(self) -> bool:
        """Whether the same read may well succeed a little later."""
        return self.status in (408, 429) or self.status >= 500


@dataclass(frozen=True, slots=True)
class Answer:
    """A response that is not an error. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def next_offset(self) -> str:
        return self.headers.get("stream-next-offset", "")

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")

    @property
    def closed(self) -> bool:
        return self.headers.get("stream-closed", "").lower() == "true"

    @property
    def up_to_date(self) -> bool:
        return self.headers.get("stream-up-to-date", "").lower() == "true"


def is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == "application/json"


def stream_path(name: str) -> str:
    """`name` or `bucket/name` to its path; every byte but the unreserved ones and `/` is percent-encoded."""
    if not name.strip("/"):
        raise BadUsage("the stream name is empty", "name it as NAME or BUCKET/NAME")
    return "/v1/stream/" + quote(name, safe="/", errors="surrogateescape")


class Client:
    """One server, one kept-alive connection; not for use by two threads at once."""

    def __init__(self, base_url: str) -> None:
        parts = _address(base_url)
        if parts is None:
            advice = "write the server's address as http://HOST:PORT"
            raise BadUsage(f"{printable(base_url)!r} is not the address of a server", advice)
        self.base_url = base_url.rstrip("/")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if self._secure else 80)
        self._prefix = parts.path.rstrip("/")
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """The complete answer. Raises Refused for a status of 400 and above, and the other ClientErrors.

        Never sends anything twice; a kept-alive connection that the server ended is replaced beforehand."""
        connection = self._connection
        if connection is not None and _ended(connection):
            self.close()
            connection = None
        if connection is None:
            connection = self._connection = self._connected(REQUEST_TIMEOUT_S)
        try:
            response = self._send(connection, method, self._target(path, query), headers or {}, body)
            answer = Answer(response.status, _lowered(response), response.read())
        except (OSError, http.client.HTTPException) as why:
            self.close()
            raise self._lost(why, method) from why
        except BadUsage:
            self.close()  # It holds half a request.
            raise
        if response.will_close:
            self.close()
        return _checked(answer)

    @contextmanager
    def events(self, path: str, query: Mapping[str, str]) -> Iterator[tuple[Mapping[str, str], Iterator[bytes]]]:
        """Headers and body chunks of an SSE response, on a connection of its own that ends with the block.

        Chunks raise ConnectionLost when the response breaks off; a clean end just ends them."""
        connection = self._connected(EVENTS_TIMEOUT_S)
        try:
            try:
                accept = {"Accept": "text/event-stream"}
                response = self._send(connection, "GET", self._target(path, query), accept, None)
                headers = _lowered(response)
                if response.status >= 400:
                    _checked(Answer(response.status, headers, response.read()))
            except (OSError, http.client.HTTPException) as why:
                raise self._lost(why) from why
            if response.status != 200 or not headers.get("content-type", "").startswith("text/event-stream"):
                raise NotUnderstood(f"{self.base_url} does not answer with server-sent events", _IS_IT_HEADWATER)
            yield headers, self._chunks(response)
        finally:
            connection.close()

    def _chunks(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        while True:
            try:
                chunk = response.read1(CHUNK_BYTES)
            except (OSError, http.client.HTTPException) as why:
                raise self._lost(why) from why
            if not chunk:
                return
            yield chunk

    def _target(self, path: str, query: Mapping[str, str] | None) -> str:
        return self._prefix + path + ("?" + urlencode(query, errors="surrogateescape") if query else "")

    def _connected(self, timeout_s: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=timeout_s)
        try:
            connection.connect()
        except ConnectionRefusedError as why:
            advice = "is the server running? start it with: headwater serve"
            raise Unreachable(f"nothing answers at {self.base_url}", advice) from why
        except ssl.SSLError as why:
            raise Unreachable(f"no TLS with {self.base_url}: {why.reason or why}", "is it http://?") from why
        except (OSError, UnicodeError) as why:
            reason = getattr(why, "strerror", None) or str(why) or "timed out"
            raise Unreachable(f"cannot reach {self.base_url}: {reason}", "check --url") from why
        return connection

    @staticmethod
    def _send(
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> http.client.HTTPResponse:
        encoded = {name: value.encode("utf-8", "surrogateescape") for name, value in headers.items()}
        try:
            connection.request(method, target, body=body, headers=encoded)
        except ValueError as why:
            raise BadUsage(str(why), "leave control characters out of names and header values") from None
        except (BrokenPipeError, ConnectionResetError):
            # A server that refuses a body early (413) answers and stops reading; its answer says why.
            pass
        return connection.getresponse()

    def _lost(self, why: Exception, method: str = "GET") -> ConnectionLost:
        reason = str(why) if isinstance(why, TimeoutError) and str(why) else type(why).__name__
        advice = "the append may be stored or not; with --producer and --producer-seq repeating it is safe"
        message = f"the connection to {self.base_url} was lost ({reason})"
        if type(why) is http.client.BadStatusLine:
            return ConnectionLost(f"{self.base_url} does not answer in HTTP", _IS_IT_HEADWATER)
        return ConnectionLost(message, advice if method == "POST" else "run the command again")


_IS_IT_HEADWATER = "is --url the address of a durable streams server?"


def _address(base_url: str) -> SplitResult | None:
    if not base_url.isascii() or not base_url.isprintable() or " " in base_url:
        return None
    try:
        parts = urlsplit(base_url)
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        return None
    return parts if valid and not (parts.query or parts.fragment or "@" in parts.netloc) else None


def _ended(connection: http.client.HTTPConnection) -> bool:
    # Between two requests nothing may arrive: a readable socket is one that the server has closed.
    sock: socket.socket | None = connection.sock
    return sock is None or bool(select.select([sock], [], [], 0)[0])


def _lowered(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _checked(answer: Answer) -> Answer:
    if 200 <= answer.status < 300:
        return answer
    if answer.status < 400:
        elsewhere = printable(answer.headers.get("location", "another address"))
        raise NotUnderstood(f"the server answered {answer.status} and points to {elsewhere}", "correct --url")
    code, message = "", ""
    try:
        error = json.loads(answer.body)["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        message = answer.body.decode("utf-8", "replace").strip().partition("\n")[0]
    reason = http.client.responses.get(answer.status, "")
    shown = printable(message)[:MESSAGE_CHARS_MAX] or f"the server answered {answer.status} {reason}".rstrip()
    raise Refused(answer.status, code, shown, answer.headers)


def printable(text: str) -> str:
    """Text from elsewhere made safe for a terminal: one line, no control characters."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


@dataclass(frozen=True, slots=True)
class SseEvent:
    name: str
    data: bytes


def sse_events(chunks: Iterable[bytes]) -> Iterator[SseEvent]:
    """The events of an event stream, however it is cut into chunks; each comes with its last byte.

    Lines end in LF, CR or CRLF; comments, ids and retries are passed over; an event without data is none;
    what the stream leaves unfinished is dropped, as the format demands."""
    name, data = "", list[bytes]()
    for line in _sse_lines(chunks):
        if not line:
            if data:
                yield SseEvent(name or "message", b"\n".join(data))
            name, data = "", []
            continue
        key, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if key == b"data":
            data.append(value)
        elif key == b"event":
            name = value.decode("utf-8", "replace")


def _sse_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    parts: list[bytes] = []
    after_cr, at_start = False, True
    for chunk in chunks:
        # A CR ends its line at once; a LF that follows it, perhaps a chunk later, belongs to the same end.
        if after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            after_cr = False
        if not chunk:
            continue
        after_cr = chunk.endswith(b"\r")
        lines = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines[:-1]:
            whole = b"".join([*parts, line])
            parts.clear()
            yield whole.removeprefix(b"\xef\xbb\xbf") if at_start else whole
            at_start = False
        if lines[-1]:
            parts.append(lines[-1])


@dataclass(frozen=True, slots=True)
class Page:
    """One catch-up response."""

    body: bytes
    content_type: str
    next_offset: str
    closed: bool


def pages(client: Client, name: str, offset: str) -> Iterator[Page]:
    """Catch-up reads from `offset` until the stream is up to date; at least one page."""
    path = stream_path(name)
    while True:
        answer = client.request("GET", path, query={"offset": offset})
        if not answer.next_offset:
            raise NotUnderstood(f"{client.base_url} answered without Stream-Next-Offset", _IS_IT_HEADWATER)
        yield Page(answer.body, answer.content_type, answer.next_offset, answer.closed)
        if answer.up_to_date or answer.closed:
            return
        if answer.next_offset == offset:
            raise NotUnderstood(f"{client.base_url} sent nothing and says that there is more")
        offset = answer.next_offset


def streams(client: Client, bucket: str, prefix: str) -> Iterator[Sequence[Mapping[str, Any]]]:
    """The streams of a bucket, one page at a time, in order of their names."""
    query = {"limit": str(LIST_PAGE_COUNT), **({"prefix": prefix} if prefix else {})}
    # Paths by bucket have rules for its name that streams below /v1/stream/ do not keep.
    above = "" if is_bucket(bucket) else "/__headwater/buckets"
    path = f"{above}/{quote(bucket, safe='', errors='surrogateescape')}/streams"
    while True:
        answer = client.request("GET", path, query=query)
        try:
            listing = json.loads(answer.body)
            found, more = list(listing["streams"]), bool(listing["has_more"])
            cursor = str(listing["next_cursor"]) if more else ""
            if not all(isinstance(stream, dict) and "stream_id" in stream for stream in found):
                raise ValueError("not a listing")
        except (ValueError, LookupError, TypeError, RecursionError):
            raise NotUnderstood(f"{client.base_url} answered with no list of streams", _IS_IT_HEADWATER) from None
        yield found
        if not more or cursor == query.get("after"):
            return
        query["after"] = cursor


@dataclass(slots=True)
class _Place:
    """How far following has come; a reconnect resumes here."""

    offset: str
    cursor: str = ""
    closed: bool = False
    heard: bool = False  # Whether the present connection has moved the place at all.


def follow(
    client: Client,
    name: str,
    offset: str,
    sleep: Callable[[float], None],
    on_trouble: Callable[[ClientError], None],
) -> Iterator[bytes]:
    """The stream's data from `offset` on, live, across reconnects, until the stream is closed.

    A payload is handed out only once the control event after it has come, so that a cut connection repeats
    nothing and skips nothing. Raises when the first connection fails or the server says that trying again is
    no use. Later failures are tried again without end, with growing pauses; `on_trouble` hears of it once."""
    path, place = stream_path(name), _Place(offset)
    connected, failed_count = False, 0
    while True:
        query = {"offset": place.offset, "live": "sse", **({"cursor": place.cursor} if place.cursor else {})}
        place.heard = False
        trouble: ClientError | None = None
        try:
            with client.events(path, query) as (headers, chunks):
                connected = True
                in_base64 = headers.get("stream-sse-data-encoding", "").lower() == "base64"
                yield from _payloads(sse_events(chunks), in_base64, place)
        except (Unreachable, ConnectionLost, Refused) as why:
            if not connected or (isinstance(why, Refused) and not why.passing):
                raise
            trouble = why
        if place.closed:
            return
        failed_count = 0 if place.heard else failed_count + 1
        if trouble is not None and failed_count == 1:
            on_trouble(trouble)
        # Also after a clean end, so that a server which ends every connection at once is not stormed.
        sleep(PAUSE_FIRST_S * 2 ** min(failed_count, PAUSE_DOUBLINGS_MAX))


def _payloads(events: Iterator[SseEvent], in_base64: bool, place: _Place) -> Iterator[bytes]:
    """Payloads of one connection, moving `place` with every control event; unconfirmed ones are forgotten."""
    pending: list[bytes] = []
    for event in events:
        try:
            if event.name == "data":
                data = event.data
                pending.append(base64.b64decode(data.replace(b"\n", b""), validate=True) if in_base64 else data)
            elif event.name == "control":
                control = json.loads(event.data)
                place.offset = str(control["streamNextOffset"])
                place.cursor = str(control.get("streamCursor") or "")
                place.closed = bool(control.get("streamClosed"))
                place.heard = True
                yield from pending
                pending = []
                if place.closed:
                    return
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise NotUnderstood(f"the server sent a {printable(event.name)} event that makes no sense") from None
