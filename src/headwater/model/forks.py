"""Forks: streams that share the past of another.

Owns where a fork begins and how a range of offsets is spread over a fork and its ancestors. Never changes a stream.

A fork holds only its own records; those before its fork point are its parent's, which may hold only its own, and so on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headwater.errors import BadHeader, ContentTypeMismatch, SourceDeleted, SourceNotFound
from headwater.model.commands import Create, Fork
from headwater.model.events import Forked
from headwater.model.json_mode import normalise
from headwater.model.timeline import Timeline

if TYPE_CHECKING:
    from headwater.model.stream import Stream


class Span(NamedTuple):
    """Records [first, last) of one timeline."""

    timeline: Timeline
    first: int
    last: int


def holder(stream: Stream, offset: int) -> Stream:
    """The stream of the chain that holds the record which begins at `offset`."""
    while stream.parent is not None and offset < stream.fork_at:
        stream = stream.parent
    return stream


def limit_of(stream: Stream, held_by: Stream) -> int:
    """The offset up to which `stream` sees records of its ancestor `held_by`: the nearest fork point between them."""
    limit = stream.tail
    while stream is not held_by and stream.parent is not None:
        limit = min(limit, stream.fork_at)
        stream = stream.parent
    return limit


def index_at(stream: Stream, offset: int) -> tuple[Timeline, int] | None:
    """Timeline and index of the record that begins at `offset`; None when no record begins or ends there."""
    held_by = holder(stream, offset)
    index = held_by.timeline.index_at(offset)
    return None if index is None else (held_by.timeline, index)


def spans(stream: Stream, offset: int, until: int) -> list[Span] | None:
    """The records of [offset, until) in order; None when `offset` is no record boundary. Linear in the fork depth."""
    found: list[Span] = []
    while offset < until:
        held_by = holder(stream, offset)
        timeline = held_by.timeline
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
    if command.content_type is not None and normalise(command.content_type) != source.media:
        raise ContentTypeMismatch(source.content_type, command.content_type)
    if fork.sub and fork.offset is None:
        raise BadHeader("Stream-Fork-Sub-Offset", "it counts from Stream-Fork-Offset, which is missing")
    at = source.tail if fork.offset is None else fork.offset
    if at > source.tail:
        raise BadHeader("Stream-Fork-Offset", "it lies beyond the source's tail")
    if at < source.earliest:
        raise BadHeader("Stream-Fork-Offset", "the source no longer keeps what lies before it")
    place = index_at(source, at)
    if place is None:
        raise BadHeader("Stream-Fork-Offset", "it lies inside a message")
    prefix: list[bytes] = []
    if fork.sub:
        at, prefix = _sub_offset(source, at, fork)
    return _forked(source, at, fork), prefix


def _sub_offset(source: Stream, at: int, fork: Fork) -> tuple[int, list[bytes]]:
    rest = spans(source, at, source.tail) or []
    if source.is_json:
        left = fork.sub
        for span in rest:
            held = span.last - span.first
            if left <= held:
                return span.timeline.ends[span.first + left - 1], []
            left -= held
        raise BadHeader("Stream-Fork-Sub-Offset", "the source has fewer messages behind the offset")
    if not rest:
        raise BadHeader("Stream-Fork-Sub-Offset", "the source has no message behind the offset")
    payload = rest[0].timeline.payloads[rest[0].first]
    if fork.sub > len(payload):
        raise BadHeader("Stream-Fork-Sub-Offset", "the message behind the offset is shorter")
    if fork.sub == len(payload):
        return at + fork.sub, []
    return at, [payload[: fork.sub]]


def _forked(source: Stream, at: int, fork: Fork) -> Forked:
    seq, ms, n = 0, 0, -1
    if at:
        # The record that ends at the fork point is the last one shared.
        held_by = holder(source, at - 1)
        timeline = held_by.timeline
        last = timeline.index_until(at) - 1
        if last >= 0:
            seq, ms, n = timeline.seq + last + 1, timeline.ms[last], timeline.n[last]
        else:
            seq, ms, n = source.first_seq, source.last_ms, source.last_n
    return Forked(source.sid, at, seq, ms, n, fork.offset, fork.sub)
