"""Topics as they grow, over SSE: `GET /v0/topics/{topic}/sse`, and several at once by `GET /v0/sse?topics=a,shop/b`.

Owns the events and the cursor of a connection. Never buffers for a slow client: see `following`.

    event: records
    id: a:14,shop/b:0
    data:{"topic":"a","records":[{"seq":14,"ts":1760000000000,"data":{"total":12}}],"next_seq":14}

`id` is the cursor of all topics, with names percent-encoded. Sent back as `Last-Event-ID` it resumes all of them. The
first event, `open`, tells it before any record has come.
"""

from __future__ import annotations

import asyncio
from functools import partial

from headwater.config import Settings
from headwater.doors.http import headers as parse
from headwater.doors.http import sse
from headwater.doors.http.access import demand
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.live_reads import chunks_to
from headwater.doors.http.topics.answers import Timing, encode
from headwater.doors.http.topics.config import NUMBER_MAX
from headwater.doors.http.topics.diff import limit_of, nodes_of
from headwater.doors.http.topics.following import TOPICS_MAX, Filter, Following
from headwater.doors.http.topics.others import Answering, Others, places
from headwater.doors.http.topics.paths import in_cursor, topic_key, topic_name
from headwater.doors.http.topics.routes import TopicRoutes, once_published, published
from headwater.doors.http.topics.watchers import Watchers
from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import LoadedStream
from headwater.errors import BadHeader, BadQuery, NoSuchRoute, StreamNotFound
from headwater.security import policy
from headwater.security.principals import Action, Need

_ONE_QUERY = ("from_seq", "node", "limit")
_SEVERAL_QUERY = ("topics", "from", "node", "limit")
_LAST_EVENT_ID = b"last-event-id"
CURSOR_DIGITS = 10
"""Room for each cursor in the id of an event, so that what can be followed now can be followed in a year."""
Cursors = dict[str, int | None]
"""By topic; None: from now on."""


