"""A clock that stands still until a test moves it: wall clock, monotonic clock, timers and pauses are one time, unless
a test sets the wall clock wrong.
It owns that time; what is due when it moves is called in order, with turns of the event loop in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from itertools import count

TURNS = 30
"""Turns of the event loop after which whatever does not wait for time or threads has come to its end."""


async def turns(number: int = TURNS) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


class SimClock:
    """A `Clock`."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.ms = float(now_ms)
        self.wrong_ms = 0
        """What the wall clock is ahead of the right time: a test sets it wrong, and right again."""
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._ties = count()

    def now_ms(self) -> int:
        return int(self.ms) + self.wrong_ms

    def monotonic_s(self) -> float:
        return self.ms / 1000

    def call_later(self, delay_s: float, call: Callable[[], object]) -> object:
        heappush(self._timers, (self.ms + max(delay_s, 0.0) * 1000, next(self._ties), call))
        return None

    def sleep(self, delay_s: float) -> Awaitable[object]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call_later(delay_s, lambda: None if future.done() else future.set_result(None))
        return future

    @property
    def timers_count(self) -> int:
        return len(self._timers)

    async def advance(self, ms: float) -> None:
        """Time goes on by so much; on return everything that was due has happened."""
        await turns()
        until = self.ms + ms
        # A timer that was set by division may be due a hair after the millisecond it is meant for.
        while self._timers and self._timers[0][0] <= until + 1e-6:
            at_ms, _, call = heappop(self._timers)
            self.ms = max(self.ms, at_ms if abs(at_ms - round(at_ms)) > 1e-6 else float(round(at_ms)))
            call()
            await turns()
        self.ms = until
        await turns()
