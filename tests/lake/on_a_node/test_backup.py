"""The cut of a backup and its hold: a node that starts from the copies is the node at that moment, whatever went on.
Histories are those of the group with its lake; its files are the same ones before and after, as after a restore."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from headwater.catalog.catalog_copy import copy_catalog
from headwater.engine.backup import Backups, Hold
from headwater.engine.lake_gc import LakeGc
from headwater.engine.upkeep import Upkeep
from headwater.errors import LogUnavailable, Overloaded
from headwater.ports import BROKEN, BlobsUnavailable, GcFiles, LakeGcResult, LogFailure, Pending, SystemRng, Writer
from tests.lake.on_a_node.swap_world import SwapListLake, SwapWorld
from tests.lake.on_a_node.test_histories import (
    KEYS,
    Step,
    appends,
    first,
    histories,
    lets_go,
    meanwhile,
    picks,
    quietly,
)
from tests.lake.on_a_node.test_histories import step as a_step
from tests.lake.on_a_node.world import ListLake

pytestmark = pytest.mark.usefixtures("quick_disk")
HOLD_MS = 60_000


class Safe(SwapWorld):
    """A world that can be lost: what comes after goes on from a backup of it."""

    def backups(self) -> Backups:
        copy = partial(copy_catalog, self.directory / "catalog.db")
        return Backups(self.group, self.wal, self.flusher(), copy, self.directory / "held", SystemRng())

    async def lose(self) -> None:
        self._start_from(await self.backups().take(HOLD_MS))

    async def lose_amid(self, meanwhile: Callable[[], Any]) -> None:
        """What is acknowledged while the backup is taken is in it too."""
        taking = asyncio.get_running_loop().create_task(self.backups().take(HOLD_MS))
        await asyncio.sleep(0)
        await meanwhile()
        if taking.done():
            return  # too quick: what happened meanwhile may have come behind it
        self._start_from(await taking)

    def _start_from(self, hold: Hold) -> None:
        self.close()
        catalog, log = hold.catalog.read_bytes(), hold.log.read_bytes()
        shutil.rmtree(self.directory)
        (self.directory / "wal").mkdir(parents=True)
        (self.directory / "catalog.db").write_bytes(catalog)
        at = 0
        for position, size in hold.log_pieces:
            (self.directory / "wal" / f"{position:020d}.wal").write_bytes(log[at : at + size])
            at += size
        assert at == len(log) == hold.log_bytes
        self._open()
        assert self.wal.tail == hold.position
        self._check_names(hold)

    def _check_names(self, hold: Hold) -> None:
        """Nothing that the copies speak of is missing from the lists of what has to be copied with them."""
        for key in self.model:
            stream = self.group.loaded.find(key)
            assert stream is not None
            assert {extent.file for extent in self.group.loaded.extents(stream.sid, 0, 1 << 20)} <= set(hold.files)
            assert stream.snapshot is None or stream.snapshot.blob in hold.blobs


loses = st.one_of(a_step("lose"), a_step("lose_amid", st.one_of(appends, lets_go, meanwhile)))


@pytest.mark.timeout(300)
@settings(quietly, max_examples=60)
@given(histories, st.lists(st.tuples(st.integers(0, 50), loses), min_size=1, max_size=4), picks)
def test_a_node_that_starts_from_a_backup_is_the_node_at_that_moment(
    history: list[tuple[Step, int, int]], losses: list[tuple[int, Step]], pick: int
) -> None:
    plan = [one for one, _, _ in history]
    for at, loss in losses:
        plan.insert(at, loss)
    note(str(plan))

    async def body(directory: Path) -> None:
        lake = SwapListLake()
        world = Safe(directory, lake, lake.rows, lake.rewrite)
        try:
            for one in [*first, *plan]:
                await one.run(world)
                if one.what.startswith("lose"):
                    await world.check(pick, 12)
            await world.lose()
            await world.check(pick, 40)
            await world.checkpoint()
            world.restart()
            await world.check(pick, 25)
        finally:
            world.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(body(Path(directory)))


def in_a_world(tmp_path: Path, body: Callable[[Safe], Any]) -> None:
    async def run() -> None:
        lake = SwapListLake()
        world = Safe(tmp_path, lake, lake.rows, lake.rewrite)
        try:
            for one in first:
                await one.run(world)
            await body(world)
        finally:
            world.close()

    asyncio.run(run())


def test_everything_acknowledged_before_the_call_returned_is_in_it(tmp_path: Path) -> None:
    """Writers do not stop: each notes what it was told, until the backup is there."""

    async def body(world: Safe) -> None:
        world.wal._file_bytes = 4_096
        taken = False

        async def write(key: str) -> None:
            while not taken:
                await world.append(key, [20], False)

        writers = [asyncio.ensure_future(write(key)) for key in KEYS[:3]]
        while world.payloads_count < 200:
            await asyncio.sleep(0)
        backups = world.backups()
        hold = await backups.take(HOLD_MS)
        # No turn of the event loop since: nothing more was acknowledged.
        tails = {key: world.model[key].tail for key in KEYS[:3]}
        taken = True
        await asyncio.gather(*writers)
        grown = {key: world.model[key].tail for key in KEYS[:3]}
        world.model.clear()
        world._start_from(hold)
        for key in KEYS[:3]:
            assert tails[key] <= world.group.find(key, touch=False).visible <= grown[key]

    in_a_world(tmp_path, body)


def test_the_log_part_is_small_because_everything_settles_first(tmp_path: Path) -> None:
    async def body(world: Safe) -> None:
        for _ in range(30):
            await world.append(KEYS[0], [1_000], False)
        hold = await world.backups().take(HOLD_MS)
        assert hold.log_bytes < 1_000 < hold.position
        assert not world.group.loaded.holding

    in_a_world(tmp_path, body)


def test_the_log_is_let_go_of_when_the_copies_are_made(tmp_path: Path) -> None:
    async def body(world: Safe) -> None:
        backups = world.backups()
        await backups.take(HOLD_MS)
        assert backups.held()
        before = len(list((tmp_path / "wal").glob("*.wal")))
        for _ in range(30):
            await world.append(KEYS[0], [400], False)
        await world.flush_all()
        await world.checkpoint()
        assert len(world.wal._bases) <= before

    in_a_world(tmp_path, body)


def test_a_third_backup_at_once_is_refused_and_a_dropped_one_makes_room(tmp_path: Path) -> None:
    async def body(world: Safe) -> None:
        backups = world.backups()
        one, other = await asyncio.gather(backups.take(HOLD_MS), backups.take(HOLD_MS))
        with pytest.raises(Overloaded):
            await backups.take(HOLD_MS)
        assert await backups.drop(one.id) and not await backups.drop(one.id)
        assert not one.catalog.exists() and other.catalog.exists()
        assert backups.find(one.id) is None and backups.find(other.id) is other
        await backups.take(HOLD_MS)

    in_a_world(tmp_path, body)


def test_a_hold_ends_by_itself_unless_it_is_renewed(tmp_path: Path) -> None:
    async def body(world: Safe) -> None:
        backups = world.backups()
        hold = await backups.take(300)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + 0.5
        while loop.time() < end_s:
            assert backups.find(hold.id) is hold
            await asyncio.sleep(0.01)
        async with asyncio.timeout(30):
            while backups.held():
                await asyncio.sleep(0.01)
            while hold.catalog.parent.exists():
                await asyncio.sleep(0.01)
        assert backups.find(hold.id) is None

    in_a_world(tmp_path, body)


def test_what_a_crash_left_of_a_backup_goes_at_the_next_start(tmp_path: Path) -> None:
    async def body(world: Safe) -> None:
        hold = await world.backups().take(HOLD_MS)
        assert hold.catalog.exists()
        world.restart()
        backups = world.backups()
        assert not hold.catalog.exists() and not backups.held()

    in_a_world(tmp_path, body)


@pytest.mark.parametrize("step", ["settle", "copy", "log"])
def test_a_backup_that_fails_holds_nothing_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async def body(world: Safe) -> None:
        await world.append(KEYS[0], [10], False)
        backups = world.backups()

        def full(*_: Any) -> Any:
            raise BlobsUnavailable("away") if step == "settle" else OSError("the disk is full")

        if step == "settle":
            monkeypatch.setattr(world.lake, "settle", full)
        elif step == "copy":
            monkeypatch.setattr(backups, "_copy_catalog", full)
        else:
            monkeypatch.setattr(world.wal, "copy", full)
        with pytest.raises(BlobsUnavailable if step == "settle" else Overloaded):
            await backups.take(HOLD_MS)
        assert not backups.held() and not list((tmp_path / "held").iterdir())
        assert world.wal._held is None
        monkeypatch.undo()
        assert (await world.backups().take(HOLD_MS)).position == world.wal.synced

    in_a_world(tmp_path, body)


def test_no_backup_is_made_of_a_log_that_failed(tmp_path: Path) -> None:
    async def body(world: Safe) -> None:
        backups = world.backups()
        world.wal.failure = LogFailure(BROKEN, "broken")
        with pytest.raises(LogUnavailable):
            await backups.take(HOLD_MS)
        assert not backups.held()
        world.wal.failure = None

    in_a_world(tmp_path, body)


# ---- what a hold keeps ------------------------------------------------------------------------------------------


class Deleting(ListLake):
    """A lake whose gc deletes five things, and asks before each whether it may."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted_count = 0
        self.between: Callable[[], None] = lambda: None

    def sweep(
        self,
        writer: Writer,
        lake_files: GcFiles,
        pending: Callable[[], Pending],
        grace_ms: int,
        check: Callable[[], None],
    ) -> LakeGcResult:
        for _ in range(5):
            check()
            self.deleted_count += 1
            self.between()
        return LakeGcResult(0, 5, 0, 0, 0, 0)


