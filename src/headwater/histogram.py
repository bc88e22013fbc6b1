"""How long things took, counted in buckets: plain ints that whoever measures adds to, and `observe` reads.

Owns the bounds, which are the same for everything so that the buckets of several groups and processes add up. Never
reads a clock. One adding thread at a time; a reader may see a count before the sum that belongs to it.
"""

from __future__ import annotations

from bisect import bisect_left

BOUNDS_S = (
    *(0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
"""What took exactly a bound is counted with what took less. One bucket more holds what took longer than the last."""


class Histogram:
    __slots__ = ("counts", "last_s", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0
        self.last_s = 0.0
        """What was added last."""

    def include(self, other: Histogram, sign: int = 1) -> None:
        """Adds what another one counted, or takes it away."""
        for index, count in enumerate(other.counts):
            self.counts[index] += sign * count
        self.sum_s += sign * other.sum_s

    def add(self, seconds: float, count: int = 1) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += count
        self.sum_s += seconds * count
        self.last_s = seconds
