"""The same nodes over a log in objects, in a directory that they share: real time, real threads, a real lake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from headwater.catalog.lake_files import LakeFiles
from headwater.catalog.sqlite import SqliteCatalog
from headwater.cluster.catalog_snapshots import CatalogSnapshots
from headwater.cluster.ownership import OWNER, STANDBY, Ownership
from headwater.cluster.ownership_wiring import Timing, Wiring
from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.owned_group import GroupOptions, OwnedGroup
from headwater.engine.pending_answers import Outcome
from headwater.errors import GroupMoved, NotServedHere
from headwater.lake.lake import DeltaLake, StoreBlobs
from headwater.lake.local import LocalStore
from headwater.lake.names import epoch_of
from headwater.log.object_places import DirectoryPlace
from headwater.log.objects import ObjectEntries
from headwater.log.quorum import QuorumLog
from headwater.model.commands import Append, Command, Create
from headwater.model.offsets import START
from headwater.model.stream import Limits
from headwater.ports import SYSTEM_CLOCK, CatalogCopy, SystemRng

GROUPS = 2
OPTIONS = GroupOptions(200, 1_000, 200, 100, 1 << 20, 1_000_000, 1_000_000)
TIMING = Timing(look_s=0.05, checkpoint_interval_s=0.2, snapshot_interval_s=0.1, rebalance_after_s=60.0)
WAIT_S_MAX = 60


class Files:
    """See `CatalogFiles`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.held_directory = path.parent / "held"

    def open(self) -> Any:
        return LakeFiles(self._path)

    def open_to_read(self) -> Any:
        return LakeFiles(self._path, read_only=True)

    def copy(self, to: Path) -> CatalogCopy:
        raise NotImplementedError

    def scrub(self, name: str) -> bool:
        raise NotImplementedError


class Member:
    """A node of a cluster of those in `members`. Sees everybody that is in it."""

    def __init__(self, name: str, directory: Path, members: dict[str, Member]) -> None:
        self.me = name
        self._members = members
        self._own = directory / name
        self._own.mkdir(parents=True, exist_ok=True)
        self._place = DirectoryPlace(directory / "shared")
        self._store = LocalStore(directory / "lake")
        self._lake = DeltaLake(self._store, 1 << 20, SYSTEM_CLOCK, SystemRng())
        self.reports: list[str] = []
        self.engine = Engine({}, GROUPS, SYSTEM_CLOCK)
        wiring = Wiring(
            log=self._log,
            build=self._build,
            catalog_path=self._catalog,
            snapshots=lambda group: CatalogSnapshots(self._store, group, name, self._own),
            tell=lambda member, group, epoch, take: members[member].ownership.asked(group, epoch, take),
            report=lambda what, why: self.reports.append(why),
            streams_loaded_max=1_000,
            snapshot_bytes=100,
        )
        self.ownership = Ownership(self.engine, self, wiring, TIMING, SYSTEM_CLOCK, SystemRng())
        members[name] = self

    def alive(self) -> Collection[str]:
        return sorted(self._members)

    def in_line(self, group: int) -> list[str]:
        names = sorted(self._members)
        return names if group == 0 else names[::-1]

    def successor(self, group: int) -> str | None:
        return self.in_line(group)[0]

    def is_urgent(self, group: int) -> bool:
        return False

    def set_ready(self, group: int, ready: bool) -> None: ...

    def claimed(self, group: int) -> tuple[str, int] | None:
        said = [
            (one.me, one.ownership.claims()[group])
            for one in self._members.values()
            if one is not self and group in one.ownership.claims()
        ]
        return max(said, key=lambda claim: claim[1], default=None)

    def _catalog(self, group: int) -> Path:
        return self._own / f"{group}.db"

    async def _log(self, group: int) -> QuorumLog:
        return QuorumLog(ObjectEntries(self._place, f"log/{group}"), patience_ms=5_000)

    def _build(self, number: int, log: QuorumLog, catalog: SqliteCatalog) -> OwnedGroup:
        schedule = asyncio.get_running_loop().call_soon
        group = Group(log, catalog, SYSTEM_CLOCK, schedule, Limits(), 1 << 30, number, GROUPS)
        files = Files(self._catalog(number))
        blobs = StoreBlobs(self._store)
        return OwnedGroup(group, None, blobs, self._lake, files, OPTIONS, SystemRng(), lambda what, why: None)

    async def submit(self, key: str, command: Command) -> Outcome:
        future = OutcomeFuture()
        self.engine.submit(key, command, future)
        return await future.success()

    async def read(self, key: str) -> list[bytes]:
        stream = self.engine.find(key, False)
        found: list[bytes] = []
        at = START
        while at < stream.visible:
            part = await self.engine.read_now(stream, at, 1 << 20)
            found += [bytes(one) for one in part.payloads]
            at = part.end
        return found


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not holds():
            await asyncio.sleep(0.02)


