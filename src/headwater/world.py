"""The outside as Protocols: clock, randomness, log, catalog. A simulated world implements the same ones.

Owns the real clock and random source. Never holds state of streams; every other module gets time and chance from here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from headwater.model.events import Event
from headwater.model.row import StreamRow


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the Unix epoch. May step backwards; callers clamp where order matters."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


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


class Log(Protocol):
    """One group's ordered log. Single caller: everything but the callbacks' origin runs on the event loop's thread.

    Positions grow strictly with every event. `written` and `synced` are watermarks: all events below them are
    with the operating system, or on stable storage. They only grow, and stop growing for ever once `failure` is set.
    """

    @property
    def tail(self) -> int: ...

    @property
    def written(self) -> int: ...

    @property
    def synced(self) -> int: ...

    @property
    def failure(self) -> str | None:
        """Why this log acknowledges nothing any more; None while healthy."""
        ...

    def add(self, event: Event, sync: bool) -> int:
        """Gathers the event and returns the position after it. Nothing is handed on before `commit`."""
        ...

    def commit(self) -> None:
        """Hands everything gathered to the writer. Returns at once; `on_progress` fires when watermarks move."""
        ...

    def replay(self) -> Iterator[tuple[int, Event]]:
        """Every retained event with the position after it, oldest first. Called once, before `start`."""
        ...

    def start(self, on_progress: Callable[[], None]) -> None:
        """Opens the log for writing. `on_progress` is called on the caller's event loop."""
        ...

    def seal(self) -> None:
        """Leaves a witness behind the last batch when the log is idle, so that later damage to it is recognised."""
        ...

    def trim(self, below: int) -> None:
        """Allows the log to forget events that end at or below the position."""
        ...

    def close(self) -> None:
        """Writes and syncs what was gathered, then stops. Idempotent."""
        ...


class Catalog(Protocol):
    """Durable stream metadata, true for a log position. Reads run on the event loop's thread and take microseconds."""

    @property
    def position(self) -> int:
        """Every event that ends at or below this position is reflected in the rows."""
        ...

    @property
    def next_sid(self) -> int: ...

    def load(self, key: str) -> StreamRow | None: ...

    def load_sid(self, sid: int) -> StreamRow | None: ...

    def write(self, rows: Iterable[StreamRow], gone: Iterable[tuple[str, int]], position: int, next_sid: int) -> None:
        """One transaction: removes `gone` (key, sid), upserts rows, moves the position. Runs on a worker thread."""
        ...

    def close(self) -> None: ...
