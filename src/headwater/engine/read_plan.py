"""Read plans: which records answer a read. Payloads by reference, nothing copied, nothing waited for.

Owns what a reader may see of a stream. Never changes one.

Deleted records are passed over: a read goes from one live run of records to the next, as far as there is room and at
most PIECES_MAX of them, and where it ends at a hole its end is the hole's, so that the next read goes on behind it. A
reader that stands in a hole at the tail is at the tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import msgspec

from headwater.engine.loaded_stream import UNBORN, LoadedStream
from headwater.errors import BadQuery, OffsetBeyondTail, OffsetGone
from headwater.model import forks
from headwater.model.offsets import NOW, START
from headwater.model.stream_state import Stream

Data = bytes | memoryview
PIECES_MAX = 1_000
"""Live runs that one read gathers, about a microsecond each."""


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
    size: int
    """How many bytes they have. Less than from `start` to `end` where deleted ones lie between."""


class Cold(msgspec.Struct, frozen=True):
    """A read that begins in the lake: records of `held_by` from `offset` on, as `stream` shows them."""

    stream: LoadedStream
    held_by: Stream
    start: int
    """Where the reader stands: at `offset`, or in a hole before it."""
    offset: int
    until: int
    pieces: list[tuple[int, int]]
    """Where live records lie, from `offset` up to `until`: one piece when none was deleted."""
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
    if stream.holes.count:
        return _around(stream, offset, bytes_max, joined)
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
            return Cold(stream, held_by, offset, offset, until, [(offset, until)], bytes_max, joined)
        payloads, end = _across(stream, offset, min(visible, offset + bytes_max))
    return shown(stream, payloads, offset, end, len(payloads), end - offset)


def shown(stream: LoadedStream, payloads: Sequence[Data], start: int, end: int, count: int, size: int) -> Slice:
    at_tail = end == stream.visible
    return Slice(stream, payloads, start, end, at_tail, at_tail and stream.closed_visible, count, size)


def shown_count(stream: LoadedStream) -> int:
    """How many records, deleted ones counted, readers may see: numbers below it."""
    if stream.visible >= stream.tail:
        return stream.count
    if stream.visible == UNBORN:
        return 0
    return stream.timeline.seq + stream.timeline.index_until(stream.visible)


def behind_hole(stream: LoadedStream, offset: int) -> int:
    """Where a reader goes on that has everything up to `offset`."""
    return min(stream.holes.after(offset), max(stream.visible, offset))


def _around(stream: LoadedStream, start: int, bytes_max: int, joined: bool) -> Slice | Cold:
    """The same on a stream with holes. Costs a microsecond for each that lies in the answer."""
    offset = behind_hole(stream, start)
    if offset == stream.visible:
        return shown(stream, [], start, offset, 0, 0)
    held_by = forks.holder(stream, offset)
    timeline = held_by.timeline
    if offset < timeline.start:
        pieces = _pieces(stream, held_by, offset, bytes_max)
        return Cold(stream, held_by, start, offset, pieces[-1][1], pieces, bytes_max, joined)
    first = timeline.index_at(offset)
    if first is None:
        raise _between()
    payloads: list[Data] = []
    size = 0
    for low, high in islice(stream.holes.live(timeline.seq + first, shown_count(stream)), PIECES_MAX):
        number = low
        while number < high:
            held_by, until = forks.holder_of(stream, number)
            timeline = held_by.timeline
            if number < timeline.seq:
                break  # the lake has it
            first, last = number - timeline.seq, min(high, until) - timeline.seq
            begin = timeline.begin_of(first)
            last = min(last, timeline.index_until(begin + max(bytes_max - size, 0)))
            if not payloads:
                last = max(last, first + 1)
            if last <= first:
                break
            payloads += timeline.payloads[first:last]
            offset = timeline.ends[last - 1]
            size += offset - begin
            number = timeline.seq + last
        if number < high:
            break
    return shown(stream, payloads, start, behind_hole(stream, offset), len(payloads), size)


def _pieces(stream: LoadedStream, held_by: Stream, offset: int, bytes_max: int) -> list[tuple[int, int]]:
    holes, pieces, size = stream.holes, list[tuple[int, int]](), 0
    until = min(stream.visible, held_by.timeline.start, forks.limit_of(stream, held_by))
    while offset < until and size < bytes_max and len(pieces) < PIECES_MAX:
        hole = holes.next_begin(offset)
        end = until if hole is None else min(until, hole)
        pieces.append((offset, end))
        size += end - offset
        offset = holes.after(end)
    return pieces


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
