"""The lake as a node uses it: records settle into files of a Delta table, and are read back from them.

Owns the order of settling (object, then table) and the translation of a store's failures. Never decides what settles
when: the engine does, in worker threads. The table is opened on first use: a node that settles nothing pays nothing.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar, cast

from headwater.lake.names import data_prefix, epoch_of, epoch_token
from headwater.lake.store import LakeDamaged, ObjectMissing, ObjectStore, StoreError
from headwater.model.extents import Extent, Records, Run, Stretch
from headwater.ports import BlobsUnavailable, Clock, GcFiles, LakeGcResult, Pending, Relocated, Rng, Writer

if TYPE_CHECKING:
    from headwater.lake.cache import DiskCache
    from headwater.lake.layout import FileInfo, NewFile
    from headwater.lake.reader import Reader
    from headwater.lake.swap import Matched, Swap
    from headwater.lake.table import LakeTable, Owner

T = TypeVar("T")
INFOS_MAX = 65_536
"""Files that are remembered, about 400 bytes each. Beyond that the table is looked at."""


class StoreBlobs:
    """Whole objects of the node's own, such as snapshots, in the lake's store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def put(self, key: str, data: bytes) -> None:
        _translated(lambda: self._store.put(key, data))

    def get(self, key: str) -> bytes:
        return _translated(lambda: self._store.get(key))

    def delete(self, key: str) -> None:
        _translated(lambda: self._store.delete(key))


