"""Topics over a WebSocket: `GET /v0/ws`, and `GET /v0/topics/{topic}/ws`, which begins with that topic.

Owns the messages, and what one socket may have under way. Never puts a message with records together that the socket's
queue has no room for: what is not sent is read later, from the cursor (see `following`).

    {"op":"subscribe","topics":{"a":12,"b":"now"},"node":"n"}  ->  {"op":"subscribed","topics":{"a":12,"b":7}}
    {"op":"unsubscribe","topics":["a"]}                        ->  {"op":"unsubscribed","topics":["a"]}
    {"op":"write","topic":"a","records":[...]}                 ->  {"op":"written","seqs":[14],"head_seq":14,...}
    {"op":"ping"}                                              ->  {"op":"pong"}
    unasked  ->  {"op":"records","topic":"a","records":[...],"next_seq":14,"cursor":{"a":14}}
                 {"op":"tombstone","topic":"a","gap_from":1,"gap_to":9}   {"op":"gone","topic":"a"}

- A message may have an `id`, any JSON value; its answer, which may be {"op":"error","error":{...}}, repeats it.
- A subscribe begins with all of its topics or none. While it is under way no other message is taken.
- Writes to one topic are made in the order they came; answers come as they are finished.
- A topic that cannot be followed any more, because its group moves, ends the socket: its client comes again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw
from websockets.frames import CloseCode

from headwater.config import Settings
from headwater.doors import faults
from headwater.doors.http import headers as parse
from headwater.doors.http.access import Access, refusal
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.failures import topic_error
from headwater.doors.http.limited import demand
from headwater.doors.http.topics.answers import Timing, encode
from headwater.doors.http.topics.config import NUMBER_MAX, decoded
from headwater.doors.http.topics.diff import LIMIT_DEFAULT, limit_of, nodes_of
from headwater.doors.http.topics.following import TOPICS_MAX, Filter, Following
from headwater.doors.http.topics.others import Others, Place, places
from headwater.doors.http.topics.paths import WEBSOCKET, topic_key, topic_name
from headwater.doors.http.topics.routes import TopicRoutes, published
from headwater.doors.http.topics.watchers import Watchers
from headwater.doors.http.topics.writing import Writing
from headwater.doors.http.websocket import WebSocket, WebSockets
from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import LoadedStream
from headwater.errors import BadBody, Failure, NoSuchRoute, RateLimited, StreamNotFound
from headwater.security import policy
from headwater.security.principals import Action, Need

MESSAGE_BYTES_MAX = 1024 * 1024
"""Of a client's message, which is decoded in one go: 1 MiB of small records takes about 3 ms. Overflow: Close 1009."""
WRITES_MAX = 16
"""Under way on one socket. Overflow: no message is taken until one of them is answered."""
ID_BYTES_MAX = 1_024
_QUERY = ("from_seq", "node", "limit")
_NONE = Raw()


class _Subscribe(msgspec.Struct, tag_field="op", tag="subscribe", forbid_unknown_fields=True):
    topics: dict[str, int | str]
    id: Raw = _NONE
    node: str | None = None


class _Unsubscribe(msgspec.Struct, tag_field="op", tag="unsubscribe", forbid_unknown_fields=True):
    topics: list[str]
    id: Raw = _NONE


class _Write(msgspec.Struct, tag_field="op", tag="write", forbid_unknown_fields=True):
    topic: str
    records: Raw
    id: Raw = _NONE
    node: Raw = _NONE
    producer: Raw = _NONE
    disable_backpressure: bool = False

    def body(self) -> bytes:
        """What a request with this write would have as its body."""
        more = b"".join(
            b',"%b":%b' % (name, bytes(value))
            for name, value in ((b"node", self.node), (b"producer", self.producer))
            if bytes(value)
        )
        throttled = b',"disable_backpressure":true' if self.disable_backpressure else b""
        return b'{"records":%b%b%b}' % (bytes(self.records), more, throttled)


class _Ping(msgspec.Struct, tag_field="op", tag="ping", forbid_unknown_fields=True):
    id: Raw = _NONE


class _Named(msgspec.Struct):
    """As much as is read of a message that is refused."""

    id: Raw = _NONE


_decode = msgspec.json.Decoder(_Subscribe | _Unsubscribe | _Write | _Ping).decode
_decode_named = msgspec.json.Decoder(_Named).decode
Wishes = dict[str, int | None]
"""Topics, each with the cursor to follow it from; None: from now on."""


