"""What the queues of a process did since its start, in numbers.

Owns the counts that a queue's own state does not keep. Never decides anything.
"""

from __future__ import annotations

from headwater.histogram import Histogram
from headwater.model.queue_events import Passed, QueueEvent, Released


class QueueFigures:
    __slots__ = ("expired_count", "hand_times", "nacks_count", "returned_count")

    def __init__(self) -> None:
        self.nacks_count = 0
        self.expired_count = 0
        """Leases that ended by their deadline."""
        self.returned_count = 0
        """Jobs that came back without an ack: by a deadline, a nack or the end of a connection."""
        self.hand_times = Histogram()
        """From a pass over a queue until its claimers may be told: as long as their leases take to be as durable as the
        queue promises."""

    def committed(self, event: QueueEvent) -> None:
        if isinstance(event, Passed):
            ended = len(event.expired) + len(event.dead)
            self.expired_count += ended
            self.returned_count += ended
        elif isinstance(event, Released):
            self.returned_count += len(event.jobs) + len(event.dead)
