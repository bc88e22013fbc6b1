"""A job in a thread of its own, ended when there is a reason to.

Owns how a job is ended that Spark works for: what Spark runs is cancelled, again and again, and its next word of
progress raises. Never ends a thread by force: whoever has one that does not end has to end the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from headwater.spark.job_runs import FAILED
from headwater.spark.schedules.serving import Ended, Interrupted

LOOK_S = 0.5
END_S_MAX = 90.0
"""So long a job may take to end. Longer than a call waits for a node that is away."""


class Cut(BaseException):
    """Raised in a job that has to end, by its word of progress. No job takes it for a failure of its own."""


class Progress:
    """What a job that a server runs tells its progress to."""

    def __init__(self) -> None:
        self.cut = False
        self.thread: threading.Thread | None = None

    def __call__(self, what: str, done: int, total: int | None) -> None:
        # Threads that only watch tell progress, too.
        if self.cut and threading.current_thread() is self.thread:
            raise Cut


def in_thread(
    run: Callable[[Progress], Ended],
    interrupted: Interrupted,
    cancel: Callable[[], None],
    look_s: float = LOOK_S,
    end_s_max: float = END_S_MAX,
) -> Ended:
    """What became of the job. `fatal` is set when it had to end and did not."""
    progress = Progress()
    found: list[Ended] = []

    def work() -> None:
        try:
            found.append(run(progress))
        except Cut:
            found.append(Ended(FAILED, "it was ended"))
        except BaseException as error:
            found.append(Ended(FAILED, f"{type(error).__name__}: {error}"))

    thread = threading.Thread(target=work, daemon=True, name="headwater-scheduled-job")
    progress.thread = thread
    thread.start()
    looks_left = max(1, round(end_s_max / look_s))
    while True:
        thread.join(look_s)
        if not thread.is_alive():
            return found[0]
        if (why := interrupted()) is None:
            continue
        progress.cut = True
        cancel()
        looks_left -= 1
        if not looks_left:
            return Ended(FAILED, why, f"a job that had to end ({why}) did not end within {end_s_max:.0f} s")
