"""A server as the command line sees it: its answers and streams, and failures with a message and advice.
Owns paging and following with reconnects. Never prints, never repeats a write, and never sleeps but through the
function it was given."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from headwater import config
from headwater.client.connection import (
    MESSAGE_CHARS_MAX,
    TIMEOUT_S,
    Answer,
    CannotBeSent,
    Connection,
    Lost,
    NobodyListens,
    NotConnected,
    NotHttp,
    NoTls,
    address,
    printable,
)
from headwater.client.sse import SseEvent, sse_events
from headwater.model.names import is_bucket

# A server sends a keep-alive line every 15 s or ends the connection after 60 s; longer silence is a lost one.
EVENTS_TIMEOUT_S = 90.0
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


def is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == "application/json"


def stream_path(name: str) -> str:
    """`name` or `bucket/name` to its path; every byte but the unreserved ones and `/` is percent-encoded."""
    if not name.strip("/"):
        raise BadUsage("the stream name is empty", "name it as NAME or BUCKET/NAME")
    return "/v1/stream/" + quote(name, safe="/", errors="surrogateescape")


class Client:
    """One server, one kept-alive connection; not for use by two threads at once."""

    def __init__(self, base_url: str, timeout_s: float = TIMEOUT_S) -> None:
        """With the key that the process was given (`config.client_token`)."""
        server = address(base_url)
        if server is None:
            advice = "write the server's address as http://HOST:PORT"
            raise BadUsage(f"{printable(base_url)!r} is not the address of a server", advice)
        self.base_url = base_url.rstrip("/")
        self._server = server
        self._connection = Connection(server, timeout_s)
        token = config.client_token(config.process_environment())
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def close(self) -> None:
        self._connection.close()

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

        Never sends anything twice."""
        with self._telling(method):
            answer = self._connection.request(method, _target(path, query), {**self._headers, **(headers or {})}, body)
        return _checked(answer)

    @contextmanager
    def events(self, path: str, query: Mapping[str, str]) -> Iterator[tuple[Mapping[str, str], Iterator[bytes]]]:
        """Headers and body chunks of an SSE response, on a connection of its own that ends with the block.

        Chunks raise ConnectionLost when the response breaks off; a clean end just ends them."""
        streamed = Connection(self._server, EVENTS_TIMEOUT_S).streamed(
            _target(path, query), {**self._headers, "Accept": "text/event-stream"}
        )
        with self._telling("GET"), streamed as (answer, chunks):
            _checked(answer)
            if answer.status != 200 or not answer.content_type.startswith("text/event-stream"):
                raise NotUnderstood(f"{self.base_url} does not answer with server-sent events", _IS_IT_HEADWATER)
            yield answer.headers, chunks

    @contextmanager
    def _telling(self, method: str) -> Iterator[None]:
        """A failure to have an answer becomes one that a user can do something about."""
        try:
            yield
        except NobodyListens as why:
            advice = "is the server running? start it with: headwater serve"
            raise Unreachable(f"nothing answers at {self.base_url}", advice) from why
        except NoTls as why:
            raise Unreachable(f"no TLS with {self.base_url}: {why}") from why
        except NotConnected as why:
            raise Unreachable(f"cannot reach {self.base_url}: {why}", "check --url") from why
        except NotHttp as why:
            raise ConnectionLost(f"{self.base_url} does not answer in HTTP", _IS_IT_HEADWATER) from why
        except Lost as why:
            advice = "the append may be stored or not; with --producer and --producer-seq repeating it is safe"
            message = f"the connection to {self.base_url} was lost ({why})"
            raise ConnectionLost(message, advice if method == "POST" else "run the command again") from why
        except CannotBeSent as why:
            raise BadUsage(str(why), "leave control characters out of names and header values") from None


_IS_IT_HEADWATER = "is --url the address of a durable streams server?"


def _target(path: str, query: Mapping[str, str] | None) -> str:
    return path + ("?" + urlencode(query, errors="surrogateescape") if query else "")


def _checked(answer: Answer) -> Answer:
    if 200 <= answer.status < 300:
        return answer
    if answer.status < 400:
        elsewhere = printable(answer.headers.get("location", "another address"))
        raise NotUnderstood(f"the server answered {answer.status} and points to {elsewhere}", "correct --url")
    code, message = answer.error()
    raise Refused(answer.status, code, printable(message)[:MESSAGE_CHARS_MAX], answer.headers)


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
