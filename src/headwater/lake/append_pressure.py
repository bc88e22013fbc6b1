"""Whether appends need the processors that a worker thread of the lake is using.

Owns that judgement alone. Never pauses a thread: the worker asks, and lets others run between two pieces of work.

Arrow decodes a row group without the GIL, but for one to three milliseconds on end, and a kernel may leave a thread
that wakes on the same processor waiting for all of that, whatever their priorities: for the log's writer 2.4 ms were
seen while the other processor stood idle (B9).
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.ports import SYSTEM_CLOCK

LASTING_S = 0.05
"""How long the log is taken to be in use after it grew."""


class AppendPressure:
    """Called from any thread. Two at once may both see the same growth: that is harmless."""

    def __init__(self, tail: Callable[[], int], now_s: Callable[[], float] = SYSTEM_CLOCK.monotonic_s) -> None:
        self._tail = tail
        self._now_s = now_s
        self._seen = tail()
        self._until_s = 0.0

    def is_due(self) -> bool:
        """True while clients append. Between two calls that are far apart, one append is enough."""
        tail, now_s = self._tail(), self._now_s()
        if tail != self._seen:
            self._seen = tail
            self._until_s = now_s + LASTING_S
        return now_s < self._until_s
