"""One group: the streams that share a log, and their single writer.

Owns the order of events, what is visible, and when an answer may leave. Never awaits: a command is judged, logged and
applied in one step; its answer leaves when the log's watermark passes it.

    submit -> decide -> log.add -> evolve -> (watermark) -> visible, followers woken, waiter answered

Every answer that depends on an unfinished write waits for it: refusals and duplicates are queued behind the newest
event that still has to be synced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from typing import Protocol

import msgspec

from headwater.errors import (
    BadQuery,
    Failure,
    LogUnavailable,
    OffsetBeyondTail,
    OffsetGone,
    Overloaded,
    StreamNotFound,
)
from headwater.engine.live import UNBORN, Follower, LiveStream
from headwater.model.commands import Command
from headwater.model.events import Appended, Created, Deleted, Event, Touched
from headwater.model.offsets import NOW, START
from headwater.model.stream import Limits, Unchanged, born, decide, evolve
from headwater.world import Catalog, Clock, Log

Outcome = Event | Unchanged | Failure

_TOUCH_STEP_MS_MIN = 1_000
_TOUCH_STEPS = 16


class Waiter(Protocol):
    """Where an outcome goes. Called exactly once, on the event loop, when the outcome is final."""

    def resolve(self, outcome: Outcome) -> None: ...


class Slice(msgspec.Struct, frozen=True):
    """A planned read: payloads by reference, nothing copied."""

    stream: LiveStream
    payloads: list[bytes]
    start: int
    end: int
    up_to_date: bool
    closed: bool
    """True when the stream is closed and `end` is its final offset."""


_Entry = tuple[int, Waiter | None, Outcome, LiveStream | None]


class Group:
    def __init__(
        self,
        log: Log,
        catalog: Catalog,
        clock: Clock,
        schedule: Callable[[Callable[[], None]], object],
        limits: Limits,
        hot_bytes_max: int,
    ) -> None:
        self.log = log
        self.catalog = catalog
        self.clock = clock
        self.streams: dict[str, LiveStream] = {}
        self.dirty: dict[int, LiveStream] = {}
        """Changed since the last checkpoint, by sid."""
        self.removed: dict[int, str] = {}
        """Deleted since the last checkpoint: sid and key. Their rows may still stand in the catalog."""
        self.hot_bytes = 0
        self.appends_count = 0
        self.next_sid = max(catalog.next_sid, 1)
        self._schedule = schedule
        self._limits = limits
        self._hot_bytes_max = hot_bytes_max
        self._sync_acks: deque[_Entry] = deque()
        self._disk_acks: deque[_Entry] = deque()
        self._sync_target = 0
        """Position after the newest event that has to be synced."""
        self._commit_due = False
        self._told_failure = False
        self._unsettled: dict[str, int] = {}
        """Keys whose creation or deletion is not durable yet, with its position: readers wait for it."""
        self._deadlines: list[tuple[int, int, LiveStream]] = []
        self._floors: list[tuple[int, int, LiveStream]] = []

    # ---- writing ------------------------------------------------------------------------------------------------

    def submit(self, key: str, command: Command, waiter: Waiter) -> None:
        """Judges a command now; `waiter` gets its outcome as soon as that is durable."""
        log = self.log
        now_ms = self.clock.now_ms()
        stream = self.streams.get(key)
        if stream is None:
            stream = self._load(key)
        try:
            if stream is not None and stream.deadline_ms <= now_ms:
                self.expire(stream, now_ms)
                stream = None
            if log.failure is not None:
                raise LogUnavailable(log.failure)
            event = decide(stream, command, now_ms, self.next_sid, self._limits)
            if self.hot_bytes > self._hot_bytes_max and type(event) is not Unchanged and type(event) is not Deleted:
                raise Overloaded("too much data waits in memory")
        except Failure as failure:
            self._answer(waiter, failure)
            return
        if type(event) is Appended:
            if stream is None:
                raise RuntimeError("an append was accepted without a stream")
            self._apply(stream, event, waiter)
        elif type(event) is Unchanged:
            if stream is not None:
                stream.touch(now_ms)
            self._answer(waiter, event)
        elif type(event) is Created:
            self._create(event, waiter)
        elif type(event) is Deleted and stream is not None:
            self._delete(stream, event, waiter)

    def _apply(self, stream: LiveStream, event: Appended, waiter: Waiter) -> None:
        log = self.log
        durability = stream.durability
        position = log.add(event, durability == 0)
        evolve(stream, event, position)
        self.hot_bytes += event.end - event.start
        self.appends_count += 1
        self.dirty[stream.sid] = stream
        if not stream.floor and event.records:
            stream.floor = position
            heappush(self._floors, (position, stream.sid, stream))
        if durability == 0:
            self._sync_target = position
            if position > log.synced:
                self._sync_acks.append((position, waiter, event, stream))
                if not self._commit_due:
                    self._commit_due = True
                    self._schedule(self._commit)
                return
        elif durability == 1 and position > log.written:
            self._disk_acks.append((position, waiter, event, stream))
            self._want_commit()
            return
        else:
            self._want_commit()
        self._settle(stream, event)
        waiter.resolve(event)

    def _create(self, event: Created, waiter: Waiter) -> None:
        self.next_sid = event.sid + 1
        # A creation is synced whatever the stream's class: a name is never promised and then forgotten.
        position = self.log.add(event, True)
        stream = LiveStream(born(event, position))
        stream.visible = UNBORN
        evolve(stream, event, position)
        self._adopt(stream)
        self.dirty[stream.sid] = stream
        self.hot_bytes += stream.tail
        if event.records:
            stream.floor = position
            heappush(self._floors, (position, stream.sid, stream))
        self._settle_later(stream.key, position, waiter, event, stream)

    def _delete(self, stream: LiveStream, event: Deleted, waiter: Waiter | None) -> None:
        position = self.log.add(event, True)
        self._discard(stream)
        self._settle_later(stream.key, position, waiter, event, stream)

    def _settle_later(
        self, key: str, position: int, waiter: Waiter | None, event: Event, stream: LiveStream
    ) -> None:
        self._sync_target = position
        if position <= self.log.synced:
            self._settle(stream, event)
            if waiter is not None:
                waiter.resolve(event)
            return
        self._unsettled[key] = position
        self._sync_acks.append((position, waiter, event, stream))
        self._want_commit()

    def _answer(self, waiter: Waiter, outcome: Unchanged | Failure) -> None:
        """An outcome that changed nothing still waits for the writes it was judged by."""
        if self._sync_target <= self.log.synced or self.log.failure is not None:
            waiter.resolve(outcome)
        else:
            self._sync_acks.append((self._sync_target, waiter, outcome, None))

    def barrier(self, waiter: Waiter) -> None:
        """Resolves `waiter` once everything logged so far is synced, whatever its class."""
        log = self.log
        if log.synced >= log.tail or log.failure is not None:
            waiter.resolve(Unchanged(0, False) if log.failure is None else LogUnavailable(log.failure))
            return
        self._sync_target = log.tail
        self._sync_acks.append((log.tail, waiter, Unchanged(0, False), None))
        self._want_commit()

    def _want_commit(self) -> None:
        if not self._commit_due and self.log.tail > self.log.written:
            self._commit_due = True
            self._schedule(self._commit)

    def _commit(self) -> None:
        self._commit_due = False
        self.log.commit()

    # ---- the watermark ------------------------------------------------------------------------------------------

    def progress(self) -> None:
        """The log's watermarks moved, or it failed: answers and wake-ups that were waiting leave now."""
        log = self.log
        woken: dict[int, LiveStream] = {}
        for queue, mark in ((self._sync_acks, log.synced), (self._disk_acks, log.written)):
            while queue and queue[0][0] <= mark:
                position, waiter, outcome, stream = queue.popleft()
                if stream is not None:
                    if type(outcome) is Appended:
                        stream.visible = outcome.end
                        if outcome.closed:
                            stream.closed_visible = True
                        if stream.followers:
                            woken[stream.sid] = stream
                    else:
                        self._unsettle(stream.key, position)
                        self._settle(stream, outcome)
                if waiter is not None:
                    waiter.resolve(outcome)
        # Followers once per pass, after every writer was answered: an event reaches them encoded once.
        for stream in woken.values():
            self._wake(stream)
        if log.failure is not None:
            self._fail(log.failure)

    def _unsettle(self, key: str, position: int) -> None:
        if self._unsettled.get(key, 0) <= position:
            self._unsettled.pop(key, None)

    def _settle(self, stream: LiveStream, event: Outcome) -> None:
        """Makes a durable event visible."""
        if type(event) is Appended:
            stream.visible = event.end
            if event.closed:
                stream.closed_visible = True
            if stream.followers:
                self._wake(stream)
        elif type(event) is Created:
            # A laxer class may have shown later records already: they waited for less than the creation did.
            stream.visible = max(stream.visible, sum(map(len, event.records)))
            stream.closed_visible = stream.closed_visible or event.closed
        elif type(event) is Deleted:
            followers, stream.followers = stream.followers, None
            for follower in followers or ():
                follower.gone(stream)

    def _wake(self, stream: LiveStream) -> None:
        stream.encoded = None
        for follower in list(stream.followers or ()):
            follower.wake(stream)

    @property
    def failed(self) -> bool:
        return self.log.failure is not None and self._told_failure

    def _fail(self, reason: str) -> None:
        """Nothing that waits can be promised any more. What was visible stays readable."""
        self._told_failure = True
        failure = LogUnavailable(reason)
        for queue in (self._sync_acks, self._disk_acks):
            while queue:
                _, waiter, _, _ = queue.popleft()
                if waiter is not None:
                    waiter.resolve(failure)

    # ---- reading ------------------------------------------------------------------------------------------------

    def unsettled(self, key: str) -> bool:
        """True while a creation or deletion of `key` is under way: a reader should call `after_settled` first."""
        return bool(self._unsettled) and key in self._unsettled

    def after_settled(self, key: str, waiter: Waiter) -> None:
        self._sync_acks.append((self._unsettled[key], waiter, Unchanged(0, False), None))

    def find(self, key: str, touch: bool) -> LiveStream:
        """The stream as readers see it. Raises StreamNotFound. `touch` restarts a sliding expiry."""
        stream = self.streams.get(key)
        if stream is None:
            stream = self._load(key)
        if stream is None or stream.visible == UNBORN:
            raise StreamNotFound
        now_ms = self.clock.now_ms()
        if stream.deadline_ms <= now_ms:
            self.expire(stream, now_ms)
            raise StreamNotFound
        if touch and stream.ttl_ms is not None:
            self._touch(stream, now_ms)
        return stream

    def read(self, stream: LiveStream, offset: int, bytes_max: int) -> Slice:
        """Plans a read from `offset`: at least one record when there is any, else as many as fit `bytes_max`.

        Costs two bisections and a list slice. Raises OffsetGone, OffsetBeyondTail, or BadQuery between records.
        """
        visible = stream.visible
        if offset == NOW:
            offset = visible
        elif offset == START:
            offset = 0
        if offset < stream.earliest:
            raise OffsetGone(stream.earliest)
        if offset > visible:
            raise OffsetBeyondTail(visible)
        timeline = stream.timeline
        if offset == visible:
            payloads: list[bytes] = []
            end = offset
        else:
            first = timeline.index_at(offset)
            if first is None:
                raise BadQuery("offset", "it lies inside a message; use an offset returned by this server")
            last = timeline.index_until(min(visible, offset + bytes_max))
            if last <= first:
                last = first + 1
            payloads = timeline.payloads[first:last]
            end = timeline.ends[last - 1]
        at_tail = end == visible
        return Slice(stream, payloads, offset, end, at_tail, at_tail and stream.closed_visible)

    def follow(self, stream: LiveStream, follower: Follower) -> None:
        if stream.followers is None:
            stream.followers = set()
        stream.followers.add(follower)

    def unfollow(self, stream: LiveStream, follower: Follower) -> None:
        if stream.followers is not None:
            stream.followers.discard(follower)

    def _touch(self, stream: LiveStream, now_ms: int) -> None:
        stream.touch(now_ms)
        ttl_ms = stream.ttl_ms or 0
        if now_ms - stream.touch_logged_ms >= max(_TOUCH_STEP_MS_MIN, ttl_ms // _TOUCH_STEPS):
            stream.touch_logged_ms = now_ms
            if self.log.failure is None:
                stream.position = self.log.add(Touched(stream.sid, now_ms), False)
                self.dirty[stream.sid] = stream
                self._want_commit()

    # ---- coming and going ---------------------------------------------------------------------------------------

    def _load(self, key: str) -> LiveStream | None:
        row = self.catalog.load(key)
        if row is None or row.sid in self.removed:
            return None
        stream = LiveStream(row)
        self._adopt(stream)
        return stream

    def _adopt(self, stream: LiveStream) -> None:
        self.streams[stream.key] = stream
        if stream.ttl_ms is not None or stream.expires_ms is not None:
            heappush(self._deadlines, (stream.deadline_ms, stream.sid, stream))

    def _discard(self, stream: LiveStream) -> None:
        del self.streams[stream.key]
        self.dirty.pop(stream.sid, None)
        self.removed[stream.sid] = stream.key
        self.hot_bytes -= stream.tail - stream.timeline.start
        stream.floor = 0

    def restore(self, stream: LiveStream) -> None:
        """Takes in a stream that recovery rebuilt."""
        self._adopt(stream)
        timeline = stream.timeline
        self.hot_bytes += stream.tail - timeline.start
        stream.visible = stream.tail
        stream.closed_visible = stream.closed
        if timeline.payloads:
            stream.floor = timeline.positions[0]
            heappush(self._floors, (stream.floor, stream.sid, stream))

    def expire(self, stream: LiveStream, now_ms: int) -> None:
        """Deletes a stream whose time has passed. Readers know at once: no write is needed to see the clock."""
        if self.log.failure is None:
            self._delete(stream, Deleted(stream.sid, now_ms, expired=True), None)

    def expire_due(self, count_max: int) -> int:
        """Expires streams whose deadline passed, `count_max` at most; returns how many. Cost: log of those with one."""
        now_ms = self.clock.now_ms()
        heap = self._deadlines
        expired = 0
        while heap and heap[0][0] <= now_ms and expired < count_max:
            _, sid, stream = heap[0]
            if self.streams.get(stream.key) is not stream:
                heappop(heap)
            elif stream.deadline_ms > now_ms:
                heapreplace(heap, (stream.deadline_ms, sid, stream))
            else:
                heappop(heap)
                self.expire(stream, now_ms)
                expired += 1
        return expired

    def log_floor(self) -> int:
        """The log may forget what ends at or below this: everything older is deleted or kept elsewhere."""
        heap = self._floors
        while heap:
            position, sid, stream = heap[0]
            if not stream.floor:
                heappop(heap)
            elif stream.floor > position:
                heapreplace(heap, (stream.floor, sid, stream))
            else:
                return position - 1
        return self.log.tail
