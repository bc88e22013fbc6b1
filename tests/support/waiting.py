"""Waiting for a condition: the one way for tests to wait for what has no event of its own.
It owns the limit, which is generous, and how it is said that the limit was reached."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

WITHIN_S = 60.0
PAUSE_S = 0.01


class NotInTime(AssertionError):
    """What was waited for did not come to hold. A busy machine may be the reason: see `second_chance`."""


class Deadline:
    """For loops that do more than look."""

    def __init__(self, within_s: float = WITHIN_S) -> None:
        self._within_s = within_s
        self._end_s = time.monotonic() + within_s

    def check(self, what: object = "it never came to hold") -> None:
        """Raises NotInTime once the time is over. `what` may be a function, which is called then."""
        if time.monotonic() > self._end_s:
            raise NotInTime(f"not within {self._within_s:g} s: {what() if callable(what) else what}")


def until(
    holds: Callable[[], Any],
    what: object = "it never came to hold",
    within_s: float = WITHIN_S,
    pause_s: float = PAUSE_S,
) -> Any:
    """What `holds` returns as soon as it is true. Raises NotInTime."""
    deadline = Deadline(within_s)
    while not (found := holds()):
        deadline.check(what)
        time.sleep(pause_s)
    return found
