"""The catalog snapshots of a group, seen to beside its log: written by the owner, confirmed by its standby.

Owns that at most one step of it is under way, and how far the log may be purged. Never holds up the group: a store that
does not answer only keeps the log longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from headwater.cluster.catalog_snapshots import CatalogSnapshots, Snapshot, purge_limit, superseded
from headwater.log.quorum import QuorumLog
from headwater.ports import Catalog, CatalogCopy


class SnapshotUpkeep:
    """`failure` says why the last step did not succeed; None while they do."""

    def __init__(self, snapshots: CatalogSnapshots, log: QuorumLog, catalog: Catalog, step_bytes: int) -> None:
        self._snapshots = snapshots
        self._log = log
        self._catalog = catalog
        self._step_bytes = step_bytes
        self._task: asyncio.Task[Any] | None = None
        self._seen: Snapshot | None = None
        self.newest: Snapshot | None = None
        """As far as this node has seen."""
        self.failure: str | None = None

    def write(self, copy: Callable[[Path], CatalogCopy], epoch: int, members_needed: int) -> None:
        """A step of the owner's: a snapshot, when the log has grown enough, and a purge as far as one covers it."""
        self._begin(self._write(copy, epoch, members_needed))

    async def now(self, copy: Callable[[Path], CatalogCopy], epoch: int, members_needed: int) -> Snapshot:
        """The same at once, however little the log has grown. Raises StoreError, sqlite3.Error, OSError,
        SnapshotDamaged."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        made: asyncio.Task[Snapshot] = asyncio.get_running_loop().create_task(self._write_new(copy, epoch))
        self._task = made
        await made
        await self._purge(epoch, members_needed)
        return made.result()

    def confirm(self) -> None:
        """A step of a standby's: says of the newest snapshot that it could load it."""
        self._begin(self._confirm())

    async def stop(self) -> None:
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self, step: Coroutine[Any, Any, None]) -> None:
        if self._task is not None and not self._task.done():
            step.close()  # the one before takes longer: the next one comes
            return
        self._task = asyncio.get_running_loop().create_task(self._try(step))

    async def _try(self, step: Coroutine[Any, Any, None]) -> None:
        try:
            await step
            self.failure = None
        except Exception as error:
            self.failure = f"catalog snapshots: {error}"

    async def _write(self, copy: Callable[[Path], CatalogCopy], epoch: int, members_needed: int) -> None:
        self.newest = max(await asyncio.to_thread(self._snapshots.found), default=None)
        # The first one at once: from then on a log that is lost is not taken for one that is new.
        if self.newest is None or self._catalog.position - self.newest.position >= self._step_bytes:
            await self._write_new(copy, epoch)
        await self._purge(epoch, members_needed)

    async def _write_new(self, copy: Callable[[Path], CatalogCopy], epoch: int) -> Snapshot:
        made = await asyncio.to_thread(self._snapshots.write, copy, epoch)
        # Read back: what cannot be loaded here covers nothing.
        await asyncio.to_thread(self._snapshots.confirm, made)
        self.newest = made
        return made

    async def _purge(self, epoch: int, members_needed: int) -> None:
        found = await asyncio.to_thread(self._snapshots.found)
        limit = purge_limit(found, members_needed)
        if limit is not None and self._log.failure is None:
            self._log.kept_after = limit.log_floor
            self._log.trim(self._catalog.log_floor)
            await asyncio.to_thread(self._snapshots.delete, superseded(found, limit, epoch))

    async def _confirm(self) -> None:
        found = await asyncio.to_thread(self._snapshots.found)
        newest = max(found, default=None)
        if newest is not None and newest != self._seen:
            await asyncio.to_thread(self._snapshots.confirm, newest)
            self._seen = newest