class TopicTails:
    def __init__(self, engine: Engine, settings: Settings, watchers: Watchers) -> None:
        self._engine = engine
        self._watchers = watchers
        self._name_bytes_max = settings.stream_name_bytes_max
        self._keepalive_s = settings.sse_keepalive_ms / 1000
        self._lifetime_s = settings.sse_lifetime_ms / 1000
        self._head_bytes_max = settings.head_bytes_max
        Answering(engine, watchers)
        self.open_count = 0

    def register(self, routes: TopicRoutes) -> None:
        routes.verb("sse", "GET", self._one, Action.READ)
        routes.page("sse", "GET", self._several, policy.MANY_TAIL)

    # ---- one topic ------------------------------------------------------------------------------------------------

    def _one(self, exchange: Exchange, key: str, query: bytes, timing: Timing) -> None:
        wanted = parse.query(query, _ONE_QUERY)
        name = topic_name(key)
        cursor = None
        if wanted.get("from_seq", "now") != "now":
            cursor = parse.whole(wanted, "from_seq", 0, NUMBER_MAX)
        cursors: Cursors = {name: cursor, **self._resumed(exchange)}
        filter = Filter(limit_of(wanted), nodes_of(wanted.get("node")))
        once_published(self._engine, exchange, key, partial(self._open_one, exchange, key, cursors[name], filter))

    def _open_one(self, exchange: Exchange, key: str, cursor: int | None, filter: Filter) -> None:
        stream = self._engine.find(key, True)
        tail = self._tail(exchange, filter)
        tail.follow(topic_name(key), stream, cursor)
        tail.begin()

    def _tail(self, exchange: Exchange, filter: Filter) -> _Tail:
        return _Tail(self, exchange, self._engine, self._watchers, filter, self._keepalive_s, self._lifetime_s)

    # ---- several --------------------------------------------------------------------------------------------------

    def _several(self, exchange: Exchange, rest: bytes, query: bytes, timing: Timing) -> None:
        if rest:
            raise NoSuchRoute
        wanted = parse.query(query, _SEVERAL_QUERY)
        names = [self._named(part) for part in wanted.get("topics", "").split(",") if part]
        if not names:
            raise BadQuery("topics", "name topics, separated by commas, such as topics=orders,shop/carts")
        if len(names) > TOPICS_MAX:
            raise BadQuery("topics", f"at most {TOPICS_MAX}")
        given = {**self._cursors("from", wanted.get("from", "")), **self._resumed(exchange)}
        cursors: Cursors = {name: given.get(name) for name in names}
        self._demand_resumable(exchange, cursors)
        filter = Filter(limit_of(wanted), nodes_of(wanted.get("node")))
        demand(exchange, *(Need(Action.READ, topic_key(name, self._name_bytes_max)) for name in cursors))
        exchange.run(self._open_several(exchange, cursors, filter))

    def _demand_resumable(self, exchange: Exchange, cursors: Cursors) -> None:
        """Raises BadQuery when this request would be too long once it brings the id of the connection's last event: its
        client could begin to follow, and then never come back."""
        request = exchange.request
        head = sum(len(name) + len(value) + 4 for name, value in request.headers.items() if name != _LAST_EVENT_ID)
        line = len(request.method) + len(request.target) + len(b"  HTTP/1.1\r\n\r\n")
        token = len(_LAST_EVENT_ID) + 4 + sum(len(in_cursor(name)) + 2 + CURSOR_DIGITS for name in cursors)
        if line + head + token > self._head_bytes_max:
            raise BadQuery(
                "topics", "with the cursors of so many a client could not come back; follow fewer (see head_bytes_max)"
            )

    def _resumed(self, exchange: Exchange) -> Cursors:
        token = exchange.request.headers.get(_LAST_EVENT_ID)
        try:
            return {} if not token else self._cursors("Last-Event-ID", token.decode("utf-8", "replace"))
        except BadQuery as bad:
            raise BadHeader(bad.name, bad.reason) from None

    def _cursors(self, what: str, text: str) -> Cursors:
        """Topics with the cursor of each, as in the id of an event. Raises BadQuery, BadName."""
        found: Cursors = {}
        for part in text.split(","):
            if not part:
                continue
            name, colon, number = part.rpartition(":")
            if number == "now" and colon:
                found[self._named(name)] = None
            elif colon and number.isascii() and number.isdigit() and len(number) <= 16:
                found[self._named(name)] = min(int(number), NUMBER_MAX)
            else:
                raise BadQuery(what, "expected topics with their cursors, such as orders:12,shop/carts:0")
        return found

    def _named(self, text: str) -> str:
        """A topic by its name as it stands among others: percent-encoded, so that it may hold a comma."""
        return topic_name(topic_key(parse.path_text(text.encode()), self._name_bytes_max))

    async def _open_several(self, exchange: Exchange, cursors: Cursors, filter: Filter) -> None:
        tail = self._tail(exchange, filter)
        try:
            for name, cursor in cursors.items():
                key = topic_key(name, self._name_bytes_max)
                group = await self._engine.locate(key)
                if group in self._engine.owned:
                    tail.follow(name, await published(self._engine, group, key), cursor)
                else:
                    tail.ask(name, self._engine.questions.owner(group), group, key, cursor)
            await tail.ask_where()
            if not exchange.connection.closing:
                tail.begin()
                return
        except BaseException:
            tail.close()
            raise
        tail.close()


