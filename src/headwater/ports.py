"""The outside as Protocols: clock, randomness, log, catalog. A simulated world implements the same ones.

Owns the real clock and random source. Never holds state of streams; every other module gets time and chance from here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

import msgspec

from headwater.model.events import Event
from headwater.model.extents import Extent, Records, Run, Stretch
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


class LogCopy(Protocol):
    """A part of a log, copied into one file while the log goes on."""

    @property
    def at(self) -> int:
        """Everything before this position is copied, or was not asked for."""
        ...

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """(position of its first byte, size in bytes) of the log files that the copy is made of, in order. A log
        starts from these as it starts from its own; there is at least one, which may be empty."""
        ...

    def advance(self, upto: int) -> list[Event]:
        """Copies on, up to a synced position. Returns the events it met after `known` that are no appends.

        Blocks. Raises OSError, also for a log that is damaged.
        """
        ...


BROKEN, FENCED, UNKNOWN = "broken", "fenced", "unknown"


class LogFailure(msgspec.Struct, frozen=True):
    """Why a log acknowledges nothing any more."""

    kind: str
    """BROKEN: it could not be written. FENCED: another owner took it. UNKNOWN: what became of the last write is not
    known."""
    reason: str
    """In words, with what to do."""

    def __str__(self) -> str:
        return self.reason


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
    def failure(self) -> LogFailure | None:
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

    def trim(self, below: int) -> None:
        """Allows the log to forget events that end at or below the position."""
        ...

    def close(self) -> None:
        """Writes and syncs what was gathered, then stops. Idempotent."""
        ...


class FileLog(Log, Protocol):
    """A log in files of this machine, and what only files can do."""

    def seal(self) -> None:
        """Leaves a witness after the last batch when the log is idle, so that later damage to it is recognised."""
        ...

    def roll(self) -> int:
        """Hands everything gathered to the writer, and begins a new file after it. Returns where that begins: what
        ends at or below it shares no file with what comes later."""
        ...

    def hold(self, after: int | None) -> None:
        """Until it is told None, the log forgets nothing that ends after the position, whatever `trim` allows."""
        ...

    def copy(self, after: int, known: int, to: Path) -> LogCopy:
        """Begins a copy of every event that ends after `after`, into the file `to`. The log must be held meanwhile."""
        ...

    def forget(self) -> Future[None]:
        """Done when the files that `trim` allowed to go so far are off the disk. Its exception is an OSError."""
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


class LakeGcResult(msgspec.Struct, frozen=True):
    """What one run of the lake's gc did."""

    files_left_table: int
    files_deleted: int
    orphans_deleted: int
    snapshots_deleted: int
    leftovers_deleted: int
    bytes_deleted: int


class Erasure(msgspec.Struct, frozen=True):
    """The table's log names streams by its files' statistics: what is older than `version` has to go."""

    version: int
    at_ms: int
    """When it was asked for. It is done a grace period later: until then others may still read older versions."""


class GcFiles(Protocol):
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

    def erasure(self) -> Erasure | None:
        """What the table's log has to lose."""
        ...

    def end_erasure(self, done: Erasure) -> None:
        """It has lost it."""
        ...


class Standing(msgspec.Struct, frozen=True):
    """What the catalog says of a file of the lake."""

    dead_ms: int | None
    came: int | None
    went: int | None
    """Numbers of the swaps that brought it and took it."""


class SwapFiles(Protocol):
    """The catalog as a swap of files reads and changes it. Calls block: they belong in worker threads."""

    def standing(self, names: Iterable[str]) -> dict[str, Standing]:
        """What is known of those of the files that are known at all."""
        ...

    def swapped(self, number: int) -> tuple[set[str], set[str]]:
        """The files that a swap took, and those it brought, as far as gc has not forgotten them."""
        ...

    def extents_in(self, file: str) -> list[Extent]: ...

    def swap(
        self,
        removed: Collection[str],
        added: Collection[str],
        extents: Iterable[Extent],
        extents_count: int,
        now_ms: int,
    ) -> None:
        """Records of the `removed` files are in the `added` ones from now on, where `extents` says. One transaction.

        Raises RuntimeError, and nothing has changed, unless the removed files live and have `extents_count` extents.
        """
        ...

    def close(self) -> None: ...


class Relocated(Protocol):
    """New files that hold exactly the live rows of old ones."""

    live_rows: int
    dropped_rows: int
    """Rows of the new files that nothing refers to any more."""

    def extents(self) -> Iterator[Extent]:
        """Where the live rows are."""
        ...


class Relocation(Protocol):
    """New files that are to take the place of old ones, their keys read."""

    def match(self, live: dict[str, list[Extent]]) -> Relocated:
        """Holds the new files against the live extents of each old one. Raises SwapRefused."""
        ...


