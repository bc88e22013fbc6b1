"""The lake as a node uses it: records settle into files of a Delta table, and are read back from them.

Owns the order of settling (object, then table) and the translation of a store's failures. Never decides what settles
when: the engine does, in worker threads. The table is opened on first use: a node that settles nothing pays nothing.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from headwater.lake.store import ObjectMissing, ObjectStore, StoreError
from headwater.model.extents import Extent, Records, Run
from headwater.world import BlobsUnavailable, Clock, Rng

if TYPE_CHECKING:
    from headwater.lake.reader import Reader
    from headwater.lake.table import Table

T = TypeVar("T")

SETTLED_PREFIX = "data/"


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
    def __init__(self, store: ObjectStore, cache_bytes_max: int, clock: Clock, rng: Rng) -> None:
        self._store = store
        self._cache_bytes_max = cache_bytes_max
        self._clock = clock
        self._rng = rng
        self._lock = threading.Lock()
        self._table: Table | None = None
        self._reader: Reader | None = None

    def settle(self, runs: list[Run], group: int) -> tuple[str, list[Extent]]:
        from headwater.lake.writer import build

        built = build(runs, group, self._rng.token(8).hex())

        def store() -> None:
            self._store.put(built.file.path, built.data)
            self._opened().commit([built.file], [], self._clock.now_ms())

        _translated(store)
        return built.file.path, built.extents

    def reconcile(self, known: set[str]) -> int:
        def mend() -> int:
            table = self._opened()
            stray = [path for path in table.files() if path.startswith(SETTLED_PREFIX) and path not in known]
            if stray:
                table.commit([], stray, self._clock.now_ms())
            return len(stray)

        return _translated(mend)

    def read(self, extent: Extent, start: int, end: int) -> Records:
        reader = self._reading()

        def read() -> Records:
            found = reader.records(extent, start, min(end, extent.end))
            if not found.payloads and start < min(end, extent.end):
                # A record that begins in the range but ends behind it counts too.
                found = reader.records(extent, start, extent.end)
                keep = max(1, bisect_right(found.ends, end))
            else:
                keep = len(found.payloads)
            return Records(
                found.start,
                extent.seq_start + found.index,
                found.payloads[:keep],
                list(found.ends[:keep]),
                list(found.ms[:keep]),
                list(found.n[:keep]),
            )

        return _translated(read)

    def _opened(self) -> Table:
        with self._lock:
            if self._table is None:
                from headwater.lake.table import open_table

                self._table = open_table(self._store)
            return self._table

    def _reading(self) -> Reader:
        with self._lock:
            if self._reader is None:
                from headwater.lake.cache import MemoryCache
                from headwater.lake.reader import Reader

                self._reader = Reader(self._store, MemoryCache(self._cache_bytes_max))
            return self._reader


def _translated(act: Callable[[], T]) -> T:
    try:
        return act()
    except ObjectMissing as missing:
        raise KeyError(missing.key) from missing
    except StoreError as error:
        raise BlobsUnavailable(error.reason) from error
