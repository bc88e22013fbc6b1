"""The difference since a cursor: `GET /v0/topics/{topic}/diff`, and what tails are made of.

Owns what a reader is told: the records after its cursor, where to go on, and what it can never get. Never waits in a
coroutine: who waits for records is told by `watchers`.

- The cursor is the number of the last record that was seen. One beyond the head goes on from the head: then the topic
  has lost its newest records in a crash, and their numbers are given out again.
- What a cap or its age has taken after the cursor is a tombstone; what was deleted is passed over in silence.
- What is too old is let go of before it is read.
- Records of the nodes that read are skipped, and the cursor moves past them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from headwater.config import Settings
from headwater.doors.http import headers as parse
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.topics import answers
from headwater.doors.http.topics.answers import Timing
from headwater.doors.http.topics.config import NUMBER_MAX
from headwater.doors.http.topics.routes import TopicRoutes, once_published
from headwater.doors.http.topics.watchers import Watchers
from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.read_plan import shown_count
from headwater.engine.record_reads import TopicRecord
from headwater.errors import BadQuery, EpochChanged, Failure, GroupMoved, StreamNotFound
from headwater.security.principals import Action

LIMIT_DEFAULT = 100
LIMIT_MAX = 10_000
NODES_MAX = 64
WAIT_MS_MAX = 60_000
_QUERY = ("from_seq", "limit", "node", "wait_ms", "epoch")


class Wanted(NamedTuple):
    from_seq: int
    limit: int
    bytes_max: int
    nodes: frozenset[str]
    """Records that these wrote are skipped."""


class Diff(msgspec.Struct, frozen=True):
    """What a reader is told. Crosses from process to process as it is."""

    records: list[bytes]
    """The text of each record's object."""
    next_seq: int
    """The cursor to go on with."""
    head_seq: int
    earliest_seq: int
    evict_floor: int
    epoch: int
    up_to_date: bool
    gap_from: int = 0
    """First and last of the records that were lost after the cursor; 0: none."""
    gap_to: int = 0
    size: int = 0
    """Payload bytes of the records."""

    def joined(self) -> bytes:
        """The records' objects, with commas between them."""
        return b",".join(self.records)

    @property
    def says_something(self) -> bool:
        """Waiting on could bring no more than this."""
        return bool(self.records or self.gap_to or not self.up_to_date)


Done = Callable[[Diff | Failure], None]


def read(engine: Engine, stream: LoadedStream, wanted: Wanted, done: Done) -> None:
    """Calls `done` with what is there: at once when memory holds it. Raises NotServedHere."""
    engine.apply_retention(stream)
    head = shown_count(stream)
    from_seq = min(wanted.from_seq, head)

    def found(records: list[TopicRecord] | Failure) -> None:
        done(records if isinstance(records, Failure) else _told(stream, wanted, from_seq, head, records))

    engine.read_records(stream, from_seq, wanted.limit, wanted.bytes_max, found)


def _told(stream: LoadedStream, wanted: Wanted, from_seq: int, head: int, records: list[TopicRecord]) -> Diff:
    """`head` is the one when reading began: without records nothing up to there is left."""
    shown = shown_count(stream)
    floor = min(stream.evict_floor, shown + 1)
    next_seq = max(from_seq, head, floor - 1)
    if records:
        next_seq = records[-1].seq
        if stream.holes.next_live(next_seq) >= shown:
            next_seq = shown
    lost = from_seq + 1 < floor
    nodes = wanted.nodes
    if nodes:
        records = [one for one in records if one.labels is None or one.labels.node not in nodes]
    return Diff(
        answers.records(stream, records),
        next_seq,
        shown,
        min(stream.earliest_seq, shown + 1),
        floor,
        stream.epoch,
        next_seq >= shown,
        from_seq + 1 if lost else 0,
        floor - 1 if lost else 0,
        sum(len(one.payload) for one in records),
    )


def nodes_of(text: str | None) -> frozenset[str]:
    """Of a query: names, separated by commas. Raises BadQuery."""
    found = frozenset(name for name in (text or "").split(",") if name)
    if len(found) > NODES_MAX:
        raise BadQuery("node", f"at most {NODES_MAX}")
    return found


def limit_of(wanted: dict[str, str]) -> int:
    """Raises BadQuery."""
    limit = parse.whole(wanted, "limit", LIMIT_DEFAULT, LIMIT_MAX)
    if not limit:
        raise BadQuery("limit", f"expected 1 to {LIMIT_MAX}")
    return limit


