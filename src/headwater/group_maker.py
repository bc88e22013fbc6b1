"""Groups as a node's settings want them: each with its share of the node's limits, and with all that works for it.

Owns how limits of the node are shared among groups. Never recovers or starts a group: whoever has it made does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headwater.catalog.catalog_files import SqliteCatalogFiles
from headwater.config import Settings
from headwater.data_directory import DataDirectory
from headwater.engine.group import Group
from headwater.engine.owned_group import GroupOptions, OwnedGroup, SharedCopies
from headwater.lake.lake import DeltaLake, StoreBlobs
from headwater.model.commands import Durability
from headwater.model.stream import Limits
from headwater.ports import Catalog, Clock, FileLog, Log, Rng


class GroupMaker:
    def __init__(
        self,
        settings: Settings,
        data: DataDirectory,
        groups_count: int,
        blobs: StoreBlobs,
        lake: DeltaLake | None,
        clock: Clock,
        rng: Rng,
    ) -> None:
        """`lake` is None for a node that keeps nothing."""
        self._settings = settings
        self._data = data
        self.groups_count = groups_count
        self._blobs = blobs
        self._lake = lake
        self.clock = clock
        self.rng = rng
        self._limits = Limits(
            settings.producers_per_stream_max, settings.producer_idle_ms, Durability[settings.durability.upper()]
        )
        self._schedule = asyncio.get_running_loop().call_soon
        self.options = GroupOptions(
            settings.checkpoint_interval_ms,
            max(1, settings.streams_loaded_max // groups_count),
            min(settings.flush_bytes, settings.hot_bytes_max // 2) // groups_count,
            settings.flush_interval_ms,
            settings.lake_file_bytes,
            settings.lake_gc_interval_ms,
            settings.lake_grace_ms,
        )

    def make(
        self,
        number: int,
        log: Log,
        file_log: FileLog | None,
        catalog: Catalog,
        report: Callable[[str, str], None],
        shared: SharedCopies | None = None,
    ) -> OwnedGroup:
        """A group that is not recovered yet. `file_log` is its log, if that is one in files."""
        hot_bytes_max = self._settings.hot_bytes_max // self.groups_count
        group = Group(log, catalog, self.clock, self._schedule, self._limits, hot_bytes_max, number, self.groups_count)
        if self._lake is None:
            # Nothing tells this run's streams from those of the last one: their ids, and so their ETags, must.
            group.give_out_after(self.clock.now_ms() << 16)
            files = None
        else:
            files = SqliteCatalogFiles(self._data.catalog(number), self._data.held(number))
        return OwnedGroup(group, file_log, self._blobs, self._lake, files, self.options, self.rng, report, shared)
