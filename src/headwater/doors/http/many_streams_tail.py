"""One SSE connection that follows many streams: `GET /__headwater/tail?stream=a&stream=b` or `?bucket=b&prefix=p`.

Owns its events and its token. Never buffers for a slow client: it stops taking from the feeds until the socket drains.

Each event is one record and names its stream; `id` tells the log position after the record's append, and those of all
other groups as far as they were sent. So one token, sent back as `Last-Event-ID` (or `after=`), resumes all streams at
once:

    event: data
    id: 0:81236,1:400
    data:{"stream":"orders/7","incarnation":12,"nextOffset":"00000000000000000042","encoding":"json","data":{"total":12}}

The process that holds the client's connection follows the groups of the others over a connection to each of them. What
such a connection asks is served from this process's groups alone.
"""

from __future__ import annotations

import asyncio
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote_to_bytes

import msgspec

from headwater.cluster.membership import Membership
from headwater.config import Settings
from headwater.doors.http import headers as parse
from headwater.doors.http import sse
from headwater.doors.http.access import demand
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.live_reads import chunks_to
from headwater.doors.http.member_tail import MemberTail, Refused, positions_of
from headwater.engine.engine import Engine
from headwater.engine.feed import Batch, Feed
from headwater.engine.group import Group
from headwater.engine.listing import keys_below
from headwater.engine.loaded_stream import LoadedStream
from headwater.errors import BadQuery, Failure, MethodNotAllowed, NoOwner, NoSuchRoute
from headwater.model.names import DEFAULT_BUCKET
from headwater.security.principals import Action, Need

STREAMS_MAX = 1_000
PATH = b"/__headwater/tail"
_encode = msgspec.json.Encoder().encode


class _Wanted(NamedTuple):
    """What a client wants to follow, and from where."""

    keys: list[str]
    """Streams by name; empty: everything that begins with `start`."""
    start: str
    after: dict[int, int] | None
    """Positions by group; None: from now, or from the start."""
    from_start: bool
    aliased: dict[str, int]
    """Groups of named streams that live outside their name's home."""


