"""Whether a write to a topic is taken now: refused only when deliveries are late and what takes writes in is full too.

Owns what full means. Never holds a write back: it is taken, or refused with the time to come again.

A group is full when its log has more to write than `UNWRITTEN_BYTES_MAX`, or when its records take more than
`FULL_PART` of the memory at which every write is refused (`Group.submit` answers that with Overloaded, also by other
doors, and whatever the pressure is).
"""

from __future__ import annotations

from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.loaded_stream import LoadedStream
from headwater.errors import Throttled
from headwater.topics.delivery import Delivery

UNWRITTEN_BYTES_MAX = 16 * 1024 * 1024
FULL_PART = 7 / 8


class Admission:
    def __init__(self, engine: Engine, delivery: Delivery) -> None:
        self._engine = engine
        self._delivery = delivery
        self.refused_count = 0

    def demand(self, stream: LoadedStream) -> None:
        """Raises Throttled; NotServedHere when the topic's group has left."""
        if is_full(self._engine.group_of(stream).group):
            retry_after_ms = self._delivery.retry_after_ms(ingest_full=True)
            if retry_after_ms is not None:
                self.refused_count += 1
                raise Throttled(retry_after_ms)


def is_full(group: Group) -> bool:
    unwritten = group.log.tail - group.log.written
    return unwritten > UNWRITTEN_BYTES_MAX or group.loaded.hot_bytes + unwritten > FULL_PART * group.hot_bytes_max
