"""Waiting for what other processes hear of by and by. Never asserts anything about time but that it ends."""

from __future__ import annotations

import time
from collections.abc import Callable

WITHIN_S = 60.0


def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < deadline_s, "it does not come about"
        time.sleep(0.02)
