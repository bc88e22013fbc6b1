"""What a group comes back to when its log is lost, step by step, with a log in memory.

Real nodes and a real NATS server are in tests/cli/ctl/test_lost_logs.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headwater.catalog.catalog_copy import copy_catalog
from headwater.catalog.sqlite import SqliteCatalog
from headwater.cluster.catalog_snapshots import CatalogSnapshots, Snapshot, SnapshotTaken
from headwater.cluster.restore import LOST, NOTHING, OWNER, WHOLE, WRONG, Found, Restore, take_restored
from headwater.engine.recovery import log_of
from headwater.lake.store import MemoryStore
from headwater.log.medium import Taken, Unavailable
from headwater.log.quorum import QuorumLog
from headwater.log.quorum_entries import Claim
from headwater.ports import SystemRng
from tests.catalog import change, stream_row


class Held:
    """The entries of one group, in memory (see `Entries`)."""

    entry_bytes_max = 1 << 20

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}

    async def head(self) -> int:
        return min(self.entries, default=1)

    async def read(self, first: int, bytes_max: int) -> list[tuple[int, bytes]]:
        return [(first, self.entries[first])] if first in self.entries else []

    async def put(self, number: int, data: bytes) -> None:
        if self.entries.setdefault(number, data) != data:
            raise Taken("there is another one")

    claim = put

    async def wait(self, number: int) -> None: ...

    async def purge(self, below: int) -> None: ...

    async def close(self) -> None: ...


class HeldLogs:
    """See `Logs`."""

    kind = "jetstream"
    where = "memory"

    def __init__(self) -> None:
        self.held = Held()
        self.fails = False

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def log(self, group: int) -> QuorumLog:
        return QuorumLog(self.held)

    async def is_empty(self, group: int) -> bool:
        return not self.held.entries

    async def begin(self, group: int, number: int, data: bytes) -> None:
        if self.fails:
            raise Unavailable("the server is away")
        if self.held.entries:
            raise Taken("there is something")
        await self.held.put(number, data)


class World:
    """A cluster of one group that has no nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lake, self.store, self.logs = MemoryStore(), MemoryStore(), HeldLogs()
        self.restore = Restore(self.lake, self.store, self.logs, 1, folder / "work", SystemRng())
        self.snapshots = CatalogSnapshots(self.store, 0, "m", folder / "copies")

    def snapshot(self, position: int, epoch: int, of_log: str = "00000000000000aa") -> Snapshot:
        path = self.folder / f"made-{position}-{epoch}.db"
        with closing(SqliteCatalog(path)) as catalog:
            catalog.keep_incarnations([(of_log, 0)])
            row = stream_row(key="b/s", sid=1, tail=position, count=1, position=position)
            catalog.write(change(rows=[row], position=position, log_floor=position // 2, next_sid=2))
        return self.snapshots.write(partial(copy_catalog, path), epoch)

    def damage(self, snapshot: Snapshot) -> None:
        key = f"{snapshot.folder}/catalog"
        self.store.put(key, self.store.get(key)[:-1])

    async def survey(self) -> Found:
        (found,) = await self.restore.survey()
        return found


def in_a_world(folder: Path, body: Callable[[World], Awaitable[Any]]) -> None:
    asyncio.run(_run(World(folder), body))


async def _run(world: World, body: Callable[[World], Awaitable[Any]]) -> None:
    await body(world)


def test_a_lost_log_is_begun_anew_where_the_snapshot_is(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        world.snapshot(100, 3)
        world.lake.put("data/0/00000000000000000090-e7-ab.parquet", b"")
        found = await world.survey()
        assert (found.state, found.position, found.epoch, found.later_files_count) == (LOST, 100, 7, 1)
        made = await world.restore.carry_out(found)
        # Beyond every epoch that anything was written in: what is swept goes by it.
        assert (made.position, made.log_floor, made.epoch) == (100, 100, 8)
        log = await world.logs.log(0)
        await log.load()
        assert (log.head, log.tail, log.cursor.epoch, log.owner and log.owner.owner) == (100, 100, 8, OWNER)
        assert max(world.snapshots.found()) == made
        path = tmp_path / "node.db"
        world.snapshots.fetch(made, path)
        with closing(SqliteCatalog(path)) as catalog:
            assert log_of(catalog) == log.identity
            assert catalog.incarnations() == [("00000000000000aa", 0)]
        claimed = await log.claim(Claim("a node", ""))
        assert claimed.epoch == 9
        assert (await world.survey()).state == WHOLE

    in_a_world(tmp_path, body)


def test_a_restore_that_was_cut_off_can_be_done_again(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        world.snapshot(100, 3)
        world.logs.fails = True
        with pytest.raises(Unavailable):
            await world.restore.carry_out(await world.survey())
        world.logs.fails = False
        found = await world.survey()
        assert (found.state, found.position) == (LOST, 100)
        made = await world.restore.carry_out(found)
        log = await world.logs.log(0)
        await log.load()
        assert max(world.snapshots.found()) == made
        assert (await world.survey()).state == WHOLE

    in_a_world(tmp_path, body)


def test_a_snapshot_that_cannot_be_loaded_is_passed_over_and_goes(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        world.snapshot(100, 3)
        damaged = world.snapshot(200, 4)
        world.damage(damaged)
        found = await world.survey()
        assert (found.state, found.position, found.damaged) == (LOST, 100, [damaged])
        made = await world.restore.carry_out(found)
        assert made.epoch == 5
        assert damaged not in world.snapshots.found()

    in_a_world(tmp_path, body)


def test_two_restores_at_once_do_not_both_begin_the_log(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        world.snapshot(100, 3)
        found = await world.survey()
        await world.restore.carry_out(found)
        with pytest.raises(SnapshotTaken):
            await world.restore.carry_out(found)
        assert (await world.survey()).state == WHOLE

    in_a_world(tmp_path, body)


def test_a_restore_that_comes_too_late_leaves_no_snapshot_behind(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        world.snapshot(100, 3)
        world.logs.fails = True
        with pytest.raises(Unavailable):
            await world.restore.carry_out(await world.survey())
        world.logs.fails = False
        late = await world.survey()
        await world.restore.carry_out(await world.survey())
        with pytest.raises(SnapshotTaken):
            await world.restore.carry_out(late)
        with pytest.raises(Taken):
            await world.restore.carry_out(msgspec.structs.replace(late, epoch=late.epoch + 1))
        assert (await world.survey()).state == WHOLE

    in_a_world(tmp_path, body)


def test_what_is_not_lost_is_left_alone(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        assert (await world.survey()).state == NOTHING
        log = await world.logs.log(0)
        await log.load()
        await log.claim(Claim("a node", ""))
        found = await world.survey()
        assert (found.state, found.position) == (WHOLE, 0)
        with pytest.raises(RuntimeError):
            await world.restore.carry_out(found)
        world.snapshot(100, 1, log.identity)
        assert (
            "its log goes from 0 to 0, and its catalog snapshot needs it from 50 to 100" in (await world.survey()).what
        )

    in_a_world(tmp_path, body)


def test_a_log_of_another_cluster_and_a_damaged_one_are_for_the_operator(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        log = await world.logs.log(0)
        await log.load()
        await log.claim(Claim("a node", ""))
        snapshot = world.snapshot(100, 1)
        found = await world.survey()
        assert found.state == WRONG
        assert "is of log 00000000000000aa" in found.what
        world.logs.held.entries[1] = b"nonsense"
        assert (await world.survey()).state == WRONG
        world.logs.held.entries.clear()
        world.damage(snapshot)
        assert "none of its catalog snapshots can be loaded" in (await world.survey()).what

    in_a_world(tmp_path, body)


def test_a_lake_that_lacks_files_which_the_snapshot_counts_on_is_said(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        path = tmp_path / "made.db"
        with closing(SqliteCatalog(path)) as catalog:
            catalog.write(change(files=["data/0/a.parquet", "data/0/b.parquet"], position=10, log_floor=10, next_sid=2))
        world.snapshots.write(partial(copy_catalog, path), 1)
        world.lake.put("data/0/a.parquet", b"")
        found = await world.survey()
        assert (found.missing_files, found.later_files_count) == (["data/0/b.parquet"], 0)

    in_a_world(tmp_path, body)


def test_a_log_of_objects_that_is_lost_is_not_begun_anew(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        world.logs.kind = "objects"
        world.snapshot(100, 3)
        assert "bring them back" in (await world.survey()).what

    in_a_world(tmp_path, body)


def test_a_node_s_catalog_of_a_lost_log_gives_way_to_a_snapshot_of_the_log_and_to_no_other(tmp_path: Path) -> None:
    world = World(tmp_path)
    path = tmp_path / "node.db"
    with closing(SqliteCatalog(path)) as catalog:
        catalog.keep_incarnations([("00000000000000aa", 0)])
        catalog.write(change(position=900, log_floor=900, next_sid=2))
    take_restored(world.snapshots, path, "00000000000000bb")  # there is none
    world.snapshot(100, 3)
    take_restored(world.snapshots, path, "00000000000000bb")
    with closing(SqliteCatalog(path)) as catalog:
        assert (catalog.position, log_of(catalog)) == (900, "00000000000000aa")
    world.snapshot(200, 4, "00000000000000bb")
    take_restored(world.snapshots, path, "00000000000000bb")
    with closing(SqliteCatalog(path)) as catalog:
        assert (catalog.position, log_of(catalog)) == (200, "00000000000000bb")
    assert [one.name for one in tmp_path.glob("node.db*")] == ["node.db"]
