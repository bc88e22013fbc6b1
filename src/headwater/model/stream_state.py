"""The state of one stream, and what happening does to it (`evolve`): the fold of its events.

Owns the fields of a stream and the only place where they change. Never decides whether something may happen: `stream`
does.
"""

from __future__ import annotations

from typing import assert_never

from headwater.model import content_types
from headwater.model.commands import Durability
from headwater.model.events import (
    Appended,
    Configured,
    Created,
    Deleted,
    RecordsDeleted,
    Reserved,
    SnapshotPublished,
    StreamEvent,
    Touched,
    Trimmed,
)
from headwater.model.holes import Holes
from headwater.model.json_mode import JSON
from headwater.model.producers import NUMBER_MAX, Seen
from headwater.model.row import Snapshot, StreamRow
from headwater.model.timeline import Timeline

DROPPED_AT_LEAST = 1_000
"""Deleted records that memory lets go of together, where it holds many."""
NEVER_MS = 1 << 62
"""A deadline that is not reached."""


class Stream:
    """The decided state of one stream: the fold of its events. `position` is the log position it is true for."""

    __slots__ = (
        *StreamRow.__struct_fields__,
        "deadline_ms",
        "fork_at",
        "is_json",
        "media",
        "parent",
        "timeline",
    )
    # `__init__` and `row` name every field of the row again, for their types; a test holds them together.

    def __init__(self, row: StreamRow) -> None:
        self.key = row.key
        self.sid = row.sid
        self.position = row.position
        self.content_type = row.content_type
        self.media = content_types.normalise(row.content_type)
        """What content types are compared by."""
        self.is_json = self.media == JSON
        self.created_ms = row.created_ms
        self.durability = Durability(row.durability)
        self.ttl_ms = row.ttl_ms
        self.expires_ms = row.expires_ms
        self.touched_ms = row.touched_ms
        self.deadline_ms = NEVER_MS
        self.closed = row.closed
        self.closed_by = row.closed_by
        self.producers: dict[str, Seen] = {p[0]: (p[1], p[2], p[3]) for p in row.producers}
        self.stream_seq = row.stream_seq
        self.tail = row.tail
        self.count = row.count
        self.earliest = row.earliest
        self.last_ms = row.last_ms
        self.last_n = row.last_n
        self.last_write_ms = row.last_write_ms
        self.first_seq = row.first_seq
        self.snapshot = row.snapshot
        self.retention = row.retention
        self.forked = row.forked
        self.fork_at = 0 if row.forked is None else row.forked.at
        self.parent: Stream | None = None
        """The stream this one was forked from; whoever builds a fork sets it."""
        self.children = row.children
        self.soft_deleted = row.soft_deleted
        self.cold_end = row.cold_end
        self.cold_position = row.cold_position
        self.lost_position = row.lost_position
        self.lost_at = row.lost_at
        self.topic = row.topic
        self.holes = Holes(row.holes)
        self.evict_floor = row.evict_floor
        self.deleted_seq = row.deleted_seq
        self.deleted_offset = row.deleted_offset
        self.counted = row.counted
        self.timeline = Timeline(row.tail, row.count)
        self.touch(row.touched_ms)

    def row(self) -> StreamRow:
        return StreamRow(
            key=self.key,
            sid=self.sid,
            position=self.position,
            content_type=self.content_type,
            created_ms=self.created_ms,
            durability=int(self.durability),
            ttl_ms=self.ttl_ms,
            expires_ms=self.expires_ms,
            touched_ms=self.touched_ms,
            closed=self.closed,
            closed_by=self.closed_by,
            producers=[(name, *seen) for name, seen in self.producers.items()],
            stream_seq=self.stream_seq,
            tail=self.tail,
            count=self.count,
            earliest=self.earliest,
            last_ms=self.last_ms,
            last_n=self.last_n,
            last_write_ms=self.last_write_ms,
            first_seq=self.first_seq,
            snapshot=self.snapshot,
            retention=self.retention,
            forked=self.forked,
            children=self.children,
            soft_deleted=self.soft_deleted,
            cold_end=self.cold_end,
            cold_position=self.cold_position,
            lost_position=self.lost_position,
            lost_at=self.lost_at,
            topic=self.topic,
            holes=self.holes.packed(),
            evict_floor=self.evict_floor,
            deleted_seq=self.deleted_seq,
            deleted_offset=self.deleted_offset,
            counted=self.counted,
        )

    def lose_records(self) -> None:
        """The stream is ephemeral, and its records went with the process that held them: readers are told so."""
        self.earliest, self.first_seq = self.tail, self.count
        self.evict_floor = self.count + 1
        self.holes = Holes()

    def touch(self, at_ms: int) -> None:
        """Restarts a sliding expiry window. An absolute expiry never moves."""
        self.touched_ms = at_ms
        if self.ttl_ms is not None:
            self.deadline_ms = at_ms + self.ttl_ms
        elif self.expires_ms is not None:
            self.deadline_ms = self.expires_ms

    @property
    def epoch(self) -> int:
        """Tells a topic from one of the same name that was there before: its id, as far as a JSON number is exact."""
        return self.sid & NUMBER_MAX

    @property
    def earliest_seq(self) -> int:
        """Number, counted from 1, of the first record that is there; of the next one when none is."""
        return self.first_seq + 1

    @property
    def live_count(self) -> int:
        """Records that are there."""
        return self.count - self.first_seq - self.holes.count

    @property
    def live_bytes(self) -> int:
        return self.tail - self.earliest - self.holes.bytes

    @property
    def own_bytes(self) -> int:
        """What its bucket counts: of a fork what was written to it, of a stream that is kept for its forks nothing."""
        if self.soft_deleted:
            return 0
        return self.live_bytes if self.forked is None else max(0, self.tail - max(self.earliest, self.fork_at))

    @property
    def etag(self) -> str:
        """The state of the tail: what If-Match and HEAD speak of."""
        return f'"{self.sid}:{self.tail}{":c" if self.closed else ""}"'


