"""The log of a node that keeps nothing: positions advance, every event is at once as durable as it will be.

Owns a counter. Never touches a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headwater.histogram import Histogram
from headwater.model.events import Event
from headwater.ports import LogFailure


class NullLog:
    def __init__(self) -> None:
        self.head = 0
        self.tail = 0
        self.written = 0
        self.synced = 0
        self.failure: LogFailure | None = None
        self.sync_times = Histogram()

    def add(self, event: Event, sync: bool) -> int:
        self.tail = self.written = self.synced = position = self.tail + 1
        return position

    def commit(self) -> None: ...

    def replay(self, promised: int = 0) -> Iterator[tuple[int, Event]]:
        return iter(())

    def start(self, on_progress: Callable[[], None]) -> None: ...

    def trim(self, below: int) -> None: ...

    def close(self) -> None: ...
