"""An event loop whose turns and time a test gives. It is also a clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from heapq import heappop, heappush


class Loop:
    """An event loop and its clock: time passes when a test says so, or when a delivery takes some."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.ready: list[Callable[[], None]] = []
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep(self, delay_s: float) -> Awaitable[object]:
        raise RuntimeError("a delivery does not sleep")

    def soon(self, call: Callable[[], None]) -> object:
        self.ready.append(call)
        return None

    def call_later(self, delay_s: float, call: Callable[[], object]) -> object:
        self._number += 1
        heappush(self.timers, (self.now_s + delay_s, self._number, lambda: void(call())))
        return None

    def turn(self) -> None:
        """Calls what is ready and due now; what that asks for waits for the next turn."""
        while self.timers and self.timers[0][0] <= self.now_s + 1e-9:
            self.ready.append(heappop(self.timers)[2])
        ready, self.ready = self.ready, []
        for call in ready:
            call()

    def run_until(self, end_s: float) -> None:
        """Turns while anything is ready, and from timer to timer."""
        while True:
            self.turn()
            if self.now_s >= end_s:
                return
            if not self.ready:
                next_s = self.timers[0][0] if self.timers else end_s
                self.now_s = max(self.now_s, min(next_s, end_s))

    def run_for(self, duration_s: float) -> None:
        self.run_until(self.now_s + duration_s)

    @property
    def idle(self) -> bool:
        return not self.ready and not self.timers


def void(_: object) -> None: ...
