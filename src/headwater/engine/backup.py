"""Backups: a copy of a group's catalog and log that it could start from after a crash, and a hold on what they name.

Owns holds: while there is one, gc deletes nothing of the group and superseded snapshots stay. Never stops anything
else: copies are made in worker threads, and what is left of the log at the end is small.

    hold -> flush -> checkpoint -> copy of the catalog, true for C -> copy of the log, from the catalog's floor to S

Everything acknowledged before `take` returned is in the copies: S is read, and the last of the log copied, in the very
turn of the event loop in which it returns. What was deleted before the hold began was not referred to any more by then,
and the checkpoint comes later: neither copy speaks of it.

A backup of a node is a hold on each of its groups, one after another: each cut is consistent in itself alone.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec

from headwater.engine.checkpoint import checkpoint
from headwater.engine.flush import Flusher
from headwater.engine.group import Group
from headwater.engine.outcome_future import synced
from headwater.errors import LogUnavailable, Overloaded
from headwater.model.events import Event, Settled, SnapshotPublished, Swapped
from headwater.ports import CatalogCopy, CopiedLog, Rng

HOLDS_MAX = 2
"""At once, those being taken included; each has a copy of the catalog on the disk. Overflow: 503."""
REST_BYTES = 64 * 1024
"""As much of the log may be left for the event loop to copy: less than a millisecond."""
ROUNDS_MAX = 16
CATALOG, LOG = "catalog.db", "log"


class Hold(msgspec.Struct, frozen=True):
    id: str
    position: int
    """Everything at or below this log position is in the backup, and nothing else."""
    catalog: Path
    catalog_bytes: int
    log: Path
    log_pieces: list[tuple[int, int]]
    """(position of its first byte, size in bytes) of each log file that `log` is made of."""
    files: list[str]
    """Files of the lake that the copies refer to."""
    blobs: list[str]
    hold_ms: int

    @property
    def log_bytes(self) -> int:
        return sum(size for _, size in self.log_pieces)


class Backups:
    def __init__(
        self,
        group: Group,
        log: CopiedLog,
        flusher: Flusher,
        copy_catalog: Callable[[Path], CatalogCopy],
        directory: Path,
        rng: Rng,
    ) -> None:
        """`directory` is for copies alone: what a crash left there is removed."""
        self._group = group
        self._log = log
        self._flusher = flusher
        self._copy_catalog = copy_catalog
        self._directory = directory
        self._rng = rng
        self._taking_count = 0
        self._holds: dict[str, Hold] = {}
        self._ends_s: dict[str, float] = {}
        """When each hold ends, by the monotonic clock, unless it is renewed."""
        shutil.rmtree(directory, ignore_errors=True)

    def held(self) -> bool:
        """True while nothing that is in the object store may be deleted."""
        return bool(self._holds) or self._taking_count > 0

    @property
    def holds_count(self) -> int:
        return len(self._holds)

    def find(self, name: str) -> Hold | None:
        """The hold of that id, renewed; None when there is none, or none any more."""
        hold = self._holds.get(name)
        if hold is not None:
            self._ends_s[name] = self._group.clock.monotonic_s() + hold.hold_ms / 1000
        return hold

    async def take(self, hold_ms: int) -> Hold:
        """Raises Overloaded, LogUnavailable, BlobsUnavailable; then nothing is held."""
        if len(self._holds) + self._taking_count >= HOLDS_MAX:
            raise Overloaded(f"{HOLDS_MAX} backups are held already")
        self._taking_count += 1
        name = self._rng.token(8).hex()
        directory = self._directory / name
        try:
            async with self._group.locks.copying:
                hold = await self._cut(name, directory, hold_ms)
            self._holds[name] = hold
        except BaseException as error:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True))
            if self._group.log.failure is not None:
                raise LogUnavailable(self._group.log.failure.reason) from error
            if isinstance(error, OSError | sqlite3.Error):
                raise Overloaded(f"no copy for a backup could be made ({error})") from error
            raise
        finally:
            self._taking_count -= 1
        self.find(name)
        self._look_at(name)
        return hold

    async def _cut(self, name: str, directory: Path, hold_ms: int) -> Hold:
        group = self._group
        log = self._log
        log.hold(group.catalog.log_floor)
        try:
            await asyncio.to_thread(directory.mkdir, parents=True)
            await self._flusher.flush_all()
            await checkpoint(group)
            copied = await asyncio.to_thread(self._copy_catalog, directory / CATALOG)
            known = await asyncio.to_thread(lambda: {*copied.files, *copied.blobs})
            catalog_bytes = (directory / CATALOG).stat().st_size
            await synced(group)  # classes that were answered before they were synced are part of it too
            copy = await log.begin_copy(copied.log_floor, copied.position, directory / LOG)
            met: list[Event] = []
            for _ in range(ROUNDS_MAX):
                if log.synced - copy.at < REST_BYTES:
                    break
                met += await asyncio.to_thread(copy.advance, log.synced)
            # No await from here on: nothing is acknowledged between the end of the copy and the answer.
            if log.failure is not None:
                raise LogUnavailable(log.failure.reason)
            position = log.synced
            met += copy.advance(position)
            logged = [event.file for event in met if isinstance(event, Settled)]
            logged += [name for event in met if isinstance(event, Swapped) for name in event.added]
            files = [name for name in logged if name not in known]
            blobs = [event.blob for event in met if isinstance(event, SnapshotPublished) and event.blob not in known]
            return Hold(
                name,
                position,
                directory / CATALOG,
                catalog_bytes,
                directory / LOG,
                copy.pieces,
                copied.files + files,
                copied.blobs + blobs,
                hold_ms,
            )
        finally:
            log.hold(None)

    def _look_at(self, name: str) -> None:
        """Ends the hold if its time has passed, or looks again when it may have."""
        clock = self._group.clock
        end_s = self._ends_s.get(name)
        if end_s is None:
            return
        if end_s <= clock.monotonic_s():
            self._end(name)
        else:
            clock.call_later(end_s - clock.monotonic_s(), lambda: self._look_at(name))

    def _end(self, name: str) -> asyncio.Future[None]:
        del self._holds[name], self._ends_s[name]
        # In a thread: removing a large file takes long.
        removing = asyncio.to_thread(shutil.rmtree, self._directory / name, ignore_errors=True)
        return asyncio.ensure_future(removing)

    async def drop(self, name: str) -> bool:
        """Ends a hold; False when there is none of that id."""
        if name not in self._holds:
            return False
        await self._end(name)
        return True
