"""When catalog snapshots are written: at first, as the log grows, and by age."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.cluster.catalog_snapshots import CatalogSnapshots
from headwater.cluster.snapshot_upkeep import AGE_S_MAX, SHARE_MIN, SnapshotUpkeep
from headwater.lake.store import MemoryStore
from headwater.ports import CatalogCopy

STEP = 1_000


class Hand:
    """A clock that the test moves."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


class Owner:
    def __init__(self, tmp_path: Path) -> None:
        self.clock = Hand()
        self.catalog: Any = SimpleNamespace(position=0, log_floor=0)
        log: Any = SimpleNamespace(failure=None, kept_after=-1, trim=lambda below: None)
        clock: Any = self.clock
        self.takes_s = 0.0
        self.snapshots = CatalogSnapshots(MemoryStore(), 0, "a", tmp_path)
        self.upkeep = SnapshotUpkeep(self.snapshots, log, self.catalog, STEP, clock)

    def copy(self, to: Path) -> CatalogCopy:
        self.clock.now_s += self.takes_s
        to.write_bytes(b"a catalog")
        return CatalogCopy(position=self.catalog.position, log_floor=0, files=[], blobs=[])

    def step(self) -> int:
        """Returns the position of the newest snapshot after a step."""

        async def stepped() -> None:
            self.upkeep.write(self.copy, 1, 1)
            await self.upkeep.stop()

        asyncio.run(stepped())
        assert self.upkeep.failure is None
        return max(self.snapshots.found()).position


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path)


def test_the_first_is_written_at_once_and_the_next_when_the_log_has_grown(owner: Owner) -> None:
    owner.catalog.position = 7
    assert owner.step() == 7
    owner.catalog.position += STEP - 1
    assert owner.step() == 7
    owner.catalog.position += 1
    assert owner.step() == 7 + STEP


def test_a_log_that_grows_slowly_has_one_by_age(owner: Owner) -> None:
    assert owner.step() == 0
    owner.clock.now_s += 2 * AGE_S_MAX
    assert owner.step() == 0, "nothing has happened that a snapshot could hold"
    owner.catalog.position = 1
    assert owner.step() == 1
    owner.catalog.position = 2
    owner.clock.now_s += AGE_S_MAX - 1
    assert owner.step() == 1
    owner.clock.now_s += 1
    assert owner.step() == 2


def test_one_that_takes_long_is_not_written_all_the_time(owner: Owner) -> None:
    owner.takes_s = AGE_S_MAX
    assert owner.step() == 0
    owner.catalog.position = 1
    owner.clock.now_s += SHARE_MIN * AGE_S_MAX - 1
    assert owner.step() == 0
    owner.clock.now_s += 1
    assert owner.step() == 1


def test_one_that_is_asked_for_is_written_however_little_has_happened(owner: Owner) -> None:
    assert owner.step() == 0
    owner.catalog.position = 1
    assert asyncio.run(owner.upkeep.now(owner.copy, 1, 1)).position == 1