def born(event: Created, position: int, source: Stream | None = None) -> StreamRow:
    """The row of a stream that `event` just created, before its initial records. A fork needs its `source`."""
    forked = event.forked
    earliest, first_seq = (0, 0) if source is None else (source.earliest, source.first_seq)
    return StreamRow(
        key=event.key,
        sid=event.sid,
        position=position,
        content_type=event.content_type,
        created_ms=event.at_ms,
        durability=int(event.durability),
        ttl_ms=event.ttl_ms,
        expires_ms=event.expires_ms,
        touched_ms=event.at_ms,
        closed=False,
        closed_by=None,
        producers=[],
        stream_seq=None,
        tail=0 if forked is None else forked.at,
        count=0 if forked is None else forked.seq,
        earliest=earliest,
        last_ms=0 if forked is None else forked.ms,
        last_n=-1 if forked is None else forked.n,
        last_write_ms=event.at_ms,
        first_seq=first_seq,
        retention=event.retention,
        forked=forked,
        cold_end=0 if forked is None else forked.at,
        snapshot=None if source is None or forked is None else _shared_snapshot(source, forked.at),
        topic=event.topic,
        holes=b"" if source is None or forked is None else source.holes.up_to(forked.seq, forked.at).packed(),
        evict_floor=1 if source is None else source.evict_floor,
    )


def _shared_snapshot(source: Stream, at: int) -> Snapshot | None:
    """A fork after its source's snapshot needs it too: what the snapshot stands for is gone from both."""
    snapshot = source.snapshot
    return snapshot if snapshot is not None and snapshot.offset <= at else None


def initial_id(event: Created) -> tuple[int, int]:
    """The id of a new stream's first own record: after everything it shares with its source."""
    forked = event.forked
    if forked is None or event.at_ms > forked.ms:
        return event.at_ms, 0
    return forked.ms, forked.n + 1


