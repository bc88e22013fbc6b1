"""The tests of the lake's gc, of `headwater lake`, and of policies over settled records; and a lake they can spoil.
Nothing here decides what is right."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from headwater.catalog.lake_files import LakeFiles
from headwater.catalog.sqlite import SqliteCatalog
from headwater.lake.lake import DeltaLake
from headwater.lake.local import LocalStore
from headwater.model.extents import Extent, Run
from headwater.ports import LakeGcResult, Pending, SystemRng, Writer
from tests.catalog import change, stream_row
from tests.engine import HandClock
from tests.lake.rows import run

GRACE_MS = 3_600_000


def nothing_pending() -> Pending:
    return Pending(set(), set())


class Farm:
    """A catalog and a lake in a folder, without a node. Its clock starts at the real time: files carry that."""

    def __init__(self, folder: Path) -> None:
        self.clock = HandClock(time.time_ns() // 1_000_000)
        self.store = LocalStore(folder / "lake")
        self.lake = DeltaLake(self.store, 1 << 20, self.clock, SystemRng())
        self.catalog = SqliteCatalog(folder / "catalog.db")
        self.catalog.write(change())
        self.lake_files = LakeFiles(folder / "catalog.db")

    def settle(self, *sids: int, checkpointed: bool = True) -> tuple[str, list[Extent]]:
        """A file with ten records of each stream."""
        runs: list[Run] = [run(f"_default/{sid}", sid, [b"%d" % n for n in range(10)]) for sid in sids]
        file, extents = self.lake.settle(runs, Writer(0))
        if checkpointed:
            rows = [stream_row(f"_default/{sid}", sid, tail=10, count=10, cold_end=10) for sid in sids]
            self.catalog.write(change(rows=rows, extents=extents, files=[file]))
        return file, extents

    def delete(self, *sids: int) -> None:
        self.catalog.write(change(gone=[(f"_default/{sid}", sid) for sid in sids]))

    def sweep(self, pending: Callable[[], Pending] = nothing_pending, grace_ms: int = GRACE_MS) -> LakeGcResult:
        return self.lake.sweep(Writer(0), self.lake_files, pending, grace_ms, lambda: None)

    def in_table(self) -> set[str]:
        return set(self.lake._opened().files())

    def in_store(self, folder: str = "data") -> set[str]:
        return {stored.key for stored in self.store.list(folder)}
