"""What a node tells of each of its groups, and of each of its processes.

Owns names and help texts, as `readings` does. Never tells anything of a single stream: there is no bound for those. A
node has as many groups as its directory or its cluster was made with.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from headwater import __version__
from headwater.observe.metrics import ByLabel, Gauge, Reading
from headwater.ports import Clock

if TYPE_CHECKING:
    from headwater.engine.engine import Engine
    from headwater.engine.owned_group import OwnedGroup

LOOK_S = 0.5


def group_readings(engine: Engine) -> list[Reading]:
    """Of the groups that are here. In a cluster what a node counted of a group goes with the group."""

    def each(name: str, text: str, read: Callable[[OwnedGroup], float], counts: bool = False) -> ByLabel:
        def values() -> dict[str, float]:
            return {str(number): read(owned) for number, owned in engine.owned.items()}

        return ByLabel(f"group_{name}", text, "group", values, counts)

    unsettled = "Bytes of a group's log that are synced, and whose records are not in the lake yet."
    return [
        each("appends", "Appends accepted by a group.", lambda one: one.group.appends_count, True),
        each("hot_bytes", "Memory taken by a group's records.", lambda one: one.group.loaded.hot_bytes),
        each("hot_bytes_max", "Where a group refuses appends.", lambda one: one.group.hot_bytes_max),
        each("log_queue_bytes", "Log that is not synced yet.", lambda one: one.group.log.tail - one.group.log.synced),
        each("answers_pending", "Answers that wait for the log.", lambda one: one.group.batches.answers_pending),
        each("streams_loaded", "Streams in memory.", lambda one: len(one.group.loaded.by_key)),
        each("log_failed", "1 when the group acknowledges nothing.", lambda one: int(one.group.failed)),
        each("unsettled_bytes", unsettled, lambda one: one.group.log.synced - one.group.lake_position()),
        each("flush_lag_seconds", "Time since all had settled.", _lag_s),
    ]


def _lag_s(owned: OwnedGroup) -> float:
    return 0.0 if owned.flusher is None else owned.flusher.lag_s()


class LoopDelay:
    """How late the event loop is: it wants to be called at a time, and looks when that came true."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_s = 0.0
        self._closed = False
        self.delay_s = 0.0

    def start(self) -> None:
        self._due_s = self._clock.monotonic_s() + LOOK_S
        self._clock.call_later(LOOK_S, self._look)

    def close(self) -> None:
        self._closed = True

    def _look(self) -> None:
        self.delay_s = max(0.0, self._clock.monotonic_s() - self._due_s)
        if not self._closed:
            self.start()

    def now_s(self) -> float:
        """The last one that was seen, or the one that is being seen now if that is longer already."""
        return max(self.delay_s, self._clock.monotonic_s() - self._due_s)


def process_readings(loop_delay: LoopDelay, clock: Clock) -> list[Reading]:
    begun_s = clock.monotonic_s()
    late = "How late the event loop of a process is; the latest of several."
    return [
        Gauge("cpu_seconds", "Processor time.", time.process_time, counts=True, by_worker=True),
        Gauge("resident_bytes", "Memory of the processes.", resident_bytes, by_worker=True),
        Gauge("event_loop_delay_seconds", late, loop_delay.now_s, merge=max, by_worker=True),
        Gauge("uptime_seconds", "Time since the start.", lambda: clock.monotonic_s() - begun_s, merge=max),
        ByLabel("build", "1, with the version.", "version", lambda: {__version__: 1}),
    ]


def resident_bytes() -> float:
    try:
        with open("/proc/self/statm", "rb") as pages:
            return int(pages.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # the most it ever was
