"""The records that memory holds, walked once in the order of the log, for whoever reads them by position.

Owns the walk, in slices between other work. Never shows a record that is not synced or that its stream let go of, and
ends early rather than miss one: a flush that comes in between takes records away, so the walk is over before it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from headwater.engine.feed import Batch, batches_of
from headwater.engine.group import Group
from headwater.engine.loaded_stream import UNBORN, LoadedStream

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


async def walk(group: Group, after: int, until: int, rows_max: int, bytes_max: int, payload_only: bool) -> Walked:
    """Records with `after` < position <= `until`, at most about as many as asked for, but all of one event together.

    The first event is taken whatever its size. `bytes_max` bounds payloads alone, or with what rows take beside them.
    """
    lake_position = group.lake_position()
    limit = min(until, group.log.synced)
    heap = await _heap(group, after, limit)
    batches: list[Batch] = []
    rows_count = payload_bytes = steps_count = 0
    position = max(after, limit)
    taken = after
    holding = group.loaded.holding
    while heap:
        if steps_count % SLICE_BATCHES == 0:
            if steps_count:
                await asyncio.sleep(0)
            if group.lake_position() != lake_position:
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


async def _heap(group: Group, after: int, limit: int) -> list[tuple[int, int, LoadedStream]]:
    """The first event of each stream that holds one in the range."""
    heap: list[tuple[int, int, LoadedStream]] = []
    for number, stream in enumerate(list(group.loaded.holding.values())):
        positions = stream.timeline.positions
        index = bisect_right(positions, after)
        if index < len(positions) and positions[index] <= limit and stream.visible != UNBORN:
            heap.append((positions[index], stream.sid, stream))
        if number % SLICE_STREAMS == SLICE_STREAMS - 1:
            await asyncio.sleep(0)
    heapify(heap)
    return heap
