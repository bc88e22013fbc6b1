"""The catalog snapshots of a group, seen to beside its log: written by the owner, confirmed by its standby.

Owns that at most one step of it is under way, and how far the log may be purged. Never holds up the group: a store that
does not answer only keeps the log longer.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from headwater.cluster.catalog_snapshots import (
    CatalogSnapshots,
    Snapshot,
    SnapshotDamaged,
    purge_limit,
    superseded,
)
from headwater.lake.store import StoreError
from headwater.log.medium import MediumError
from headwater.log.quorum import LogFailed, QuorumLog
from headwater.ports import Catalog, CatalogCopy, Clock

FORGET_S_MAX = 60.0
_FORGET_LOOK_S = 0.25
AGE_S_MAX = 600.0
"""A group that grows has a catalog snapshot no older than this, however slowly it grows."""
SHARE_MIN = 20.0
"""Times as long as writing one takes: the least time between two, by age."""


class SnapshotUpkeep:
    """`failure` says why the last step did not succeed; None while they do."""

    def __init__(
        self, snapshots: CatalogSnapshots, log: QuorumLog, catalog: Catalog, step_bytes: int, clock: Clock
    ) -> None:
        self._snapshots = snapshots
        self._log = log
        self._catalog = catalog
        self._step_bytes = step_bytes
        self._clock = clock
        self._written_s = clock.monotonic_s()
        """When the newest was written here, or this began."""
        self._took_s = 0.0
        self._task: asyncio.Task[Any] | None = None
        self._seen: Snapshot | None = None
        self.newest: Snapshot | None = None
        """As far as this node has seen."""
        self.failure: str | None = None

    @property
    def age_s(self) -> float:
        """Since the newest was written here, or this began."""
        return self._clock.monotonic_s() - self._written_s

    @property
    def lag_bytes(self) -> int:
        """How much of what the catalog has no catalog snapshot covers."""
        return self._catalog.position - (0 if self.newest is None else self.newest.position)

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

    async def forget(
        self,
        below: int,
        copy: Callable[[Path], CatalogCopy],
        epoch: int,
        members_needed: Callable[[], int],
    ) -> None:
        """What the log held up to the position goes, which the catalog covers, and so does every older snapshot: on
        return whoever joins begins with one that was made after this call. Waits until enough members could load that.

        Raises OSError; then some of it may be left.
        """
        try:
            await self._log.barrier()  # the newest entry of a log stays: let it be one that holds nothing
            made = await self.now(copy, epoch, members_needed())
            found, limit = await self._loaded_by_enough(made, members_needed)
            self._log.kept_after = limit.log_floor
            self._log.trim(self._catalog.log_floor)
            await self._log.purged()
            await asyncio.to_thread(self._snapshots.delete, superseded(found, limit, epoch))
        except (LogFailed, MediumError, StoreError, SnapshotDamaged, sqlite3.Error) as error:
            raise OSError(str(error)) from error
        if self._log.head < below:
            raise OSError(f"the log is held from position {self._log.head} on")

    async def _loaded_by_enough(
        self, made: Snapshot, members_needed: Callable[[], int]
    ) -> tuple[dict[Snapshot, set[str]], Snapshot]:
        """All snapshots, and one not older than `made` that enough members could load. Raises StoreError, OSError."""
        clock = self._clock
        deadline_s = clock.monotonic_s() + FORGET_S_MAX
        while True:
            found = await asyncio.to_thread(self._snapshots.found)
            limit = purge_limit(found, members_needed())
            if limit is not None and limit >= made:
                return found, limit
            if clock.monotonic_s() > deadline_s:
                raise OSError(f"no other node has loaded the catalog snapshot {made.folder}")
            await clock.sleep(_FORGET_LOOK_S)

    def confirm(self, upto: int) -> None:
        """A step of a standby's: says of the newest snapshot that it could load it. It has followed the log up to
        `upto`, and says nothing of a snapshot beyond: what the log has told it to do by then is done."""
        self._begin(self._confirm(upto))

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
        if self._is_due():
            await self._write_new(copy, epoch)
        await self._purge(epoch, members_needed)

    def _is_due(self) -> bool:
        if self.newest is None:
            return True  # at once: from then on a log that is lost is not taken for one that is new
        grown = self._catalog.position - self.newest.position
        age_s = self._clock.monotonic_s() - self._written_s
        # A lost log takes no more with it than this. A large catalog is not written all the time for it.
        is_old = age_s >= max(AGE_S_MAX, SHARE_MIN * self._took_s)
        return grown >= self._step_bytes or (grown > 0 and is_old)

    async def _write_new(self, copy: Callable[[Path], CatalogCopy], epoch: int) -> Snapshot:
        began_s = self._clock.monotonic_s()
        made = await asyncio.to_thread(self._snapshots.write, copy, epoch)
        # Read back: what cannot be loaded here covers nothing.
        await asyncio.to_thread(self._snapshots.confirm, made)
        self.newest, self._written_s = made, self._clock.monotonic_s()
        self._took_s = self._written_s - began_s
        return made

    async def _purge(self, epoch: int, members_needed: int) -> None:
        found = await asyncio.to_thread(self._snapshots.found)
        limit = purge_limit(found, members_needed)
        if limit is not None and self._log.failure is None:
            self._log.kept_after = limit.log_floor
            self._log.trim(self._catalog.log_floor)
            await asyncio.to_thread(self._snapshots.delete, superseded(found, limit, epoch))

    async def _confirm(self, upto: int) -> None:
        found = await asyncio.to_thread(self._snapshots.found)
        newest = max((one for one in found if one.position <= upto), default=None)
        if newest is not None and newest != self._seen:
            await asyncio.to_thread(self._snapshots.confirm, newest)
            self._seen = newest
