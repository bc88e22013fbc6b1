"""A log that begins where a catalog ends, on both media: what is refused, and nodes that start from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headwater.catalog.catalog_copy import copy_catalog
from headwater.catalog.log_identity import read_facts, write_identity
from headwater.catalog.sqlite import SqliteCatalog
from headwater.cluster.catalog_snapshots import CatalogSnapshots
from headwater.cluster.new_log import CannotBegin, begin_log_after_snapshot, highest_epoch
from headwater.cluster.ownership import OWNER, STANDBY
from headwater.engine.checkpoint import checkpoint
from headwater.engine.recovery import log_of
from headwater.lake.local import LocalStore
from headwater.log.jetstream import JetStream, JetStreamSettings
from headwater.log.object_places import DirectoryPlace
from headwater.log.objects import ObjectEntries
from headwater.log.quorum import Behind, QuorumLog
from headwater.log.quorum_entries import Claim, LogDamaged
from headwater.model.commands import Append, Create
from headwater.ports import Change, SystemRng
from tests.cluster.test_ownership_on_objects import GROUPS, Member, key_in, until
from tests.log import numbered
from tests.log.contract import Running
from tests.support.nats import nats_servers

POSITION, EPOCH = 4_711, 6
Logs = Callable[[], Awaitable[QuorumLog]]


@asynccontextmanager
async def medium(kind: str, directory: Path) -> AsyncIterator[Logs]:
    """A way to make processes' views of one group's log."""
    if kind == "objects":

        async def in_objects() -> QuorumLog:
            return QuorumLog(ObjectEntries(DirectoryPlace(directory / "shared"), "log/0"))

        yield in_objects
        return
    with nats_servers(directory / "nats", 1) as servers:
        process = JetStream(JetStreamSettings(servers.urls, replicas=1, monitors=servers.monitors))
        await process.open()

        async def in_jetstream() -> QuorumLog:
            return QuorumLog(await process.entries(0))

        try:
            yield in_jetstream
        finally:
            await process.close()


def on_both_media(directory: Path, kind: str, body: Callable[[Logs, CatalogSnapshots, Path], Awaitable[None]]) -> None:
    async def run() -> None:
        snapshots = CatalogSnapshots(LocalStore(directory / "lake"), 0, "restore", directory / "parts")
        (directory / "nats").mkdir()
        async with asyncio.timeout(60), medium(kind, directory) as logs:
            await body(logs, snapshots, directory / "0.db")

    asyncio.run(run())


def make_catalog(path: Path, position: int = POSITION, log_floor: int = POSITION) -> None:
    catalog = SqliteCatalog(path)
    catalog.keep_incarnations([("aa" * 8, 0), ("bb" * 8, 100)])
    catalog.write(Change([], [], [], [], [], [], [], position, log_floor, 0))
    catalog.close()


both = pytest.mark.parametrize("kind", ["objects", "jetstream"])


@both
def test_a_log_goes_on_where_the_catalog_ends_with_positions_and_epochs_that_rise(kind: str, tmp_path: Path) -> None:
    async def body(logs: Logs, snapshots: CatalogSnapshots, catalog: Path) -> None:
        make_catalog(catalog)
        made = await logs()
        snapshot = await begin_log_after_snapshot(made, snapshots, catalog, EPOCH, SystemRng())
        assert (snapshot.position, snapshot.log_floor, snapshot.epoch) == (POSITION, POSITION, EPOCH + 1)
        await made.closed()
        owner = await logs()
        await owner.load()
        assert (owner.head, owner.tail, owner.cursor.epoch) == (POSITION, POSITION, EPOCH + 1)
        assert owner.identity == read_facts(catalog).identity
        begun = owner.incarnations()
        assert [position for _, position in begun] == [POSITION]
        assert (await owner.claim(Claim("a", ""))).epoch == EPOCH + 2
        running = Running(owner)
        await running.put(*numbered(5))
        assert owner.head == POSITION < owner.synced
        later = await logs()
        await later.load()
        assert [event for _, event in later.replay(POSITION)] == numbered(5)
        await later.closed()
        await owner.closed()

    on_both_media(tmp_path, kind, body)


@both
def test_what_was_done_before_is_not_done_again_and_a_log_that_is_there_is_left_alone(
    kind: str, tmp_path: Path
) -> None:
    async def body(logs: Logs, snapshots: CatalogSnapshots, catalog: Path) -> None:
        make_catalog(catalog)
        first, second, third = await logs(), await logs(), await logs()
        snapshot = await begin_log_after_snapshot(first, snapshots, catalog, EPOCH, SystemRng())
        await first.closed()
        # Whoever repeats it has the catalog from where it came from, without what the first call wrote into it.
        write_identity(catalog, "another")
        assert await begin_log_after_snapshot(second, snapshots, catalog, EPOCH, SystemRng()) == snapshot
        await second.claim(Claim("a", ""))
        await second.closed()
        with pytest.raises(CannotBegin, match="there is a log already"):
            await begin_log_after_snapshot(third, snapshots, catalog, EPOCH, SystemRng())
        await third.closed()
        assert sorted(path.name for path in catalog.parent.glob("*.newest*")) == []

    on_both_media(tmp_path, kind, body)


@both
def test_of_two_that_begin_one_log_one_is_told(kind: str, tmp_path: Path) -> None:
    async def body(logs: Logs, snapshots: CatalogSnapshots, catalog: Path) -> None:
        one, other = await logs(), await logs()
        await one.load()
        await other.load()
        await one.begin(100, 1, "00000000000000aa")
        with pytest.raises(Behind):
            await other.begin(200, 1, "00000000000000bb")
        await other.load()
        assert (other.identity, other.head) == ("00000000000000aa", 100)
        with pytest.raises(Behind):
            await other.begin(200, 1, "00000000000000bb")
        for log in (one, other):
            await log.closed()

    on_both_media(tmp_path, kind, body)


def test_a_catalog_that_counts_on_a_log_before_is_refused(tmp_path: Path) -> None:
    async def body(logs: Logs, snapshots: CatalogSnapshots, catalog: Path) -> None:
        make_catalog(catalog, log_floor=POSITION - 1)
        log = await logs()
        with pytest.raises(CannotBegin, match="counts on a log"):
            await begin_log_after_snapshot(log, snapshots, catalog, EPOCH, SystemRng())
        assert snapshots.found() == {}
        await log.load()
        assert log.cursor.number == 1

    on_both_media(tmp_path, "objects", body)


def test_a_newer_snapshot_is_not_passed_over(tmp_path: Path) -> None:
    async def body(logs: Logs, snapshots: CatalogSnapshots, catalog: Path) -> None:
        make_catalog(catalog, POSITION + 1, POSITION + 1)
        first, second = await logs(), await logs()
        await begin_log_after_snapshot(first, snapshots, catalog, EPOCH, SystemRng())
        for path in (catalog.parent / "shared").rglob("*"):
            if path.is_file():
                path.unlink()  # the log is lost
        older = catalog.with_name("older.db")
        make_catalog(older)
        with pytest.raises(CannotBegin, match="goes further"):
            await begin_log_after_snapshot(second, snapshots, older, EPOCH, SystemRng())

    on_both_media(tmp_path, "objects", body)


def test_a_log_whose_first_entry_is_missing_is_damaged(tmp_path: Path) -> None:
    async def body() -> None:
        place = DirectoryPlace(tmp_path)
        log = QuorumLog(ObjectEntries(place, "log/0"))
        await log.load()
        await log.claim(Claim("a", ""))
        await Running(log).put(*numbered(3))
        await log.closed()
        (batch,) = (tmp_path / "log/0").glob("0000000001-*/*")
        (first,) = (tmp_path / "log/0").glob("0000000000-*/*")
        first.write_bytes(batch.read_bytes())
        damaged = QuorumLog(ObjectEntries(place, "log/0"))
        with pytest.raises(LogDamaged, match="begins with a claim"):
            await damaged.load()

    asyncio.run(body())


def test_epochs_are_found_in_the_names_of_the_groups_own_objects(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert highest_epoch(store, 1) == 0
    store.put("data/1/00000000000000000007-e3-ab.parquet", b"")
    store.put("snapshots/1/9/00000000000000000007-e5-ab", b"")
    store.put("data/10/00000000000000000007-e9-ab.parquet", b"")
    store.put("data/1/00000000000000000007-ab.parquet", b"")
    assert highest_epoch(store, 1) == 5


# ---- nodes ----------------------------------------------------------------------------------------------------------


async def owners(members: dict[str, Member]) -> None:
    a, b = members["a"], members["b"]
    await until(lambda: a.ownership.groups[0].state == OWNER and b.ownership.groups[1].state == OWNER)
    await until(lambda: a.ownership.groups[1].state == STANDBY and b.ownership.groups[0].state == STANDBY)


def test_nodes_start_from_it_and_not_from_what_they_kept_of_the_log_before(tmp_path: Path) -> None:
    """The log is lost. Everything was settled: nodes without a directory of their own have all of it again."""

    async def body() -> None:
        members: dict[str, Member] = {}
        a, b = Member("a", tmp_path, members), Member("b", tmp_path, members)
        a.ownership.start()
        b.ownership.start()
        await owners(members)
        expected: dict[str, list[bytes]] = {}
        for number, node in enumerate((a, b)):
            key = key_in(node.engine, number)
            await node.submit(key, Create(key, "text/plain", []))
            expected[key] = [b"%d " % n for n in range(20)]
            for payload in expected[key]:
                await node.submit(key, Append([payload], None, None))
        for number, node in enumerate((a, b)):
            owned = node.engine.owned[number]
            assert owned.flusher is not None
            await owned.flusher.flush_all()
            await checkpoint(owned.group)
        lineages = [node.engine.owned[number].group.lineage for number, node in enumerate((a, b))]
        members.clear()
        await asyncio.gather(a.ownership.drain(), b.ownership.drain())
        store = LocalStore(tmp_path / "lake")
        (tmp_path / "shared").rename(tmp_path / "lost")
        for number, name in enumerate(("a", "b")):
            log = QuorumLog(ObjectEntries(DirectoryPlace(tmp_path / "shared"), f"log/{number}"))
            snapshots = CatalogSnapshots(store, number, "restore", tmp_path / "parts")
            catalog = tmp_path / f"{number}.db"
            copy_catalog(tmp_path / name / f"{number}.db", catalog)
            epoch = highest_epoch(store, number)
            assert epoch == 1
            await begin_log_after_snapshot(log, snapshots, catalog, epoch, SystemRng())
            await log.closed()
        stale = Member("a", tmp_path, members)
        stale.ownership.start()
        await until(lambda: len(stale.engine.owned) == GROUPS)
        for number in range(GROUPS):
            # What it kept is of the log before: the snapshot took its place.
            assert log_of(stale.engine.owned[number].group.catalog) == read_facts(tmp_path / f"{number}.db").identity
        await stale.ownership.drain()
        members.clear()
        fresh = Member("c", tmp_path, members)
        fresh.ownership.start()
        await until(lambda: len(fresh.engine.owned) == GROUPS)
        assert fresh.reports == []
        for key, payloads in expected.items():
            assert await fresh.read(key) == payloads
            await fresh.submit(key, Append([b"more"], None, None))
            assert await fresh.read(key) == [*payloads, b"more"]
        for number, lineage in enumerate(lineages):
            assert fresh.engine.owned[number].group.lineage.incarnations[: len(lineage.incarnations)] == (
                lineage.incarnations
            )
            assert fresh.ownership.claims()[number] == 4
        await fresh.ownership.drain()

    asyncio.run(body())
