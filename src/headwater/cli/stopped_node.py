"""A stopped node's data, opened as a start would: the lock, each group's catalog, and its log's news on top of it.
Owns that nobody serves the directory meanwhile, and the state a node would come up with. Never starts anything, and
`opened` writes no catalog; as at any start, a directory of an older format is taken over, and an unfinished end of a
log is cut off and kept beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from heapq import merge
from pathlib import Path

from headwater.catalog.lake_files import LakeFiles
from headwater.catalog.sqlite import SqliteCatalog
from headwater.data_directory import DataDirectory, DirectoryInUse, DirectoryRefused
from headwater.engine.access_records import AccessRecords
from headwater.engine.erasure_marks import ErasureMarks
from headwater.engine.group import Group
from headwater.engine.placements import Placements
from headwater.engine.queue_leases import QueueLeases
from headwater.engine.recovery import begin_incarnation, recover
from headwater.engine.router_definitions import RouterDefinitions
from headwater.engine.schema_records import SchemaRecords
from headwater.log.wal import Wal
from headwater.model.extents import Extent
from headwater.model.row import StreamRow
from headwater.model.stream import Limits
from headwater.ports import Lake, Pending, SystemClock, SystemRng, Writer
from headwater.subscriptions.registry import Registry


class Served(Exception):
    """A node serves the directory; the message says what to do."""


class NoData(Exception):
    """No node has written anything there."""


class NotBegun(Exception):
    """No cluster could begin with the directory; the message says why, and what to do. It may be tried again."""


@contextmanager
def locked(data: Path) -> Iterator[int]:
    """Keeps nodes away from the directory, and tells how many groups it has. Raises Served, NoData."""
    directory = DataDirectory(data)
    check_there(directory)
    try:
        with directory.lock():
            yield directory.prepare(None, 1)
    except DirectoryInUse:
        raise Served(f"a node serves {data}, and its catalog is behind its log: stop the node first") from None
    except DirectoryRefused as error:
        raise NoData(f"{error}; copy it to where it can be") from None


def check_there(directory: DataDirectory) -> int:
    """How many groups the directory has. Raises NoData."""
    try:
        groups_count = directory.groups()
    except DirectoryRefused as error:
        raise NoData(str(error)) from None
    if groups_count is None:
        raise NoData(f"{directory.path} holds no node's data: there is no directory.json and no catalog")
    return groups_count


class Stopped:
    """What a node would believe of one group if it started now."""

    def __init__(self, group: Group, lake_files: LakeFiles) -> None:
        self.number = group.number
        self.lake_files = lake_files
        self.position = group.log.tail
        self._loaded = group.loaded
        self._catalog = group.catalog
        fresh = self._loaded.new_extents.values()
        self._fresh = sorted((extent for some in fresh for extent in some), key=_place)

    def streams(self) -> Iterator[StreamRow]:
        dirty = self._loaded.dirty
        removed = self._loaded.removed
        kept = (row for row in self.lake_files.streams() if row.sid not in dirty and row.sid not in removed)
        return merge(kept, (dirty[sid].row() for sid in sorted(dirty)), key=lambda row: row.sid)

    def extents(self) -> Iterator[Extent]:
        return filter(self._alive, merge(self.lake_files.extents(), self._fresh, key=_place))

    def extents_in(self, file: str) -> list[Extent]:
        found = [*self.lake_files.extents_in(file), *(extent for extent in self._fresh if extent.file == file)]
        return [extent for extent in found if self._alive(extent)]

    def files(self) -> dict[str, int | None]:
        return self.lake_files.files() | dict.fromkeys(self._loaded.new_files)

    def pending(self) -> Pending:
        blobs = {stream.snapshot.blob for stream in self._loaded.dirty.values() if stream.snapshot is not None}
        return Pending(set(self._loaded.new_files), blobs)

    def follow(self, lake: Lake) -> None:
        """Makes the lake's table show the last swap of files, as a start would. Raises BlobsUnavailable."""
        if self._catalog.table_behind:
            lake.reconcile(self._catalog.alive(), set(self._loaded.new_files), Writer(self.number))
            self._catalog.table_followed()

    def _alive(self, extent: Extent) -> bool:
        sid = extent.sid
        return sid not in self._loaded.removed and extent.end > self._loaded.cuts.get(sid, -1)


class StoppedNode:
    """All groups of a node, as one (see `lake.verify.State`)."""

    def __init__(self, groups: list[Stopped]) -> None:
        self.groups = groups

    @property
    def position(self) -> int:
        """Grows whenever something happens."""
        return sum(group.position for group in self.groups)

    def streams(self) -> Iterator[StreamRow]:
        return merge(*(group.streams() for group in self.groups), key=lambda row: row.sid)

    def extents(self) -> Iterator[Extent]:
        return merge(*(group.extents() for group in self.groups), key=_place)

    def extents_in(self, file: str) -> list[Extent]:
        return [extent for group in self.groups for extent in group.extents_in(file)]

    def files(self) -> dict[str, int | None]:
        return {name: dead_ms for group in self.groups for name, dead_ms in group.files().items()}


def _place(extent: Extent) -> tuple[int, int]:
    return extent.sid, extent.start


@contextmanager
def opened(data: Path, log_file_bytes: int) -> Iterator[StoppedNode]:
    """Raises Served, NoData, and what a start would raise: LogCorrupt, LogContradiction, CatalogMismatch."""
    directory = DataDirectory(data)
    with locked(data) as groups_count, ExitStack() as held:
        groups = [_open(directory, number, groups_count, log_file_bytes, held) for number in range(groups_count)]
        yield StoppedNode(groups)


def _open(directory: DataDirectory, number: int, groups_count: int, log_file_bytes: int, held: ExitStack) -> Stopped:
    group = _recovered(directory, number, groups_count, log_file_bytes, held, lambda call: None)
    lake_files = held.enter_context(closing(LakeFiles(directory.catalog(number))))
    return Stopped(group, lake_files)


def _recovered(
    directory: DataDirectory,
    number: int,
    groups_count: int,
    log_file_bytes: int,
    held: ExitStack,
    schedule: Callable[[Callable[[], None]], object],
) -> Group:
    catalog = held.enter_context(closing(SqliteCatalog(directory.catalog(number))))
    wal = Wal(directory.wal(number), log_file_bytes, 1_000)
    group = Group(wal, catalog, SystemClock(), schedule, Limits(), 1 << 62, number, groups_count)
    registry = Registry()
    group.domains[registry.name] = registry
    group.domains[Placements.name] = Placements(catalog)
    group.domains[ErasureMarks.name] = ErasureMarks()
    group.domains[RouterDefinitions.name] = RouterDefinitions()
    group.domains[AccessRecords.name] = AccessRecords()
    group.domains[SchemaRecords.name] = SchemaRecords()
    group.domains[QueueLeases.name] = QueueLeases()
    recover(group)
    return group


@asynccontextmanager
async def writable(data: Path, log_file_bytes: int) -> AsyncIterator[list[Group]]:
    """The groups of a stopped node, recovered and open for writing; nothing else works on them. On leaving, what was
    written is durable. Raises like `opened`."""
    directory = DataDirectory(data)
    with locked(data) as groups_count, ExitStack() as held:
        schedule = asyncio.get_running_loop().call_soon
        groups: list[Group] = []
        for number in range(groups_count):
            group = _recovered(directory, number, groups_count, log_file_bytes, held, schedule)
            begin_incarnation(group, SystemRng())
            group.log.start(group.progress)
            held.callback(group.log.close)
            groups.append(group)
        yield groups
