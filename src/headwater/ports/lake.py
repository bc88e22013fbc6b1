"""The lake and the object store as Protocols, with what its gc and its swaps of files need of a catalog.

Owns the words that engine, lake and catalog share about settled records. Never reads or writes a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import msgspec

from headwater.model.extents import Extent, Records, Run, Stretch


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


class Writer(msgspec.Struct, frozen=True):
    """Who writes to the lake. In a cluster the table takes nothing of an owner once it has taken something of a later
    one of the same group and log."""

    group: int
    epoch: int = 0
    """Of the group's owner, which objects are named with; 0: there is only one."""
    log: str = ""
    """Identity of the group's log: epochs of another one say nothing."""


class Pending(msgspec.Struct, frozen=True):
    """What the log refers to and the catalog may not know yet."""

    files: set[str]
    blobs: set[str]
    swaps_covered: int = 1 << 62
    """Number of the newest swap whose old files may go when their time has come."""


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


class RowCounts(msgspec.Struct, frozen=True):
    """Of one file of the lake."""

    live: int
    """Rows that extents refer to, without those of deleted records."""
    deleted: int
    """Those of the live ones that are of deleted records after all: only forks read them."""


class Standing(msgspec.Struct, frozen=True):
    """What the catalog says of a file of the lake."""

    dead_ms: int | None
    came: int | None
    went: int | None
    """Numbers of the swaps that brought it and took it."""


class GcFiles(Protocol):
    """What the catalog says of the lake's files. Calls block: they belong in worker threads, one at a time."""

    def files(self) -> dict[str, int | None]:
        """Every file, with the time since when it is dead."""
        ...

    def unused(self) -> set[str]:
        """Files that no extent refers to."""
        ...

    def standing(self, names: Iterable[str]) -> dict[str, Standing]:
        """What is known of those of the files that are known at all."""
        ...

    def swaps_count(self) -> int:
        """The number of the newest swap."""
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


class SwapFiles(Protocol):
    """The catalog as a swap of files reads it. Calls block: they belong in worker threads."""

    def standing(self, names: Iterable[str]) -> dict[str, Standing]:
        """What is known of those of the files that are known at all."""
        ...

    def swapped(self, number: int) -> tuple[set[str], set[str]]:
        """The files that a swap took, and those it brought, as far as gc has not forgotten them."""
        ...

    def extents_in(self, file: str) -> list[Extent]: ...

    def live_in(self, file: str) -> list[Extent]:
        """The same without rows of deleted records that no fork reads."""
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

    def settle(self, runs: list[Run], writer: Writer) -> tuple[str, list[Extent]]:
        """Writes one file with all runs and commits it to the table; returns its name and where each run is in it.

        Crash-safe: until it returns, nothing refers to what it wrote.
        """
        ...

    def reconcile(self, alive: dict[str, bool], fresh: set[str], writer: Writer) -> int:
        """Makes the table follow the catalog after a crash, a change of owners, or an answer that got lost. Returns how
        many files moved. From here on the table takes nothing of an earlier owner.

        `alive`: files that are not dead, and whether extents refer to them; `fresh`: files that only the log speaks of.
        What is neither leaves the table; what extents refer to is in it. No flush of the group may be under way. Files
        of other groups are not looked at.
        """
        ...

    def relocation(self, remove: list[str], add: list[str], writer: Writer, check: Callable[[], None]) -> Relocation:
        """Reads the keys of both, and makes the new files durable. Raises SwapRefused, OwnerChanged when the new ones
        were written for another owner, and what `check` raises."""
        ...

    def relocate(self, remove: list[str], found: Relocated, writer: Writer) -> None:
        """The table shows the new files instead of the old ones, in one step."""
        ...

    def read(self, extent: Extent, start: int, end: int, labels: bool = False) -> Records:
        """The extent's records that begin in [start, end); with their labels only when those are asked for."""
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

    def end_past(self) -> int:
        """Makes a new version of the table, and returns its number: those before it are not to be read any more, for
        they may hold what was erased."""
        ...

    def sweep(
        self,
        writer: Writer,
        lake_files: GcFiles,
        pending: Callable[[], Pending],
        grace_ms: int,
        check: Callable[[], None],
    ) -> LakeGcResult:
        """Removes what nothing of the group refers to (see `lake/gc.py`).

        Calls `pending` once, when it has listed what there is: no flush that began before may be under way then. What
        `check` raises ends the run.
        """
        ...
