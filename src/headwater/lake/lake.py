"""The lake as a node uses it: records settle into files of a Delta table, and are read back from them.

Owns the order of settling (object, then table) and the translation of a store's failures. Never decides what settles
when: the engine does, in worker threads. The table is opened on first use: a node that settles nothing pays nothing.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from headwater.lake.store import ObjectMissing, ObjectStore, StoreError
from headwater.model.extents import Extent, Records, Run
from headwater.world import BlobsUnavailable, Clock, LakeLedger, Pending, Rng, Swept

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
            limit = min(end, extent.end)
            found = reader.records(extent, start, limit)
            keep = len(found.payloads)
            if (found.ends[-1] if keep else start) < limit:
                # A record that begins in the range but ends behind it counts too.
                found = reader.records(extent, start, extent.end)
                keep = bisect_left(found.ends, limit) + 1 if found.start < limit else 0
            return Records(
                found.start,
                extent.seq_start + found.index,
                found.payloads[:keep],
                list(found.ends[:keep]),
                list(found.ms[:keep]),
                list(found.n[:keep]),
            )

        return _translated(read)

    def sweep(
        self, ledger: LakeLedger, pending: Callable[[], Pending], grace_ms: int, check: Callable[[], None]
    ) -> Swept:
        from headwater.lake import gc

        def committed() -> dict[str, int]:
            return {path: info.modified_ms for path, info in self._opened().files().items()}

        def leave_table(paths: list[str]) -> None:
            self._opened().commit([], paths, self._clock.now_ms())

        def run() -> Swept:
            now_ms = self._clock.now_ms()
            listing = gc.survey(self._store, committed, now_ms - grace_ms, check)
            chosen = gc.plan(listing, ledger, pending(), now_ms - grace_ms, check)
            done = gc.carry_out(chosen, self._store, leave_table, ledger, now_ms, check)
            if self._reader is not None:
                for path in chosen.dead:
                    self._reader.forget(path)
            return done

        return _translated(run)

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
