"""Backups and erasures of groups whose log is shared by nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from headwater.cli.stopped_node import opened
from headwater.cluster.ownership import STANDBY
from headwater.data_directory import DataDirectory
from headwater.engine.backup import Hold
from headwater.model.commands import Append, Delete
from tests.cluster.members import GROUPS, FullMember, key_in, two_members, until
from tests.cluster.test_ownership_on_objects import TIMING


def start_from(holds: dict[int, Hold], directory: Path) -> None:
    """Makes what a restore makes of holds: a data directory of a node by itself."""
    data = DataDirectory(directory)
    directory.mkdir()
    data.prepare(GROUPS, GROUPS)
    for number, hold in holds.items():
        data.catalog(number).write_bytes(hold.catalog.read_bytes())
        data.wal(number).mkdir(parents=True)
        ((position, size),) = hold.log_pieces
        copied = hold.log.read_bytes()
        assert len(copied) == size
        (data.wal(number) / f"{position:020d}.wal").write_bytes(copied)


async def write_on(node: FullMember, key: str, expected: dict[str, int], ending: asyncio.Event) -> None:
    while not ending.is_set():
        await node.submit(key, Append([b"meanwhile"], None, None))
        expected[key] += 1


def test_a_backup_of_an_owner_holds_what_was_acknowledged_and_a_node_by_itself_starts_from_it(tmp_path: Path) -> None:
    async def body() -> None:
        a, b = await two_members(tmp_path)
        expected: dict[str, int] = {}
        for number, node in enumerate((a, b)):
            key = key_in(node.engine, number)
            await node.write(key, [b"%d " % n for n in range(30)])
            expected[key] = 30
        held: dict[int, Hold] = {}
        for number, node in enumerate((a, b)):
            key = key_in(node.engine, number)
            ending = asyncio.Event()
            writing = asyncio.create_task(write_on(node, key, expected, ending))
            backups = node.engine.owned[number].backups
            assert backups is not None
            held[number] = await backups.take(3_600_000)
            acknowledged = expected[key]
            ending.set()
            await writing
            expected[key] = acknowledged
        start_from(held, tmp_path / "restored")
        with opened(tmp_path / "restored", 64 << 20) as stopped:
            assert [group.position for group in stopped.groups] == [held[0].position, held[1].position]
            found = {row.key: row.count for row in stopped.streams()}
            # One may be in the log, and not yet known to who sent it.
            assert found.keys() == expected.keys()
            assert all(expected[key] <= found[key] <= expected[key] + 1 for key in expected)
            files = {extent.file for extent in stopped.extents()}
            assert files <= {name for hold in held.values() for name in hold.files}
        assert a.engine.owned[0].lake_gc.held()  # type: ignore[union-attr]
        for number, node in enumerate((a, b)):
            backups = node.engine.owned[number].backups
            assert backups is not None and await backups.drop(held[number].id)
            assert not backups.held()
        await asyncio.gather(a.ownership.drain(), b.ownership.drain())

    asyncio.run(body())


def test_the_log_is_not_purged_while_it_is_copied(tmp_path: Path) -> None:
    async def body() -> None:
        a, b = await two_members(tmp_path)
        await a.write(key_in(a.engine, 0), [b"%d " % n for n in range(30)])
        log = a.engine.owned[0].group.log
        log.hold(log.head)
        copy = await log.begin_copy(log.head, 0, tmp_path / "copy")
        head = log.head
        log.kept_after = None
        log.trim(log.synced)
        assert log.head == head
        await a.submit(key_in(a.engine, 0), Append([b"last"], None, None))
        copy.advance(log.synced)
        ((start, size),) = copy.pieces
        assert (start, start + size) == (head, log.synced)
        assert b"last" in (tmp_path / "copy").read_bytes()
        log.hold(None)
        log.trim(log.synced)
        assert log.head > head
        await asyncio.gather(a.ownership.drain(), b.ownership.drain())

    asyncio.run(body())


NAME = "_default/private-4711-of-somebody"


def traces(directory: Path, *names: bytes) -> list[str]:
    return sorted(
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file() and any(name in path.read_bytes() for name in names)
    )


def test_what_was_deleted_leaves_log_snapshots_and_the_catalogs_of_all_nodes(tmp_path: Path) -> None:
    async def body() -> None:
        a, b = await two_members(tmp_path)
        group = a.engine.home(NAME)
        owner, standby = (a, b) if group == 0 else (b, a)
        others = [f"_default/s{n}" for n in range(200) if a.engine.home(f"_default/s{n}") == group]
        for key in others:
            await owner.write(key, [b"x" * 50])
        await owner.write(NAME, [b"secret of somebody"])
        # The name is everywhere before.
        owned = owner.engine.owned[group]
        await owner.ownership.groups[group].snapshot()
        for place in ("shared", "lake/catalogs", owner.me, standby.me):
            await until(lambda place=place: bool(traces(tmp_path / place, NAME.encode())))
        await owner.submit(NAME, Delete())
        assert owned.eraser is not None
        erased = await owned.eraser.erase(NAME)
        assert erased.log_position > 0
        assert owned.group.log.head >= erased.log_position
        assert traces(tmp_path / "shared", NAME.encode(), b"secret of somebody") == []
        assert traces(tmp_path / "lake" / "catalogs", NAME.encode()) == []
        assert traces(tmp_path / owner.me, NAME.encode()) == []
        assert traces(tmp_path / standby.me, NAME.encode()) == []
        assert standby.ownership.groups[group].state == STANDBY
        for key in others[:3]:
            assert await owner.read(key) == [b"x" * 50]
        await asyncio.gather(a.ownership.drain(), b.ownership.drain())
        assert a.reports == b.reports == []

    asyncio.run(body())


def test_an_erasure_that_no_other_node_can_follow_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.cluster.snapshot_upkeep.FORGET_S_MAX", 0.5)

    async def body() -> None:
        a, b = await two_members(tmp_path)
        group = a.engine.home(NAME)
        owner, standby = (a, b) if group == 0 else (b, a)
        await owner.write(NAME, [b"secret"])
        await owner.submit(NAME, Delete())
        monkeypatch.setattr(standby.ownership.groups[group]._upkeep, "confirm", lambda upto: None)
        eraser = owner.engine.owned[group].eraser
        assert eraser is not None
        with pytest.raises(Exception, match="no other node has loaded"):
            await eraser.erase(NAME)
        monkeypatch.undo()
        await eraser.erase(NAME)
        assert traces(tmp_path / "shared", NAME.encode(), b"secret") == []
        await asyncio.gather(a.ownership.drain(), b.ownership.drain())

    asyncio.run(body())


def test_a_node_that_has_no_part_in_a_group_any_more_keeps_no_catalog_of_it(tmp_path: Path) -> None:
    async def body() -> None:
        a, b = await two_members(tmp_path)
        await b.write(key_in(b.engine, 1), [b"one"])
        assert a.catalog_of(1).exists() and b.catalog_of(0).exists()
        for left in (a.ownership.groups[1], b.ownership.groups[0]):
            left._timing = msgspec.structs.replace(TIMING, rebalance_after_s=0.2)
        a._members["aa"] = b  # a third one, which is next in line for both groups
        await until(lambda: not a.catalog_of(1).exists() and not b.catalog_of(0).exists())
        assert a.catalog_of(0).exists() and b.catalog_of(1).exists()
        del a._members["aa"]
        await until(lambda: a.ownership.groups[1].state == STANDBY)
        await asyncio.gather(a.ownership.drain(), b.ownership.drain())
        assert a.catalog_of(1).exists()  # it stops, and may start again

    asyncio.run(body())
