"""A cluster that begins with what a stopped node holds: its own directory, or one that a restore has made.

Owns the order. Never copies an object of the lake: the directory's lake is the cluster's.

    forks placed -> everything settled -> catalogs cover their logs -> a log after each -> the cluster's description

The description comes last, so no node joins a part of it. Stopped in between, the same call goes on where it was. On
return the directory is that of a node of the cluster: it does not start by itself any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from headwater import lake_location
from headwater.cli.stopped_node import writable
from headwater.cluster.catalog_snapshots import CatalogSnapshots
from headwater.cluster.description import KEY, agreed
from headwater.cluster.logs import Logs
from headwater.cluster.new_log import CannotBegin, begin_log_after_snapshot, highest_epoch
from headwater.cluster_groups import logs_of
from headwater.config import Settings
from headwater.data_directory import DataDirectory
from headwater.engine.checkpoint import checkpoint
from headwater.engine.flush import Flusher
from headwater.engine.group import Group
from headwater.engine.restored_forks import Mended, place_forks
from headwater.lake.lake import DeltaLake
from headwater.lake.names import data_prefix
from headwater.lake.store import ObjectStore
from headwater.ports import SystemClock, SystemRng

_MEMBER = "begun"
"""By which name snapshots are confirmed that no node has loaded yet."""
_CACHE_BYTES = 1 << 20


class Begun(msgspec.Struct, frozen=True):
    cluster: str
    groups: int
    positions: dict[str, int]
    """By group: where its new log begins."""
    forks: Mended


async def into_cluster(settings: Settings, data: Path, progress: Callable[[str, int, int | None], None]) -> Begun:
    """`settings` are those of the cluster's nodes. Raises CannotBegin, and what stores, logs and a stopped node raise;
    then the same call may be repeated."""
    rng = SystemRng()
    url = lake_location.cluster_url(settings)
    store = lake_location.open_lake(settings, lake_location.lake_url(settings))
    place = lake_location.open_place(settings, url)
    logs = logs_of(settings)
    await logs.open()
    try:
        async with writable(data, settings.log_file_bytes) as groups:
            if await place.get(KEY) is not None:
                await agreed(place, len(groups), len(groups), logs.where, rng)
            await asyncio.to_thread(_check_lake, store, groups)
            forks = await place_forks(groups)
            for done, group in enumerate(groups):
                await _cover(group, store, settings)
                progress("records settled", done + 1, len(groups))
            count = len(groups)
        positions: dict[str, int] = {}
        with DataDirectory(data).lock():
            for number in range(count):
                snapshots = CatalogSnapshots(
                    lake_location.open_lake(settings, url), number, _MEMBER, DataDirectory(data).snapshots
                )
                positions[str(number)] = await _begin(logs, snapshots, data, number, store)
                progress("logs begun", number + 1, count)
            description = await agreed(place, count, count, logs.where, rng)
            DataDirectory(data).given_to(description.id)
        return Begun(description.id, count, positions, forks)
    finally:
        await logs.close()


def _check_lake(store: ObjectStore, groups: list[Group]) -> None:
    for group in groups:
        there = {stored.key for stored in store.list(data_prefix(group.number))}
        missing = sorted(name for name in group.catalog.alive() if name not in there)
        if missing:
            raise CannotBegin(
                f"the lake {store.uri} does not hold {missing[0]}, nor {len(missing) - 1} more files of group "
                f"{group.number}: name the lake that the directory was served with, or restored to"
            )


async def _cover(group: Group, store: ObjectStore, settings: Settings) -> None:
    """On return the catalog is true for the log's end, and needs nothing of the log."""
    lake = DeltaLake(store, _CACHE_BYTES, SystemClock(), SystemRng())
    flusher = Flusher(group, lake, 0, 0, settings.lake_file_bytes, lambda why: None)
    await flusher.flush_all()
    await checkpoint(group, always=True)


async def _begin(logs: Logs, snapshots: CatalogSnapshots, data: Path, number: int, store: ObjectStore) -> int:
    epoch = await asyncio.to_thread(highest_epoch, store, number)
    log = await logs.log(number)
    try:
        catalog = DataDirectory(data).catalog(number)
        return (await begin_log_after_snapshot(log, snapshots, catalog, epoch, SystemRng())).position
    finally:
        await log.closed()
