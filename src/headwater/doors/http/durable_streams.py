"""The Durable Streams protocol: what each method on a stream means.

Owns the mapping between requests, commands and answers. Never parses bytes of HTTP itself and never decides a command.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from headwater.config import Settings
from headwater.doors.http import headers as parse
from headwater.doors.http import sse
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.live_reads import SLICE_BYTES, LongPoll, ReadPump, SseFeed
from headwater.doors.http.origin import Origin
from headwater.doors.http.respond import Responder, path_of
from headwater.doors.http.slices import Work
from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.pending_answers import Outcome
from headwater.engine.read_plan import Cold, Slice, plan
from headwater.errors import BadBody, BadHeader, BadQuery, Failure, MethodNotAllowed, StreamReplaced
from headwater.histogram import Histogram
from headwater.model import cursor as cursors
from headwater.model import json_mode, moments, offsets
from headwater.model.commands import Append, Create, Delete, Fork
from headwater.model.events import Appended, Created
from headwater.model.offsets import NOW, START
from headwater.model.stream import Unchanged
from headwater.ports import Clock, Rng
from headwater.security.principals import PUBLIC

_CACHE_MAX = 4096
LINEARIZABLE = "linearizable"
_READ_QUERY = ("offset", "live", "cursor", "max_bytes")
ALLOWED = "GET, HEAD, PUT, POST, DELETE, OPTIONS"


class PlainAppend:
    """What a head that asks for nothing but an append comes down to."""

    __slots__ = ("key", "media")

    def __init__(self, key: str, media: str) -> None:
        self.key = key
        self.media = media


class DurableStreams:
    """Handles one stream's requests. Counters are plain ints: `observe` exports them."""

    def __init__(self, engine: Engine, settings: Settings, responder: Responder, clock: Clock, rng: Rng) -> None:
        self._engine = engine
        self._settings = settings
        self._origin = Origin(settings)
        self._responder = responder
        self._clock = clock
        self._rng = rng
        self._records_max = settings.append_records_max
        self._types: dict[bytes, str] = {}
        self.plain_count = 0
        """Answers to appends that were made from what is the same in all of them."""
        self.reads_count = 0
        self.read_times = Histogram()
        """Of catch-up reads, until their answer begins."""
        self.sse_open = 0
        self.long_polls_open = 0

    def handle(self, exchange: Exchange, key: str, query: bytes) -> None:
        """Starts the request. Raises Failure when it is refused at once."""
        method = exchange.request.method
        if method == b"POST":
            self._append(exchange, key)
        elif method == b"GET" or method == b"HEAD":
            act = partial(self._get, exchange, key, query) if method == b"GET" else partial(self._head, exchange, key)
            if b"consistency=" in query:
                self._once_confirmed(exchange, key, query, act)
            else:
                self._once_published(exchange, key, act)
        elif method == b"PUT":
            self._create(exchange, key)
        elif method == b"DELETE":
            exchange.when(lambda _: exchange.empty(204, []))
            self._engine.submit(key, Delete(), exchange)
        else:
            raise MethodNotAllowed(ALLOWED)

    def _once_published(self, exchange: Exchange, key: str, act: Callable[[], None]) -> None:
        """Runs a read once no creation or deletion of its stream is under way."""
        if self._engine.unpublished(key):
            exchange.when(lambda _: act())
            self._engine.after_published(key, exchange)
        else:
            act()

    def _once_confirmed(self, exchange: Exchange, key: str, query: bytes, act: Callable[[], None]) -> None:
        """Runs a read once the log has shown that nobody else has acknowledged anything since the request came."""
        if parse.query(query, ("consistency",)).get("consistency") != LINEARIZABLE:
            raise BadQuery("consistency", f"expected {LINEARIZABLE}")
        connection = exchange.connection
        connection.unjudged = exchange  # what comes after it on its connection is not to be seen by it

        async def confirmed() -> None:
            try:
                await self._engine.confirm(key)
            finally:
                connection.unjudged = None
            self._once_published(exchange, key, act)
            connection.advance()

        exchange.run(confirmed())

    # ---- append -------------------------------------------------------------------------------------------------

    def _append(self, exchange: Exchange, key: str) -> None:
        request = exchange.request
        headers = request.headers
        body = request.body
        settings = self._settings
        close = b"stream-closed" in headers and parse.flag(headers, b"stream-closed")
        content_type: str | None = None
        producer = None
        stream_seq = None
        records: list[bytes] = []
        long = False
        if b"producer-id" in headers or b"producer-epoch" in headers or b"producer-seq" in headers:
            producer = parse.producer(headers, settings.producer_id_bytes_max)
        if body:
            raw = headers.get(b"content-type")
            if raw is None:
                raise BadHeader("Content-Type", "an append names the content type of its body")
            content_type = self._types.get(raw) or self._content_type(raw)
            if content_type != json_mode.JSON:
                records = [body]
            elif len(body) > json_mode.SHORT_BYTES_MAX and json_mode.is_long(body):
                long = True
            else:
                records = json_mode.at_once(body, False, self._records_max)
        elif close:
            pass
        else:
            raise BadBody("an append needs a body; to close a stream send Stream-Closed: true")
        if b"stream-seq" in headers:
            stream_seq = parse.text("Stream-Seq", headers[b"stream-seq"], settings.stream_seq_bytes_max)
        if_match = headers.get(b"if-match")
        known = request.known
        plain = producer is None and stream_seq is None and if_match is None and not close
        if known is not None and content_type is not None and plain:
            known.memo = PlainAppend(key, content_type)
        exchange.then = self._appended
        command = Append(
            records,
            content_type,
            producer,
            stream_seq,
            close,
            None if if_match is None else if_match.decode("latin-1"),
        )
        if long:
            exchange.in_slices(self._submit_long(exchange, key, command))
        else:
            self._engine.submit(key, command, exchange)

    def _submit_long(self, exchange: Exchange, key: str, command: Append | Create) -> Work:
        """Submits the command with the messages of a long JSON body."""
        allow_empty = type(command) is Create
        body = exchange.request.body
        records = yield from json_mode.messages_in_slices(body, allow_empty, self._records_max)
        self._engine.submit(key, msgspec.structs.replace(command, records=records), exchange)

    def append_again(self, exchange: Exchange, memo: object) -> bool:
        """An append whose head was judged before: only its body is new. False when `memo` says nothing of the kind.

        Skips routing and a dozen header look-ups: 0.9 µs of an append (`make bench ONLY=B12`).
        """
        if type(memo) is not PlainAppend:
            return False
        body = exchange.request.body
        exchange.then = self._appended
        if memo.media != json_mode.JSON:
            records = [body]
        elif len(body) > json_mode.SHORT_BYTES_MAX and json_mode.is_long(body):
            exchange.in_slices(self._submit_long(exchange, memo.key, Append([], memo.media)))
            return True
        else:
            records = json_mode.at_once(body, False, self._records_max)
        self._engine.submit(memo.key, Append(records, memo.media), exchange)
        return True

    def _content_type(self, raw: bytes) -> str:
        found = parse.content_type(raw, self._settings.content_type_bytes_max)
        if len(self._types) >= _CACHE_MAX:
            self._types.clear()
        self._types[raw] = found
        return found

    def _appended(self, exchange: Exchange, outcome: Outcome) -> None:
        if type(outcome) is Appended:
            producer = outcome.producer
            if producer is None and not outcome.closed and exchange.request.keep_alive:
                self.plain_count += 1
                exchange.reply(
                    b"HTTP/1.1 204 No Content\r\nStream-Next-Offset: %020d" % outcome.end
                    + self._responder.appended[outcome.durability]
                )
                return
            status = 200 if producer is not None and outcome.records else 204
            durability = self._responder.durability_names[outcome.durability]
            answer = [("Stream-Next-Offset", offsets.show(outcome.end)), ("Stream-Durability", durability)]
            closed = outcome.closed
        elif type(outcome) is Unchanged:
            status = 204
            producer = outcome.producer
            answer = [("Stream-Next-Offset", offsets.show(outcome.end))]
            closed = outcome.closed
        elif isinstance(outcome, Failure):
            exchange.fail(outcome)
            return
        else:
            raise RuntimeError(f"an append ended as {outcome!r}")
        if closed:
            answer.append(("Stream-Closed", "true"))
        if producer is not None:
            answer.append(("Producer-Epoch", str(producer.epoch)))
            answer.append(("Producer-Seq", str(producer.seq)))
        exchange.empty(status, answer)

    # ---- create and delete --------------------------------------------------------------------------------------

    def _create(self, exchange: Exchange, key: str) -> None:
        request = exchange.request
        headers = request.headers
        raw = headers.get(b"content-type")
        media = None if raw is None else self._types.get(raw) or self._content_type(raw)
        parse.refuse(headers, parse.APPEND_ONLY, "it belongs to an append: create the stream, then POST to it")
        ttl_ms, expires_ms = parse.expiry(headers)
        fork = parse.fork(headers, self._settings.stream_name_bytes_max)
        body = request.body
        is_json = bool(body) and (media or self._inherited_media(fork)) == json_mode.JSON
        long = is_json and json_mode.is_long(body)
        records = [body] if body else []
        if is_json:
            records = [] if long else json_mode.messages(body, True, self._records_max)
        exchange.when(lambda outcome: self._created(exchange, outcome))
        command = Create(
            key=key,
            content_type=None if raw is None else raw.decode(),
            records=records,
            ttl_ms=ttl_ms,
            expires_ms=expires_ms,
            closed=parse.flag(headers, b"stream-closed"),
            durability=parse.durability(headers),
            retention=parse.retention(headers),
            fork=fork,
        )
        if long:
            exchange.in_slices(self._submit_long(exchange, key, command))
        else:
            self._engine.submit(key, command, exchange)

    def _inherited_media(self, fork: Fork | None) -> str | None:
        """A fork that names no content type has its source's: its initial body is read by that."""
        source = None if fork is None else self._engine.look(fork.source)
        return None if source is None else source.media

    def _created(self, exchange: Exchange, outcome: Outcome) -> None:
        request = exchange.request
        if type(outcome) is Created:
            start = 0 if outcome.forked is None else outcome.forked.at
            tail, closed = start + sum(map(len, outcome.records)), outcome.closed
            content_type = outcome.content_type
            base = self._origin.base_url(request.headers) or ""
            status, answer = 201, [("Location", f"{base}{path_of(request.target)}")]
        elif type(outcome) is Unchanged:
            tail, closed = outcome.end, outcome.closed
            status, answer = 200, []
            content_type = outcome.content_type
        else:
            raise RuntimeError(f"a creation ended as {outcome!r}")
        answer += [("Content-Type", content_type), ("Stream-Next-Offset", offsets.show(tail))]
        if closed:
            answer.append(("Stream-Closed", "true"))
        exchange.empty(status, answer)

    # ---- reads --------------------------------------------------------------------------------------------------

    def _head(self, exchange: Exchange, key: str) -> None:
        stream = self._engine.find(key, False)
        answer = [
            ("Content-Type", stream.content_type),
            ("Stream-Next-Offset", offsets.show(stream.visible)),
            ("Stream-Earliest-Offset", offsets.show(stream.earliest)),
            ("Stream-Durability", self._responder.durability_names[stream.durability]),
            ("ETag", tail_etag(stream)),
            ("Cache-Control", "no-store"),
        ]
        if stream.closed_visible:
            answer.append(("Stream-Closed", "true"))
        if stream.snapshot is not None:
            answer.append(("Stream-Snapshot-Offset", offsets.show(stream.snapshot.offset)))
        if stream.ttl_ms is not None:
            answer.append(("Stream-TTL", str(stream.ttl_ms // 1000)))
        if stream.expires_ms is not None:
            answer.append(("Stream-Expires-At", moments.show(stream.expires_ms)))
        status = 304 if _matches(exchange, tail_etag(stream)) else 200
        exchange.reply(self._responder.head(status, answer, None, exchange.request.keep_alive))

    def _get(self, exchange: Exchange, key: str, query: bytes) -> None:
        wanted = parse.query(query, _READ_QUERY)
        live = wanted.get("live")
        if live not in (None, "long-poll", "sse"):
            raise BadQuery("live", "expected long-poll or sse")
        token = wanted.get("offset")
        if token is None and live is not None:
            raise BadQuery("offset", "a live read says where it starts; use -1 for the beginning or now for the tail")
        offset = START if token is None else offsets.parse(token)
        cursor = wanted.get("cursor")
        bytes_max = self._bytes_max(wanted.get("max_bytes"))
        stream = self._engine.find(key, True)
        if cursor is not None and cursors.is_another(cursor, stream.sid):
            raise StreamReplaced(stream.earliest)
        self.reads_count += 1
        if live == "sse":
            self._sse(exchange, stream, offset, cursor)
        elif live == "long-poll":
            self._long_poll(exchange, stream, offset, bytes_max, cursor)
        else:
            now_s = self._clock.monotonic_s
            begun_s = now_s()

            def found(part: Slice) -> None:
                self.read_times.add(now_s() - begun_s)
                self._catch_up(exchange, part, offset == NOW)

            self._engine.read(stream, offset, bytes_max, exchange.told(found), joined=True)

    def _bytes_max(self, text: str | None) -> int:
        limit = self._settings.read_bytes_max
        if text is None:
            return limit
        if not (text.isascii() and text.isdigit() and 0 < len(text) <= 12):
            raise BadQuery("max_bytes", "expected a number of bytes")
        return max(1, min(limit, int(text)))

    def _catch_up(self, exchange: Exchange, part: Slice, now: bool) -> None:
        etag = slice_etag(part)
        answer = self._read_headers(part)
        answer.append(("ETag", etag))
        # What ends before the tail never changes; the tail may grow at any moment, so a cache has to ask again.
        if now:
            answer.append(("Cache-Control", "no-store"))
        elif part.up_to_date and not part.closed:
            answer.append(("Cache-Control", "no-cache"))
        else:
            whose = "public" if self._is_for_all(exchange) else "private"
            answer.append(("Cache-Control", f"{whose}, max-age=60, stale-while-revalidate=300"))
        if not now and _matches(exchange, etag):
            exchange.empty(304, answer)
            return
        self._send_body(exchange, answer, part)

    def _is_for_all(self, exchange: Exchange) -> bool:
        """Whether a cache may give the answer to somebody else. Of a request that was sent on it is not known for whom
        it is."""
        return not self._settings.auth_on or (not exchange.internal and exchange.principal.kind == PUBLIC)

    def _read_headers(self, part: Slice) -> list[tuple[str, str]]:
        answer = [("Content-Type", part.stream.content_type), ("Stream-Next-Offset", offsets.show(part.end))]
        if part.up_to_date:
            answer.append(("Stream-Up-To-Date", "true"))
        if part.closed:
            answer.append(("Stream-Closed", "true"))
        return answer

    def _send_body(self, exchange: Exchange, answer: list[tuple[str, str]], part: Slice) -> None:
        size = part.size
        if part.count:
            self._engine.count_read(part.stream.key, size)
        if part.stream.is_json:
            size += max(part.count - 1, 0) + 2
        head = self._responder.head(200, answer, size, exchange.request.keep_alive)
        if size <= SLICE_BYTES:
            body = json_mode.array(part.payloads) if part.stream.is_json else b"".join(part.payloads)
            exchange.reply(head + body)
            return
        ReadPump(exchange, head, self._engine, part)

    def _cursor(self, theirs: str | None, stream: LoadedStream) -> int:
        jitter = 1 + self._rng.below(cursors.JITTER_INTERVALS_MAX) if theirs else 1
        return cursors.answer(theirs, self._clock.now_ms(), jitter, stream.sid)

    def _long_poll(
        self, exchange: Exchange, stream: LoadedStream, offset: int, bytes_max: int, cursor: str | None
    ) -> None:

        def first(part: Slice) -> None:
            if part.payloads or part.closed:
                self._answer_long_poll(exchange, part, cursor)
                return
            self.long_polls_open += 1
            timeout_s = self._settings.long_poll_timeout_ms / 1000
            LongPoll(exchange, self._engine, stream, part.end, timeout_s, again, self._long_poll_ended)

        def grown(part: Slice) -> None:
            self._answer_long_poll(exchange, part, cursor)

        def again(offset: int, failure: Failure | None) -> None:
            if failure is not None:
                exchange.fail(failure)
                return
            try:
                self._engine.read(stream, offset, bytes_max, exchange.told(grown), joined=True)
            except Failure as refused:
                exchange.fail(refused)

        self._engine.read(stream, offset, bytes_max, exchange.told(first), joined=True)

    def _long_poll_ended(self) -> None:
        self.long_polls_open -= 1

    def _answer_long_poll(self, exchange: Exchange, part: Slice, cursor: str | None) -> None:
        answer = self._read_headers(part)
        answer.append(("Cache-Control", "no-store" if not part.payloads else "no-cache"))
        if not part.closed:
            answer.append(("Stream-Cursor", str(self._cursor(cursor, part.stream))))
        if part.payloads:
            answer.append(("ETag", slice_etag(part)))
            self._send_body(exchange, answer, part)
        else:
            exchange.empty(204, answer)

    def _sse(self, exchange: Exchange, stream: LoadedStream, offset: int, cursor: str | None) -> None:
        start = plan(stream, offset, 1)
        begin = start.start if isinstance(start, Cold) or start.payloads else start.end
        answer = sse.headers(exchange.request.version)
        if begin == stream.visible and stream.closed_visible:
            # There is nothing to follow: the head says so already, as that of a catch-up read does.
            answer += [
                ("Stream-Next-Offset", offsets.show(begin)),
                ("Stream-Up-To-Date", "true"),
                ("Stream-Closed", "true"),
            ]
        if not sse.is_text(stream.media):
            answer.append(("Stream-SSE-Data-Encoding", "base64"))
        settings = self._settings
        shifted = self._cursor(cursor, stream) if cursor else 0

        def present() -> int:
            # A client that brought a cursor ahead of the clock is answered ahead of it until the clock catches up.
            return max(shifted, cursors.stamp(self._clock.now_ms(), stream.sid))

        self.sse_open += 1
        feed = SseFeed(
            exchange,
            self._engine,
            stream,
            begin,
            present,
            settings.sse_keepalive_ms / 1000,
            settings.sse_lifetime_ms / 1000,
            self._sse_closed,
        )
        feed.begin(self._responder.head(200, answer, None, exchange.request.keep_alive))

    def _sse_closed(self) -> None:
        self.sse_open -= 1


def tail_etag(stream: LoadedStream) -> str:
    return f'"{stream.sid}:{stream.visible}{":c" if stream.closed_visible else ""}"'


def slice_etag(part: Slice) -> str:
    # What was deleted since makes it another answer.
    gone = part.end - part.start - part.size
    return f'"{part.stream.sid}:{part.start}:{part.end}{f":-{gone}" if gone else ""}{":c" if part.closed else ""}"'


def _matches(exchange: Exchange, etag: str) -> bool:
    """Weak comparison, as If-None-Match wants it."""
    value = exchange.request.headers.get(b"if-none-match")
    if value is None:
        return False
    if value == b"*":
        return True
    wanted = etag.encode()
    return any(tag.strip().removeprefix(b"W/") == wanted for tag in value.split(b","))
