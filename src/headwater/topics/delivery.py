"""Serves dirty topics on the event loop, in the order of `model.schedule`, a bounded slice in each turn.

Owns when passes run and what is measured of them. Never decides who is next (`model.schedule`) or what pressure means
(`model.governor`), and never knows what a delivery does: it is given with the mark.

    mark -> ready set -> pass -> deliver(), one topic after the other
              ^            |
              +--- soon ---+   while something is left: appends and answers of others run in between

- A pass is planned with the first mark, for the next turn of the loop; under pressure, after the coalescing window.
- A pass ends after `SLICE_S` or `SLICE_COUNT` topics. One delivery is not interrupted: it bounds its own work.
- While all ready topics are deferred, a timer looks every 100 ms whether that has changed.
- There is no timer when nothing is dirty. The governor's samples are taken at the end of passes, and a pressure that
  nobody has confirmed for 100 ms of idleness is 0.

Costs: `mark` and each service cost what they cost in the schedule and one look at the clock; a pass adds a constant.
Memory: one callable for each dirty topic.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import structlog

from headwater.model.governor import SAMPLE_MS, Governor
from headwater.model.schedule import Schedule, Taken
from headwater.ports import Clock

log = structlog.get_logger("headwater.topics")

SLICE_S = 0.002
SLICE_COUNT = 256
SAMPLE_S = SAMPLE_MS / 1000
LOG_EVERY_S = 1.0
"""A delivery that fails is logged at most so often; the others are counted."""
SHOWN_NAME_MAX = 200


@dataclass(frozen=True, slots=True)
class Figures:
    """For metrics. Counts, sums and the longest wait are since the start."""

    served_count: int
    failed_count: int
    wait_ms_sum: float
    wait_ms_max: float
    oldest_wait_ms: float
    """Of the topics that are ready now."""
    depth: int
    deferred_count: int
    pressure: float


class Delivery:
    """All calls are made on the event loop.

    `soon` has something called in the next turn of the loop, `later` after so many seconds.
    """

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], object],
        later: Callable[[float, Callable[[], None]], object],
        clock: Clock,
    ) -> None:
        self._soon = soon
        self._later = later
        self._now_s = clock.monotonic_s
        self._schedule: Schedule[Hashable] = Schedule()
        self._governor = Governor()
        self._deliver: dict[Hashable, Callable[[], object]] = {}
        self._pass_planned = False
        """Also while a pass runs: it plans the next one itself."""
        self._look_planned = False
        self._closed = False
        self._due_s = 0.0
        """When the last pass that waited for the coalescing window was due: waiting until then was on purpose."""
        self._idle_since_s: float | None = None
        # Since the last sample:
        self._sample_from_s: float | None = None
        self._busy_s = 0.0
        self._busy_from_s: float | None = None
        self._latency_ms_sum = 0.0
        self._latency_count = 0
        # Since the start:
        self._served_count = 0
        self._failed_count = 0
        self._wait_ms_sum = 0.0
        self._wait_ms_max = 0.0
        self._logged_s: float | None = None
        self._unlogged_count = 0

    # ---- dirty topics -----------------------------------------------------------------------------------------------

    def mark(self, id: Hashable, priority: int, deliver: Callable[[], object], lower: bool = False) -> None:
        """The topic is dirty: `deliver` is called once, later, for this mark and all others until then.

        The last mark's `deliver` is the one that is called. `lower`: a router's work, of less value under pressure.
        What a delivery raises is logged and stops nothing.
        """
        if self._closed:
            return
        now_s = self._now_s()
        self._rest_if_idle(now_s)
        self._deliver[id] = deliver
        self._schedule.mark(id, priority, now_s * 1000, lower)
        if not self._pass_planned:
            self._plan(now_s, self._governor.coalesce_ms / 1000)

    def discard(self, id: Hashable) -> None:
        """The topic is gone: nothing is delivered of it."""
        self._schedule.discard(id)
        self._deliver.pop(id, None)

    def close(self) -> None:
        """Nothing is delivered any more, nor marked."""
        self._closed = True
        self._schedule = Schedule()
        self._deliver.clear()

    # ---- what others ask --------------------------------------------------------------------------------------------

    @property
    def pressure(self) -> float:
        self._rest_if_idle(self._now_s())
        return self._governor.pressure

    def retry_after_ms(self, ingest_full: bool) -> int | None:
        """See `Governor.retry_after_ms`."""
        self._rest_if_idle(self._now_s())
        return self._governor.retry_after_ms(ingest_full)

    def figures(self) -> Figures:
        return Figures(
            served_count=self._served_count,
            failed_count=self._failed_count,
            wait_ms_sum=self._wait_ms_sum,
            wait_ms_max=self._wait_ms_max,
            oldest_wait_ms=self._schedule.oldest_wait_ms(self._now_s() * 1000),
            depth=self._schedule.depth,
            deferred_count=self._schedule.deferred_count,
            pressure=self.pressure,
        )

    # ---- passes -----------------------------------------------------------------------------------------------------

    @property
    def _ready_count(self) -> int:
        return self._schedule.depth - self._schedule.deferred_count

    def _plan(self, now_s: float, window_s: float) -> None:
        """Has the ready topics served, and the deferred ones looked at again."""
        if self._sample_from_s is None:
            self._sample_from_s = now_s
        if self._ready_count:
            self._pass_planned = True
            if self._busy_from_s is None:
                self._busy_from_s = now_s + window_s
            if window_s > 0:
                self._due_s = now_s + window_s
                self._later(window_s, self._pass)
            else:
                self._soon(self._pass)
        elif self._schedule.depth and not self._look_planned:
            self._look_planned = True
            self._later(SAMPLE_S, self._look)

    def _look(self) -> None:
        self._look_planned = False
        if not self._pass_planned and not self._closed:
            self._pass()

    def _pass(self) -> None:
        if self._closed:
            return
        self._pass_planned = True
        try:
            self._serve_slice()
        finally:
            now_s = self._now_s()
            self._finish_slice(now_s)
            self._pass_planned = False
            if self._schedule.depth:
                # What is left is late already: it waits for no window.
                self._plan(now_s, 0.0)
            else:
                self._idle_since_s = now_s

    def _serve_slice(self) -> None:
        now_s = self._now_s()
        end_s = now_s + SLICE_S
        for _ in range(SLICE_COUNT):
            taken = self._schedule.take(now_s * 1000)
            if taken is None:
                break
            self._measure(taken, now_s)
            try:
                self._deliver.pop(taken.id)()
            except Exception:
                self._report(taken.id, now_s)
            now_s = self._now_s()
            if now_s >= end_s:
                break

    def _finish_slice(self, now_s: float) -> None:
        ready_count = self._ready_count
        if self._busy_from_s is not None:
            self._busy_s += max(now_s - self._busy_from_s, 0.0)
            self._busy_from_s = now_s if ready_count else None
        elapsed_s = 0.0 if self._sample_from_s is None else now_s - self._sample_from_s
        if elapsed_s >= SAMPLE_S:
            latency_ms = self._latency_ms_sum / self._latency_count if self._latency_count else 0.0
            self._governor.sample(now_s * 1000, ready_count, latency_ms, self._busy_s / elapsed_s)
            self._schedule.deferring = self._governor.deferring
            self._begin_interval(now_s)

    def _begin_interval(self, from_s: float | None) -> None:
        self._sample_from_s = from_s
        self._busy_s = self._latency_ms_sum = 0.0
        self._latency_count = 0

    def _rest_if_idle(self, now_s: float) -> None:
        if self._idle_since_s is None or self._schedule.depth or self._pass_planned:
            return
        if now_s - self._idle_since_s >= SAMPLE_S:
            self._idle_since_s = None
            self._governor.rest()
            self._schedule.deferring = False
            self._begin_interval(None)

    # ---- what is measured -------------------------------------------------------------------------------------------

    def _measure(self, taken: Taken[Hashable], now_s: float) -> None:
        wait_ms = max(now_s * 1000 - taken.enqueued_ms, 0.0)
        self._served_count += 1
        self._wait_ms_sum += wait_ms
        self._wait_ms_max = max(self._wait_ms_max, wait_ms)
        if not taken.deferrable:
            self._latency_count += 1
            self._latency_ms_sum += max(min(wait_ms, (now_s - self._due_s) * 1000), 0.0)

    def _report(self, id: Hashable, now_s: float) -> None:
        self._failed_count += 1
        if self._logged_s is not None and now_s - self._logged_s < LOG_EVERY_S:
            self._unlogged_count += 1
            return
        # A name comes from a client: ascii() leaves no character in it that could end the line.
        log.exception(
            "a topic's delivery failed; others go on", topic=ascii(id)[:SHOWN_NAME_MAX], unlogged=self._unlogged_count
        )
        self._logged_s = now_s
        self._unlogged_count = 0
