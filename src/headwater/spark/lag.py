"""What waits for a query: how many records of the streams that it reads it has not read, and since when.

Owns the sums over what groups answered. Never asks a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headwater.spark.group_states import State
from headwater.spark.ranges import Positions, Range


class Waiting(NamedTuple):
    rows_count: int
    """In memory exactly; in files about."""
    oldest_ms: int | None
    """When the first of them came; of one in a file, when the file was written. None: there is none."""
    is_certain: bool
    """False: somewhere nobody counted, and there may be more."""

    def told(self, now_ms: int, taken_count: int) -> dict[str, Any]:
        """As a query's progress shows it."""
        waited_ms = 0 if self.oldest_ms is None else max(now_ms - self.oldest_ms, 0)
        left = max(self.rows_count - taken_count, 0)
        return {"records": self.rows_count, "milliseconds": waited_ms, "recordsAfterBatch": left}


def waiting(states: Mapping[int, State], lows: Positions) -> Waiting:
    """What the groups hold behind these positions, by answers about just those."""
    rows_count = 0
    moments: list[int] = []
    is_certain = True
    for group, low in lows.items():
        state = states.get(group)
        if state is None or state.matched is None:
            is_certain = False
            continue
        rows_count += state.matched.rows_count
        if state.matched.oldest_ms is not None:
            moments.append(state.matched.oldest_ms)
        if state.listing is None:
            continue
        settled = Range(low, state.listing.position)
        for file in state.listing.files:
            if not file.meets(settled):
                # What a flush took further than others is not counted in memory.
                is_certain = is_certain and not (file.position_max > low and file.matched_rows != 0)
                continue
            if file.matched_rows is None:
                is_certain = False
            rows = rows_within(file.chosen_rows, file.range, settled)
            rows_count += rows
            if rows:
                moments.append(file.modified_ms)
    return Waiting(rows_count, min(moments, default=None), is_certain)


def rows_within(rows_count: int, held: Range, wanted: Range) -> int:
    """How many of a file's rows lie in a range, when they lie evenly; at least one if there is any."""
    width = max(held.until - held.after, 1)
    part = min(held.until, wanted.until) - max(held.after, wanted.after)
    return min(rows_count, max(1, rows_count * part // width)) if rows_count and part > 0 else 0