class _Tail:
    """One connection: an Outlet for what is followed, and a Streamer."""

    def __init__(
        self,
        owner: TopicTails,
        exchange: Exchange,
        engine: Engine,
        watchers: Watchers,
        filter: Filter,
        keepalive_s: float,
        lifetime_s: float,
    ) -> None:
        self._owner = owner
        self._exchange = exchange
        self._engine = engine
        self._filter = filter
        self._write = chunks_to(exchange)
        self._here = Following(engine, watchers, self, filter)
        self._others: dict[int, Others] = {}
        """By process."""
        self._asked: dict[int, list[tuple[str, int, str, int | None]]] = {}
        """By process, what is to be followed there: name, group, key, cursor."""
        self._cursor: dict[str, bytes] = {}
        """Each topic's part of the connection's cursor."""
        self._keepalive_s = keepalive_s
        now_s = asyncio.get_running_loop().time()
        self._quiet_since_s = now_s
        self._ends_s = now_s + lifetime_s
        self._begun = self._over = self._interrupted = False
        self._gone_early: list[str] = []
        """Topics that were deleted while others were asked for."""

    # ---- opening --------------------------------------------------------------------------------------------------

    def follow(self, name: str, stream: LoadedStream, cursor: int | None) -> None:
        """A topic of this process. Raises NotServedHere."""
        self._move(name, self._here.add(name, stream, cursor))

    def ask(self, name: str, member: int, group: int, key: str, cursor: int | None) -> None:
        """A topic of another one."""
        self._asked.setdefault(member, []).append((name, group, key, cursor))
        self._move(name, 0)

    async def ask_where(self) -> None:
        """Has other processes say where their topics are followed from. Raises StreamNotFound and others."""
        await asyncio.gather(*(self._ask_member(member, asked) for member, asked in self._asked.items()))

    async def _ask_member(self, member: int, asked: list[tuple[str, int, str, int | None]]) -> None:
        found = await places(self._engine, member, [(group, key, cursor) for _, group, key, cursor in asked])
        others = self._others[member] = Others(self._engine, member, self, self._filter)
        for (name, group, key, _), place in zip(asked, found, strict=True):
            if place is None:
                raise StreamNotFound
            others.add(name, group, key, place)
            self._move(name, place.cursor)

    def begin(self) -> None:
        self._begun = True
        self._owner.open_count += 1
        exchange = self._exchange
        exchange.connection.stream(self)
        request = exchange.request
        exchange.begin(exchange.responder.head(200, sse.headers(request.version), None, request.keep_alive))
        self._event(b"open", b"{}")
        for name in self._gone_early:
            self.gone(name)
        if self._interrupted:
            self._end()
        if self._over:
            return
        for others in self._others.values():
            others.start()
        self._here.pump()

    def _move(self, name: str, cursor: int) -> None:
        self._cursor[name] = f"{in_cursor(name)}:{cursor}".encode()

    # ---- as an Outlet ---------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        return self._exchange.connection.paused or self._over or not self._begun

    def records(self, topic: str, texts: bytes, next_seq: int) -> None:
        self._move(topic, next_seq)
        self._event(b"records", b'{"topic":%b,"records":[%b],"next_seq":%d}' % (encode(topic), texts, next_seq))

    def tombstone(self, topic: str, gap_from: int, gap_to: int, lagged: bool) -> None:
        self._move(topic, gap_to)
        reason = b',"reason":"lagged"' if lagged else b""
        body = b'{"topic":%b,"gap_from":%d,"gap_to":%d%b}' % (encode(topic), gap_from, gap_to, reason)
        self._event(b"tombstone", body)

    def gone(self, topic: str) -> None:
        self._cursor.pop(topic, None)
        if not self._begun:
            self._gone_early.append(topic)
        elif not self._over:
            self._event(b"gone", b'{"topic":%b}' % encode(topic))
            if not self._cursor:
                self._end()

    def interrupted(self) -> None:
        self._interrupted = True
        self._end()

    def broke(self) -> None:
        self._exchange.broke()

    def _event(self, name: bytes, body: bytes) -> None:
        token = b",".join(self._cursor.values())
        self._quiet_since_s = 0.0
        self._write(sse.chunk(b"event: %b\nid: %b\ndata:%b\n\n" % (name, token, sse.lines(body))))

    # ---- as a Streamer --------------------------------------------------------------------------------------------

    def drained(self) -> None:
        if not self._over:
            self._here.pump()
            for others in self._others.values():
                others.pump()

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
        """Its client resumes by the id of the last event."""
        if self._begun and not self._over:
            self.close()
            self._write(sse.LAST_CHUNK)
            self._exchange.connection.finish(self._exchange)

    def lost(self) -> None:
        self.close()

    def close(self) -> None:
        if not self._over:
            self._over = True
            self._here.close()
            for others in self._others.values():
                others.close()
            if self._begun:
                self._owner.open_count -= 1
