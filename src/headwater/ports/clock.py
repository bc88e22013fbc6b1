"""Time, pauses and chance: the only module that asks the operating system for them. A simulated world replaces it.

Owns the real clock and random source, and when a wall clock that was set is believed. Never decides how long anybody
waits.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the Unix epoch. May be set, also back; callers clamp where order matters."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since some moment. Never steps backwards; only differences mean something."""
        ...

    def sleep(self, delay_s: float) -> Awaitable[object]:
        """Done after `delay_s`. Called on the event loop."""
        ...

    def call_later(self, delay_s: float, call: Callable[[], object]) -> object:
        """Calls `call` once, on the event loop, after `delay_s`. Called on the event loop."""
        ...


CLOCK_STEP_MS_MAX = 10_000
"""A wall clock that was set by no more than this is believed at once."""
BELIEVED_AFTER_S = 60.0
_STEP_NS = CLOCK_STEP_MS_MAX * 1_000_000
_BELIEVED_AFTER_NS = int(BELIEVED_AFTER_S * 1e9)


_elapsed_ns = partial(time.clock_gettime_ns, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Also counts while the machine sleeps, where the system can tell: a wall clock that goes on then was not set."""


class BelievedTime:
    """The wall clock, but one that was set by much counts only once it has said the same for a minute.

    Records that are too old are deleted, and so are streams: a clock that is wrong for some seconds must not do that.
    Until a step is believed, time goes on from where it was. Threads may share one: at worst both take the same step.
    """

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, elapsed_ns: Callable[[], int] = _elapsed_ns) -> None:
        self._wall_ns = wall_ns
        self._elapsed_ns = elapsed_ns
        self._ahead_ns = wall_ns() - elapsed_ns()
        """What the wall clock was ahead of the other when it was last believed."""
        self._doubted: tuple[int, int] | None = None
        """What it is ahead now, and since when that was seen."""

    def now_ms(self) -> int:
        elapsed_ns = self._elapsed_ns()
        ahead_ns = self._wall_ns() - elapsed_ns
        if -_STEP_NS <= ahead_ns - self._ahead_ns <= _STEP_NS:
            self._ahead_ns = ahead_ns
            self._doubted = None
        else:
            doubted = self._doubted
            if doubted is None or abs(ahead_ns - doubted[0]) > _STEP_NS:
                self._doubted = ahead_ns, elapsed_ns
            elif elapsed_ns - doubted[1] >= _BELIEVED_AFTER_NS:
                self._ahead_ns = ahead_ns
                self._doubted = None
        return (elapsed_ns + self._ahead_ns) // 1_000_000


_believed = BelievedTime()
"""One for the process: parts of it must not differ in what they believe."""


class SystemClock:
    now_ms = staticmethod(_believed.now_ms)  # asked several times for each request: no call in between

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, delay_s: float) -> Awaitable[object]:
        return asyncio.sleep(delay_s)

    def call_later(self, delay_s: float, call: Callable[[], object]) -> object:
        return asyncio.get_running_loop().call_later(delay_s, call)


SYSTEM_CLOCK = SystemClock()

BREATH_S = 0.000_05


def pause(delay_s: float) -> None:
    """Holds up the calling thread: for worker threads alone."""
    time.sleep(delay_s)


def breathe() -> None:
    """Lets a thread that waits for the GIL have it; `time.sleep(0)` may take it right back."""
    time.sleep(BREATH_S)


class Rng(Protocol):
    def below(self, bound: int) -> int:
        """A uniform integer in [0, bound)."""
        ...

    def token(self, size_bytes: int) -> bytes:
        """Unguessable bytes."""
        ...


class SystemRng:
    def below(self, bound: int) -> int:
        return int.from_bytes(os.urandom(8), "little") % bound

    def token(self, size_bytes: int) -> bytes:
        return os.urandom(size_bytes)
