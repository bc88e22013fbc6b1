"""The time that a queue goes by: the wall clock, and what to do when that was set.

Owns noticing it. Never changes a queue: it says by how much its leases and delays have to be moved.

Leases and delays are promised as so long from now, and noted as moments of the wall clock. When that is set, the
moments are moved with it. Jobs that are scheduled for a moment are not: that is the wall clock's to say.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.ports import CLOCK_STEP_MS_MAX, Clock


class QueueTime:
    def __init__(self, clock: Clock, shift: Callable[[int], None]) -> None:
        """`shift` is given by how many ms the moments are to be moved."""
        self._clock = clock
        self._shift = shift
        self._ahead_ms = self._wall_ahead_ms(clock.now_ms())

    def now_ms(self) -> int:
        now_ms = self._clock.now_ms()
        ahead_ms = self._wall_ahead_ms(now_ms)
        step_ms = ahead_ms - self._ahead_ms
        if not -CLOCK_STEP_MS_MAX <= step_ms <= CLOCK_STEP_MS_MAX:
            self._ahead_ms = ahead_ms
            self._shift(step_ms)
        return now_ms

    def meet(self, at_ms: int) -> None:
        """Moments were noted at `at_ms` of another clock. If that was ahead of ours, they are not waited for longer
        than promised. One that was behind cannot be told from time that has passed."""
        ahead_ms = at_ms - self._clock.now_ms()
        if ahead_ms > CLOCK_STEP_MS_MAX:
            self._shift(-ahead_ms)

    def _wall_ahead_ms(self, now_ms: int) -> int:
        return now_ms - int(self._clock.monotonic_s() * 1000)
