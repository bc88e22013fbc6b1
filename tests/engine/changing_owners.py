"""Nodes that own one group after the other, on one log in memory and one lake in a directory: real catalogs, a real
table, and owners that go on after they were followed by another. Owns the steps; `check` says what every owner serves
and what the table shows. Nothing here runs by itself."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.catalog.catalog_files import SqliteCatalogFiles
from headwater.catalog.sqlite import SqliteCatalog
from headwater.engine.checkpoint import checkpoint
from headwater.engine.follower import Follower
from headwater.engine.group import Group
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.owned_group import GroupOptions, OwnedGroup
from headwater.engine.swap import Swapped
from headwater.errors import Failure, GroupMoved, OwnerChanged, SwapRefused
from headwater.lake.lake import DeltaLake, StoreBlobs
from headwater.lake.layout import SCHEMA
from headwater.lake.local import LocalStore
from headwater.lake.names import epoch_of, epoch_token
from headwater.lake.sorted_writer import write_sorted
from headwater.lake.writer import SORTED_BY
from headwater.log.medium import Unavailable
from headwater.log.quorum import QuorumLog
from headwater.log.quorum_entries import Claim
from headwater.model.commands import Append, Command, Create, Delete, Trim
from headwater.model.stream import Limits
from headwater.ports import BlobsUnavailable, SystemClock
from tests.log.memory_entries import MemoryEntries, Place

OPTIONS = GroupOptions(1_000, 1_000, 1 << 30, 1_000_000, 1 << 20, 1_000_000, 0)
REFUSED = (Failure, BlobsUnavailable)


class Later(SystemClock):
    """Hours ahead: whatever is stored is old enough for gc, which has no grace period here."""

    def now_ms(self) -> int:
        return super().now_ms() + 10_000_000


class Job:
    """Files that somebody wrote, to be swapped in."""

    def __init__(self, remove: list[str], add: list[str]) -> None:
        self.remove = remove
        self.add = add


class World:
    def __init__(self, directory: Path, seed: int = 0) -> None:
        self.directory = directory
        self.random = random.Random(seed)
        self.place = Place()
        self.store = LocalStore(directory / "lake")
        self.nodes: dict[str, Node] = {}
        self.lives: list[Node] = []
        self.owner: Node
        self.model: dict[str, tuple[list[bytes], int]] = {}
        """What was acknowledged of each stream, and how many of its records it let go of."""
        self.numbers = 0
        self.swaps_count = 0

    def token(self, size_bytes: int) -> bytes:
        return self.random.randbytes(size_bytes)

    async def start(self, name: str) -> Node:
        """A node that follows. Whatever had this name goes on with a directory of its own, and does not know."""
        before = self.nodes.get(name)
        directory = self.directory / f"{name}-{len(self.lives)}"
        if before is None:
            directory.mkdir()
        else:
            shutil.copytree(before.directory, directory)
        node = self.nodes[name] = Node(self, name, directory)
        self.lives.append(node)
        await node.open()
        return node

    async def change_owner(self, name: str) -> Node:
        node = self.nodes[name]
        if node.epoch:
            node = await self.start(name)  # an owner does not claim again: it follows first
        await node.claim()
        self.owner = node
        return node

    async def close(self) -> None:
        for node in self.lives:
            node.medium.broken = None
        for node in self.lives:
            await node.follower.stop()
            await node.log.closed()

    # ---- clients ------------------------------------------------------------------------------------------------

    async def submit(self, key: str, command: Command) -> Any:
        future = OutcomeFuture()
        self.owner.group.submit(key, command, future)
        outcome = await asyncio.wait_for(future.wait(), 30)
        assert not isinstance(outcome, Failure), outcome
        return outcome

    async def append(self, key: str, count: int = 3) -> None:
        if key not in self.model:
            await self.submit(key, Create(key, "text/plain", []))
            self.model[key] = ([], 0)
        for _ in range(count):
            self.numbers += 1
            payload = f"{self.numbers:06d}".encode()
            await self.submit(key, Append([payload], None, None))
            self.model[key][0].append(payload)

    async def trim(self, key: str) -> None:
        if key in self.model:
            records, gone = self.model[key]
            upto = self.random.randint(gone, len(records))
            await self.submit(key, Trim(6 * upto))
            self.model[key] = (records, upto)

    async def delete(self, key: str) -> None:
        if self.model.pop(key, None) is not None:
            await self.submit(key, Delete())

    async def swap(self, job: Job, owner: Node | None = None) -> Swapped:
        done = await (owner or self.owner).swap(job)
        self.swaps_count += 1
        return done

    async def try_swap(self, job: Job, owner: Node | None = None) -> None:
        try:
            await self.swap(job, owner)
        except (OwnerChanged, SwapRefused, *REFUSED):
            pass

    # ---- what has to hold ---------------------------------------------------------------------------------------

    async def check(self) -> None:
        """The owner serves what was acknowledged, from objects that are there, and the table shows each record once."""
        owner = self.owner
        assert await owner.contents() == {key: records[gone:] for key, (records, gone) in self.model.items()}, (
            f"{owner.name} serves something else"
        )
        await owner.flusher.flush_all()
        await owner.flusher.follow()
        await checkpoint(owner.group)
        used = {name for name, is_used in owner.group.catalog.alive().items() if is_used}
        missing = [name for name in used if self.store.head(name) is None]
        assert not missing, f"records are in files that are gone: {missing}"
        rows = [row for name in owner.lake.files() for row in self.rows(name)]
        assert len(set(rows)) == len(rows), "a record is in the table twice"
        assert used <= set(owner.lake.files()), "the table lacks a file"

    def rows(self, name: str) -> list[tuple[int, int]]:
        found = pq.read_table(self.directory / "lake" / name, columns=["incarnation", "seq"]).to_pylist()
        return [(row["incarnation"], row["seq"]) for row in found]


class Node:
    """One life of a node: it follows, may own, and goes on after that without knowing."""

    def __init__(self, world: World, name: str, directory: Path) -> None:
        self.world = world
        self.name = name
        self.directory = directory
        self.epoch = 0
        self.medium = MemoryEntries(world.place)
        self.lake = DeltaLake(world.store, 1 << 20, Later(), world)

    async def open(self) -> None:
        self.log = QuorumLog(self.medium, rng=self.world)  # type: ignore[arg-type]
        self.log.kept_after = -1
        await self.log.load()
        catalog = SqliteCatalog(self.directory / "0.db")
        self.files = SqliteCatalogFiles(self.directory / "0.db", self.directory / "held")
        schedule = asyncio.get_running_loop().call_soon
        self.group = Group(self.log, catalog, Later(), schedule, Limits(), 1 << 30, 0, 1)
        blobs = StoreBlobs(self.world.store)
        self.owned = OwnedGroup(
            self.group, None, blobs, self.lake, self.files, OPTIONS, self.world, lambda what, why: None
        )
        self.follower = Follower(self.owned, self.log, 1_000, Unavailable)
        await self.follower.begin()

    def cut(self) -> None:
        """From the log, but not from the lake: it cannot learn that another one owns the group."""
        self.medium.broken = Unavailable("the log is not reached")

    async def follow(self) -> None:
        while await self.follower.advance():
            pass

    async def claim(self) -> None:
        await self.follow()
        claim = await self.log.claim(Claim(self.name, "", 1, 0, self.world.token(8).hex()))
        self.epoch = claim.epoch
        self.follower.take_over(claim.epoch)

    @property
    def flusher(self) -> Any:
        return self.owned.flusher

    async def sweep(self) -> None:
        assert self.owned.lake_gc is not None
        await self.owned.lake_gc.sweep()

    async def swap(self, job: Job) -> Swapped:
        assert self.owned.swapper is not None
        return await asyncio.wait_for(self.owned.swapper.swap(job.remove, job.add), 60)

    async def plan(self, files_max: int = 100) -> Job:
        """What a job does: some files, and new ones with their live rows, named with the epoch that the node told."""
        await checkpoint(self.group)
        old = sorted(name for name, used in self.group.catalog.alive().items() if used)[:files_max]
        tables = []
        with closing(self.files.open_to_read()) as book:
            for name in old:
                opened = pq.ParquetFile(self.world.directory / "lake" / name)
                for extent in book.extents_in(name):
                    rows = opened.read_row_group(extent.row_group).cast(SCHEMA)
                    tables.append(rows.slice(extent.row_start, extent.row_count))
        if not tables:
            return Job(old, [])
        rows = pa.concat_tables(tables).sort_by([(name, "ascending") for name in SORTED_BY])
        token = epoch_token(self.epoch, self.world.token(8).hex())
        written = write_sorted(rows.to_batches(), 0, token, rows_per_group=4)
        assert written is not None and epoch_of(written.file.path) == self.epoch
        self.world.store.put(written.file.path, written.data)
        return Job(old, [written.file.path])

    async def contents(self) -> dict[str, list[bytes]]:
        found = {}
        for key in self.world.model:
            stream = self.group.find(key, touch=False)
            payloads: list[bytes] = []
            at = stream.earliest
            while at < stream.visible:
                part = await asyncio.wait_for(self.owned.reads.read_now(stream, at, 1 << 20), 60)
                payloads += map(bytes, part.payloads)
                at = part.end
            found[key] = payloads
        return found

    def extents(self) -> list[Any]:
        with closing(self.files.open_to_read()) as book:
            return list(book.extents())


def in_a_world(directory: Path, body: Callable[[World], Awaitable[None]], seed: int = 0) -> None:
    async def run() -> None:
        world = World(directory, seed)
        for name in ("a", "b", "c"):
            await world.start(name)
        try:
            await world.change_owner("a")
            await body(world)
        finally:
            await world.close()

    asyncio.run(run())


__all__ = ["GroupMoved", "Job", "Node", "World", "in_a_world"]
