"""Which dirty topic is served next: bands by priority, weights between bands, age against starvation.

Owns the ready set and the order of service. Never delivers anything and never reads a clock: `now_ms` is passed in, of
any clock that does not step backwards; an earlier moment counts as the latest one.

A topic is in the ready set at most once. Its priority and its age decide its band:

    band   priority + age   weight      age: +100 per second since it was enqueued, +1,000 after 10 s
    B4     750 and more     8
    B3     500 to 749       4           Bands change on a step of 50 ms.
    B2     250 to 499       2           Within a band: the one that was enqueued first.
    B1     0 to 249         1           Between bands: a round gives each band as many services as its weight;
    B0     below 0          1           the band with the most left is next, the higher one of equals.

Three places where the specification leaves a choice:

- "No topic waits more than 10 s before reaching the top band": +1,000 alone would not lift a priority below -250 that
  far. After 10 s every topic is in the top band, whatever its priority.
- While low priorities are deferred, a topic with a priority below 0 is served in the top band only. It goes on aging:
  it gets no credit for up to 10 s, and is then served although the pressure lasts. So every push of such a topic is
  paused, and none waits for ever.
- While low priorities are deferred, a router is enqueued one band lower. One that arrives in B0 in this way still gets
  B0's credit: what a router has not copied cannot be polled in its destination, as a deferred topic can.

How long a topic may wait: 10 s until it is in the top band, and then until those of the top band that were enqueued
before it are served: at least 8 of any 16 services, so 2 services for each of them and at most 8 before the first.

Costs, with n topics in the ready set: `mark` is O(1) for a topic that is new, because it is the youngest, and for one
that is ready with this priority; O(log n) when it changes the priority. `take` is O(log n). A topic changes its band by
age at most 4 times, each O(log n), and is found without looking at those that stay. Memory is O(n): entries of topics
that have left are removed before they outnumber the others by much.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from math import ceil
from typing import Generic, NamedTuple, TypeVar

WEIGHTS = (1, 1, 2, 4, 8)
"""Services of a round, by band from B0 to B4."""
TOP = len(WEIGHTS) - 1
BAND_WIDTH = 250
AGE_MS_PER_POINT = 10
AGE_MS_MAX = 10_000
STEP_MS = 50

RECENT_BONUS = 250
RECENT_FULL_MS = 10_000
RECENT_END_MS = 60_000

_GONE_MAX = 32
"""Entries of topics that have left a queue, beyond as many as are in it: more are cleared away."""

Id = TypeVar("Id", bound=Hashable)


def effective(priority: int, auto_priority: bool, last_consumed_ms: float | None, now_ms: float) -> int:
    """The priority of a topic with its bonus for having been consumed lately.

    The bonus is 250 for 10 s and falls evenly to 0 at 60 s. None: nobody has consumed it.
    """
    if not auto_priority or last_consumed_ms is None:
        return priority
    left_ms = RECENT_END_MS - max(now_ms - last_consumed_ms, RECENT_FULL_MS)
    return priority + int(RECENT_BONUS * max(left_ms, 0) / (RECENT_END_MS - RECENT_FULL_MS))


def band_of(priority: float) -> int:
    """The band of a priority with its age, 0 to 4."""
    if priority < 0:
        return 0
    return min(int(priority) // BAND_WIDTH + 1, TOP)


class Taken(NamedTuple, Generic[Id]):
    """A topic whose turn it is."""

    id: Id
    enqueued_ms: float
    deferrable: bool
    """Its priority is below 0: it may have waited because the schedule deferred it."""


class _Item(Generic[Id]):
    __slots__ = ("band", "deferrable", "due_step", "enqueued_ms", "id", "moves_count", "number", "priority", "queue")

    def __init__(self, id: Id, enqueued_ms: float, number: int) -> None:
        self.id = id
        self.enqueued_ms = enqueued_ms
        self.number = number
        self.priority = 0
        self.deferrable = False
        self.band = 0
        self.due_step = 0
        self.moves_count = 0
        self.queue: _Queue[Id] | None = None


class _Queue(Generic[Id]):
    """Topics by the moment at which they were enqueued. Who leaves keeps an entry until it is met or cleared."""

    __slots__ = ("_heap", "count")

    def __init__(self) -> None:
        self.count = 0
        self._heap: list[tuple[float, int, int, _Item[Id]]] = []

    def add(self, item: _Item[Id]) -> None:
        item.queue = self
        item.moves_count += 1
        self.count += 1
        heappush(self._heap, (item.enqueued_ms, item.number, item.moves_count, item))

    def remove(self, item: _Item[Id]) -> None:
        item.queue = None
        item.moves_count += 1
        self.count -= 1
        heap = self._heap
        if len(heap) > 2 * self.count + _GONE_MAX:
            heap[:] = [entry for entry in heap if entry[2] == entry[3].moves_count]
            heapify(heap)

    def first(self) -> _Item[Id] | None:
        heap = self._heap
        while heap:
            entry = heap[0]
            if entry[2] == entry[3].moves_count:
                return entry[3]
            heappop(heap)
        return None


class Schedule(Generic[Id]):
    """The ready set. See the head of this module for its rules and costs."""

    def __init__(self) -> None:
        self.deferring = False
        """Topics with a priority below 0 are served in the top band only, routers are enqueued one band lower."""
        self._items: dict[Id, _Item[Id]] = {}
        self._plain = [_Queue[Id]() for _ in WEIGHTS]
        self._deferrable = [_Queue[Id]() for _ in WEIGHTS[:TOP]]
        """Topics with a priority below 0, in queues of their own so that deferring them moves nothing."""
        self._deferrable_count = 0
        self._credits = list(WEIGHTS)
        self._number = 0
        self._now_ms = 0.0
        self._step = 0
        """The last step of `STEP_MS` that was applied."""
        self._due: dict[int, dict[_Item[Id], None]] = {}
        """Topics by the step at which they change their band: at most 200 steps ahead."""

    def __contains__(self, id: object) -> bool:
        return id in self._items

    @property
    def depth(self) -> int:
        """Topics in the ready set."""
        return len(self._items)

    @property
    def deferred_count(self) -> int:
        """Of them, those that get no credit at present."""
        return self._deferrable_count if self.deferring else 0

    def oldest_wait_ms(self, now_ms: float) -> float:
        """How long the oldest of the ready set has waited; 0 when there is none. Costs a look at each queue."""
        heads = [item for queue in (*self._plain, *self._deferrable) if (item := queue.first()) is not None]
        return max((max(now_ms, self._now_ms) - item.enqueued_ms for item in heads), default=0.0)

    def mark(self, id: Id, priority: int, now_ms: float, lower: bool = False) -> None:
        """The topic is dirty. One that is ready already keeps its place in time and gets this priority.

        `lower`: it is a router, enqueued one band lower while the schedule defers.
        """
        deferrable = priority < 0
        if lower and self.deferring:
            priority = min(priority, TOP * BAND_WIDTH - 1) - BAND_WIDTH
        item = self._items.get(id)
        if item is not None:
            if item.priority == priority and item.deferrable == deferrable:
                return
            self._take_out(item)
        else:
            if not self._items:
                self._start_at(now_ms)
            self._now_ms = max(self._now_ms, now_ms)
            self._number += 1
            item = self._items[id] = _Item(id, self._now_ms, self._number)
        item.priority = priority
        item.deferrable = deferrable
        self._put_in(item)

    def take(self, now_ms: float) -> Taken[Id] | None:
        """The next topic, which is not in the ready set from now on. None: there is none, or all are deferred.

        The topic counts as served: one that is marked again is enqueued as of then.
        """
        self._now_ms = max(self._now_ms, now_ms)
        if not self._items:
            return None
        self._age()
        item = self._choose()
        if item is None:
            return None
        self._credits[item.band] -= 1
        self._forget(item)
        return Taken(item.id, item.enqueued_ms, item.deferrable)

    def discard(self, id: Id) -> None:
        """The topic is not dirty any more, if it was."""
        item = self._items.get(id)
        if item is not None:
            self._forget(item)

    # ---- order of service -------------------------------------------------------------------------------------------

    def _choose(self) -> _Item[Id] | None:
        best = fallback = None
        credits = self._credits
        for band in range(TOP, -1, -1):
            head = self._head(band)
            if head is None:
                continue
            if fallback is None:
                fallback = head
            if credits[band] > 0 and (best is None or credits[band] > credits[best.band]):
                best = head
        if best is None and fallback is not None:
            # The highest band has the most credit of a new round.
            credits[:] = WEIGHTS
            best = fallback
        return best

    def _head(self, band: int) -> _Item[Id] | None:
        plain = self._plain[band].first()
        if band == TOP or self.deferring:
            return plain
        other = self._deferrable[band].first()
        if plain is None or other is None:
            return plain or other
        return plain if (plain.enqueued_ms, plain.number) < (other.enqueued_ms, other.number) else other

    # ---- age --------------------------------------------------------------------------------------------------------

    def _start_at(self, now_ms: float) -> None:
        """Nothing is ready: steps that passed need not be applied, and a new round begins."""
        self._now_ms = max(self._now_ms, now_ms)
        self._step = int(self._now_ms // STEP_MS)
        self._credits[:] = WEIGHTS

    def _age(self) -> None:
        """Applies the steps that have passed. Costs those steps or the pending ones, whichever are fewer, and moves."""
        step = int(self._now_ms // STEP_MS)
        passed = step - self._step
        if passed <= 0:
            return
        due = self._due
        steps = range(self._step + 1, step + 1) if passed < len(due) else [one for one in due if one <= step]
        self._step = step
        for one in steps:
            for item in due.pop(one, ()):
                self._leave_queue(item)
                self._put_in(item)

    def _put_in(self, item: _Item[Id]) -> None:
        """Into the queue of its band as of the last step, and among those that change it later."""
        enqueued_ms, priority = item.enqueued_ms, item.priority
        # The last change is rounded down to a step, so that 10 s are never exceeded; the others are rounded up.
        last_step = int((enqueued_ms + AGE_MS_MAX) // STEP_MS)
        if self._step >= last_step:
            band = TOP
        else:
            age_ms = max(self._step * STEP_MS - enqueued_ms, 0)
            band = band_of(priority + age_ms / AGE_MS_PER_POINT)
        item.band = band
        if band < TOP:
            crossing_ms = enqueued_ms + (band * BAND_WIDTH - priority) * AGE_MS_PER_POINT
            # At least the next step: a moment that is no whole number may be rounded to just before the crossing.
            item.due_step = max(min(ceil(crossing_ms / STEP_MS), last_step), self._step + 1)
            self._due.setdefault(item.due_step, {})[item] = None
        if item.deferrable and band < TOP:
            self._deferrable_count += 1
            self._deferrable[band].add(item)
        else:
            self._plain[band].add(item)

    def _take_out(self, item: _Item[Id]) -> None:
        if item.band < TOP:
            later = self._due[item.due_step]
            del later[item]
            if not later:
                del self._due[item.due_step]
        self._leave_queue(item)

    def _leave_queue(self, item: _Item[Id]) -> None:
        if item.queue is None:
            raise RuntimeError("a topic of the ready set is in no queue")
        if item.deferrable and item.band < TOP:
            self._deferrable_count -= 1
        item.queue.remove(item)

    def _forget(self, item: _Item[Id]) -> None:
        self._take_out(item)
        del self._items[item.id]
