"""Retention: how much of a stream its policy lets go.

Owns the arithmetic. Never trims: it names the offset that becomes the earliest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from headwater.model import forks
from headwater.model.extents import Extent
from headwater.model.stream_state import Stream


class Oldest(NamedTuple):
    """The oldest range of settled records that a stream keeps, and what has to pass before it may go as a whole."""

    earliest: int
    """The stream's earliest offset when this was true."""
    end: int
    seq_end: int
    newest_ms: int
    """No record of it is newer than this."""
    position: int
    """Log position of its last record; 0 when that is an ancestor's."""
    first_ms: int
    """Of its first record."""


class Ages(NamedTuple):
    """How old the records of one extent are."""

    start: int
    end: int
    seq_start: int
    ms: list[int]
    ends: list[int]
    positions: list[int]


def cut(stream: Stream, visible: int, now_ms: int) -> int | None:
    """The offset before which the stream's policy keeps nothing; None when all of it stays.

    Only records that readers can already see are let go, so that what goes was promised first. Cost: bisections.
    """
    policy = stream.retention
    timeline = stream.timeline
    if policy is None or not timeline.payloads:
        return None
    shown = timeline.index_until(visible)
    keep = 0
    if policy.records is not None:
        keep = max(keep, _index_by_count(stream, shown, policy.records))
    if policy.bytes is not None:
        # Deleted records take no room, but where they lie is not looked at: what is kept is a little too much then.
        surplus = visible - policy.bytes - stream.holes.bytes
        if surplus > timeline.start:
            # The newest record stays even when it alone is larger than the bound.
            keep = max(keep, min(shown - 1, timeline.index_until(surplus - 1) + 1))
    if policy.age_ms is not None:
        keep = max(keep, min(shown, bisect_left(timeline.ms, max(0, now_ms - policy.age_ms))))
    if keep <= 0:
        return None
    offset = timeline.ends[min(keep, shown) - 1]
    return offset if offset > stream.earliest else None


def _index_by_count(stream: Stream, shown: int, records_max: int) -> int:
    """How many held records have to go so that at most `records_max` of those shown are left, deleted ones not counted.

    Linear in the holes among them."""
    timeline, holes = stream.timeline, stream.holes
    surplus = shown - records_max
    if surplus <= 0 or not holes.count:
        return surplus
    live = timeline.seq + shown - stream.first_seq - holes.before(timeline.seq + shown)
    left = live - records_max
    number = stream.first_seq
    for run in holes:
        if left <= run.first - number:
            break
        left -= run.first - number
        number = run.last
    return number + left - timeline.seq if left > 0 else 0


def beyond(oldest: Oldest, stream: Stream, visible: int, now_ms: int) -> bool:
    """True when the policy keeps nothing of a settled range. A range goes as a whole or stays."""
    policy = stream.retention
    if policy is None or oldest.end > visible:
        return False
    timeline = stream.timeline
    shown = timeline.seq + timeline.index_until(visible) if timeline.payloads else stream.count
    holes = stream.holes
    kept = shown - holes.count  # as if no deleted record lay after the range: it goes rather late than early
    return (
        (policy.records is not None and oldest.seq_end <= kept - policy.records)
        or (policy.bytes is not None and oldest.end <= visible - policy.bytes - holes.bytes)
        or (policy.age_ms is not None and oldest.newest_ms < now_ms - policy.age_ms)
    )


def aged(stream: Stream, ages: Ages, now_ms: int) -> tuple[int, int, int] | None:
    """Of an extent that goes in part, what `RetentionRules.cut` says: where its records begin that are not too old."""
    policy, held_by = stream.retention, forks.holder(stream, stream.earliest)
    if policy is None or policy.age_ms is None or not ages.start <= stream.earliest < ages.end:
        return None
    limit = forks.limit_of(stream, held_by)
    count = bisect_left(ages.ms, max(0, now_ms - policy.age_ms))
    count = min(count, bisect_right(ages.ends, limit))
    if not count or ages.ends[count - 1] <= stream.earliest:
        return None
    return ages.ends[count - 1], ages.seq_start + count, ages.positions[count - 1] if held_by is stream else 0


def settled(stream: Stream, held_by: Stream, extents: list[Extent]) -> list[Oldest]:
    """What `stream` sees of extents of `held_by` (itself or an ancestor), oldest first, cut off at its fork point."""
    limit = forks.limit_of(stream, held_by)
    timeline = held_by.timeline
    # Ids grow: no record of an extent is newer than the first one after it.
    last_ms = timeline.ms[0] if timeline.payloads else held_by.last_ms
    found = []
    for index, extent in enumerate(extents):
        if extent.start >= limit:
            break
        end, seq_end = extent.end, extent.seq_start + extent.row_count
        position = extent.position if held_by is stream else 0
        if end > limit:
            end, seq_end = limit, _seq_of_fork(stream, held_by)
        newest_ms = extents[index + 1].ms if index + 1 < len(extents) else last_ms
        found.append(Oldest(stream.earliest, end, seq_end, newest_ms, position, extent.ms))
    return found


def _seq_of_fork(stream: Stream, held_by: Stream) -> int:
    """How many records lie before the point that `limit_of` names."""
    at, seq = stream.tail, stream.count
    while stream is not held_by and stream.parent is not None:
        if stream.forked is not None and stream.fork_at <= at:
            at, seq = stream.fork_at, stream.forked.seq
        stream = stream.parent
    return seq