class Lake(Protocol):
    """Where settled records are. Calls block: they belong in worker threads. All raise BlobsUnavailable."""

    def settle(self, runs: list[Run], group: int) -> tuple[str, list[Extent]]:
        """Writes one file with all runs and commits it to the table; returns its name and where each run is in it.

        Crash-safe: until it returns, nothing refers to what it wrote.
        """
        ...

    def reconcile(self, alive: dict[str, bool], fresh: set[str], group: int) -> int:
        """Makes the table follow the catalog after a crash, or an answer that got lost. Returns how many files moved.

        `alive`: files that are not dead, and whether extents refer to them; `fresh`: files that only the log speaks of.
        What is neither leaves the table; what extents refer to is in it. No flush of the group may be under way. Files
        of other groups are not looked at.
        """
        ...

    def relocation(self, remove: list[str], add: list[str], group: int, check: Callable[[], None]) -> Relocation:
        """Reads the keys of both, and makes the new files durable. Raises SwapRefused, and what `check` raises."""
        ...

    def relocate(self, remove: list[str], found: Relocated) -> None:
        """The table shows the new files instead of the old ones, in one step."""
        ...

    def read(self, extent: Extent, start: int, end: int) -> Records:
        """The extent's records that begin in [start, end)."""
        ...

    def stretch(self, extent: Extent, start: int, limit: int, commas: bool, wait: bool) -> Stretch | None:
        """The extent's records from `start` on that end at or before `limit`, joined; the first whatever its size.

        Without `wait` it never blocks, and gives None when they are not at hand.
        """
        ...

    @property
    def ahead_bytes_max(self) -> int:
        """How much may be made ready by `prepare` before it is read."""
        ...

    def prepare(self, extent: Extent, commas: bool) -> None:
        """Has what `stretch` will need of the extent at hand, for as long as there is room."""
        ...

    def version(self) -> int:
        """The number of the table's newest version."""
        ...

    def sweep(
        self, group: int, lake_files: GcFiles, pending: Callable[[], Pending], grace_ms: int, check: Callable[[], None]
    ) -> LakeGcResult:
        """Removes what nothing of the group refers to (see `lake/gc.py`).

        Calls `pending` once, when it has listed what there is: no flush that began before may be under way then. What
        `check` raises ends the run.
        """
        ...


class CatalogCopy(msgspec.Struct, frozen=True):
    """What a copy of the catalog says of itself."""

    position: int
    log_floor: int
    files: list[str]
    """Files of the lake that it counts on."""
    blobs: list[str]
    """Snapshots that its streams refer to."""


class ReadCount(msgspec.Struct, frozen=True):
    """How much was read from a bucket on a day."""

    day: int
    """Days since 1970-01-01, UTC."""
    bucket: str
    reads: int
    """Answers with records in them; an SSE connection is one."""
    bytes: int
    """Payload in those answers."""


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
    reads: list[ReadCount] = []
    """Added to what the catalog has for the same day and bucket."""


class Catalog(Protocol):
    """Durable stream metadata, true for a log position. Reads run on the event loop's thread and take microseconds."""

    @property
    def position(self) -> int:
        """Every event that ends at or below this position is reflected in the rows."""
        ...

    @property
    def log_floor(self) -> int:
        """The log still has everything after this position."""
        ...

    @property
    def next_sid(self) -> int: ...

    def load(self, key: str) -> StreamRow | None: ...

    def load_sid(self, sid: int) -> StreamRow | None: ...

    def load_bucket(self, name: str) -> BucketRow | None: ...

    def extents(self, sid: int, offset: int, count_max: int) -> list[Extent]:
        """Extents of a stream that end after `offset`, in order, `count_max` at most."""
        ...

    def incarnations(self) -> list[tuple[str, int]]:
        """What the log has gone through (see `model.lineage`), in order."""
        ...

    def keep_incarnations(self, incarnations: Sequence[tuple[str, int]]) -> None:
        """They take the place of those that were kept. On return they are on stable storage."""
        ...

    def files(self) -> set[str]:
        """Every file of the lake that was ever settled and not yet removed."""
        ...

    def alive(self) -> dict[str, bool]:
        """Files that are not dead, and whether any extent refers to them. Runs on a worker thread."""
        ...

    table_behind: bool
    """True while the lake's table may not show the last swap of files."""

    def table_followed(self) -> None:
        """The table shows it. Runs on a worker thread."""
        ...

    def due(self, now_ms: int, count_max: int) -> list[str]:
        """Keys of streams whose time has passed, as far as their rows say."""
        ...

    def load_things(self, domain: str) -> dict[str, bytes]:
        """Everything kept for a domain, by name."""
        ...

    def thing(self, domain: str, name: str) -> bytes | None:
        """One of them; None when there is none of that name."""
        ...

    def has_things(self, domain: str) -> bool: ...

    def reads(self, day: int, bucket: str, count_max: int) -> list[ReadCount]:
        """Counts after (day, bucket), in that order, `count_max` at most."""
        ...

    def page(self, low: str, high: str, count_max: int) -> list[StreamRow]:
        """Rows with low < key < high, in bytewise order of their keys, `count_max` at most."""
        ...

    def write(self, change: Change) -> None:
        """One transaction. Runs on a worker thread."""
        ...

    def close(self) -> None: ...