class Diffs:
    def __init__(self, engine: Engine, settings: Settings, watchers: Watchers) -> None:
        self.engine = engine
        self.watchers = watchers
        self._bytes_max = settings.read_bytes_max
        self.polls_open = 0

    def register(self, routes: TopicRoutes) -> None:
        routes.verb("diff", "GET", self._get, Action.READ)

    def _get(self, exchange: Exchange, key: str, query: bytes, timing: Timing) -> None:
        timing.waits_for_log = False
        wanted = parse.query(query, _QUERY)
        asked = Wanted(
            parse.whole(wanted, "from_seq", 0, NUMBER_MAX),
            limit_of(wanted),
            self._bytes_max,
            nodes_of(wanted.get("node")),
        )
        wait_ms = parse.whole(wanted, "wait_ms", 0, WAIT_MS_MAX)
        epoch = parse.whole(wanted, "epoch", -1, NUMBER_MAX)
        act = partial(self._read, exchange, key, asked, wait_ms, epoch, timing)
        once_published(self.engine, exchange, key, act)

    def _read(self, exchange: Exchange, key: str, asked: Wanted, wait_ms: int, epoch: int, timing: Timing) -> None:
        stream = self.engine.find(key, True)
        if epoch not in (-1, stream.epoch):
            raise EpochChanged(stream.epoch, shown_count(stream))

        def told(diff: Diff) -> None:
            if wait_ms and not diff.says_something and not stream.closed_visible:
                _Poll(self, exchange, stream, asked._replace(from_seq=diff.next_seq), wait_ms / 1000, timing)
            else:
                self.answer(exchange, stream, diff, timing)

        timing.judged()
        read(self.engine, stream, asked, exchange.told(told))

    def answer(self, exchange: Exchange, stream: LoadedStream, diff: Diff, timing: Timing) -> None:
        self.watchers.priorities.consumed(stream)
        if diff.records:
            self.engine.count_read(stream.key, diff.size)
        fields = b'],"next_seq":%d,"head_seq":%d,"earliest_seq":%d,"evict_floor":%d,"epoch":%d,"up_to_date":%b' % (
            diff.next_seq,
            diff.head_seq,
            diff.earliest_seq,
            diff.evict_floor,
            diff.epoch,
            b"true" if diff.up_to_date else b"false",
        )
        if diff.gap_to:
            fields += b',"tombstone":{"gap_from":%d,"gap_to":%d}' % (diff.gap_from, diff.gap_to)
        answers.reply_parts(exchange, [b'"records":[', *_commas(diff.records), fields], timing)


def _commas(texts: list[bytes]) -> list[bytes]:
    """The texts with commas between them, without a copy of all where that is much."""
    if len(texts) < 2:
        return texts
    return [text for one in texts[:-1] for text in (one, b",")] + texts[-1:]


class _Poll:
    """A request that waits for records. A Streamer of its connection and a Watcher of its topic."""

    def __init__(
        self, owner: Diffs, exchange: Exchange, stream: LoadedStream, asked: Wanted, wait_s: float, timing: Timing
    ) -> None:
        self._owner = owner
        self._exchange = exchange
        self._stream = stream
        self._asked = asked
        self._timing = timing
        self._reading = self._last = self._over = False
        owner.watchers.watch(stream, self)
        owner.polls_open += 1
        self._timer = asyncio.get_running_loop().call_later(wait_s, self.stop)
        exchange.connection.stream(self)

    def grown(self, stream: LoadedStream) -> None:
        if not self._reading and not self._over:
            self._reading = True
            self._timing.throttle_wait_s = self._owner.watchers.waited_s
            try:
                read(self._owner.engine, stream, self._asked, self._got)
            except Failure as failure:
                self._got(failure)
            except Exception:
                self._broke()

    def _got(self, found: Diff | Failure) -> None:
        self._reading = False
        if self._over:
            return
        try:
            if isinstance(found, Failure):
                self._fail(found)
            elif found.says_something or self._last or self._stream.closed_visible:
                self._leave()
                self._owner.answer(self._exchange, self._stream, found, self._timing)
            else:
                self._asked = self._asked._replace(from_seq=found.next_seq)
        except Exception:
            self._broke()

    def gone(self, stream: LoadedStream) -> None:
        self._fail(StreamNotFound())

    def left(self, stream: LoadedStream) -> None:
        self._fail(GroupMoved(stream.sid % self._owner.engine.groups_count))

    def _fail(self, failure: Failure) -> None:
        if not self._over:
            self._leave()
            self._exchange.fail(failure)

    def _broke(self) -> None:
        self._leave()
        self._exchange.broke()

    def _leave(self) -> None:
        if self._over:
            return
        self._over = True
        self._timer.cancel()
        self._owner.watchers.unwatch(self._stream, self)
        self._owner.polls_open -= 1
        if self._exchange.connection.streamer is self:
            self._exchange.connection.streamer = None

    # ---- as a Streamer --------------------------------------------------------------------------------------------

    def drained(self) -> None: ...

    def tick(self, now_s: float) -> None: ...

    def stop(self) -> None:
        """The time is over, or nobody waits for later records: what is there is the answer."""
        self._last = True
        self._owner.watchers.waited_s = 0.0
        self.grown(self._stream)

    def lost(self) -> None:
        self._leave()
