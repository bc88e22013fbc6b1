"""A stopped node's data, opened as a start would: the lock, the catalog, and the log's news on top of it.
Owns that nobody serves the directory meanwhile, and the state a node would come up with. Never starts anything
and writes no catalog; as at any start, an unfinished end of the log is cut off and kept beside it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from heapq import merge
from pathlib import Path

from headwater.catalog.lake_files import LakeFiles
from headwater.catalog.sqlite import SqliteCatalog
from headwater.engine.group import Group
from headwater.engine.recovery import recover
from headwater.log.wal import Wal
from headwater.model.extents import Extent
from headwater.model.row import StreamRow
from headwater.model.stream import Limits
from headwater.ports import Lake, Pending, SystemClock
from headwater.subscriptions.registry import Registry


class Served(Exception):
    """A node serves the directory; the message says what to do."""


class NoData(Exception):
    """There is nothing that a node left behind."""


@contextmanager
def locked(data: Path) -> Iterator[None]:
    """Keeps nodes away from the directory. Raises Served, NoData."""
    if not (data / "catalog.db").is_file():
        raise NoData(f"{data} holds no node's data: there is no catalog.db")
    try:
        lock = (data / "lock").open("ab")
    except OSError as error:
        raise NoData(f"cannot lock the data directory {data}: {error.strerror}; copy it to where it can be") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Served(f"a node serves {data}, and its catalog is behind its log: stop the node first") from None
        yield


def is_served(data: Path) -> bool:
    try:
        with (data / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


class Stopped:
    """What a node would believe if it started now (see `lake.verify.State`)."""

    def __init__(self, group: Group, lake_files: LakeFiles) -> None:
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
            lake.reconcile(self._catalog.alive(), set(self._loaded.new_files), 0)
            self._catalog.table_followed()

    def _alive(self, extent: Extent) -> bool:
        sid = extent.sid
        return sid not in self._loaded.removed and extent.end > self._loaded.cuts.get(sid, -1)


def _place(extent: Extent) -> tuple[int, int]:
    return extent.sid, extent.start


@contextmanager
def opened(data: Path, log_file_bytes: int) -> Iterator[Stopped]:
    """Raises Served, NoData, and what a start would raise: LogCorrupt, LogContradiction, CatalogMismatch."""
    with locked(data), closing(SqliteCatalog(data / "catalog.db")) as catalog:
        wal = Wal(data / "wal" / "0", log_file_bytes, 1_000)
        group = Group(wal, catalog, SystemClock(), lambda call: None, Limits(), 1 << 62)
        registry = Registry()
        group.domains[registry.name] = registry
        recover(group)
        with closing(LakeFiles(data / "catalog.db")) as lake_files:
            yield Stopped(group, lake_files)