class TopicSockets:
    def __init__(
        self, engine: Engine, settings: Settings, watchers: Watchers, writing: Writing, sockets: WebSockets
    ) -> None:
        self.engine = engine
        self.watchers = watchers
        self.writing = writing
        self._sockets = sockets
        self.access = Access()
        self._name_bytes_max = settings.stream_name_bytes_max

    def register(self, routes: TopicRoutes) -> None:
        self.access = routes.access
        routes.verb(WEBSOCKET, "GET", self._one, Action.READ, anywhere=True)
        routes.page(WEBSOCKET, "GET", self._any, policy.MANY_TAIL)

    @property
    def open_count(self) -> int:
        return self._sockets.open_count

    def _one(self, exchange: Exchange, key: str, query: bytes, timing: Timing) -> None:
        wanted = parse.query(query, _QUERY)
        cursor = None
        if wanted.get("from_seq", "now") != "now":
            cursor = parse.whole(wanted, "from_seq", 0, NUMBER_MAX)
        filter = Filter(limit_of(wanted), nodes_of(wanted.get("node")))
        self._sockets.upgrade(exchange, partial(self._opened, exchange, filter, {topic_name(key): cursor}))

    def _any(self, exchange: Exchange, rest: bytes, query: bytes, timing: Timing) -> None:
        if rest:
            raise NoSuchRoute
        self._sockets.upgrade(exchange, partial(self._opened, exchange, Filter(LIMIT_DEFAULT, frozenset()), {}))

    def _opened(self, exchange: Exchange, filter: Filter, wishes: Wishes, socket: WebSocket) -> _Socket:
        found = _Socket(self, socket, filter, exchange)
        if wishes:
            found.subscribe(wishes, _NONE)
        return found

    def key(self, name: str) -> str:
        """Of a topic that a message names. Raises BadName."""
        return topic_key(name, self._name_bytes_max)


class _Found:
    """Topics of a subscribe, where they are, before any of them is followed."""

    def __init__(self) -> None:
        self.here: list[tuple[str, LoadedStream, int | None]] = []
        self.elsewhere: dict[int, list[tuple[str, int, str, int | None]]] = {}
        """By process: name, group, key, cursor."""
        self.places: dict[str, Place] = {}
        """Of the topics of other processes."""
        self.refused: str | None = None
        """The topic that a failure is about."""


