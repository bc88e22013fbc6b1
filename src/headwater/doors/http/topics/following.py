"""Topics that one client follows, over whatever it is connected by.

Owns each topic's cursor and whose turn it is. Never buffers for a slow client: while its outlet is full nothing is
read, and it goes on from its cursors afterwards. What a cap or its age took meanwhile it is told of.

    a topic grows -> ready -> pump: while the outlet is not full, a batch of each ready topic, one topic after the other

At most one batch of each topic is held: one that came out of the lake while the outlet became full.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from headwater.doors.http.live_reads import SLICE_BYTES
from headwater.doors.http.topics import diff as diffs
from headwater.doors.http.topics.diff import Diff, Wanted
from headwater.doors.http.topics.watchers import Watchers
from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.read_plan import shown_count
from headwater.errors import Failure

BATCH_BYTES_MAX = SLICE_BYTES
TOPICS_MAX = 1_000


class Outlet(Protocol):
    """The way to the client. None of these calls may raise a Failure."""

    @property
    def full(self) -> bool:
        """Nothing more is taken now. Whoever sees it drain calls `Following.pump`."""
        ...

    def records(self, topic: str, texts: bytes, next_seq: int) -> None:
        """`texts` are the objects of records, with commas between them."""
        ...

    def tombstone(self, topic: str, gap_from: int, gap_to: int, lagged: bool) -> None:
        """`lagged`: it was there when the client began to follow."""
        ...

    def gone(self, topic: str) -> None:
        """The topic was deleted and is not followed any more."""
        ...

    def interrupted(self) -> None:
        """A topic cannot be followed here any more, or cannot be read now: the client is to come again."""
        ...

    def broke(self) -> None:
        """Called while an exception is handled that is a fault of this server."""
        ...


class Filter:
    """What a client wants of every topic."""

    __slots__ = ("limit", "nodes")

    def __init__(self, limit: int, nodes: frozenset[str]) -> None:
        self.limit = limit
        self.nodes = nodes


class Following:
    def __init__(self, engine: Engine, watchers: Watchers, outlet: Outlet, wanted: Filter) -> None:
        self._engine = engine
        self._watchers = watchers
        self._outlet = outlet
        self._wanted = wanted
        self._topics: dict[str, _Topic] = {}
        self._ready: deque[_Topic] = deque()
        self._pumping = self._closed = False

    def __len__(self) -> int:
        return len(self._topics)

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def add(self, name: str, stream: LoadedStream, from_seq: int | None) -> int:
        """Follows a topic of this process from a cursor on, or from now; returns the cursor.

        One beyond the head goes on from there: the client must not come back with it and miss what was written since.
        `pump` sends what is there. Raises NotServedHere.
        """
        head = shown_count(stream)
        topic = _Topic(self, name, stream, head if from_seq is None else min(from_seq, head))
        self._watchers.watch(stream, topic)
        self._topics[name] = topic
        self._enqueue(topic)
        return topic.cursor

    def remove(self, name: str) -> None:
        topic = self._topics.pop(name, None)
        if topic is not None:
            topic.over = True
            self._watchers.unwatch(topic.stream, topic)
            self._count(topic)

    def close(self) -> None:
        self._closed = True
        for name in list(self._topics):
            self.remove(name)
        self._ready.clear()

    def pump(self) -> None:
        """Sends what is ready, as far as the outlet takes it."""
        if self._pumping or self._closed:
            return
        self._pumping = True
        try:
            while self._ready and not self._outlet.full and not self._closed:
                topic = self._ready.popleft()
                topic.ready = False
                if not topic.over:
                    self._read(topic)
        finally:
            self._pumping = False

    def _enqueue(self, topic: _Topic) -> None:
        if not (topic.ready or topic.over or topic.reading):
            topic.ready = True
            self._ready.append(topic)

    def _read(self, topic: _Topic) -> None:
        held, topic.held = topic.held, None
        stream = topic.stream
        # What was deleted since it was read is not sent any more.
        if held is not None and held[0] == (stream.first_seq, stream.holes.count):
            self._send(topic, held[1], held[1].joined())
            return
        try:
            self._engine.apply_retention(stream)
            place = self._place(topic)
            known = None if stream.encoded is None else stream.encoded.get(place)
            if known is not None:
                self._send(topic, *known)
                return
            topic.reading = True
            asked = Wanted(topic.cursor, self._wanted.limit, BATCH_BYTES_MAX, self._wanted.nodes)
            diffs.read(self._engine, stream, asked, lambda found: self._got(topic, place, found))
        except Failure as failure:
            self._got(topic, None, failure)

    def _place(self, topic: _Topic) -> object:
        """What a batch depends on. Whoever stands at the same place is sent the same bytes, encoded once."""
        stream, wanted = topic.stream, self._wanted
        state = shown_count(stream), stream.first_seq, stream.holes.count, stream.evict_floor
        return "topic", topic.cursor, wanted.limit, wanted.nodes, state

    def _got(self, topic: _Topic, place: object, found: Diff | Failure) -> None:
        """At once when memory holds the records, later from the lake."""
        topic.reading = False
        if topic.over or self._closed:
            return
        try:
            if isinstance(found, Failure):
                self._outlet.interrupted()
            elif self._outlet.full:
                topic.held = (topic.stream.first_seq, topic.stream.holes.count), found
                self._enqueue(topic)
            else:
                joined = found.joined()
                if found.up_to_date and place == self._place(topic):
                    if topic.stream.encoded is None:
                        topic.stream.encoded = {}
                    topic.stream.encoded[place] = found, joined
                self._send(topic, found, joined)
                self.pump()
        except Exception:
            self._outlet.broke()

    def _send(self, topic: _Topic, found: Diff, joined: bytes) -> None:
        if found.gap_to:
            topic.cursor = found.gap_to
            self._outlet.tombstone(topic.name, found.gap_from, found.gap_to, topic.begun)
        topic.begun = True
        topic.cursor = found.next_seq
        if found.records:
            self._watchers.priorities.consumed(topic.stream)
            topic.sent_bytes += found.size
            self._outlet.records(topic.name, joined, found.next_seq)
        if not found.up_to_date or found.next_seq < shown_count(topic.stream):
            self._enqueue(topic)

    def _count(self, topic: _Topic) -> None:
        # Counted here and not with each batch: they are many.
        if topic.sent_bytes:
            self._engine.count_read(topic.stream.key, topic.sent_bytes)

    # ---- topics call these ----------------------------------------------------------------------------------------

    def topic_grown(self, topic: _Topic) -> None:
        try:
            self._enqueue(topic)
            self.pump()
        except Exception:
            self._outlet.broke()

    def topic_gone(self, topic: _Topic) -> None:
        try:
            if self._topics.pop(topic.name, None) is not None:
                topic.over = True
                self._count(topic)
                self._outlet.gone(topic.name)
        except Exception:
            self._outlet.broke()

    def topic_left(self, topic: _Topic) -> None:
        try:
            self._outlet.interrupted()
        except Exception:
            self._outlet.broke()


class _Topic:
    """One topic that is followed. A Watcher."""

    __slots__ = ("_owner", "begun", "cursor", "held", "name", "over", "reading", "ready", "sent_bytes", "stream")

    def __init__(self, owner: Following, name: str, stream: LoadedStream, cursor: int) -> None:
        self._owner = owner
        self.name = name
        self.stream = stream
        self.cursor = cursor
        """Number of the last record that was sent, or passed over."""
        self.held: tuple[tuple[int, int], Diff] | None = None
        """A batch that is to be sent, and what of the topic was gone when it was read."""
        self.ready = self.reading = self.over = False
        self.begun = False
        self.sent_bytes = 0

    def grown(self, stream: LoadedStream) -> None:
        self._owner.topic_grown(self)

    def gone(self, stream: LoadedStream) -> None:
        self._owner.topic_gone(self)

    def left(self, stream: LoadedStream) -> None:
        self._owner.topic_left(self)
