"""One stream: its state, what may happen to it (`decide`), and what happening does (`evolve`).

Owns every rule of create, append, close and delete. Never logs, waits, or looks at the clock: time is an argument.

    decide(stream | None, command, now_ms, sid, limits)  ->  Event | Unchanged      raises Failure, changes nothing
    evolve(stream, event, position)                                                the only place state changes
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from headwater.errors import (
    BadQuery,
    BadSnapshotOffset,
    ContentTypeMismatch,
    NameTaken,
    NonMonotonicId,
    OffsetBeyondTail,
    OffsetGone,
    PreconditionFailed,
    SnapshotBeyondTail,
    StreamClosed,
    StreamExists,
    StreamNotFound,
    StreamSeqConflict,
    StreamSoftDeleted,
    TooManyProducers,
)
from headwater.model import content_types, forks
from headwater.model import producers as producer_rules
from headwater.model.commands import (
    Append,
    Command,
    Create,
    Delete,
    Durability,
    Producer,
    PublishSnapshot,
    Trim,
)
from headwater.model.events import Appended, Created, Deleted, SnapshotPublished, StreamEvent, Touched, Trimmed
from headwater.model.json_mode import JSON
from headwater.model.producers import Seen
from headwater.model.row import Snapshot, StreamRow
from headwater.model.timeline import Timeline

NEVER_MS = 1 << 62
"""A deadline that is not reached."""


class Limits(msgspec.Struct, frozen=True):
    """What a client may make one stream grow to, and the class a stream gets when it asks for none."""

    producers_max: int = 10_000
    producer_idle_ms: int = 7 * 24 * 3600 * 1000
    durability: Durability = Durability.FSYNC


class Unchanged(msgspec.Struct, frozen=True):
    """A success that changes nothing: a duplicate append, a repeated create or close."""

    end: int
    closed: bool
    producer: Producer | None = None
    """For a duplicate: the highest accepted tuple."""
    content_type: str = ""
    """For a repeated create: what the stream holds."""


class Stream:
    """The decided state of one stream: the fold of its events. `position` is the log position it is true for."""

    __slots__ = (
        "children",
        "closed",
        "closed_by",
        "cold_end",
        "cold_position",
        "content_type",
        "count",
        "created_ms",
        "deadline_ms",
        "durability",
        "earliest",
        "expires_ms",
        "first_seq",
        "fork_at",
        "forked",
        "is_json",
        "key",
        "last_ms",
        "last_n",
        "last_write_ms",
        "lost_at",
        "lost_position",
        "media",
        "parent",
        "position",
        "producers",
        "retention",
        "sid",
        "snapshot",
        "soft_deleted",
        "stream_seq",
        "tail",
        "timeline",
        "touched_ms",
        "ttl_ms",
    )

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
        )

    def touch(self, at_ms: int) -> None:
        """Restarts a sliding expiry window. An absolute expiry never moves."""
        self.touched_ms = at_ms
        if self.ttl_ms is not None:
            self.deadline_ms = at_ms + self.ttl_ms
        elif self.expires_ms is not None:
            self.deadline_ms = self.expires_ms

    @property
    def etag(self) -> str:
        """The state of the tail: what If-Match and HEAD speak of."""
        return f'"{self.sid}:{self.tail}{":c" if self.closed else ""}"'


def decide(
    stream: Stream | None,
    command: Command,
    now_ms: int,
    sid: int,
    limits: Limits,
    source: Stream | None = None,
) -> StreamEvent | Unchanged:
    """What `command` does to `stream` (None: there is none) at `now_ms`.

    `sid` names a stream that would be created, `source` is the stream that a fork names (None: there is none).
    Pure. Raises a Failure when the command is refused; nothing has changed then.
    """
    if isinstance(command, Append):
        return _append(stream, command, now_ms, limits)
    if isinstance(command, Create):
        return _create(stream, command, now_ms, sid, limits, source)
    if stream is None:
        raise StreamNotFound
    if stream.soft_deleted:
        raise StreamSoftDeleted
    if isinstance(command, Delete):
        return Deleted(stream.sid, stream.key, now_ms, soft=stream.children > 0)
    if isinstance(command, Trim):
        return _trim(stream, command, now_ms)
    if isinstance(command, PublishSnapshot):
        return decide_snapshot(stream, command, now_ms)
    assert_never(command)


def _create(
    stream: Stream | None, command: Create, now_ms: int, sid: int, limits: Limits, source: Stream | None
) -> Created | Unchanged:
    if stream is not None:
        return _recreate(stream, command, source)
    content_type = command.content_type or content_types.DEFAULT
    content_types.check(content_type)
    ttl_ms, expires_ms = command.ttl_ms, command.expires_ms
    records, forked = command.records, None
    if command.fork is not None:
        forked, prefix = forks.resolve(source, command)
        records = prefix + records
        if source is not None:
            content_type = source.content_type
            if ttl_ms is None and expires_ms is None:
                ttl_ms, expires_ms = source.ttl_ms, source.expires_ms
    return Created(
        key=command.key,
        sid=sid,
        content_type=content_type,
        at_ms=now_ms,
        durability=limits.durability if command.durability is None else command.durability,
        records=records,
        ttl_ms=ttl_ms,
        expires_ms=expires_ms,
        closed=command.closed,
        retention=command.retention,
        forked=forked,
    )


def _recreate(stream: Stream, command: Create, source: Stream | None) -> Unchanged:
    if stream.soft_deleted:
        raise NameTaken
    if command.exclusive:
        raise StreamExists("owner: it was created before")
    fork = command.fork
    if fork is None:
        content_type = command.content_type or content_types.DEFAULT
    else:
        forked = stream.forked
        same = forked is not None and source is not None and forked.sid == source.sid
        if not same or forked is None or (forked.offset, forked.sub) != (fork.offset, fork.sub):
            raise StreamExists("fork source or fork point")
        content_type = command.content_type or stream.content_type
    if content_types.normalise(content_type) != stream.media:
        raise StreamExists(f"content type ({stream.content_type})")
    named_expiry = command.ttl_ms is not None or command.expires_ms is not None
    if (fork is None or named_expiry) and (command.ttl_ms, command.expires_ms) != (stream.ttl_ms, stream.expires_ms):
        raise StreamExists("TTL or expiry")
    if command.closed != stream.closed:
        raise StreamExists("closed state")
    if command.durability is not None and command.durability != stream.durability:
        raise StreamExists("durability class")
    if command.retention is not None and command.retention != stream.retention:
        raise StreamExists("retention")
    return Unchanged(stream.tail, stream.closed, content_type=stream.content_type)


def _trim(stream: Stream, command: Trim, now_ms: int) -> Trimmed | Unchanged:
    offset = command.offset
    if offset <= stream.earliest:
        return Unchanged(stream.tail, stream.closed)
    if offset > stream.tail:
        raise OffsetBeyondTail(stream.tail)
    seq = forks.seq_at(stream, offset) if command.seq is None else command.seq
    if seq is None:
        raise BadQuery("offset", "it lies inside a message")
    position = forks.position_before(stream, offset) if command.seq is None else command.position
    return Trimmed(stream.sid, offset, seq, now_ms, position)


def decide_snapshot(stream: Stream, command: PublishSnapshot, now_ms: int) -> SnapshotPublished:
    content_types.check(command.content_type)
    offset = command.offset
    if offset > stream.tail:
        raise SnapshotBeyondTail(stream.tail)
    if offset < stream.earliest:
        raise OffsetGone(stream.earliest)
    seq = forks.seq_at(stream, offset) if command.seq is None else command.seq
    if seq is None:
        raise BadSnapshotOffset("it is not the end of a message")
    position = forks.position_before(stream, offset) if command.seq is None else command.position
    blob = (command.content_type, command.blob, command.size)
    return SnapshotPublished(stream.sid, offset, seq, *blob, now_ms, position)


def _append(stream: Stream | None, command: Append, now_ms: int, limits: Limits) -> Appended | Unchanged:
    # The order of these checks is the protocol's: closing retry, closed, content type, producer, Stream-Seq.
    if stream is None:
        raise StreamNotFound
    producer = command.producer
    if stream.soft_deleted:
        raise StreamSoftDeleted
    if stream.closed:
        return _append_closed(stream, command)
    if command.content_type is not None and command.content_type != stream.media:
        raise ContentTypeMismatch(stream.content_type, command.content_type)
    forget_before_ms = 0
    if producer is not None:
        seen = stream.producers.get(producer.id)
        if not producer_rules.judge(seen, producer):
            epoch, seq, _ = stream.producers[producer.id]
            return Unchanged(stream.tail, False, Producer(producer.id, epoch, seq))
        if seen is None and len(stream.producers) >= limits.producers_max:
            forget_before_ms = now_ms - limits.producer_idle_ms
            if all(other[2] >= forget_before_ms for other in stream.producers.values()):
                raise TooManyProducers(limits.producers_max)
    stream_seq = command.stream_seq
    if stream_seq is not None and stream.stream_seq is not None and stream_seq <= stream.stream_seq:
        raise StreamSeqConflict(stream.stream_seq, stream_seq)
    if command.if_match is not None and not _matches(command.if_match, stream.etag):
        raise PreconditionFailed(stream.etag)

    last_ms = stream.last_ms
    ms = command.ms
    if ms is None:
        # The commit clock, clamped: a clock that steps back never makes an id smaller.
        ms = now_ms if now_ms > last_ms else last_ms
    elif ms < last_ms:
        raise NonMonotonicId(last_ms, ms)
    records = command.records
    start = stream.tail
    return Appended(
        stream.sid,
        start,
        start + (len(records[0]) if len(records) == 1 else sum(map(len, records))),
        now_ms,
        ms,
        stream.last_n + 1 if ms == last_ms else 0,
        records,
        command.close,
        producer,
        stream_seq,
        forget_before_ms,
        stream.durability,
    )


def _matches(if_match: str, etag: str) -> bool:
    """If-Match names any state, or a list of states one of which has to be the present one."""
    return if_match == "*" or etag in (tag.strip() for tag in if_match.split(","))


def _append_closed(stream: Stream, command: Append) -> Unchanged:
    producer = command.producer
    if producer is not None:
        if (producer.id, producer.epoch, producer.seq) == stream.closed_by:
            return Unchanged(stream.tail, True, producer)
        raise StreamClosed(stream.tail)
    if command.close and not command.records:
        return Unchanged(stream.tail, True)
    raise StreamClosed(stream.tail)


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
    )


def _shared_snapshot(source: Stream, at: int) -> Snapshot | None:
    """A fork behind its source's snapshot needs it too: what the snapshot stands for is gone from both."""
    snapshot = source.snapshot
    return snapshot if snapshot is not None and snapshot.offset <= at else None


