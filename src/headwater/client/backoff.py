"""The pauses between attempts: each twice as long as the one before, until patience ends.

Never decides whether an attempt may be repeated.
"""

from __future__ import annotations

import time

PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 5.0


class Backoff:
    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.restart()

    def restart(self) -> None:
        """Something succeeded: patience and pauses begin anew."""
        self._pause_s = PAUSE_S_MIN
        self._give_up_s = time.monotonic() + self._patience_s

    def wait(self, asked_s: float = 0.0) -> bool:
        """Sleeps for `asked_s` at least, PAUSE_S_MAX at most. False, at once, when patience would end meanwhile."""
        if time.monotonic() + self._pause_s > self._give_up_s:
            return False
        pause_s = max(self._pause_s, min(asked_s, PAUSE_S_MAX))
        time.sleep(pause_s)
        self._pause_s = min(pause_s * 2, PAUSE_S_MAX)
        return True