class DeltaLake:
    def __init__(
        self,
        store: ObjectStore,
        cache_bytes_max: int,
        clock: Clock,
        rng: Rng,
        disk: DiskCache | None = None,
        append_pressure: Callable[[], bool] = lambda: False,
    ) -> None:
        """`append_pressure` says whether others need the processors more than reads do, from any thread."""
        self._store = store
        self._cache_bytes_max = cache_bytes_max
        self._disk = disk
        self._append_pressure = append_pressure
        self._clock = clock
        self._rng = rng
        self._lock = threading.Lock()
        self._table: LakeTable | None = None
        self._reader: Reader | None = None
        self._gone_before: list[str] = []
        self._infos: dict[str, FileInfo] = {}
        """Of files that were written or asked about last."""

    def settle(self, runs: list[Run], writer: Writer) -> tuple[str, list[Extent]]:
        from headwater.lake.layout import info_of
        from headwater.lake.writer import build

        built = build(runs, writer.group, epoch_token(writer.epoch, self._rng.token(8).hex()))

        def store() -> None:
            self._store.put(built.file.path, built.data)
            now_ms = self._clock.now_ms()
            self._opened().commit([built.file], [], now_ms, owner=_owner(writer))
            self._remember([info_of(built.file, now_ms)])

        _translated(store)
        return built.file.path, built.extents

    def reconcile(self, alive: dict[str, bool], fresh: set[str], writer: Writer) -> int:
        def mend() -> int:
            table, owner = self._opened(), _owner(writer)
            if owner is not None:
                # First: what an earlier owner still commits would come behind the look at what is there.
                table.claim(owner)
            present = table.files()
            ours = [path for path in present if path.startswith(data_prefix(writer.group))]
            strange = (path for path in ours if path not in alive and path not in fresh)
            stray = [path for path in strange if epoch_of(path) <= writer.epoch]
            adds = self._described(path for path, used in alive.items() if used and path not in present)
            if adds or stray:
                # One commit: a row that only moved is never there twice, nor missing.
                table.commit(adds, stray, self._clock.now_ms(), data_change=not adds, owner=owner)
            return len(stray) + len(adds)

        return _translated(mend)

    def _described(self, paths: Iterable[str]) -> list[NewFile]:
        """What the table is told of stored files. One that is missing or damaged is left out: `verify` tells of it."""
        found = []
        for path in paths:
            from headwater.lake.keys import NotLake, described

            try:
                found.append(described(self._store, path))
            except (NotLake, ObjectMissing, LakeDamaged):
                pass
        return found

    def relocation(self, remove: list[str], add: list[str], writer: Writer, check: Callable[[], None]) -> Swap:
        from headwater.lake.swap import read_swap

        return _translated(lambda: read_swap(self._store, remove, add, writer, check))

    def relocate(self, remove: list[str], found: Relocated, writer: Writer) -> None:
        from headwater.lake.delta_log import CommitConflict
        from headwater.lake.layout import info_of

        files = cast("Matched", found).files

        def commit() -> None:
            table = self._opened()
            gone = sorted(table.contains(remove))
            now_ms = self._clock.now_ms()
            table.commit(files, gone, now_ms, data_change=False, owner=_owner(writer))
            self._remember(info_of(file, now_ms) for file in files)

        try:
            _translated(commit)
        except CommitConflict as conflict:
            raise BlobsUnavailable(f"another one changed the table: {conflict}") from conflict

    def end_past(self) -> int:
        return _translated(lambda: self._opened().end_past())

    def files(self) -> dict[str, FileInfo]:
        """What the table says of each of its files."""
        return _translated(lambda: self._opened().files())

    def infos(self, paths: Iterable[str]) -> dict[str, FileInfo]:
        """The same of some of them. Of those that are remembered nothing is looked up: a file never changes."""
        wanted = list(paths)
        with self._lock:
            found = {path: self._infos[path] for path in wanted if path in self._infos}
        if len(found) < len(wanted):
            every = self.files()
            found = {path: every[path] for path in wanted if path in every}
            self._remember(found.values())
        return found

    def _remember(self, infos: Iterable[FileInfo]) -> None:
        with self._lock:
            for info in infos:
                self._infos.pop(info.path, None)
                self._infos[info.path] = info
            while len(self._infos) > INFOS_MAX:
                del self._infos[next(iter(self._infos))]

    def read(self, extent: Extent, start: int, end: int, labels: bool = False) -> Records:
        reader = self._reading()

        def read() -> Records:
            limit = min(end, extent.end)
            found = reader.records(extent, start, limit, labels)
            keep = len(found.payloads)
            if (found.ends[-1] if keep else start) < limit:
                # A record that begins in the range but ends after it counts too.
                found = reader.records(extent, start, extent.end, labels)
                keep = bisect_left(found.ends, limit) + 1 if found.start < limit else 0
            return Records(
                found.start,
                extent.seq_start + found.index,
                found.payloads[:keep],
                list(found.ends[:keep]),
                list(found.ms[:keep]),
                list(found.n[:keep]),
                list(found.positions[:keep]),
                None if found.labels is None else found.labels[:keep],
            )

        return _translated(read)

    def stretch(self, extent: Extent, start: int, limit: int, commas: bool, wait: bool) -> Stretch | None:
        # Without waiting no file is opened either: its footer may have to be fetched.
        reader = self._reading() if wait else self._reader
        return None if reader is None else _translated(lambda: reader.stretch(extent, start, limit, commas, wait))

    @property
    def ahead_bytes_max(self) -> int:
        return self._cache_bytes_max // 2

    def prepare(self, extent: Extent, commas: bool) -> None:
        reader = self._reading()
        _translated(lambda: reader.stretch(extent, extent.start, extent.start, commas))

    def sweep(
        self,
        writer: Writer,
        lake_files: GcFiles,
        pending: Callable[[], Pending],
        grace_ms: int,
        check: Callable[[], None],
    ) -> LakeGcResult:
        from headwater.lake import gc

        def committed() -> dict[str, int]:
            return {path: info.modified_ms for path, info in self._opened().files().items()}

        def leave_table(paths: list[str]) -> None:
            self._opened().commit([], paths, self._clock.now_ms(), owner=_owner(writer))

        def cut_log(below: int) -> None:
            self._opened().cut_log(below)

        def run() -> LakeGcResult:
            now_ms = self._clock.now_ms()
            listing = gc.survey(self._store, writer.group, committed, now_ms - grace_ms, check)
            chosen = gc.plan(listing, writer, lake_files, pending(), now_ms - grace_ms, check)
            done = gc.carry_out(chosen, self._store, leave_table, cut_log, lake_files, now_ms, check)
            self._forget([*chosen.dead, *(stored.key for stored in chosen.orphans)])
            return done

        return _translated(run)

    def _forget(self, gone: list[str]) -> None:
        """Drops what is kept of files that are gone. A read that had begun before may keep a part of one afterwards:
        what went the last time is dropped again."""
        if self._reader is not None:
            for path in gone:
                self._reader.forget(path)
        if self._disk is not None:
            self._disk.forget({*gone, *self._gone_before})
            self._gone_before = gone

    def _opened(self) -> LakeTable:
        with self._lock:
            if self._table is None:
                from headwater.lake.table import LakeTable

                self._table = LakeTable(self._store)
            return self._table

    def _reading(self) -> Reader:
        with self._lock:
            if self._reader is None:
                from headwater.lake.cache import MemoryCache
                from headwater.lake.reader import Reader

                memory = MemoryCache(self._cache_bytes_max)
                self._reader = Reader(self._store, memory, self._disk, self._append_pressure)
            return self._reader


def _owner(writer: Writer) -> Owner | None:
    """By what the table tells owners of the group apart; None: there is only one."""
    from headwater.lake.table import Owner

    return Owner(f"headwater/{writer.log}/{writer.group}", writer.epoch) if writer.epoch else None


def _translated(act: Callable[[], T]) -> T:
    try:
        return act()
    except ObjectMissing as missing:
        raise KeyError(missing.key) from missing
    except StoreError as error:
        raise BlobsUnavailable(error.reason) from error
