"""Who waits for the jobs of a queue, and for how long.

Owns the line of claimers: its order, its bound and the ends of waits. Never knows a job and never looks at a clock.

Whoever came first is first in line. One who stays, a worker, stands at its end again after it was served.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple, Protocol

from headwater.engine.record_reads import TopicRecord
from headwater.errors import Failure
from headwater.model.queue_events import Lease
from headwater.model.queues import Wish

LINE_MAX = 100_000
"""Claimers that wait for one queue. Overflow: whoever comes is told at once what there is."""
STALE_MIN = 64
_NOBODY = object()


class Job(NamedTuple):
    """What a claimer gets."""

    lease: Lease
    record: TopicRecord


class Claimer(Protocol):
    """Someone in line. None of these may raise."""

    @property
    def until_s(self) -> float:
        """When it does not wait any longer, by the monotonic clock."""
        ...

    @property
    def stays(self) -> bool:
        """It is served again and again: a worker."""
        ...

    def wish(self) -> Wish | None:
        """None: it can take nothing now, or it is gone; it leaves the line. Changes nothing."""
        ...

    def got(self, jobs: list[Job] | Failure) -> None:
        """One that does not stay is told once, with no jobs when its wait was over. A failure ends one that stays."""
        ...


class Line:
    def __init__(self) -> None:
        self._claimers: dict[Claimer, object] = {}
        """In the order they came."""
        self._waits: list[tuple[float, int, Claimer]] = []
        """A heap of ends of waits. Entries of claimers that have left do not count."""
        self._ties = count()

    def __len__(self) -> int:
        return len(self._claimers)

    def __iter__(self) -> Iterator[Claimer]:
        return iter(self._claimers)

    def stand(self, claimer: Claimer) -> None:
        claimers = self._claimers
        if claimer in claimers:
            return
        until_s = claimer.until_s if len(claimers) < LINE_MAX or claimer.stays else 0.0
        claimers[claimer] = None
        if until_s != inf:
            heappush(self._waits, (until_s, next(self._ties), claimer))
            if len(self._waits) > 2 * len(claimers) + STALE_MIN:
                self._waits = [entry for entry in self._waits if entry[2] in claimers]
                heapify(self._waits)

    def leave(self, claimer: Claimer) -> bool:
        """False when it was not in line."""
        return self._claimers.pop(claimer, _NOBODY) is not _NOBODY

    def first(self, count_max: int) -> tuple[list[Claimer], list[Wish]]:
        """Those who want something, `count_max` at most. Who wants nothing leaves."""
        claimers: list[Claimer] = []
        wishes: list[Wish] = []
        left = []
        for claimer in self._claimers:
            wish = claimer.wish()
            if wish is None:
                left.append(claimer)
                continue
            claimers.append(claimer)
            wishes.append(wish)
            if len(claimers) >= count_max:
                break
        for claimer in left:
            del self._claimers[claimer]
        return claimers, wishes

    def next_end_s(self) -> float:
        """When the next wait is over."""
        waits = self._waits
        while waits and waits[0][2] not in self._claimers:
            heappop(waits)
        return waits[0][0] if waits else inf

    def take_ended(self, now_s: float) -> list[Claimer]:
        """Those whose wait is over. They have left."""
        found = []
        while self.next_end_s() <= now_s:
            claimer = heappop(self._waits)[2]
            del self._claimers[claimer]
            found.append(claimer)
        return found

    def take_all(self) -> list[Claimer]:
        claimers, self._claimers = self._claimers, {}
        self._waits = []
        return list(claimers)
