"""One SSE connection that follows many streams: `GET /__headwater/tail?stream=a&stream=b` or `?bucket=b&prefix=p`.

Owns its events and its token. Never buffers for a slow client: it stops taking from the feed until the socket drains.

Each event is one record and names its stream; `id` is the log position after the record's append, so that one token,
sent back as `Last-Event-ID` (or `after=`), resumes all streams at once:

    event: data
    id: 0:81236
    data:{"stream":"orders/7","incarnation":12,"nextOffset":"00000000000000000042","encoding":"json","data":{"total":12}}
"""

from __future__ import annotations

import asyncio
from binascii import b2a_base64
from collections.abc import Callable, Iterator
from urllib.parse import unquote_to_bytes

import msgspec

from headwater.config import Settings
from headwater.doors.http import headers as parse
from headwater.doors.http import sse
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.live_reads import chunks_to
from headwater.engine.feed import Batch, Feed
from headwater.engine.group import Group
from headwater.engine.listing import keys_below
from headwater.engine.loaded_stream import LoadedStream
from headwater.errors import BadQuery, Failure, MethodNotAllowed, NoSuchRoute
from headwater.model.names import DEFAULT_BUCKET

STREAMS_MAX = 1_000
_encode = msgspec.json.Encoder().encode


class Tails:
    def __init__(self, group: Group, settings: Settings) -> None:
        self._group = group
        self._settings = settings
        self.open_count = 0

    def handle(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        request = exchange.request
        if rest:
            raise NoSuchRoute
        if request.method != b"GET":
            raise MethodNotAllowed("GET, OPTIONS")
        wanted = parse.query(query, ("bucket", "prefix", "after", "from"))
        keys = self._named(query)
        bucket = wanted.get("bucket")
        if bool(keys) == (bucket is not None):
            raise BadQuery("stream", "name streams (stream=a&stream=b) or a bucket (bucket=b&prefix=p)")
        position = self._position(request.headers.get(b"last-event-id"), wanted)
        streams: Iterator[LoadedStream]
        if bucket is None:
            chosen = frozenset(keys)
            streams = iter([self._group.find(key, touch=True) for key in keys])
            matches: Callable[[str], bool] = chosen.__contains__
        else:
            if not bucket or "/" in bucket:
                raise BadQuery("bucket", "a bucket has a name without slashes")
            start = f"{bucket}/{wanted.get('prefix', '')}"
            streams = self._below(start, position)
            matches = _starts_with(start)
        settings = self._settings
        _Tail(
            self, exchange, self._group, position, matches, streams,
            settings.sse_keepalive_ms / 1000, settings.sse_lifetime_ms / 1000,
        )  # fmt: skip

    def _named(self, query: bytes) -> list[str]:
        keys: list[str] = []
        for part in query.split(b"&"):
            name, _, value = part.partition(b"=")
            if name == b"stream":
                try:
                    path = unquote_to_bytes(value).decode()
                except UnicodeDecodeError:
                    raise BadQuery("stream", "not valid UTF-8") from None
                full = path if path.startswith("/") else parse.FLAT_PREFIX + path
                keys.append(parse.stream_key(full, self._settings.stream_name_bytes_max))
        if len(keys) > STREAMS_MAX:
            raise BadQuery("stream", f"at most {STREAMS_MAX}; follow a bucket or prefix instead")
        return keys

    def _position(self, last_event_id: bytes | None, wanted: dict[str, str]) -> int:
        token = wanted.get("after") if last_event_id is None else last_event_id.decode("latin-1")
        if token is None:
            start = wanted.get("from", "now")
            if start not in ("now", "start"):
                raise BadQuery("from", "expected now or start")
            return 0 if start == "start" else self._group.log.synced
        group, colon, position = token.partition(":")
        if group != "0" or not colon or not (position.isascii() and position.isdigit() and len(position) <= 20):
            raise BadQuery("after", "expected the id of an event of this endpoint")
        return int(position)

    def _below(self, start: str, position: int) -> Iterator[LoadedStream]:
        """Streams of a prefix that changed after `position`; the others are not even loaded."""
        for key in keys_below(self._group.loaded, start, position):
            try:
                stream = self._group.find(key, touch=False)
            except Failure:
                continue
            yield stream


def _starts_with(start: str) -> Callable[[str], bool]:
    return lambda key: key.startswith(start)


class _Tail:
    """One connection. A Streamer."""

    def __init__(
        self,
        owner: Tails,
        exchange: Exchange,
        group: Group,
        position: int,
        matches: Callable[[str], bool],
        streams: Iterator[LoadedStream],
        keepalive_s: float,
        lifetime_s: float,
    ) -> None:
        self._owner = owner
        self._exchange = exchange
        self._write = chunks_to(exchange)
        self._usage = group.usage
        self._sent_bytes: dict[str, int] = {}
        """By bucket."""
        self._keepalive_s = keepalive_s
        now_s = asyncio.get_running_loop().time()
        self._quiet_since_s = now_s
        self._ends_s = now_s + lifetime_s
        self._over = False
        self._feed = Feed(group, position, matches, self._wake)
        try:
            self._feed.include(streams)
        except Failure:
            self._feed.close()
            raise
        owner.open_count += 1
        exchange.connection.stream(self)
        request = exchange.request
        exchange.begin(exchange.responder.head(200, sse.headers(request.version), None, request.keep_alive))
        # The first event tells where a client that hears nothing else would resume.
        opening = b"event: open\nid: 0:%d\ndata:{}\n\n" % position
        self._write(sse.chunk(opening))
        self.drained()

    def _wake(self) -> None:
        try:
            self.drained()
        except Exception:
            self._exchange.broke()

    def drained(self) -> None:
        connection = self._exchange.connection
        if self._over or connection.paused:
            return
        held: list[bytes] = []
        size = 0
        for batch in self._feed.take():
            event = _events(batch)
            bucket = batch.stream.key.partition("/")[0]
            self._sent_bytes[bucket] = self._sent_bytes.get(bucket, 0) + batch.ends[-1] - batch.start
            held.append(event)
            size += len(event)
            if size >= 65_536:
                self._write(sse.chunk(b"".join(held)))
                held, size = [], 0
                self._quiet_since_s = 0.0
                if connection.paused:
                    return
        if held:
            self._write(sse.chunk(b"".join(held)))
            self._quiet_since_s = 0.0

    def tick(self, now_s: float) -> None:
        if now_s >= self._ends_s:
            self._end()
        elif self._quiet_since_s == 0.0:
            self._quiet_since_s = now_s
        elif now_s - self._quiet_since_s >= self._keepalive_s - 1 and not self._exchange.connection.paused:
            self._quiet_since_s = now_s
            self._write(sse.KEEP_ALIVE)

    def stop(self) -> None:
        self._end()

    def _end(self) -> None:
        if not self._over:
            self.lost()
            self._write(sse.LAST_CHUNK)
            self._exchange.connection.finish(self._exchange)

    def lost(self) -> None:
        if not self._over:
            self._over = True
            self._feed.close()
            for bucket, sent_bytes in self._sent_bytes.items():
                self._usage.add(bucket, sent_bytes)
            self._owner.open_count -= 1


def _events(batch: Batch) -> bytes:
    stream = batch.stream
    name = _encode(stream.key.removeprefix(f"{DEFAULT_BUCKET}/"))
    out: list[bytes] = []
    last = len(batch.payloads) - 1
    for index, payload in enumerate(batch.payloads):
        if stream.is_json:
            encoding, data = b"json", payload
        elif sse.is_text(stream.media):
            encoding, data = b"text", _encode(payload.decode("utf-8", "replace"))
        else:
            encoding, data = b"base64", b'"' + b2a_base64(payload, newline=False) + b'"'
        body = b'{"stream":%b,"incarnation":%d,"nextOffset":"%020d","encoding":"%b","data":%b}' % (
            name, stream.sid, batch.ends[index], encoding, data,
        )  # fmt: skip
        # Only the last record of an append carries the token: a resume never splits an append.
        token = b"id: 0:%d\n" % batch.position if index == last else b""
        out.append(b"event: data\n" + token + b"data:" + sse.lines(body) + b"\n\n")
    return b"".join(out)
