"""How long to try, and how long to pause between attempts: growing pauses with jitter, within a total time.

Never sends and never sleeps; `plans` asks it for the next pause.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retries:
    """How patient a client is.

    A request that may succeed later (429, 503, a lost connection) is sent again until `total_s` have passed since its
    first attempt. Pauses begin at `pause_s_first` and double up to `pause_s_max`; each is shortened by chance by up to
    a half, so that clients which failed together do not come back together. A pause is never shorter than the server's
    Retry-After.

        Headwater(url, retries=Retries(total_s=5))     # give up after five seconds
        Headwater(url, retries=NO_RETRIES)             # one attempt
    """

    total_s: float = 60.0
    pause_s_first: float = 0.1
    pause_s_max: float = 5.0


NO_RETRIES = Retries(total_s=0.0)


class Patience:
    """The attempts of one request; begins when it is made."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._pause_s = retries.pause_s_first
        self._give_up_s = time.monotonic() + retries.total_s

    def pause_s(self, asked_s: float = 0.0) -> float | None:
        """How long to wait before the next attempt. None: give up, because the time would end meanwhile."""
        pause_s = max(self._pause_s * random.uniform(0.5, 1.0), asked_s)
        self._pause_s = min(self._pause_s * 2, self._retries.pause_s_max)
        return pause_s if time.monotonic() + pause_s <= self._give_up_s else None
