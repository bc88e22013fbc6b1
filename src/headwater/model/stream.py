"""What may happen to one stream: `decide`.

Owns every rule of create, append, close and delete. Never logs, waits, or looks at the clock: time is an argument.
Never changes a stream: `stream_state.evolve` does.

    decide(stream | None, command, now_ms, sid, limits)  ->  Event | Unchanged | CreatedAndAppended

It raises a Failure for what is refused, and then nothing has changed.
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
    TooManyHoles,
    TooManyProducers,
    TopicFull,
)
from headwater.model import content_types, forks, json_mode
from headwater.model import producers as producer_rules
from headwater.model.commands import (
    Append,
    Command,
    Configure,
    Create,
    Delete,
    DeleteRecords,
    Durability,
    Producer,
    PublishSnapshot,
    Trim,
)
from headwater.model.events import (
    Appended,
    Configured,
    Created,
    Deleted,
    RecordsDeleted,
    SnapshotPublished,
    StreamEvent,
    Trimmed,
)
from headwater.model.holes import HOLES_MAX, Run
from headwater.model.stream_state import Stream, born
from headwater.model.topics import TopicConfig


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


class CreatedAndAppended(msgspec.Struct, frozen=True):
    """An append that made its stream: two events, one after the other in the log, and one answer."""

    created: Created
    appended: Appended


def decide(
    stream: Stream | None,
    command: Command,
    now_ms: int,
    sid: int,
    limits: Limits,
    source: Stream | None = None,
) -> StreamEvent | Unchanged | CreatedAndAppended:
    """What `command` does to `stream` (None: there is none) at `now_ms`.

    `sid` names a stream that would be created, `source` is the stream that a fork names (None: there is none).
    Pure. Raises a Failure when the command is refused; nothing has changed then.
    """
    if isinstance(command, Append):
        if stream is None and command.create is not None:
            return _create_and_append(command.create, command, now_ms, sid, limits)
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
    if isinstance(command, DeleteRecords):
        return _delete_records(stream, command, now_ms)
    if isinstance(command, Configure):
        return _configure(stream, command, now_ms)
    assert_never(command)


def _create(
    stream: Stream | None, command: Create, now_ms: int, sid: int, limits: Limits, source: Stream | None
) -> Created | Unchanged:
    if stream is not None:
        return _recreate(stream, command, source)
    return _created(command, now_ms, sid, limits, source)


def _created(command: Create, now_ms: int, sid: int, limits: Limits, source: Stream | None) -> Created:
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
        topic=command.topic,
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
    if command.topic is not None and command.topic != (stream.topic or TopicConfig()):
        raise StreamExists("topic configuration")
    return Unchanged(stream.tail, stream.closed, content_type=stream.content_type)


def _trim(stream: Stream, command: Trim, now_ms: int) -> Trimmed | Unchanged:
    offset = command.offset
    if offset <= stream.earliest:
        return Unchanged(stream.tail, stream.closed)
    if offset > stream.tail:
        raise OffsetBeyondTail(stream.tail)
    # Inside a hole records need not be anywhere any more: what is deleted there goes with the rest.
    passed, number = stream.holes.passed(offset, -1)
    if number >= 0:
        lost = forks.position_before(stream, passed) if passed >= stream.timeline.start else 0
        return Trimmed(stream.sid, passed, number, now_ms, lost)
    seq = forks.seq_at(stream, offset) if command.seq is None else command.seq
    if seq is None:
        raise BadQuery("offset", "it lies inside a message")
    position = forks.position_before(stream, offset) if command.seq is None else command.position
    return Trimmed(stream.sid, offset, seq, now_ms, position)


def _check_places(stream: Stream, runs: list[Run]) -> None:
    """Where a record lies is looked up, in memory or in the lake. A wrong answer must not get into the log: readers
    would pass over records that nobody deleted."""
    offset = stream.earliest
    for run in runs:
        at_front = run.first == stream.first_seq and run.begin != stream.earliest
        at_tail = run.last == stream.count and run.end != stream.tail
        if run.begin < offset or run.end > stream.tail or at_front or at_tail or stream.holes.contradicts(run):
            raise RuntimeError(
                f"records [{run.first}, {run.last}) of stream {stream.sid} cannot lie at [{run.begin}, {run.end}): "
                f"it has [{stream.first_seq}, {stream.count}) at [{stream.earliest}, {stream.tail})"
            )
        offset = run.end


def _delete_records(stream: Stream, command: DeleteRecords, now_ms: int) -> RecordsDeleted | Unchanged:
    """What of the runs is there goes. Numbers that the stream never gave out are passed over, and so is what is named
    a second time."""
    runs: list[Run] = []
    reached, offset = stream.first_seq, stream.earliest
    for run in sorted(command.runs):
        if run.last > stream.count:
            run = Run(run.first, stream.count, run.begin, stream.tail)
        if run.first < reached:
            run = Run(reached, run.last, offset, run.end)
        if run.first >= run.last:
            continue
        runs += stream.holes.without(run)
        reached, offset = run.last, run.end
    _check_places(stream, runs)
    if not runs:
        return Unchanged(stream.tail, stream.closed)
    # A run at the front makes none: the stream begins after it.
    more = stream.holes.more(runs) - (runs[0].first == stream.first_seq)
    if more > 0 and len(stream.holes) + more > HOLES_MAX:
        raise TooManyHoles(HOLES_MAX)
    return RecordsDeleted(stream.sid, runs, now_ms, stream.durability)


def _configure(stream: Stream, command: Configure, now_ms: int) -> Configured | Unchanged:
    if (command.retention, command.topic) == (stream.retention, stream.topic):
        return Unchanged(stream.tail, stream.closed)
    return Configured(stream.sid, command.retention, command.topic, now_ms)


def decide_snapshot(stream: Stream, command: PublishSnapshot, now_ms: int) -> SnapshotPublished:
    content_types.check(command.content_type)
    if stream.durability == Durability.EPHEMERAL:
        raise BadSnapshotOffset("the stream is ephemeral: it has no offset that outlives this process")
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
    if command.content_type is None:
        if stream.is_json and command.records and not json_mode.are_values(command.records):
            raise ContentTypeMismatch(stream.content_type, content_types.DEFAULT)
    elif command.content_type != stream.media:
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

    if stream.topic is not None and stream.topic.reject_when_full:
        _demand_room(stream, command.records)

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
        command.labels,
        stream.count,
    )


def _demand_room(stream: Stream, records: list[bytes]) -> None:
    """Raises TopicFull when the stream's policy would have to let go of something for these."""
    policy = stream.retention
    if policy is None:
        return
    if policy.records is not None and stream.live_count + len(records) > policy.records:
        raise TopicFull("records", policy.records, stream.live_count)
    if policy.bytes is not None and stream.live_bytes + sum(map(len, records)) > policy.bytes:
        raise TopicFull("bytes", policy.bytes, stream.live_bytes)


def _create_and_append(
    create: Create, command: Append, now_ms: int, sid: int, limits: Limits
) -> CreatedAndAppended | Unchanged:
    """The append is judged by the stream as it would be: one that is refused makes none."""
    created = _created(create, now_ms, sid, limits, None)
    appended = _append(Stream(born(created, 0)), command, now_ms, limits)
    return appended if isinstance(appended, Unchanged) else CreatedAndAppended(created, appended)


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
