"""Retention: how much of a stream its policy lets go.

Owns the arithmetic. Never trims: it names the offset that becomes the earliest.
"""

from __future__ import annotations

from bisect import bisect_left

from headwater.model.stream import Stream


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
        keep = max(keep, shown - policy.records)
    if policy.bytes is not None:
        surplus = visible - policy.bytes
        if surplus > timeline.start:
            # The newest record stays even when it alone is larger than the bound.
            keep = max(keep, min(shown - 1, timeline.index_until(surplus - 1) + 1))
    if policy.age_ms is not None:
        keep = max(keep, min(shown, bisect_left(timeline.ms, max(0, now_ms - policy.age_ms))))
    if keep <= 0:
        return None
    offset = timeline.ends[min(keep, shown) - 1]
    return offset if offset > stream.earliest else None