def evolve(stream: Stream, event: StreamEvent, position: int) -> None:
    """Makes `event` true for its stream. The fold of all events, in order, is the state."""
    if isinstance(event, Appended):
        records = event.records
        if records:
            stream.timeline.extend(records, event.start, event.ms, event.n, position, event.labels)
            stream.tail = event.end
            stream.count += len(records)
            stream.last_ms = event.ms
            stream.last_n = event.n + len(records) - 1
            stream.last_write_ms = event.at_ms
        producer = event.producer
        if producer is not None:
            if event.forget_before_ms:
                seen = stream.producers
                for name in [name for name, state in seen.items() if state[2] < event.forget_before_ms]:
                    del seen[name]
            stream.producers[producer.id] = (producer.epoch, producer.seq, event.at_ms)
        if event.stream_seq is not None:
            stream.stream_seq = event.stream_seq
        if event.closed:
            stream.closed = True
            if producer is not None:
                stream.closed_by = (producer.id, producer.epoch, producer.seq)
        if stream.ttl_ms is not None:
            stream.touch(event.at_ms)
    elif isinstance(event, Created):
        if event.records:
            ms, n = initial_id(event)
            stream.tail = stream.timeline.extend(event.records, stream.tail, ms, n, position)
            stream.count += len(event.records)
            stream.last_ms = ms
            stream.last_n = n + len(event.records) - 1
        stream.closed = event.closed
    elif isinstance(event, Touched):
        stream.touch(event.at_ms)
    elif isinstance(event, Trimmed):
        if event.evicted:
            # What was deleted behind the last live record that goes is not lost.
            stream.evict_floor = stream.holes.live_before(event.first_seq) + 1
        _forget_before(stream, event.earliest, event.first_seq, event.position, position, not event.evicted)
    elif isinstance(event, Reserved):
        stream.tail, stream.count = event.offset, event.seq
        stream.timeline = Timeline(event.offset, event.seq)
        stream.lose_records()
    elif isinstance(event, RecordsDeleted):
        stream.holes.add(event.runs)
        _forget_before(stream, stream.earliest, stream.first_seq, 0, position, True, DROPPED_AT_LEAST)
    elif isinstance(event, Configured):
        stream.retention, stream.topic = event.retention, event.topic
    elif isinstance(event, SnapshotPublished):
        stream.snapshot = Snapshot(event.offset, event.content_type, event.blob, event.size)
        _forget_before(stream, event.offset, event.first_seq, event.position, position, False)
    elif isinstance(event, Deleted):
        stream.soft_deleted = event.soft
    else:
        assert_never(event)
    stream.position = position


def _forget_before(
    stream: Stream, offset: int, seq: int, lost: int, position: int, deleted: bool, at_least: int = 0
) -> None:
    """Moves the earliest offset. Records that forks share stay; so does a snapshot, its author's only copy."""
    before, holes_count = stream.first_seq, len(stream.holes)
    stream.first_seq, stream.earliest = seq, offset = stream.holes.cut(seq, offset)
    # Holes that are not named any more count as deleted together with what lies between them: nobody reads that.
    if (deleted and seq > before) or len(stream.holes) < holes_count:
        stream.deleted_seq, stream.deleted_offset = seq, offset
    if lost > stream.lost_position:
        stream.lost_position, stream.lost_at = lost, position
    if not stream.children:
        _drop(stream.timeline, offset, at_least)


def _drop(timeline: Timeline, offset: int, at_least: int) -> None:
    """Memory lets go of what lies before the offset, when that is so many records or an eighth of what it holds: jobs
    are deleted one by one, and each time everything after them would be moved."""
    if offset > timeline.start:
        index = timeline.index_until(offset)
        if index >= at_least or index * 8 >= len(timeline.payloads):
            timeline.drop_before(index)


def settle(stream: Stream, end: int, position: int) -> int:
    """The stream's own records up to `end` are in the lake: memory lets them go. Returns what that freed."""
    timeline = stream.timeline
    index = timeline.index_until(end)
    if index:
        stream.cold_position = max(stream.cold_position, timeline.positions[index - 1])
    stream.cold_end = max(stream.cold_end, end)
    stream.position = position
    return timeline.drop_before(index)
