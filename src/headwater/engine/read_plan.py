"""Read plans: which records answer a read. Payloads by reference, nothing copied, nothing waited for.

Owns what a reader may see of a stream. Never changes one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headwater.engine.loaded_stream import LoadedStream
from headwater.errors import BadQuery, OffsetBeyondTail, OffsetGone
from headwater.model import forks
from headwater.model.offsets import NOW, START
from headwater.model.stream_state import Stream

Data = bytes | memoryview


class Slice(msgspec.Struct, frozen=True):
    """A planned read."""

    stream: LoadedStream
    payloads: Sequence[Data]
    """The records; in a joined read also stretches of them, on a JSON stream with commas inside. Joined, by commas on a
    JSON stream, they are the body."""
    start: int
    end: int
    up_to_date: bool
    closed: bool
    """True when the stream is closed and `end` is its final offset."""
    count: int
    """How many records these are."""


class Cold(msgspec.Struct, frozen=True):
    """A read that begins in the lake: records of `held_by` from `offset` on, as `stream` shows them."""

    stream: LoadedStream
    held_by: Stream
    offset: int
    until: int
    bytes_max: int
    joined: bool
    """True when nobody asks where one record ends and the next begins."""


def plan(stream: LoadedStream, offset: int, bytes_max: int, joined: bool = False) -> Slice | Cold:
    """Plans a read from `offset`: at least one record when there is any, else as many as fit `bytes_max`.

    Costs two bisections and a list slice, once per ancestor involved. Raises OffsetGone, OffsetBeyondTail, or BadQuery
    between records.
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
        payloads: Sequence[Data] = []
        end = offset
    elif offset >= stream.fork_at and offset >= timeline.start:
        first = timeline.index_at(offset)
        if first is None:
            raise _between()
        last = timeline.index_until(min(visible, offset + bytes_max))
        if last <= first:
            last = first + 1
        payloads = timeline.payloads[first:last]
        end = timeline.ends[last - 1]
    else:
        held_by = forks.holder(stream, offset)
        if offset < held_by.timeline.start:
            until = min(visible, held_by.timeline.start, forks.limit_of(stream, held_by))
            return Cold(stream, held_by, offset, until, bytes_max, joined)
        payloads, end = _across(stream, offset, min(visible, offset + bytes_max))
    return shown(stream, payloads, offset, end, len(payloads))


def shown(stream: LoadedStream, payloads: Sequence[Data], start: int, end: int, count: int) -> Slice:
    at_tail = end == stream.visible
    return Slice(stream, payloads, start, end, at_tail, at_tail and stream.closed_visible, count)


def _across(stream: LoadedStream, offset: int, until: int) -> tuple[list[bytes], int]:
    """A read that begins in the records of an ancestor that memory holds."""
    timeline = forks.holder(stream, offset).timeline
    first = timeline.index_at(offset)
    if first is None:
        raise _between()
    spans = forks.spans(stream, offset, until)
    if not spans:
        return [timeline.payloads[first]], timeline.ends[first]
    payloads: list[bytes] = []
    for span in spans:
        payloads += span.timeline.payloads[span.first : span.last]
    return payloads, spans[-1].timeline.ends[spans[-1].last - 1]


def _between() -> BadQuery:
    return BadQuery("offset", "it lies inside a message; use an offset returned by this server")