def initial_id(event: Created) -> tuple[int, int]:
    """The id of a new stream's first own record: behind everything it shares with its source."""
    forked = event.forked
    if forked is None or event.at_ms > forked.ms:
        return event.at_ms, 0
    return forked.ms, forked.n + 1


def evolve(stream: Stream, event: StreamEvent, position: int) -> None:
    """Makes `event` true for its stream. The fold of all events, in order, is the state."""
    if isinstance(event, Appended):
        records = event.records
        if records:
            stream.timeline.extend(records, event.start, event.ms, event.n, position)
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
        _forget_before(stream, event.earliest, event.first_seq, event.position, position)
    elif isinstance(event, SnapshotPublished):
        stream.snapshot = Snapshot(event.offset, event.content_type, event.blob, event.size)
        _forget_before(stream, event.offset, event.first_seq, event.position, position)
    elif isinstance(event, Deleted):
        stream.soft_deleted = event.soft
    else:
        assert_never(event)
    stream.position = position


def _forget_before(stream: Stream, offset: int, seq: int, lost: int, position: int) -> None:
    """Moves the earliest offset. Records that forks share stay; so does a snapshot, its author's only copy."""
    stream.earliest = offset
    stream.first_seq = seq
    if lost > stream.lost_position:
        stream.lost_position, stream.lost_at = lost, position
    timeline = stream.timeline
    if not stream.children and offset > timeline.start:
        timeline.drop_before(timeline.index_until(offset))


def settle(stream: Stream, end: int, position: int) -> int:
    """The stream's own records up to `end` are in the lake: memory lets them go. Returns what that freed."""
    timeline = stream.timeline
    index = timeline.index_until(end)
    if index:
        stream.cold_position = max(stream.cold_position, timeline.positions[index - 1])
    stream.cold_end = max(stream.cold_end, end)
    stream.position = position
    return timeline.drop_before(index)
