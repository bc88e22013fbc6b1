"""Erasure: what was deleted leaves a group's own files too, its log and its catalog, before the caller is answered.

Owns the order of that. Never deletes a stream or an object of the lake: a stream is gone before this begins, and
objects go after gc's grace period, as does what the table's log says of them.

    log begins a new file -> flush -> checkpoint -> log trimmed -> catalog searched -> old files off the disk

Everything logged before the new file began is in the lake, deleted, or in the catalog by then: nothing needs the old
files. No copy for a backup is made meanwhile; one that was made before holds what it held.

In a cluster the log is told first that there is an erasure, without a name, so that the catalogs of other nodes are
written anew. What was logged goes when a catalog snapshot that was made afterwards can be loaded by another node, and
older snapshots go with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from headwater.engine.backup import Backups
from headwater.engine.checkpoint import checkpoint
from headwater.engine.erasure_marks import ErasureMarks
from headwater.engine.flush import Flusher
from headwater.engine.group import Group
from headwater.engine.outcome_future import OutcomeFuture, synced
from headwater.errors import LogUnavailable, Overloaded
from headwater.ports import Erasure, Lake

WAITING_MAX = 16
"""At work or waiting: one is done at a time. More are answered 503."""


class Erased(msgspec.Struct, frozen=True):
    log_position: int
    """Nothing that was logged before it is in a file of the log."""
    catalog_rewritten: bool
    """The name was found in the catalog's files, so they were written anew. It may have been part of another name."""
    table_version: int
    """The table's log loses what is older than this version at the latest when objects do that nothing refers to."""
    backups_held: int
    """Backups under way, which have copies of catalog and log from before."""


class Notes(Protocol):
    """The catalog, as an erasure writes to it. Calls block."""

    def ask_erasure(self, wanted: Erasure) -> None: ...
    def close(self) -> None: ...


class ErasedLog(Protocol):
    """The log, as an erasure cuts it."""

    def begin_part(self) -> int:
        """What ends at or below the returned position can be forgotten without anything that comes later."""
        ...

    async def forget(self, below: int) -> None:
        """On return nothing that ends at or below the position is in the log, nor in what other nodes start from.
        `trim` has allowed it to go. Raises OSError."""
        ...


class Eraser:
    def __init__(
        self,
        group: Group,
        log: ErasedLog,
        marks: ErasureMarks | None,
        flusher: Flusher,
        lake: Lake,
        backups: Backups,
        notes: Callable[[], Notes],
        scrub: Callable[[str], bool],
    ) -> None:
        self._group = group
        self._log = log
        self._marks = marks
        """None for a group that nobody else follows."""
        self._flusher = flusher
        self._lake = lake
        self._backups = backups
        self._notes = notes
        """Opens the catalog, beside the connections that others use. Called in a thread."""
        self._scrub = scrub
        """Removes a name's traces from the catalog's files (see `catalog.scrub`). Called in a thread."""
        self._waiting_count = 0

    async def erase(self, key: str) -> Erased:
        """Everything that streams of this name left in log and catalog when they were deleted is gone on return.

        Safe to repeat. Raises LogUnavailable, BlobsUnavailable, Overloaded; then some of it may be left.
        """
        if self._waiting_count >= WAITING_MAX:
            raise Overloaded("too many erasures wait")
        self._waiting_count += 1
        try:
            async with self._group.locks.copying:
                return await self._erase(key)
        finally:
            self._waiting_count -= 1

    async def _erase(self, key: str) -> Erased:
        group = self._group
        self._check()
        if self._marks is not None:
            told = OutcomeFuture()
            group.note(ErasureMarks.name, b"", told)
            await told.success()
        position = self._log.begin_part()
        await synced(group)
        await self._flusher.flush_all()
        try:
            await checkpoint(group, always=True)
            async with group.locks.checkpointing:
                while await asyncio.to_thread(group.catalog.prune_marks):
                    pass
                rewritten = await asyncio.to_thread(self._scrub, key)
            if self._marks is not None:
                self._marks.cleared()
            if group.catalog.log_floor < position:
                raise Overloaded("records of other streams are still in the log alone")
            await self._log.forget(position)
        except OSError as error:
            self._check()
            raise Overloaded(f"log and catalog could not be cleared ({error})") from error
        version = await asyncio.to_thread(self._ask_table)
        return Erased(position, rewritten, version, self._backups.holds_count)

    def _ask_table(self) -> int:
        version = self._lake.end_past()
        notes = self._notes()
        try:
            notes.ask_erasure(Erasure(version, self._group.clock.now_ms()))
        finally:
            notes.close()
        return version

    def _check(self) -> None:
        if self._group.log.failure is not None:
            raise LogUnavailable(self._group.log.failure.reason)
