"""What a cluster comes back to after its logs were lost: which groups have lost theirs, and how they go on.

Owns the order in which a group is restored. Never touches a group whose log is there, and never runs beside a node: who
calls has looked. See docs/decisions/0018.

    newest whole catalog snapshot -> made true without its log -> stored as a snapshot of the new log
    -> damaged snapshots beyond it are deleted -> the new log's first entry, which says from where it goes on

A crash between two steps leaves a group as lost as before: the next run begins with the snapshot that this one stored.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec

from headwater.catalog import without_log
from headwater.catalog.catalog_copy import copy_catalog
from headwater.catalog.sqlite import CatalogMismatch, SqliteCatalog
from headwater.catalog.without_log import Cut
from headwater.cluster.catalog_snapshots import CatalogSnapshots, Snapshot, SnapshotDamaged
from headwater.cluster.logs import Logs
from headwater.engine.recovery import INCARNATION_BYTES, log_of
from headwater.lake.names import SNAPSHOTS, data_prefix, epoch_of
from headwater.lake.store import ObjectStore
from headwater.log.medium import Gone, Lost, Taken
from headwater.log.quorum_entries import (
    CONTINUES_AT,
    TOKEN_BYTES,
    Claim,
    FormatUnknown,
    LogDamaged,
    continuing_entry,
)
from headwater.ports import Rng

OWNER = "restore"
"""Who claims a log that was begun anew: no node, so that any of them may claim it next."""
WHOLE, LOST, NOTHING, WRONG = "whole", "lost", "nothing", "wrong"


class Found(msgspec.Struct, frozen=True):
    """A group as it is."""

    group: int
    state: str
    """WHOLE: nodes go on by themselves, up to `position`. LOST: it goes on from the snapshot. NOTHING: there is neither
    a log nor a snapshot. WRONG: an operator has to do something else first, which `what` says."""
    what: str
    position: int = 0
    """Up to where it comes back."""
    snapshot: Snapshot | None = None
    written_ms: int = 0
    """When the snapshot was stored."""
    cut: Cut | None = None
    epoch: int = 0
    """The highest one that anything in the store was written in."""
    damaged: list[Snapshot] = []
    """Newer snapshots that cannot be loaded."""
    missing_files: list[str] = []
    """Of the lake, that the snapshot counts on."""
    later_files_count: int = 0
    """Files of the lake that settled after the snapshot: it does not list them, and they are not read."""


class Restore:
    def __init__(
        self, lake: ObjectStore, store: ObjectStore, logs: Logs, groups_count: int, directory: Path, rng: Rng
    ) -> None:
        """`store` is where catalog snapshots are; `directory` is for copies of them."""
        self._lake = lake
        self._store = store
        self._logs = logs
        self._groups_count = groups_count
        self._directory = directory
        self._rng = rng

    async def survey(self) -> list[Found]:
        """Changes nothing. Raises StoreError, Unavailable, OSError."""
        return [await self._look(group) for group in range(self._groups_count)]

    async def _look(self, group: int) -> Found:
        snapshots = self._snapshots(group)
        found = await asyncio.to_thread(snapshots.found)
        path = self._path(group)
        damaged: list[Snapshot] = []
        newest: Snapshot | None = None
        for one in sorted(found, reverse=True):
            try:
                await asyncio.to_thread(snapshots.fetch, one, path)
                newest = one
                break
            except SnapshotDamaged:
                damaged.append(one)
        if await self._logs.is_empty(group):
            return await self._lost(group, newest, damaged, set(found))
        return await self._held(group, newest, path)

    async def _held(self, group: int, newest: Snapshot | None, path: Path) -> Found:
        """The log holds something: does it fit the snapshot?"""
        log = await self._logs.log(group)
        try:
            await log.load()
        except (LogDamaged, FormatUnknown, Lost, Gone) as error:
            return Found(group, WRONG, f"{error}", snapshot=newest)
        finally:
            await log.closed()
        if newest is None:
            if log.head:
                return Found(group, WRONG, f"its log begins at {log.head}, and no catalog snapshot is whole")
            return Found(group, WHOLE, "its log has everything", log.tail)
        try:
            with closing(SqliteCatalog(path)) as catalog:
                of_log = log_of(catalog)
        except (CatalogMismatch, sqlite3.Error) as error:
            return Found(group, WRONG, str(error), snapshot=newest)
        if of_log not in ("", log.identity):
            what = f"its catalog snapshot is of log {of_log}, and its log is {log.identity}: it is another cluster's"
            return Found(group, WRONG, what, snapshot=newest)
        if log.head > newest.log_floor or log.tail < newest.position:
            what = (
                f"its log goes from {log.head} to {log.tail}, and its catalog snapshot needs it from "
                f"{newest.log_floor} to {newest.position}"
            )
            return Found(group, WRONG, what, snapshot=newest)
        return Found(group, WHOLE, "its log has everything since its snapshot", log.tail, newest)

    async def _lost(self, group: int, newest: Snapshot | None, damaged: list[Snapshot], found: set[Snapshot]) -> Found:
        if newest is None:
            if damaged:
                return Found(group, WRONG, "its log is lost, and none of its catalog snapshots can be loaded")
            return Found(group, NOTHING, "it has neither a log nor a catalog snapshot: it begins empty")
        if self._logs.kind == "objects":
            what = (
                "its log's objects are gone, and its catalog snapshot is not: bring them back from where they were kept"
            )
            return Found(group, WRONG, what, snapshot=newest)
        try:
            cut = await asyncio.to_thread(without_log.survey, self._path(group))
            copied = await asyncio.to_thread(self._counted_on, group)
        except sqlite3.Error as error:
            return Found(group, WRONG, f"its catalog snapshot cannot be read: {error}", snapshot=newest)
        held = {stored.key for stored in await asyncio.to_thread(lambda: list(self._lake.list(data_prefix(group))))}
        blobs = [
            stored.key for stored in await asyncio.to_thread(lambda: list(self._lake.list(f"{SNAPSHOTS}/{group}/")))
        ]
        return Found(
            group,
            LOST,
            "its log is lost: it goes on from its catalog snapshot",
            cut.position,
            newest,
            await asyncio.to_thread(self._written_ms, newest),
            cut,
            max([one.epoch for one in found] + [epoch_of(key) for key in (*held, *blobs)]),
            damaged,
            sorted(copied - held),
            len(held - copied),
        )

    def _counted_on(self, group: int) -> set[str]:
        to = self._path(group).with_suffix(".listed")
        to.unlink(missing_ok=True)
        try:
            return set(copy_catalog(self._path(group), to).files)
        finally:
            to.unlink(missing_ok=True)

    def _written_ms(self, snapshot: Snapshot) -> int:
        return max((stored.modified_ms for stored in self._store.list(f"{snapshot.folder}/")), default=0)

    async def carry_out(self, found: Found) -> Snapshot:
        """Of a group that is LOST: on return it goes on from the snapshot that is returned. Raises StoreError, OSError,
        MediumError (Taken: somebody wrote to the log meanwhile)."""
        if found.state != LOST or found.snapshot is None:
            raise RuntimeError(f"group {found.group} is not lost")
        group, snapshots, path = found.group, self._snapshots(found.group), self._path(found.group)
        incarnation = int.from_bytes(self._rng.token(8), "little") | 1
        epoch = found.epoch + 1
        await asyncio.to_thread(snapshots.fetch, found.snapshot, path)
        cut = await asyncio.to_thread(without_log.cut, path, f"{incarnation:016x}")
        # Not over that of another restore that runs at the same time: its log would be without a catalog.
        made = await asyncio.to_thread(snapshots.write, partial(copy_catalog, path), epoch, True)
        # Read back: from here on it is what the group consists of.
        await asyncio.to_thread(snapshots.fetch, made, path)
        await asyncio.to_thread(snapshots.delete, [one for one in found.damaged if one > made])
        claim = Claim(OWNER, "", epoch=epoch, incarnation=self._rng.token(INCARNATION_BYTES).hex())
        data = continuing_entry(cut.position, incarnation, self._rng.token(TOKEN_BYTES), claim)
        try:
            await self._logs.begin(group, CONTINUES_AT, data)
        except Taken:
            await asyncio.to_thread(snapshots.delete, [made])  # it is of a log that will never be
            raise
        return made

    def _snapshots(self, group: int) -> CatalogSnapshots:
        return CatalogSnapshots(self._store, group, OWNER, self._directory)

    def _path(self, group: int) -> Path:
        return self._directory / f"{group}.db"


def take_restored(snapshots: CatalogSnapshots, path: Path, identity: str) -> None:
    """Puts the newest snapshot's catalog in the place of one that is of another log, if that snapshot is of this log.
    Blocks. Raises StoreError, SnapshotDamaged, OSError."""
    found = snapshots.found()
    if not found:
        return
    draft = path.with_name(f"{path.name}.restored")
    snapshots.fetch(max(found), draft)
    with closing(SqliteCatalog(draft)) as restored:
        fits = log_of(restored) == identity
    if not fits:
        draft.unlink()
        return
    # What SQLite kept beside the old file says nothing of the new one.
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    os.replace(draft, path)
