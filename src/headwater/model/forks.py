"""Forks: streams that share the past of another.

Owns where a fork begins and how a range of offsets is spread over a fork and its ancestors. Never changes a stream.

A fork holds only its own records; those before its fork point are its parent's, which may hold only its own, and so on.
"""

from __future__ import annotations

from typing import NamedTuple

from headwater.errors import BadHeader, ContentTypeMismatch, SourceDeleted, SourceNotFound
from headwater.model.commands import Create, Durability, Fork
from headwater.model.content_types import normalise
from headwater.model.events import Forked
from headwater.model.stream_state import Stream
from headwater.model.timeline import Timeline


class Span(NamedTuple):
    """Records [first, last) of one timeline."""

    timeline: Timeline
    first: int
    last: int


class Following(NamedTuple):
    """A message that lies behind an offset."""

    payload: bytes
    begin: int
    number: int


def holder(stream: Stream, offset: int) -> Stream:
    """The stream of the chain that holds the record which begins at `offset`."""
    while stream.parent is not None and offset < stream.fork_at:
        stream = stream.parent
    return stream


def holder_of(stream: Stream, number: int) -> tuple[Stream, int]:
    """The stream of the chain that holds that record, and the number up to which `stream` sees records of it."""
    until = stream.count
    while stream.parent is not None and stream.forked is not None and number < stream.forked.seq:
        until = min(until, stream.forked.seq)
        stream = stream.parent
    return stream, until


def limit_of(stream: Stream, held_by: Stream) -> int:
    """The offset up to which `stream` sees records of its ancestor `held_by`: the nearest fork point between them."""
    limit = stream.tail
    while stream is not held_by and stream.parent is not None:
        limit = min(limit, stream.fork_at)
        stream = stream.parent
    return limit


class ColdOffset(Exception):
    """Memory does not hold the place: the lake has to be asked what lies at `offset` of `stream`."""

    def __init__(self, stream: Stream, offset: int) -> None:
        self.stream = stream
        self.offset = offset


def seq_at(stream: Stream, offset: int) -> int | None:
    """How many records lie before `offset`; None when it is inside one. Raises ColdOffset."""
    if offset == stream.earliest:
        return stream.first_seq
    if offset == stream.tail:
        return stream.count
    if stream.forked is not None and offset == stream.fork_at:
        return stream.forked.seq
    if stream.holes.count and (number := stream.holes.first_at(offset)) is not None:
        return number
    timeline = holder(stream, offset).timeline
    if offset < timeline.start:
        raise ColdOffset(stream, offset)
    index = timeline.index_at(offset)
    return None if index is None else timeline.seq + index


def position_before(stream: Stream, offset: int) -> int:
    """Log position of the stream's own record that ends at `offset`; 0 when that is another's, or gone already.

    Memory holds what begins at `offset`, or nothing does: see `seq_at`.
    """
    if offset <= max(stream.earliest, stream.fork_at):
        return 0
    index = stream.timeline.index_at(offset)
    # Where memory begins, the newest settled record ends.
    return stream.timeline.positions[index - 1] if index else stream.cold_position


def spans(stream: Stream, offset: int, until: int) -> list[Span] | None:
    """The records of [offset, until) in order; None when `offset` is no record boundary. Linear in the fork depth.

    Ends early where memory does not hold the rest; raises ColdOffset when it does not even hold the first.
    """
    found: list[Span] = []
    while offset < until:
        held_by = holder(stream, offset)
        timeline = held_by.timeline
        if offset < timeline.start:
            if not found:
                raise ColdOffset(held_by, offset)
            break
        first = timeline.index_at(offset)
        if first is None:
            return None
        end = min(until, limit_of(stream, held_by))
        last = timeline.index_until(end)
        if last <= first:
            break
        found.append(Span(timeline, first, last))
        offset = timeline.ends[last - 1]
    return found


def resolve(source: Stream | None, command: Create) -> tuple[Forked, list[bytes]]:
    """Where a fork of `source` begins, and the part of a split message it has to hold itself.

    Raises the failures a fork request can earn; nothing has changed then.
    """
    fork = command.fork
    if fork is None:
        raise RuntimeError("not a fork")
    if source is None:
        raise SourceNotFound
    if source.soft_deleted:
        raise SourceDeleted
    if source.durability == Durability.EPHEMERAL:
        raise BadHeader("Stream-Forked-From", "an ephemeral stream cannot be forked: its records end with this process")
    if command.content_type is not None and normalise(command.content_type) != source.media:
        raise ContentTypeMismatch(source.content_type, command.content_type)
    if fork.sub and fork.offset is None:
        raise BadHeader("Stream-Fork-Sub-Offset", "it counts from Stream-Fork-Offset, which is missing")
    at = source.tail if fork.offset is None else fork.offset
    if at > source.tail:
        raise BadHeader("Stream-Fork-Offset", "it lies beyond the source's tail")
    if at < source.earliest:
        raise BadHeader("Stream-Fork-Offset", "the source no longer keeps what lies before it")
    point = fork.point
    if point is not None:
        return _forked(source, point.at, point.seq, fork), point.prefix
    prefix: list[bytes] = []
    seq = seq_at(source, at)
    if seq is None:
        raise BadHeader("Stream-Fork-Offset", "it lies inside a message")
    if fork.sub:
        at, seq, prefix = sub_offset(source.is_json, fork.sub, _following(source, at, fork.sub))
    return _forked(source, at, seq, fork), prefix


def _following(source: Stream, at: int, count: int) -> list[Following]:
    """The `count` messages after `at` that are there (one is enough on a byte stream)."""
    found: list[Following] = []
    wanted = count if source.is_json else 1
    for span in spans(source, at, source.tail) or []:
        timeline = span.timeline
        for low, high in source.holes.live(timeline.seq + span.first, timeline.seq + span.last):
            for number in range(low, min(high, low + wanted - len(found))):
                index = number - timeline.seq
                found.append(Following(timeline.payloads[index], timeline.begin_of(index), number))
            if len(found) >= wanted:
                return found
    return found


def sub_offset(is_json: bool, sub: int, following: list[Following]) -> tuple[int, int, list[bytes]]:
    """Fork point, its seq, and the part of a split message, `sub` beyond an offset. `following`: the messages there."""
    if is_json:
        if len(following) < sub:
            raise BadHeader("Stream-Fork-Sub-Offset", "the source has fewer messages behind the offset")
        last = following[sub - 1]
        return last.begin + len(last.payload), last.number + 1, []
    if not following:
        raise BadHeader("Stream-Fork-Sub-Offset", "the source has no message behind the offset")
    payload, begin, number = following[0]
    if sub > len(payload):
        raise BadHeader("Stream-Fork-Sub-Offset", "the message behind the offset is shorter")
    if sub == len(payload):
        return begin + sub, number + 1, []
    return begin, number, [payload[:sub]]


def _forked(source: Stream, at: int, seq: int, fork: Fork) -> Forked:
    # Ids of the fork go on after everything its source has: the last shared record's would do, but need not be known.
    return Forked(source.sid, at, seq, source.last_ms, source.last_n, fork.offset, fork.sub)