def key_in(engine: Engine, group: int) -> str:
    return next(key for n in range(100) if engine.home(key := f"_default/s{n}") == group)


def test_groups_go_over_from_node_to_node_with_all_their_records_in_memory_and_lake(tmp_path: Path) -> None:
    async def body() -> None:
        members: dict[str, Member] = {}
        a, b = Member("a", tmp_path, members), Member("b", tmp_path, members)
        a.ownership.start()
        b.ownership.start()
        await until(lambda: a.ownership.groups[0].state == OWNER and b.ownership.groups[1].state == OWNER)
        await until(lambda: a.ownership.groups[1].state == STANDBY and b.ownership.groups[0].state == STANDBY)
        expected: dict[str, list[bytes]] = {}
        for number, node in enumerate((a, b)):
            key = key_in(node.engine, number)
            await node.submit(key, Create(key, "text/plain", []))
            expected[key] = [b"%d %d " % (number, n) + b"x" * 50 for n in range(40)]
            for payload in expected[key]:
                await node.submit(key, Append([payload], None, None))
        flusher = a.engine.owned[0].flusher
        assert flusher is not None
        await until(lambda: flusher.flushes_count > 0)
        files = a.engine.owned[0].group.catalog
        await until(lambda: any(epoch_of(name) == 1 for name in files.files()))
        del members["a"]  # it is not in anybody's line any more
        await a.ownership.drain()
        await until(lambda: sorted(b.engine.owned) == [0, 1])
        for key, payloads in expected.items():
            assert await b.read(key) == payloads
        key = key_in(b.engine, 0)
        await b.submit(key, Append([b"more"], None, None))
        assert b.ownership.claims() == {0: 2, 1: 1}
        # A third one, without anything of its own, from a snapshot and the log.
        c = Member("c", tmp_path, members)
        c.ownership.start()
        await until(lambda: c.ownership.groups[0].state == STANDBY)
        await b.ownership.drain()
        del members["b"]
        await until(lambda: sorted(c.engine.owned) == [0, 1])
        assert await c.read(key) == [*expected[key], b"more"]
        await c.ownership.drain()
        assert a.reports == b.reports == c.reports == []

    asyncio.run(body())


def test_an_owner_that_another_one_fenced_refuses_what_it_holds_and_follows_again(tmp_path: Path) -> None:
    async def body() -> None:
        members: dict[str, Member] = {}
        a, b = Member("a", tmp_path, members), Member("b", tmp_path, members)
        a.ownership.start()
        b.ownership.start()
        await until(lambda: 0 in a.engine.owned and b.ownership.groups[0].state == STANDBY)
        key = key_in(a.engine, 0)
        await a.submit(key, Create(key, "text/plain", []))
        acked = []
        for n in range(20):
            await a.submit(key, Append([b"%d" % n], None, None))
            acked.append(b"%d" % n)
        fenced = a.engine.owned[0].group
        # The owner knows nothing of it: it finds out from the log.
        assert b.ownership.groups[0].asked(1, take=True)
        await until(lambda: 0 in b.engine.owned)
        future = OutcomeFuture()
        fenced.submit(key, Append([b"late"], None, None), future)
        assert isinstance(await future.wait(), GroupMoved)
        await b.submit(key, Append([b"new"], None, None))
        assert await b.read(key) == [*acked, b"new"]
        await until(lambda: a.ownership.groups[0].state == STANDBY)
        with pytest.raises(NotServedHere):
            a.engine.find(key, False)
        await b.ownership.drain()
        await until(lambda: 0 in a.engine.owned)
        assert await a.read(key) == [*acked, b"new"]
        await a.ownership.drain()

    asyncio.run(body())
