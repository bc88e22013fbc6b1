"""A log that begins where a catalog ends: what a cluster starts from when it had no log, or lost the one it had.

Owns the order in which a group's first catalog snapshot and its log's first entry are made. Never reads events: whoever
calls hands over a catalog that holds everything up to its position, so that no log before it is needed.

    catalog -> gets the new log's identity -> snapshot in the object store -> first entry of the log, at its position

A stop at any point leaves what no node serves: without the entry the log ends before the catalog's position, without
the snapshot the log begins after that of an empty one. The same call again makes another snapshot, and goes on.

The new log has an identity of its own, so a catalog that a node kept of the log before is refused. The lineage of the
catalog goes on: clients that know positions up to where the new log begins go on, others are told that the log was set
back. Epochs go on after the highest one that anything of the group is named with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from headwater.catalog.catalog_copy import copy_catalog
from headwater.catalog.log_identity import read_facts, write_identity
from headwater.cluster.catalog_snapshots import CatalogSnapshots, Snapshot
from headwater.lake.names import SNAPSHOTS, data_prefix, epoch_of
from headwater.lake.store import ObjectStore
from headwater.log.quorum import QuorumLog
from headwater.ports import Rng

_IDENTITY_BYTES = 8


class CannotBegin(Exception):
    """Nothing was changed. The message says what to do."""


async def begin_log_after_snapshot(
    log: QuorumLog, snapshots: CatalogSnapshots, catalog: Path, epoch: int, rng: Rng
) -> Snapshot:
    """On return the group starts from the catalog at that path, which nobody serves, and from an empty log after it.

    `log` has not been loaded, and is closed by the caller; `epoch` is the highest one that any owner of the group had
    (see `highest_epoch`). When that was done before and nobody has claimed the group since, nothing more is done.
    Raises CannotBegin, and what log and store raise: then the same call may be repeated.
    """
    facts = await asyncio.to_thread(read_facts, catalog)
    if facts.log_floor != facts.position:
        raise CannotBegin(
            f"the catalog is true for position {facts.position} and counts on a log from {facts.log_floor} on: records "
            "in between are in no file of the lake. Settle them first, or give them up"
        )
    await log.load()
    newest = max(await asyncio.to_thread(snapshots.found), default=None)
    if log.cursor.number > 1:
        if newest is not None and await _is_begun(log, snapshots, newest, catalog, facts.position):
            return newest
        raise CannotBegin(
            f"there is a log already, {log.identity} from position {log.head} to {log.tail}: name another place for "
            "the new one, or start nodes on the log that is there"
        )
    if newest is not None and newest.position > facts.position:
        raise CannotBegin(
            f"{newest.folder} goes further than the catalog to begin with, which ends at {facts.position}: begin with "
            "that one, or delete it"
        )
    epoch = max(epoch, 0 if newest is None else newest.epoch)
    identity = f"{int.from_bytes(rng.token(_IDENTITY_BYTES), 'little') | 1:016x}"
    await asyncio.to_thread(write_identity, catalog, identity)
    snapshot = await asyncio.to_thread(snapshots.write, partial(copy_catalog, catalog), epoch + 1)
    await asyncio.to_thread(snapshots.confirm, snapshot)
    await log.begin(snapshot.position, epoch, identity)
    return snapshot


async def _is_begun(
    log: QuorumLog, snapshots: CatalogSnapshots, newest: Snapshot, catalog: Path, position: int
) -> bool:
    """True when the log's only entry is one that an earlier call made, for a catalog of the same position."""
    if not newest.position == position == log.head or log.cursor.number > 2:
        return False
    fetched = catalog.with_suffix(".newest")
    try:
        await asyncio.to_thread(snapshots.fetch, newest, fetched)
        return (await asyncio.to_thread(read_facts, fetched)).identity == log.identity
    finally:
        for path in catalog.parent.glob(f"{fetched.name}*"):
            path.unlink(missing_ok=True)


def highest_epoch(store: ObjectStore, group: int) -> int:
    """The highest epoch that a file of the lake or a blob of the group is named with. Lists them all; raises
    StoreError."""
    return max((epoch_of(key) for key in _keys(store, group)), default=0)


def _keys(store: ObjectStore, group: int) -> Iterable[str]:
    for prefix in (data_prefix(group), f"{SNAPSHOTS}/{group}/"):
        for stored in store.list(prefix):
            yield stored.key