class _Socket:
    """One socket: its Handler, and an Outlet for what is followed."""

    def __init__(self, owner: TopicSockets, socket: WebSocket, filter: Filter, exchange: Exchange) -> None:
        self._owner = owner
        self._exchange = exchange
        self._begun_needs = exchange.needs
        self._needs: dict[str, Need] = {}
        """By topic that a message asked to follow."""
        self._engine = owner.engine
        self._socket = socket
        self._filter = filter
        self._here = Following(owner.engine, owner.watchers, self, filter)
        self._others: dict[int, Others] = {}
        """By process."""
        self._unsent: deque[bytes] = deque()
        """What the socket's queue had no room for: answers to what was under way, and words about topics that ended.
        No batch of records is read while there are any, beyond the one that was being sent."""
        self._writes_count = 0
        self._writing: dict[str, asyncio.Task[None]] = {}
        """By key, of topics of other processes: the last write that is not answered."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscribing = self._held = self._over = False

    def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception:
            self.broke()

    # ---- as a Handler ---------------------------------------------------------------------------------------------

    def message(self, text: str) -> None:
        data = text.encode()
        try:
            demand(self._exchange, len(data))
            message = decoded(_decode, data)
        except (BadBody, RateLimited) as refused:
            self._fail(refused, _id_of(data))
            return
        if len(bytes(message.id)) > ID_BYTES_MAX:
            self._fail(BadBody(f"id: at most {ID_BYTES_MAX} bytes"), _NONE)
            return
        try:
            self._do(message)
        except Failure as failure:
            self._fail(failure, message.id)

    def writable(self) -> None:
        while self._unsent and self._socket.send(self._unsent[0]):
            self._unsent.popleft()
        if not self._unsent:
            self._here.pump()
            for others in self._others.values():
                others.pump()

    def closed(self) -> None:
        """Writes that were sent on are made; those that wait for them are not."""
        self._over = True
        self._unsent.clear()
        self._here.close()
        for others in self._others.values():
            others.close()
        for task in self._tasks:
            task.cancel()

    # ---- messages -------------------------------------------------------------------------------------------------

    def _do(self, message: _Subscribe | _Unsubscribe | _Write | _Ping) -> None:
        """Raises Failure."""
        if type(message) is _Write:
            self._write(message)
        elif type(message) is _Subscribe:
            wishes = self._wishes(message.topics)
            self._demand_read(wishes)
            self._demand_node(message.node)
            self.subscribe(wishes, message.id)
        elif type(message) is _Unsubscribe:
            self._unsubscribe(message)
        else:
            self._answer(b"pong", message.id, b"")

    def _wishes(self, topics: dict[str, int | str]) -> Wishes:
        """Raises BadBody, BadName."""
        wishes: Wishes = {}
        _demand_few(topics)
        for name, cursor in topics.items():
            if cursor != "now" and (type(cursor) is not int or not 0 <= cursor <= NUMBER_MAX):
                raise BadBody('topics: a cursor is a whole number from 0 on, or "now"')
            wishes[topic_name(self._owner.key(name))] = cursor if type(cursor) is int else None
        if not wishes:
            raise BadBody('topics: name at least one, such as {"orders":"now"}')
        return wishes

    def _demand_read(self, wishes: Wishes) -> None:
        """Raises NotAuthenticated, CredentialRefused, Forbidden."""
        principal = self._owner.access.current(self._exchange)
        needs = {name: Need(Action.READ, self._owner.key(name)) for name in wishes}
        for need in needs.values():
            if not principal.meets(need):
                raise refusal(self._exchange, need)
        self._needs |= needs
        self._exchange.hold_needs((*self._begun_needs, *self._needs.values()))

    def _demand_node(self, text: str | None) -> None:
        """Raises BadQuery, BadBody."""
        if text is None:
            return
        nodes = nodes_of(text)
        if nodes != self._filter.nodes:
            if self._followed_count():
                raise BadBody("node: topics are followed as another node by this socket; open another one")
            self._filter.nodes = nodes

    def _followed_count(self) -> int:
        return len(self._here) + sum(map(len, self._others.values()))

    def _unsubscribe(self, message: _Unsubscribe) -> None:
        _demand_few(message.topics)
        names = [topic_name(self._owner.key(name)) for name in message.topics]
        for name in names:
            self._forget(name, followed_again=False)
        self._answer(b"unsubscribed", message.id, b',"topics":%b' % encode(names))

    def _forget(self, name: str, followed_again: bool = True) -> None:
        if not followed_again:
            self._needs.pop(name, None)
        self._here.remove(name)
        for others in self._others.values():
            others.remove(name)

    # ---- subscribing ----------------------------------------------------------------------------------------------

    def subscribe(self, wishes: Wishes, id: Raw) -> None:
        self._subscribing = True
        self._pace()
        self._run(partial(self._subscribe, wishes, id))

    async def _subscribe(self, wishes: Wishes, id: Raw) -> None:
        found = _Found()
        try:
            self._demand_room(wishes)
            await self._find(found, wishes)
            # No pause from here on: what was found is followed as it was found.
            cursors = self._follow(found)
        except Failure as failure:
            self._fail(failure, id, found.refused)
        else:
            self._answer(b"subscribed", id, b',"topics":%b' % encode({name: cursors[name] for name in wishes}))
            for member in found.elsewhere:
                self._others[member].start()
            self._here.pump()
        finally:
            self._subscribing = False
            self._pace()

    def _demand_room(self, wishes: Wishes) -> None:
        known = sum(name in self._here or any(name in one for one in self._others.values()) for name in wishes)
        if self._followed_count() + len(wishes) - known > TOPICS_MAX:
            raise BadBody(f"topics: a socket follows at most {TOPICS_MAX}")

    async def _find(self, found: _Found, wishes: Wishes) -> None:
        """Raises a Failure."""
        engine = self._engine
        where: dict[str, int] = {}
        for name, cursor in wishes.items():
            key = self._owner.key(name)
            group = where[name] = await engine.locate(key)
            if group not in engine.owned:
                member = engine.questions.owner(group)
                found.elsewhere.setdefault(member, []).append((name, group, key, cursor))
        await asyncio.gather(*(self._ask(found, member, asked) for member, asked in found.elsewhere.items()))
        for name, cursor in wishes.items():
            if name not in found.places:
                found.refused = name
                found.here.append((name, await published(engine, where[name], self._owner.key(name)), cursor))
                found.refused = None

    async def _ask(self, found: _Found, member: int, asked: list[tuple[str, int, str, int | None]]) -> None:
        answers = await places(self._engine, member, [(group, key, cursor) for _, group, key, cursor in asked])
        for (name, *_), place in zip(asked, answers, strict=True):
            if place is None:
                found.refused = name
                raise StreamNotFound
            found.places[name] = place

    def _follow(self, found: _Found) -> dict[str, int]:
        """The cursor of each topic. Raises NotServedHere, and then none of them is followed."""
        cursors: dict[str, int] = {}
        try:
            for name, stream, cursor in found.here:
                self._forget(name)
                cursors[name] = self._here.add(name, stream, cursor)
        except Failure:
            for name in cursors:
                self._forget(name)
            raise
        for member, asked in found.elsewhere.items():
            others = self._others.get(member)
            if others is None:
                others = self._others[member] = Others(self._engine, member, self, self._filter)
            for name, group, key, _ in asked:
                self._forget(name)
                others.add(name, group, key, found.places[name])
                cursors[name] = found.places[name].cursor
        return cursors

    # ---- writing --------------------------------------------------------------------------------------------------

    def _write(self, message: _Write) -> None:
        """Raises BadName, NotAuthenticated, CredentialRefused, Forbidden."""
        key, body = self._owner.key(message.topic), message.body()
        principal, need = self._owner.access.current(self._exchange), Need(Action.APPEND, key)
        if not principal.meets(need):
            raise refusal(self._exchange, need)
        writing = self._owner.writing
        self._writes_count += 1
        before = self._writing.get(key)
        group = None if before is not None else writing.group_here(key)
        if group is not None:
            writing.write_here(group, key, body, partial(self._written, message.id))
        else:
            self._writing[key] = self._run(partial(self._write_elsewhere, before, key, body, message.id))
        self._pace()

    async def _write_elsewhere(self, before: asyncio.Task[None] | None, key: str, body: bytes, id: Raw) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            fields: bytes | Failure = await self._owner.writing.write(key, body)
        except Failure as failure:
            fields = failure
        if self._writing.get(key) is asyncio.current_task():
            del self._writing[key]
        self._written(id, fields)

    def _written(self, id: Raw, fields: bytes | Failure) -> None:
        self._writes_count -= 1
        if self._over:
            return
        try:
            if isinstance(fields, Failure):
                self._fail(fields, id)
            else:
                self._answer(b"written", id, b"," + fields)
            self._pace()
        except Exception:
            self.broke()

    def _pace(self) -> None:
        """Takes messages, or does not."""
        hold = self._subscribing or self._writes_count >= WRITES_MAX
        if hold != self._held and not self._over:
            self._held = hold
            if hold:
                self._socket.hold()
            else:
                self._socket.release()

    # ---- answers --------------------------------------------------------------------------------------------------

    def _answer(self, op: bytes, id: Raw, more: bytes) -> None:
        """`more` is the text of further fields, each with a comma before it."""
        named = bytes(id)
        self._send(b'{"op":"%b"%b%b}' % (op, b',"id":%b' % named if named else b"", more))

    def _fail(self, failure: Failure, id: Raw, topic: str | None = None) -> None:
        about = b"" if topic is None else b',"topic":%b' % encode(topic)
        self._answer(b"error", id, b'%b,"error":%b' % (about, encode(topic_error(failure))))

    def _send(self, data: bytes) -> None:
        if not self._over and (self._unsent or not self._socket.send(data)):
            self._unsent.append(data)

    # ---- as an Outlet ---------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        return self._over or bool(self._unsent) or not self._socket.has_room()

    def records(self, topic: str, texts: bytes, next_seq: int) -> None:
        name = encode(topic)
        message = b'{"op":"records","topic":%b,"records":[%b],"next_seq":%d,"cursor":{%b:%d}}'
        self._send(message % (name, texts, next_seq, name, next_seq))

    def tombstone(self, topic: str, gap_from: int, gap_to: int, lagged: bool) -> None:
        reason = b',"reason":"lagged"' if lagged else b""
        body = b'{"op":"tombstone","topic":%b,"gap_from":%d,"gap_to":%d%b}' % (encode(topic), gap_from, gap_to, reason)
        self._send(body)

    def gone(self, topic: str) -> None:
        self._send(b'{"op":"gone","topic":%b}' % encode(topic))

    def interrupted(self) -> None:
        self._socket.close(CloseCode.SERVICE_RESTART, "a topic is served elsewhere now, or cannot be read; come again")

    def broke(self) -> None:
        failure = faults.report("http", route="websocket")
        self._socket.close(CloseCode.INTERNAL_ERROR, failure.message())


def _demand_few(topics: Collection[str]) -> None:
    if len(topics) > TOPICS_MAX:
        raise BadBody(f"topics: a socket follows at most {TOPICS_MAX}")


def _id_of(data: bytes) -> Raw:
    """The id of a message that is refused; none when it cannot be told."""
    try:
        id = _decode_named(data).id
    except (msgspec.DecodeError, RecursionError):
        return _NONE
    return id if len(bytes(id)) <= ID_BYTES_MAX else _NONE
