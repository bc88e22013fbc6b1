"""Time, pauses and chance: the only module that asks the operating system for them. A simulated world replaces it.

Owns the real clock and random source. Never decides how long anybody waits.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the Unix epoch. May step backwards; callers clamp where order matters."""
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


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

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
