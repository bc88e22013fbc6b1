"""The priority that a topic is delivered with now: its own, and a bonus for having been read lately if it wants that.

Owns when topics were last read, in memory: a process that starts knows of none. Never decides what is served next.
"""

from __future__ import annotations

from headwater.engine.loaded_stream import LoadedStream
from headwater.model.schedule import effective
from headwater.ports import Clock

CONSUMED_MAX = 65_536
"""Topics whose last read is remembered. Overflow: the one that was read least lately is forgotten."""


class Priorities:
    def __init__(self, clock: Clock) -> None:
        self._now_s = clock.monotonic_s
        self._consumed_ms: dict[int, float] = {}
        """By sid, in the order of reads; topics without `auto_priority` are not in it."""

    def of(self, stream: LoadedStream) -> int:
        topic = stream.topic
        if topic is None:
            return 0
        if not topic.auto_priority:
            return topic.priority
        return effective(topic.priority, True, self._consumed_ms.get(stream.sid), self._now_s() * 1000)

    def consumed(self, stream: LoadedStream) -> None:
        """Somebody has been given records of the topic, or asked for its state."""
        topic = stream.topic
        if topic is not None and topic.auto_priority:
            consumed = self._consumed_ms
            consumed.pop(stream.sid, None)
            consumed[stream.sid] = self._now_s() * 1000
            if len(consumed) > CONSUMED_MAX:
                del consumed[next(iter(consumed))]