class NoPolicies:
    def aged(self, now_ms: int) -> list[str]:
        return []

    def swaps_count(self) -> int:
        return 0


def sweeper_of(world: Safe, lake: Deleting, backups: Backups) -> LakeGc:
    lake_files: Any = NoPolicies()
    lake_gc = LakeGc(world.group, lake, lake_files, world.flusher(), 1_000, 1_000, lambda why: None)
    lake_gc.held = backups.held
    return lake_gc


def test_gc_deletes_nothing_while_a_backup_is_held(tmp_path: Path) -> None:
    async def body(world: Safe) -> None:
        lake, backups = Deleting(), world.backups()
        lake_gc = sweeper_of(world, lake, backups)
        hold = await backups.take(HOLD_MS)
        assert (await lake_gc.sweep()).files_deleted == 0 and lake.deleted_count == 0
        await backups.drop(hold.id)
        assert (await lake_gc.sweep()).files_deleted == 5 and lake.deleted_count == 5

    in_a_world(tmp_path, body)


def test_gc_that_is_under_way_ends_when_a_backup_begins(tmp_path: Path) -> None:
    async def body(world: Safe) -> None:
        lake, backups = Deleting(), world.backups()
        lake_gc = sweeper_of(world, lake, backups)
        loop = asyncio.get_running_loop()
        holds: list[Hold] = []

        async def hold() -> None:
            holds.append(await backups.take(HOLD_MS))

        lake.between = lambda: asyncio.run_coroutine_threadsafe(hold(), loop).result(30)
        await lake_gc.sweep()
        assert lake.deleted_count == 1 and len(holds) == 1

    in_a_world(tmp_path, body)


class Noted:
    def __init__(self) -> None:
        self.deleted: list[str] = []

    def delete(self, key: str) -> None:
        self.deleted.append(key)


def test_superseded_snapshots_stay_while_a_backup_is_held(tmp_path: Path) -> None:
    async def body(world: Safe) -> None:
        blobs: Any = Noted()
        backups = world.backups()
        upkeep = Upkeep(world.group, blobs, 1_000, 1_000, lambda why: None)
        upkeep.held = backups.held
        await world.append(KEYS[0], [5, 5, 5], False)
        await world.let_go(KEYS[0], 1, True)
        hold = await backups.take(HOLD_MS)
        await world.let_go(KEYS[0], 1, True)
        await upkeep._delete_blobs()
        assert blobs.deleted == [] and len(world.group.loaded.blobs_discarded) == 1
        (kept,) = hold.blobs
        await backups.drop(hold.id)
        await upkeep._delete_blobs()
        assert blobs.deleted == [kept]

    in_a_world(tmp_path, body)
