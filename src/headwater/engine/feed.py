"""Many streams as one: their records in the order of the log, resumable by a single position.

Owns that order. Never shows a record before everything that precedes it in the log is synced, whatever its class:
otherwise a position could not stand for all that was seen. Never shows a record that its stream has deleted by then.

Records of ephemeral streams are in no log: each such stream's own are told in their order, once, and no position stands
for them. Who comes back after a while misses those of the meantime.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from headwater.engine.group import Group
from headwater.engine.loaded_stream import UNBORN, LoadedStream
from headwater.errors import TokenGone
from headwater.model.commands import Durability
from headwater.model.labels import Labels


class Batch(NamedTuple):
    """Records of one event of the log: they came together and are passed on together.

    Deleted ones are left out. `Feed.take` has all that are left in one batch: there `seq` and `n` are the first one's,
    and `ends` says of the others where they are. `hot_records` has a batch for each run of neighbours."""

    stream: LoadedStream
    seq: int
    start: int
    payloads: list[bytes]
    ends: list[int]
    ms: int
    n: int
    """Id of the first record; the others count up in n."""
    position: int
    labels: list[Labels | None] | None = None
    """One for each record; None: no record has any."""


def batches_of(stream: LoadedStream, first: int, last: int, position: int) -> list[Batch]:
    """Records of one event that memory holds, by their index from `first` up to `last`, without those that the stream
    has let go of (forks may keep those) or deleted. Each batch is of neighbours."""
    timeline = stream.timeline
    seq = timeline.seq
    first = max(first, stream.first_seq - seq)
    found: list[Batch] = []
    if len(stream.holes):
        for hole in stream.holes.runs(seq + first, seq + last):
            _add(found, stream, first, hole.first - seq, position)
            first = hole.last - seq
    _add(found, stream, first, last, position)
    return found


def _add(found: list[Batch], stream: LoadedStream, first: int, last: int, position: int) -> None:
    if first >= last:
        return
    timeline = stream.timeline
    batch = Batch(
        stream,
        timeline.seq + first,
        timeline.begin_of(first),
        timeline.payloads[first:last],
        list(timeline.ends[first:last]),
        timeline.ms[first],
        timeline.n[first],
        position,
        None if timeline.labels is None else timeline.labels[first:last],
    )
    found.append(batch)


def _joined(some: list[Batch]) -> Batch:
    """One batch of them all. Where each record lies only `ends` says: there are others between them."""
    payloads = [payload for one in some for payload in one.payloads]
    labels = None if some[0].labels is None else [label for one in some for label in one.labels or ()]
    return some[0]._replace(payloads=payloads, ends=[end for one in some for end in one.ends], labels=labels)


class Feed:
    """Records of matching streams of one group after `position`. An Observer."""

    def __init__(self, group: Group, position: int, matches: Callable[[str], bool]) -> None:
        self.group = group
        self.position = position
        self.wake: Callable[[], None] = lambda: None
        """Called when there may be more to take."""
        self.ended: Callable[[], None] = lambda: None
        """Called when nothing more comes here: another process serves the group."""
        self._matches = matches
        self._grown: dict[int, LoadedStream] = {}
        self._unlogged: dict[int, tuple[LoadedStream, int]] = {}
        """Ephemeral streams that grew, and the number of the first record of each that was not taken."""
        self._due = False
        """A wake is scheduled."""
        self._closed = False
        group.observers.append(self)

    def include(self, streams: Iterable[LoadedStream]) -> None:
        """Streams that may hold records from before this feed began to listen.

        Raises TokenGone when some of those are in the lake already, where positions are not looked up.
        """
        for stream in streams:
            if stream.durability == Durability.EPHEMERAL:
                continue
            if stream.cold_position > self.position:
                raise TokenGone(stream.key)
            if stream.position > self.position:
                self._grown[stream.sid] = stream

    def take(self) -> Iterator[Batch]:
        """What is ready, oldest first. Stop at any time: what was not taken is offered again.

        Costs a heap step per batch, over the streams that grew.
        """
        yield from self._take_unlogged()
        limit = self.group.told_position()
        heap = [entry for stream in self._grown.values() if (entry := self._next(stream, limit)) is not None]
        heapify(heap)
        while heap:
            position, _, index, stream = heap[0]
            timeline = stream.timeline
            last = bisect_right(timeline.positions, position, index)
            following = self._next(stream, limit, last)
            if following is None:
                heappop(heap)
            else:
                heapreplace(heap, following)
            self.position = position
            some = batches_of(stream, index, last, position)
            if some:
                yield some[0] if len(some) == 1 else _joined(some)
        self._grown = {sid: stream for sid, stream in self._grown.items() if self._waits(stream)}

    def _take_unlogged(self) -> Iterator[Batch]:
        while self._unlogged:
            sid, (stream, number) = next(iter(self._unlogged.items()))
            del self._unlogged[sid]
            timeline = stream.timeline
            first, last = max(number - timeline.seq, 0), len(timeline.payloads)
            some = batches_of(stream, first, last, self.position)
            if some:
                yield some[0] if len(some) == 1 else _joined(some)

    def _next(self, stream: LoadedStream, limit: int, index: int = -1) -> tuple[int, int, int, LoadedStream] | None:
        timeline = stream.timeline
        if index < 0:
            index = bisect_right(timeline.positions, self.position)
        if index >= len(timeline.positions) or timeline.positions[index] > limit or stream.visible == UNBORN:
            return None
        return timeline.positions[index], stream.sid, index, stream

    def _waits(self, stream: LoadedStream) -> bool:
        positions = stream.timeline.positions
        return bool(positions) and positions[-1] > self.position

    def close(self) -> None:
        self._closed = True
        self.group.observers.remove(self)

    # ---- as an observer -------------------------------------------------------------------------------------------

    def grown(self, stream: LoadedStream, start: int) -> None:
        if self._matches(stream.key):
            if stream.durability == Durability.EPHEMERAL:
                timeline = stream.timeline
                number = timeline.seq + timeline.index_until(start)
                self._unlogged.setdefault(stream.sid, (stream, number))
            else:
                self._grown[stream.sid] = stream
            # Not now: the group may be about to tell of others that grew before this one. It need not tell of the end
            # of a pass either: what waits for no sync is told of at once.
            if not self._due:
                self._due = True
                self.group.soon(self._wake_later)

    def deleted(self, stream: LoadedStream) -> None:
        self._grown.pop(stream.sid, None)
        self._unlogged.pop(stream.sid, None)

    def pass_ended(self) -> None:
        if self._grown or self._unlogged:
            self.wake()

    def left(self) -> None:
        self.ended()

    def _wake_later(self) -> None:
        self._due = False
        if (self._grown or self._unlogged) and not self._closed:
            self.wake()
