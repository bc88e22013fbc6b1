"""How much more there is to do than can be done in time, as a pressure from 0 to 1, and what follows from it.

Owns that judgement. Never measures, waits or refuses anything: whoever serves topics passes in what it saw, about every
100 ms while there is something to do, and those who wait or refuse ask here.

Pressure is the weighted sum of three signals, each from 0 to 1:

    1/2   latency   how long topics wait for their turn, as a part of the ceiling of 5 ms, smoothed over 300 ms
    1/4   depth     the part of the ready topics that no worker can serve at once
    1/4   busy      the part of the time in which topics waited or were served

The latency is the promise to clients, so it counts as much as the others together; the last two steps below need all
three. Waiting that the pressure itself causes must not raise it, or it would never fall: time in the coalescing window
is not latency, nor is that of deferred topics, and deferred topics are not ready. The caller leaves them out.

    pressure   effect
    > 0.2      topics are served after a coalescing window that grows from 0 to 20 ms
    > 0.8      for 500 ms: low priorities are deferred, until it is below 0.6
    >= 0.95    an append is refused for a while when what takes it in is full as well

Every call costs the same whatever the load is.
"""

from __future__ import annotations

from math import exp

SAMPLE_MS = 100

LATENCY_MS_MAX = 5.0
LATENCY_PART, DEPTH_PART, BUSY_PART = 0.5, 0.25, 0.25
_SMOOTHED_MS = 300.0
"""After this time an old latency counts for about a third (1/e)."""

COALESCE_ABOVE = 0.2
COALESCE_MS_MAX = 20.0
DEFER_ABOVE, DEFER_UNTIL_BELOW = 0.8, 0.6
DEFER_AFTER_MS = 500
REFUSE_FROM = 0.95
RETRY_AFTER_MS = 1_000


class Governor:
    """`workers`: how many topics are served at the same time."""

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers
        self.pressure = 0.0
        self.deferring = False
        """Low priorities are deferred. Changes with a sample only."""
        self._late = 0.0
        self._sampled_ms: float | None = None
        self._high_since_ms: float | None = None

    def sample(self, now_ms: float, depth: int, latency_ms: float, busy: float) -> None:
        """What was seen since the sample before: ready topics now, mean latency, part of the time that was busy."""
        elapsed_ms = SAMPLE_MS if self._sampled_ms is None else max(now_ms - self._sampled_ms, 0.0)
        self._sampled_ms = now_ms
        old = exp(-elapsed_ms / _SMOOTHED_MS)
        # More than the ceiling counts as the ceiling: otherwise a second of waiting would be remembered for seconds.
        late = min(max(latency_ms, 0.0) / LATENCY_MS_MAX, 1.0)
        self._late = old * self._late + (1 - old) * late
        waiting = 1 - self._workers / depth if depth > self._workers else 0.0
        self.pressure = LATENCY_PART * self._late + DEPTH_PART * waiting + BUSY_PART * min(max(busy, 0.0), 1.0)
        self._judge(now_ms)

    def rest(self) -> None:
        """There was nothing to do for a whole interval: nothing of before counts any more."""
        self.pressure = self._late = 0.0
        self.deferring = False
        self._sampled_ms = self._high_since_ms = None

    def _judge(self, now_ms: float) -> None:
        if self.pressure <= DEFER_ABOVE:
            self._high_since_ms = None
        elif self._high_since_ms is None:
            self._high_since_ms = now_ms
        if self.deferring:
            self.deferring = self.pressure >= DEFER_UNTIL_BELOW
        else:
            self.deferring = self._high_since_ms is not None and now_ms - self._high_since_ms >= DEFER_AFTER_MS

    # ---- what follows -----------------------------------------------------------------------------------------------

    @property
    def coalesce_ms(self) -> float:
        """How long to wait for more before topics are served."""
        above = max(self.pressure - COALESCE_ABOVE, 0.0)
        return COALESCE_MS_MAX * above / (1 - COALESCE_ABOVE)

    def retry_after_ms(self, ingest_full: bool) -> int | None:
        """When an append may be tried again; None: it is not refused.

        `ingest_full`: there is no room for more appends. Pressure alone refuses nothing, nor does a full ingest alone.
        """
        return RETRY_AFTER_MS if ingest_full and self.pressure >= REFUSE_FROM else None