class Tails:
    def __init__(self, engine: Engine, settings: Settings, members: Membership) -> None:
        self._engine = engine
        self._settings = settings
        self._members = members
        self.open_count = 0
        engine.questions.register("tail_aliases", self._answer_aliases)

    def handle(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        request = exchange.request
        if rest:
            raise NoSuchRoute
        if request.method != b"GET":
            raise MethodNotAllowed("GET, OPTIONS")
        internal = exchange.internal
        groups = sorted(self._engine.owned) if internal else list(range(self._engine.groups_count))
        wanted = self._wanted(request.headers.get(b"last-event-id"), query, groups, internal)
        if internal:
            wanted = wanted._replace(aliased=_aliased(query))
            _demand_groups(query, groups)
        elif wanted.keys:
            demand(exchange, *(Need(Action.READ, key) for key in wanted.keys))
        else:
            demand(exchange, Need(Action.READ, wanted.start, True))
        if internal or self._members.alone:
            self._open(exchange, wanted, {}, [])
        else:
            exchange.run(self._open_with_others(exchange, query, wanted))

    def _wanted(self, last_event_id: bytes | None, query: bytes, groups: list[int], internal: bool) -> _Wanted:
        wanted = parse.query(query, ("bucket", "prefix", "after", "from"))
        keys = self._named(query)
        bucket = wanted.get("bucket")
        if bool(keys) == (bucket is not None):
            raise BadQuery("stream", "name streams (stream=a&stream=b) or a bucket (bucket=b&prefix=p)")
        if bucket is not None and (not bucket or "/" in bucket):
            raise BadQuery("bucket", "a bucket has a name without slashes")
        token = wanted.get("after") if last_event_id is None else last_event_id.decode("latin-1")
        begin = wanted.get("from", "now")
        if token is None and begin not in ("now", "start"):
            raise BadQuery("from", "expected now or start")
        after = None if token is None else positions_of(token)
        if token is not None and (after is None or (sorted(after) != groups and not internal)):
            raise BadQuery("after", "expected the id of an event of this endpoint")
        if after is not None and sorted(after) != groups:
            # Another process asks, and a group has changed its owner meanwhile.
            raise NoOwner(min(after.keys() ^ set(groups)))
        start = "" if bucket is None else f"{bucket}/{wanted.get('prefix', '')}"
        return _Wanted(keys, start, after, token is None and begin == "start", {})

    def _named(self, query: bytes) -> list[str]:
        keys: list[str] = []
        for value in _values(query, b"stream"):
            full = value if value.startswith("/") else parse.FLAT_PREFIX + value
            keys.append(parse.stream_key(full, self._settings.stream_name_bytes_max))
        if len(keys) > STREAMS_MAX:
            raise BadQuery("stream", f"at most {STREAMS_MAX}; follow a bucket or prefix instead")
        return keys

    # ---- opening --------------------------------------------------------------------------------------------------

    def _open(self, exchange: Exchange, wanted: _Wanted, there: dict[int, int], others: list[MemberTail]) -> None:
        """Begins the answer. `there` are the positions of other processes' groups. Raises Failure."""
        owned = dict(self._engine.owned)
        positions = {**there, **{number: self._position(wanted, owned[number].group) for number in owned}}
        feeds: list[Feed] = []
        matches: Callable[[str], bool] = frozenset(wanted.keys).__contains__
        if not wanted.keys:
            matches = _starts_with(wanted.start)
        places = self._places(wanted)
        try:
            for number in owned:
                group = owned[number].group
                feed = Feed(group, positions[number], matches)
                feeds.append(feed)
                if wanted.keys:
                    feed.include([group.find(key, touch=True) for key in places.get(number, ())])
                else:
                    feed.include(_below(group, wanted.start, positions[number]))
        except Failure:
            for feed in feeds:
                feed.close()
            raise
        settings = self._settings
        keepalive_s, lifetime_s = settings.sse_keepalive_ms / 1000, settings.sse_lifetime_ms / 1000
        in_order = {number: positions[number] for number in sorted(positions)}
        _Tail(self, exchange, self._engine, in_order, feeds, others, keepalive_s, lifetime_s)

    async def _open_with_others(self, exchange: Exchange, query: bytes, wanted: _Wanted) -> None:
        members = self._members
        wanted = wanted._replace(aliased=await self._aliases(wanted.keys))
        groups = {member: members.groups_of(member) for member in members.everyone if member != members.me}
        tails = {member: MemberTail(member) for member, some in groups.items() if some}
        opened = await asyncio.gather(
            *(tail.open(members, _target(query, wanted, groups[member])) for member, tail in tails.items()),
            return_exceptions=True,
        )
        try:
            there: dict[int, int] = {}
            for found in opened:
                if isinstance(found, BaseException):
                    raise found
                there.update(found)
            self._demand_all_groups(there)
            if not exchange.connection.closing:
                self._open(exchange, wanted, there, list(tails.values()))
                return
        except Refused as refused:
            keep_alive = exchange.request.keep_alive
            exchange.reply(exchange.responder.full(refused.status, refused.headers, refused.body, keep_alive))
        except BaseException:
            for tail in tails.values():
                tail.close()
            raise
        for tail in tails.values():
            tail.close()

    def _demand_all_groups(self, there: dict[int, int]) -> None:
        """Raises NoOwner when a group is neither served here nor told of by another process."""
        for group in range(self._engine.groups_count):
            if (group in there) == (group in self._engine.owned):
                raise NoOwner(group)

    @staticmethod
    def _position(wanted: _Wanted, group: Group) -> int:
        if wanted.after is not None:
            position = wanted.after[group.number]
            if position > group.log.synced:
                why = f"it lies after the end of group {group.number}'s log, which was set back or is another one"
                raise BadQuery("after", f"{why}; begin again with from=now or from=start")
            return position
        return 0 if wanted.from_start else group.log.synced

    def _places(self, wanted: _Wanted) -> dict[int, list[str]]:
        """Named streams that have to be found in groups of this process, by group."""
        engine = self._engine
        found: dict[int, list[str]] = {}
        for key in wanted.keys:
            home = engine.home(key)
            place = engine.place(key) if home in engine.owned else wanted.aliased.get(key, home)
            found.setdefault(place, []).append(key)
        return found

    async def _aliases(self, keys: list[str]) -> dict[str, int]:
        by_member: dict[int, list[str]] = {}
        questions = self._engine.questions
        for key in keys:
            by_member.setdefault(questions.owner(self._engine.home(key)), []).append(key)
        asked = [questions.ask(member, "tail_aliases", some, into=dict[str, int]) for member, some in by_member.items()]
        found: dict[str, int] = {}
        for some in await asyncio.gather(*asked):
            found.update(some)
        return found

    async def _answer_aliases(self, keys: list[str]) -> dict[str, int]:
        """Which of these names, at home in groups of this process, are of streams that live elsewhere, and where."""
        engine = self._engine
        for key in keys:
            engine.serving(engine.home(key))  # otherwise nothing is known of its name here
        return {key: place for key in keys if (place := engine.place(key)) != engine.home(key)}


def _values(query: bytes, wanted: bytes) -> Iterator[str]:
    for part in query.split(b"&"):
        name, _, value = part.partition(b"=")
        if name == wanted:
            try:
                yield unquote_to_bytes(value).decode()
            except UnicodeDecodeError:
                raise BadQuery(wanted.decode(), "not valid UTF-8") from None


def _aliased(query: bytes) -> dict[str, int]:
    found = (value.partition(":") for value in _values(query, b"aliased"))
    return {key: int(group) for group, _, key in found}


def _demand_groups(query: bytes, groups: list[int]) -> None:
    """Raises NoOwner unless these are the groups that another process takes for this one's: it has told which streams
    of other names live in them."""
    for value in _values(query, b"groups"):
        expected = {int(number) for number in value.split(",") if number}
        if expected != {*groups}:
            raise NoOwner(min(expected ^ {*groups}))


def _target(query: bytes, wanted: _Wanted, groups: list[int]) -> bytes:
    """What another member is asked for: the same, of its own groups."""
    parts = [part for part in query.split(b"&") if part.startswith(b"stream=")]
    if not wanted.keys:
        bucket, _, prefix = wanted.start.partition("/")
        parts.append(f"bucket={quote(bucket, safe='')}&prefix={quote(prefix, safe='')}".encode())
    parts.append(b"groups=" + ",".join(map(str, groups)).encode())
    for key, group in wanted.aliased.items():
        if group in groups:
            parts.append(f"aliased={group}:{quote(key, safe='')}".encode())
    if wanted.after is not None:
        parts.append(b"after=" + _token({group: wanted.after[group] for group in groups}))
    else:
        parts.append(b"from=start" if wanted.from_start else b"from=now")
    return PATH + b"?" + b"&".join(parts)


def _starts_with(start: str) -> Callable[[str], bool]:
    return lambda key: key.startswith(start)


def _below(group: Group, start: str, position: int) -> Iterator[LoadedStream]:
    """Streams of a prefix that changed after `position`; the others are not even loaded."""
    for key in keys_below(group.loaded, start, position):
        try:
            stream = group.find(key, touch=False)
        except Failure:
            continue
        yield stream


def _token(positions: dict[int, int]) -> bytes:
    return b",".join([b"%d:%d" % place for place in positions.items()])


class _Source(Protocol):
    """Where events come from: a feed of this process, or another member."""

    def events(self) -> Iterator[bytes]:
        """What is ready, an append each. Stop at any time: what was not taken is offered again."""
        ...


class _Own:
    """A group of this process."""

    def __init__(self, feed: Feed, number: int, positions: dict[int, int], sent_bytes: dict[str, int]) -> None:
        self._feed = feed
        self._number = number
        self._positions = positions
        self._sent_bytes = sent_bytes

    def events(self) -> Iterator[bytes]:
        sent_bytes = self._sent_bytes
        for batch in self._feed.take():
            self._positions[self._number] = batch.position
            events = _events(batch, _token(self._positions))
            bucket = batch.stream.key.partition("/")[0]
            sent_bytes[bucket] = sent_bytes.get(bucket, 0) + sum(map(len, batch.payloads))
            yield events


class _Others:
    """The groups of another process, which counts what it sends."""

    def __init__(self, tail: MemberTail, positions: dict[int, int]) -> None:
        self._tail = tail
        self._positions = positions

    def events(self) -> Iterator[bytes]:
        for positions, before, behind in self._tail.take():
            self._positions.update(positions)
            yield b"%bid: %b%b" % (before, _token(self._positions), behind)


class _Tail:
    """One connection. A Streamer."""

    def __init__(
        self,
        owner: Tails,
        exchange: Exchange,
        engine: Engine,
        positions: dict[int, int],
        feeds: list[Feed],
        others: list[MemberTail],
        keepalive_s: float,
        lifetime_s: float,
    ) -> None:
        self._owner = owner
        self._exchange = exchange
        self._write = chunks_to(exchange)
        self._engine = engine
        self._sent_bytes: dict[str, int] = {}
        """By bucket."""
        self._keepalive_s = keepalive_s
        now_s = asyncio.get_running_loop().time()
        self._quiet_since_s = now_s
        self._ends_s = now_s + lifetime_s
        self._over = False
        self._feeds = feeds
        self._others = others
        self._sources: list[_Source] = []
        opening = b"event: open\nid: %b\ndata:{}\n\n" % _token(positions)
        for feed in feeds:
            own = _Own(feed, feed.group.number, positions, self._sent_bytes)
            self._sources.append(own)
            feed.wake = partial(self._wake, own)
            feed.ended = self._group_left
        for tail in others:
            theirs = _Others(tail, positions)
            self._sources.append(theirs)
            tail.attach(partial(self._wake_other, theirs, tail), self._end)
        owner.open_count += 1
        exchange.connection.stream(self)
        request = exchange.request
        exchange.begin(exchange.responder.head(200, sse.headers(request.version), None, request.keep_alive))
        # The first event tells where a client that hears nothing else would resume.
        self._write(sse.chunk(opening))
        if any(tail.over for tail in others):
            self._end()
        else:
            self.drained()

    def _wake(self, source: _Source) -> None:
        try:
            self._send((source,))
        except Exception:
            self._exchange.broke()

    def _wake_other(self, source: _Source, tail: MemberTail) -> None:
        self._wake(source)
        if self._exchange.connection.paused:
            tail.pause()

    def drained(self) -> None:
        if self._over:
            return
        # Whoever was first is last now: a source that always has something leaves the others their turn.
        self._sources.append(self._sources.pop(0))
        self._send(list(self._sources))
        if not self._exchange.connection.paused:
            for tail in self._others:
                tail.resume()

    def _send(self, sources: Iterable[_Source]) -> None:
        connection = self._exchange.connection
        if self._over or connection.paused:
            return
        held: list[bytes] = []
        size = 0
        for source in sources:
            for events in source.events():
                held.append(events)
                size += len(events)
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

    def _group_left(self) -> None:
        try:
            self._end()
        except Exception:
            self._exchange.broke()

    def _end(self) -> None:
        """Also when another member goes away: its client resumes all of it where this one ended."""
        if not self._over:
            self.lost()
            self._write(sse.LAST_CHUNK)
            self._exchange.connection.finish(self._exchange)

    def lost(self) -> None:
        if not self._over:
            self._over = True
            for feed in self._feeds:
                feed.close()
            for tail in self._others:
                tail.close()
            for bucket, sent_bytes in self._sent_bytes.items():
                self._engine.count_read(bucket, sent_bytes)
            self._owner.open_count -= 1


def _events(batch: Batch, token: bytes) -> bytes:
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
        known = b"id: %b\n" % token if index == last else b""
        out.append(b"event: data\n" + known + b"data:" + sse.lines(body) + b"\n\n")
    return b"".join(out)
