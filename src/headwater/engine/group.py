"""One group: the streams that share a log, and their single writer.

Owns the order of events, what is visible, and when an answer may leave. Never awaits: a command is judged, logged and
applied in one step; its answer leaves when the log's watermark passes it.

    submit -> decide -> log.add -> evolve -> (watermark) -> visible, followers woken, waiter answered

Every answer that depends on an unfinished write waits for it: refusals and duplicates are queued after the newest
event that still has to be synced.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.engine.loaded_stream import UNBORN, Domain, Follower, LoadedStream
from headwater.engine.loaded_streams import LoadedStreams
from headwater.engine.locks import GroupLocks
from headwater.engine.pending_answers import Outcome, PendingAnswers, Waiter
from headwater.engine.retention import RetentionRules
from headwater.engine.unlogged_heads import UnloggedHeads
from headwater.engine.usage import ReadUsage
from headwater.engine.visibility import Visibility
from headwater.errors import Failure, GroupMoved, LogUnavailable, Overloaded, StreamNotFound, StreamSoftDeleted
from headwater.model import buckets as bucket_rules
from headwater.model.commands import BucketCommand, Command, Create, Durability
from headwater.model.events import (
    Appended,
    Configured,
    Created,
    Deleted,
    Noted,
    RecordsDeleted,
    Settled,
    SnapshotPublished,
    Touched,
    Trimmed,
)
from headwater.model.extents import Extent
from headwater.model.forks import ColdOffset
from headwater.model.labels import held_bytes as labels_bytes
from headwater.model.lineage import Incarnation, Lineage
from headwater.model.stream import CreatedAndAppended, Limits, Unchanged, decide
from headwater.model.stream_state import NEVER_MS, evolve
from headwater.model.timeline import RECORD_BYTES
from headwater.ports import FENCED, Catalog, Clock, Log

NEW_MAX = 100_000
"""Streams created and not in the catalog yet, about 2 kB of memory each. It takes some thousand a second."""
_TOUCH_STEP_MS_MIN = 1_000
_TOUCH_STEPS = 16


class Group:
    def __init__(
        self,
        log: Log,
        catalog: Catalog,
        clock: Clock,
        schedule: Callable[[Callable[[], None]], object],
        limits: Limits,
        hot_bytes_max: int,
        number: int = 0,
        groups_count: int = 1,
    ) -> None:
        self.number = number
        self.sid_step = groups_count
        """Every group gives out the ids that leave its number when divided by the number of groups."""
        self.log = log
        self.catalog = catalog
        self.clock = clock
        self.domains: dict[str, Domain] = {}
        self.usage = ReadUsage(clock)
        self.loaded = LoadedStreams(catalog, self.domains, self.usage)
        self.locks = GroupLocks()
        self.resolve_cold: Callable[[ColdOffset, str, Command, Waiter], None] | None = None
        """Looks up a place that memory does not hold, then submits the command again."""
        self.lineage = Lineage(tuple(Incarnation(*one) for one in catalog.incarnations()))
        self.left = False  # see `engine.leaving`
        self.demand_room: Callable[[str, object], None] | None = None  # see `engine.quotas`
        self.epoch = 0
        """Of this ownership, in a cluster."""
        self.identity = ""
        """Of the log, in a cluster: epochs of another one say nothing."""
        self.appends_count = 0
        self.settled_count = 0
        """Files that records settled into since the start."""
        self.next_sid = number
        self.give_out_after(catalog.next_sid - 1)
        self.soon = schedule
        """Has something called in the next turn of the event loop."""
        self._limits = limits
        self.hot_bytes_max = hot_bytes_max
        self._answers = PendingAnswers(log)
        self.unlogged_heads = UnloggedHeads(log, clock, self.loaded.has)
        self._visibility = Visibility(log, self._answers, clock)
        self.batches = self._visibility.batches
        self.observers = self._visibility.observers
        self._unpublished = self._visibility.unpublished
        self._commit_due = self._told_failure = False
        self.retention = RetentionRules(self.loaded)

    def give_out_after(self, sid: int) -> None:
        """Ids up to `sid` are not given out any more, nor is 0."""
        ahead = max(sid, 0) - self.next_sid
        if ahead >= 0:
            self.next_sid += (ahead // self.sid_step + 1) * self.sid_step

    # ---- writing ------------------------------------------------------------------------------------------------

    def submit(self, key: str, command: Command, waiter: Waiter) -> None:
        """Judges a command now; `waiter` gets its outcome as soon as that is durable."""
        now_ms = self.clock.now_ms()
        stream = self.loaded.by_key.get(key)
        log = self.log
        try:
            if stream is None:
                stream = self.loaded.find(key)
            if stream is not None and stream.deadline_ms <= now_ms:
                stream = self._expired(stream, now_ms)
            if log.failure is not None or self.left:
                raise self.unavailable()
            source = None
            if type(command) is Create and command.fork is not None:
                source = self._source(command.fork.source, now_ms)
            event = decide(stream, command, now_ms, self.next_sid, self._limits, source)
            # What waits for the disk is in memory twice: as records, and as the bytes that will be written.
            if self.loaded.hot_bytes + log.tail - log.written > self.hot_bytes_max and (
                type(event) is Appended or type(event) is Created or type(event) is CreatedAndAppended
            ):
                raise Overloaded("too much data waits in memory")
            if (type(event) is Created or type(event) is CreatedAndAppended) and len(self.loaded.unlisted) >= NEW_MAX:
                raise Overloaded("too many new streams wait to be written to the catalog")
            if self.demand_room is not None:
                self.demand_room(key, event)
        except Failure as failure:
            self._answers.answer(waiter, failure, stream)
            return
        except ColdOffset as cold:
            if self.resolve_cold is None:
                raise
            self.resolve_cold(cold, key, command, waiter)
            return
        if type(event) is Appended and stream is not None:
            self._append(stream, event, waiter, stream.durability, event)
        elif type(event) is Unchanged:
            if stream is not None and stream.ttl_ms is not None:
                self._touch(stream, now_ms)
            self._answers.answer(waiter, event, stream)
        elif type(event) is Created:
            stream, position = self._create(event, source)
            self._publish_later(position, waiter, event, stream)
        elif type(event) is CreatedAndAppended:
            stream, _ = self._create(event.created, None)
            # Synced with the creation, whatever the stream's class: both have one answer.
            self._append(stream, event.appended, waiter, Durability.FSYNC, event)
            if log.tail > log.synced:
                self._unpublished[stream.key] = log.tail
        elif type(event) is Deleted and stream is not None:
            self._delete(stream, event, waiter)
        elif type(event) is RecordsDeleted and stream is not None:
            self._delete_records(stream, event, waiter)
        elif type(event) is Configured and stream is not None:
            self._configure(stream, event, waiter)
        elif (type(event) is Trimmed or type(event) is SnapshotPublished) and stream is not None:
            self._let_go(stream, event, waiter)
        else:
            raise RuntimeError(f"{command!r} was decided as {event!r}")

    def submit_bucket(self, command: BucketCommand, waiter: Waiter) -> None:
        """The same for a command about a bucket."""
        try:
            if self.closed:
                raise self.unavailable()
            event = bucket_rules.decide(self.loaded.bucket(command.name), command, self.clock.now_ms())
        except Failure as failure:
            self._answers.answer(waiter, failure, None)
            return
        position = self._answers.sync_target = self.log.add(event, True)
        self.loaded.change_bucket(event, position)
        self._queue(position, waiter, event, None)

    def note(self, domain: str, body: bytes, waiter: Waiter | None = None) -> None:
        """Logs something that happened in a domain, makes it true there, and answers when it is durable.

        Raises LogUnavailable or GroupMoved, and then nothing has happened.
        """
        if self.closed:
            raise self.unavailable()
        event = Noted(domain, body, self.clock.now_ms())
        position = self._answers.sync_target = self.log.add(event, True)
        self.domains[domain].apply(body, event.at_ms, position)
        self._queue(position, waiter, event, None)

    def settle(self, file: str, extents: list[Extent], streams: dict[int, LoadedStream]) -> None:
        """Records are in the lake and its table: logs where, and lets memory go of them.

        Extents of streams that were deleted meanwhile are dropped; their rows in the file are dead.
        """
        if self.closed:
            return
        loaded = self.loaded.by_key
        alive = [extent for extent in extents if loaded.get(streams[extent.sid].key) is streams[extent.sid]]
        position = self.log.add(Settled(file, alive, self.clock.now_ms()), True)
        self.loaded.new_files.append(file)
        self.settled_count += 1
        for extent in alive:
            self.loaded.settle(streams[extent.sid], extent, position)
        self._want_commit()

    def has(self, key: str) -> bool:
        """Whether there is a stream of that name, visible yet or not, or soft-deleted."""
        return self._source(key, self.clock.now_ms()) is not None

    def _source(self, key: str, now_ms: int) -> LoadedStream | None:
        source = self.loaded.find(key)
        if source is not None and source.deadline_ms <= now_ms:
            return self._expired(source, now_ms)
        return source

    def _create(self, event: Created, source: LoadedStream | None) -> tuple[LoadedStream, int]:
        """The new stream, which nobody sees yet, and the position of its creation."""
        self.next_sid = event.sid + self.sid_step
        # A creation is synced whatever the stream's class: a name is never promised and then forgotten.
        position = self.log.add(event, True)
        stream = self.loaded.create(event, position, source)
        stream.visible = UNBORN
        if stream.retention is not None:
            self.check_retention(stream)
        return stream, position

    def _append(self, stream: LoadedStream, event: Appended, waiter: Waiter, durability: int, outcome: Outcome) -> None:
        log = self.log
        if durability == 3:  # ephemeral
            self._append_unlogged(stream, event, waiter)
            return
        position = log.add(event, durability == 0)
        evolve(stream, event, position)
        self.appends_count += 1
        loaded = self.loaded
        loaded.dirty[stream.sid] = stream
        size = event.end - event.start + RECORD_BYTES * len(event.records)
        if event.labels is not None:
            size += labels_bytes(event.labels)
        if stream.floor:
            loaded.hot_bytes += size
        else:
            loaded.hold(stream, size, position)
        if stream.retention is not None:
            self.retention.due[stream.sid] = stream
        answers = self._answers
        if durability == 0:
            answers.sync_target = position
            if position > log.synced:
                answers.sync.append((position, waiter, outcome, stream))
                if not self._commit_due:
                    self._plan_commit()
                return
        elif durability == 1 and position > log.written:
            answers.disk_target = position
            answers.disk.append((position, waiter, outcome, stream))
            self._want_commit()
            return
        else:
            self._want_commit()
        self._visibility.publish(stream, outcome)
        waiter.resolve(outcome)

    def _append_unlogged(self, stream: LoadedStream, event: Appended, waiter: Waiter) -> None:
        """Of an ephemeral stream: nothing is promised beyond the life of this process."""
        held = stream.timeline.held_bytes
        if self.loaded.unlogged_bytes + event.end - event.start > self.hot_bytes_max // 2:
            waiter.resolve(Overloaded("ephemeral streams take half of the memory for records; delete some of theirs"))
            return
        evolve(stream, event, self.log.tail)
        self.appends_count += 1
        self.loaded.dirty[stream.sid] = stream
        self.loaded.unlogged_bytes += stream.timeline.held_bytes - held
        if stream.retention is not None:
            self.retention.due[stream.sid] = stream
        reserved_at = self.unlogged_heads.appended(stream)
        self._want_commit()
        if reserved_at > self.log.synced:
            self._answers.sync_from(reserved_at, waiter, event, stream)
        else:
            self._visibility.publish(stream, event)
            waiter.resolve(event)

    def _delete(self, stream: LoadedStream, event: Deleted, waiter: Waiter | None) -> None:
        position = self.log.add(event, True)
        self.loaded.delete(stream, event, position)
        self.retention.due.pop(stream.sid, None)
        self._publish_later(position, waiter, event, stream)

    def _let_go(self, stream: LoadedStream, event: Trimmed | SnapshotPublished, waiter: Waiter | None) -> None:
        """Readers know at once that data is gone; that it is gone for good is acknowledged when it is durable."""
        held = stream.timeline.held_bytes
        before = stream.snapshot
        position = self.log.synced if stream.durability == Durability.EPHEMERAL else self.log.add(event, True)
        self._answers.sync_target = max(self._answers.sync_target, position)
        evolve(stream, event, position)
        if before is not None and stream.snapshot is not before:
            self.loaded.discard_snapshot(stream, before, position)
        self.loaded.cut(stream)
        freed = held - stream.timeline.held_bytes
        if freed:
            self.loaded.released(stream, freed)
        self._queue(position, waiter, event, None)

    def _delete_records(self, stream: LoadedStream, event: RecordsDeleted, waiter: Waiter) -> None:
        """Readers know at once, as above; it is acknowledged when it is as durable as an append to the stream."""
        log, answers = self.log, self._answers
        held, earliest = stream.timeline.held_bytes, stream.earliest
        unlogged = event.durability == Durability.EPHEMERAL
        position = log.tail if unlogged else log.add(event, event.durability == Durability.FSYNC)
        evolve(stream, event, position)
        self.loaded.holed(stream)
        if stream.earliest > earliest:
            self.loaded.cut(stream)
            freed = held - stream.timeline.held_bytes
            if freed:
                self.loaded.released(stream, freed)
        if event.durability == Durability.FSYNC:
            answers.sync_target = position
            self._queue(position, waiter, event, None)
            return
        self._want_commit()
        if event.durability == Durability.DISK and position > log.written:
            answers.disk_target = position
            answers.disk.append((position, waiter, event, None))
        else:
            waiter.resolve(event)

    def _configure(self, stream: LoadedStream, event: Configured, waiter: Waiter) -> None:
        position = self._answers.sync_target = self.log.add(event, True)
        evolve(stream, event, position)
        self.loaded.dirty[stream.sid] = stream
        if stream.retention is not None:
            self.check_retention(stream)
        self._queue(position, waiter, event, None)

    def _queue(self, position: int, waiter: Waiter | None, event: Outcome, stream: LoadedStream | None) -> None:
        if position <= self.log.synced:
            if waiter is not None:
                waiter.resolve(event)
        else:
            self._answers.sync.append((position, waiter, event, stream))
            self._want_commit()

    def _publish_later(self, position: int, waiter: Waiter | None, event: Outcome, stream: LoadedStream) -> None:
        self._answers.sync_target = position
        if position <= self.log.synced:
            self._visibility.publish(stream, event)
        else:
            self._unpublished[stream.key] = position
        self._queue(position, waiter, event, stream)

    def barrier(self, waiter: Waiter) -> None:
        """Resolves `waiter` once everything logged so far is synced, whatever its class."""
        self._answers.sync_target = self.log.tail
        self._answers.after(self.log.tail, waiter)
        self._want_commit()

    def _want_commit(self) -> None:
        if not self._commit_due and self.log.tail > self.log.written:
            self._plan_commit()

    def _plan_commit(self) -> None:
        self._commit_due = True
        self.batches.begin()
        self.soon(self._commit)

    def _commit(self) -> None:
        self._commit_due = False
        self.batches.hand_over()
        self.log.commit()

    # ---- the watermark ------------------------------------------------------------------------------------------

    def progress(self) -> None:
        """The log's watermarks moved, or it failed: answers and wake-ups that were waiting leave now."""
        self._visibility.progress()
        if self.log.failure is not None:
            # Nothing that waits can be promised any more. What was visible stays readable.
            self._told_failure = True
            self._answers.fail(self.unavailable())

    @property
    def failed(self) -> bool:
        return self.log.failure is not None and self._told_failure

    @property
    def closed(self) -> bool:
        """Nothing can be logged any more: by a failure, or because another process serves the group."""
        return self.left or self.log.failure is not None

    def unavailable(self) -> Failure:
        failure = self.log.failure
        # Fenced: what was not acknowledged is not in the log, and never will be.
        return GroupMoved(self.number) if failure is None or failure.kind == FENCED else LogUnavailable(failure.reason)

    # ---- reading ------------------------------------------------------------------------------------------------

    def unpublished(self, key: str) -> bool:
        """True while a creation or deletion of `key` is under way: a reader should call `after_published` first."""
        return bool(self._unpublished) and key in self._unpublished

    def after_published(self, key: str, waiter: Waiter) -> None:
        """Resolves `waiter` once the creation or deletion of `key` is durable; with a failure when it never is."""
        self._answers.after(self._unpublished[key], waiter)

    def after_pending(self, waiter: Waiter) -> None:
        """Resolves `waiter` once everything decided so far is durable; at once when it is."""
        self._answers.answer(waiter, Unchanged(0, False), None)

    def find(self, key: str, touch: bool) -> LoadedStream:
        """The stream as readers see it. Raises StreamNotFound, StreamSoftDeleted. `touch` restarts a sliding expiry."""
        stream = self.loaded.find(key)
        if stream is None or stream.visible == UNBORN:
            raise StreamNotFound
        if stream.deadline_ms == NEVER_MS and not stream.soft_deleted:
            return stream
        now_ms = self.clock.now_ms()
        if stream.deadline_ms <= now_ms and self._expired(stream, now_ms) is None:
            raise StreamNotFound
        if stream.soft_deleted:
            raise StreamSoftDeleted
        if touch and stream.ttl_ms is not None:
            self._touch(stream, now_ms)
        return stream

    def follow(self, stream: LoadedStream, follower: Follower) -> None:
        if stream.followers is None:
            stream.followers = set()
        stream.followers.add(follower)

    def _touch(self, stream: LoadedStream, now_ms: int) -> None:
        stream.touch(now_ms)
        ttl_ms = stream.ttl_ms or 0
        if now_ms - stream.touch_logged_ms >= max(_TOUCH_STEP_MS_MIN, ttl_ms // _TOUCH_STEPS):
            stream.touch_logged_ms = now_ms
            if not self.closed:
                stream.position = self.log.add(Touched(stream.sid, now_ms), False)
                self.loaded.dirty[stream.sid] = stream
                self._want_commit()

    # ---- upkeep -------------------------------------------------------------------------------------------------

    def _expired(self, stream: LoadedStream, now_ms: int) -> LoadedStream | None:
        """Deletes a stream whose time has passed; returns it when forks keep it soft-deleted. Readers know at once."""
        if self.closed:
            return None
        soft = stream.children > 0
        self._delete(stream, Deleted(stream.sid, stream.key, now_ms, expired=True, soft=soft), None)
        return stream if soft else None

    def expire_due(self, count_max: int) -> int:
        """Deletes streams whose deadline passed, `count_max` at most; returns how many."""
        now_ms = self.clock.now_ms()
        due = self.loaded.due(now_ms, count_max)
        for stream in due:
            self._expired(stream, now_ms)
        return len(due)

    def expire_unloaded(self, count_max: int) -> int:
        """Loads and deletes streams that expired while nobody looked, `count_max` at most; returns how many."""
        now_ms = self.clock.now_ms()
        expired = 0
        for key in self.loaded.catalog.due(now_ms, count_max):
            stream = self.loaded.find(key)
            if stream is not None and stream.deadline_ms <= now_ms and not stream.soft_deleted:
                self._expired(stream, now_ms)
                expired += 1
        return expired

    def check_retention(self, stream: LoadedStream) -> None:
        """Has the stream's retention policy looked at the next time."""
        self.retention.due[stream.sid] = stream

    def apply_retention(self, only: LoadedStream | None = None) -> None:
        """Trims streams that grew beyond their policy, or one. Cost grows with those that grew or hold what is old."""
        if self.closed:
            return
        now_ms = self.clock.now_ms()
        for stream, (offset, seq, position) in self.retention.cuts(now_ms, only):
            self._let_go(stream, Trimmed(stream.sid, offset, seq, now_ms, position, evicted=True), None)

    def told_position(self) -> int:
        """Everything at or below this log position is synced, and observers have heard of it.

        The log's own mark moves in its writer's thread, ahead of that.
        """
        return self._answers.told(self.log.synced)

    def lake_position(self) -> int:
        """Everything at or below this log position is in the lake, deleted, or no record at all."""
        return min(self.loaded.log_floor(self.log.synced), self.log.synced)

    def log_floor(self) -> int:
        return self.loaded.log_floor(self.log.tail)
