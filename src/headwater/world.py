"""The outside as Protocols: clock, randomness, log, catalog. A simulated world implements the same ones.

Owns the real clock and random source. Never holds state of streams; every other module gets time and chance from here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import msgspec

from headwater.model.events import Event
from headwater.model.extents import Extent, Records, Run
from headwater.model.row import BucketRow, StreamRow


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
    def head(self) -> int:
        """Position of the oldest event it still holds, or of the first one it will; known once `replay` began."""
        ...

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

    def replay(self, promised: int = 0) -> Iterator[tuple[int, Event]]:
        """Every retained event with the position after it, oldest first. Called once, before `start`.

        The log is known to have been synced up to `promised`: less than that is damage, not a torn end.
        """
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


class BlobsUnavailable(Exception):
    """The object store does not answer now; it may later."""


class Blobs(Protocol):
    """Where whole objects go: snapshots, files of the lake. Calls block: they belong in worker threads."""

    def put(self, key: str, data: bytes) -> None:
        """On return the object is durable. Raises BlobsUnavailable."""
        ...

    def get(self, key: str) -> bytes:
        """Raises KeyError when there is no such object, BlobsUnavailable."""
        ...

    def delete(self, key: str) -> None:
        """An object that is not there is no error. Raises BlobsUnavailable."""
        ...


class Pending(msgspec.Struct, frozen=True):
    """What the log speaks of and the catalog may not know yet."""

    files: set[str]
    blobs: set[str]


class Swept(msgspec.Struct, frozen=True):
    """What one run of the lake's gc did."""

    files_left_table: int
    files_deleted: int
    orphans_deleted: int
    snapshots_deleted: int
    leftovers_deleted: int
    bytes_deleted: int


class LakeLedger(Protocol):
    """What the catalog says of the lake's files. Calls block: they belong in worker threads, one at a time."""

    def files(self) -> dict[str, int | None]:
        """Every file, with the time since when it is dead."""
        ...

    def unused(self) -> set[str]:
        """Files that no extent refers to."""
        ...

    def refers(self, sid: int, blob: str) -> bool:
        """True when a stream's snapshot is in this blob, or may be that of a fork, which shares its source's."""
        ...

    def aged(self, now_ms: int) -> Iterator[str]:
        """Keys of streams of which an age policy should let go of settled records."""
        ...

    def bury(self, names: Iterable[str], now_ms: int) -> None:
        """Notes since when files are dead, also of files it did not know; what was noted before stays."""
        ...

    def forget(self, names: Iterable[str]) -> None:
        """Drops dead files."""
        ...


class Lake(Protocol):
    """Where settled records are. Calls block: they belong in worker threads. All raise BlobsUnavailable."""

    def settle(self, runs: list[Run], group: int) -> tuple[str, list[Extent]]:
        """Writes one file with all runs and commits it to the table; returns its name and where each run is in it.

        Crash-safe: until it returns, nothing refers to what it wrote.
        """
        ...

    def reconcile(self, known: set[str]) -> int:
        """Takes files out of the table that no event of the log speaks of: a crash came between. Returns how many."""
        ...

    def read(self, extent: Extent, start: int, end: int) -> Records:
        """The extent's records that begin in [start, end)."""
        ...

    def sweep(
        self, ledger: LakeLedger, pending: Callable[[], Pending], grace_ms: int, check: Callable[[], None]
    ) -> Swept:
        """Removes what nothing refers to (see `lake/gc.py`). Calls `pending` once, when it has listed what there is:

        no flush that began before may be under way when that returns. What `check` raises ends the run.
        """
        ...


class Change(msgspec.Struct, frozen=True):
    """What a checkpoint writes: first `gone` (key, sid) is removed, then the rows are put, then the position moves."""

    rows: list[StreamRow]
    buckets: list[BucketRow]
    gone: list[tuple[str, int]]
    extents: list[Extent]
    files: list[str]
    """Files of the lake that extents refer to."""
    cuts: list[tuple[int, int]]
    """(sid, earliest): extents of a stream that end at or before it are dropped."""
    things: list[tuple[str, str, bytes | None]]
    """(domain, name, row) of state beside the streams; None removes it."""
    position: int
    log_floor: int
    """The log may have forgotten what ends at or below this, and nothing else."""
    next_sid: int


class Catalog(Protocol):
    """Durable stream metadata, true for a log position. Reads run on the event loop's thread and take microseconds."""

    @property
    def position(self) -> int:
        """Every event that ends at or below this position is reflected in the rows."""
        ...

    @property
    def log_floor(self) -> int:
        """The log still has everything behind this position."""
        ...

    @property
    def next_sid(self) -> int: ...

    def load(self, key: str) -> StreamRow | None: ...

    def load_sid(self, sid: int) -> StreamRow | None: ...

    def load_bucket(self, name: str) -> BucketRow | None: ...

    def extents(self, sid: int, offset: int, count_max: int) -> list[Extent]:
        """Extents of a stream that end behind `offset`, in order, `count_max` at most."""
        ...

    def files(self) -> set[str]:
        """Every file of the lake that was ever settled and not yet removed."""
        ...

    def due(self, now_ms: int, count_max: int) -> list[str]:
        """Keys of streams whose time has passed, as far as their rows say."""
        ...

    def load_things(self, domain: str) -> dict[str, bytes]:
        """Everything kept for a domain, by name."""
        ...

    def page(self, low: str, high: str, count_max: int) -> list[StreamRow]:
        """Rows with low < key < high, in bytewise order of their keys, `count_max` at most."""
        ...

    def write(self, change: Change) -> None:
        """One transaction. Runs on a worker thread."""
        ...

    def close(self) -> None: ...
