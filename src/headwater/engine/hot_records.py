"""The records that memory holds, for whoever reads them by position: walked in the order of the log, or only counted.

Owns the walk and the count, in slices between other work. Never shows a record that is not synced or that its stream
let go of, and ends early rather than miss one: a flush that comes in between takes records away, so the walk is over
before it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from headwater.engine.feed import Batch, batches_of
from headwater.engine.group import Group
from headwater.engine.loaded_stream import UNBORN, LoadedStream
from headwater.model.choices import Chosen

SLICE_STREAMS, SLICE_BATCHES = 4_000, 1_000
"""Done without a pause: about 2 ms of the event loop each."""
ROW_BYTES = 64
"""What a record takes beside its payload, about."""


class Walked(NamedTuple):
    batches: list[Batch]
    rows_count: int
    payload_bytes: int
    position: int
    """Nothing that memory held after the start and up to here was left out."""
    lake_position: int
    """As it was during the whole walk."""


class Counted(NamedTuple):
    """Records of a range, as far as memory holds them."""

    rows_count: int
    payload_bytes: int
    """Those of deleted records among them count too."""
    oldest_ms: int | None
    """When the first of them came; None when there is none."""
    position: int
    """Up to here nothing that memory held after the start was left out."""


def settling(group: Group) -> tuple[int, int]:
    """Changes whenever records leave memory for the lake."""
    return group.lake_position(), group.settled_count


async def count(group: Group, after: int, until: int, chosen: Chosen | None = None) -> Counted | None:
    """How much of the chosen streams memory holds in the range; None when some of it settled meanwhile.

    Costs a bisection for each stream that holds anything, or each such stream of the bucket that is meant, whatever the
    number of records.
    """
    before = settling(group)
    limit = min(until, group.log.synced)
    rows_count = payload_bytes = 0
    oldest_ms: int | None = None
    for number, stream in enumerate(_held(group, chosen)):
        if number % SLICE_STREAMS == SLICE_STREAMS - 1:
            await asyncio.sleep(0)
        timeline = stream.timeline
        positions = timeline.positions
        if not positions or positions[-1] <= after or stream.visible == UNBORN:
            continue
        if chosen is not None and chosen.keys is None and not chosen.takes(stream.key):
            continue
        seq = timeline.seq
        first = max(bisect_right(positions, after), stream.first_seq - seq)
        last = bisect_right(positions, limit)
        for low, high in stream.holes.live(seq + first, seq + last) if first < last else ():
            rows_count += high - low
            payload_bytes += timeline.ends[high - seq - 1] - timeline.begin_of(low - seq)
            ms = timeline.ms[low - seq]
            oldest_ms = ms if oldest_ms is None else min(oldest_ms, ms)
    return Counted(rows_count, payload_bytes, oldest_ms, max(after, limit)) if settling(group) == before else None


async def walk(
    group: Group,
    after: int,
    until: int,
    rows_max: int,
    bytes_max: int,
    payload_only: bool,
    chosen: Chosen | None = None,
) -> Walked:
    """Records with `after` < position <= `until`, at most about as many as asked for, but all of one event together.
    Of the chosen streams alone, if a choice is given.

    The first event is taken whatever its size. `bytes_max` bounds payloads alone, or with what rows take beside them.
    """
    lake_position = group.lake_position()
    before = settling(group)
    limit = min(until, group.log.synced)
    heap = await _heap(group, after, limit, chosen)
    batches: list[Batch] = []
    rows_count = payload_bytes = steps_count = 0
    position = max(after, limit)
    taken = after
    holding = group.loaded.holding
    if settling(group) != before:  # also when nothing is left to walk: it may all have settled just now
        return Walked([], 0, 0, after, lake_position)
    while heap:
        if steps_count and steps_count % SLICE_BATCHES == 0:
            await asyncio.sleep(0)
            # One stream by itself can settle too, and leave the lake's position where it was.
            if settling(group) != before:
                position = taken
                break
        steps_count += 1
        at, sid, stream = heap[0]
        positions = stream.timeline.positions
        last = bisect_right(positions, at)
        first = bisect_left(positions, at, 0, last)
        some = batches_of(stream, first, last, at) if holding.get(sid) is stream else []
        if some:
            count = sum(len(batch.payloads) for batch in some)
            size = sum(batch.ends[-1] - batch.start for batch in some)
            more = payload_bytes + size + (0 if payload_only else ROW_BYTES * (rows_count + count))
            if batches and (rows_count + count > rows_max or more > bytes_max):
                position = taken
                break
            batches += some
            rows_count += count
            payload_bytes += size
        taken = at
        if last < len(positions) and positions[last] <= limit:
            heapreplace(heap, (positions[last], sid, stream))
        else:
            heappop(heap)
    return Walked(batches, rows_count, payload_bytes, position, lake_position)


def _held(group: Group, chosen: Chosen | None) -> list[LoadedStream]:
    """Streams that hold something: of those that are named, or of the bucket, these alone, otherwise all."""
    holding = group.loaded.holding
    if chosen is None or chosen.keys is None:
        bucket = None if chosen is None else chosen.choice.bucket
        return list((holding if bucket is None else group.loaded.holding_by_bucket.get(bucket, {})).values())
    found = (group.loaded.by_key.get(key) for key in chosen.keys)
    return [stream for stream in found if stream is not None and holding.get(stream.sid) is stream]


async def _heap(group: Group, after: int, limit: int, chosen: Chosen | None) -> list[tuple[int, int, LoadedStream]]:
    """The first event of each stream that holds one in the range."""
    heap: list[tuple[int, int, LoadedStream]] = []
    for number, stream in enumerate(_held(group, chosen)):
        if number % SLICE_STREAMS == SLICE_STREAMS - 1:
            await asyncio.sleep(0)
        positions = stream.timeline.positions
        if not positions or positions[-1] <= after or stream.visible == UNBORN:
            continue
        index = bisect_right(positions, after)
        # The test of the name comes last: of most streams nothing is new.
        if positions[index] <= limit and (chosen is None or chosen.keys is not None or chosen.takes(stream.key)):
            heap.append((positions[index], stream.sid, stream))
    heapify(heap)
    return heap
