"""Nodes that own, follow and lose one group, in one event loop: real groups, real logs and catalogs on a medium in
memory, and a clock that moves when nothing else can happen. Owns the faults and what every client was told; `judge`
says which promise was broken. Never waits for real time."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from headwater.catalog.sqlite import SqliteCatalog
from headwater.cluster.catalog_snapshots import CatalogSnapshots
from headwater.cluster.ownership import STANDBY, GroupOwnership, Ownership
from headwater.cluster.ownership_wiring import Timing, Wiring
from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.owned_group import GroupOptions, OwnedGroup
from headwater.engine.read_plan import plan
from headwater.errors import Failure, GroupMoved, NotServedHere, StreamExists, StreamNotFound
from headwater.lake.lake import StoreBlobs
from headwater.lake.store import MemoryStore
from headwater.log.medium import Entries, Unavailable, Unsure
from headwater.log.quorum import QuorumLog
from headwater.model.commands import Append, Create
from headwater.model.offsets import START
from headwater.model.stream import Limits
from tests.log.memory_entries import MemoryEntries, Place

KEY = "_default/s"
OPTIONS = GroupOptions(1_000, 1_000, 1 << 20, 1_000, 1 << 20, 1_000_000, 1_000_000)
TIMING = Timing(checkpoint_interval_s=1.5, snapshot_interval_s=1.0, rebalance_after_s=4.0)
SNAPSHOT_BYTES = 2_000


class Violation(AssertionError):
    """A promise was broken."""


class World:
    """Everything that happens waits here for its moment."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self.now_s = 0.0
        self._timers: list[tuple[float, int, Node | None, asyncio.Future[None]]] = []
        self._dead: list[asyncio.Future[None]] = []
        """What nodes that were killed wait for."""
        self._ties = 0
        self.medium: Callable[[], Entries] = (place := Place()) and (lambda: MemoryEntries(place))
        self.place = place
        self.store = MemoryStore()
        self.nodes: dict[str, Node] = {}
        self.lives: list[Node] = []
        self.unseen: set[tuple[str, str]] = set()
        """(who looks, whom it does not see)."""
        self.acked: list[bytes] = []
        self.refused: list[bytes] = []
        """Payloads of appends that certainly changed nothing."""
        self.read: list[list[bytes]] = []
        """What somebody was shown."""
        self.reports: list[str] = []
        self.violations: list[str] = []
        self.entered_count = 0
        self.tasks: list[asyncio.Task[Any]] = []
        self.closing = False
        """Everything is being cancelled: nobody waits for his turn any more."""

    def sleep(self, node: Node | None, delay_s: float) -> Awaitable[None]:
        if self.closing:
            self.now_s += delay_s
            return asyncio.sleep(0)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ties += 1
        # Never exactly: what is due at the same moment comes in an order that the seed decides.
        heappush(self._timers, (self.now_s + delay_s + self.random.random() / 1000, self._ties, node, done))
        return done

    async def run(self, until_s: float, holds: Callable[[], bool] = lambda: False) -> None:
        """Lets time pass until that moment, or until something holds."""
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
        while True:
            await asyncio.sleep(0)
            while ready:
                await asyncio.sleep(0)
            for task in [task for task in self.tasks if task.done() and not task.cancelled()]:
                self.tasks.remove(task)
                task.result()
            if self.violations:
                raise Violation(self.violations[0])
            if holds():
                break
            if not self._timers or self._timers[0][0] > until_s:
                self.now_s = max(self.now_s, until_s)
                break
            timer = heappop(self._timers)
            self.now_s = max(self.now_s, timer[0])
            node, done = timer[2], timer[3]
            if done.done():
                continue
            if node is not None and node.dead:
                self._dead.append(done)
                continue
            if node is not None and node.paused:
                heappush(self._timers, (self.now_s + 0.05, timer[1], node, done))
                continue
            done.set_result(None)

    def spawn(self, body: Any) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(body))

    def start(self, name: str) -> Node:
        before = self.nodes.get(name)
        life = 0 if before is None else before.life + 1
        directory = self.directory / f"{name}-{life}"
        if before is None:
            directory.mkdir()
        else:
            shutil.copytree(before.directory, directory)
        node = self.nodes[name] = Node(self, name, life, directory)
        self.lives.append(node)
        node.ownership.start()
        return node

    def owners(self) -> list[Node]:
        return [node for node in self.nodes.values() if not node.dead and 0 in node.engine.owned]

    async def close(self) -> None:
        """Ends every life of every node, killed or not."""
        self.closing = True
        for done in [*self._dead, *(done for _, _, _, done in self._timers)]:
            if not done.done():
                done.set_result(None)
        for node in self.lives:
            node.cut = False
        running = [*self.tasks, *(task for node in self.lives for task in node.ownership._tasks)]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    # ---- clients ------------------------------------------------------------------------------------------------

    async def create(self) -> None:
        node = self.owners()[0]
        future = OutcomeFuture()
        node.engine.submit(KEY, Create(KEY, "text/plain", []), future)
        outcome = await future.wait()
        assert not isinstance(outcome, Failure) or isinstance(outcome, StreamExists), outcome

    def append(self, payload: bytes, node: Node | None = None) -> None:
        """Sends an append to a node that believes to own the group, and remembers what it answers."""
        if node is None:
            owners = self.owners()
            if not owners:
                return
            node = self.random.choice(owners)
        world, sent = self, payload

        class Told:
            def resolve(self, outcome: Any) -> None:
                if isinstance(outcome, GroupMoved):
                    world.refused.append(sent)
                elif not isinstance(outcome, Failure):
                    world.acked.append(sent)

        try:
            node.engine.submit(KEY, Append([payload], None, None), Told())
        except (NotServedHere, GroupMoved):
            self.refused.append(payload)

    def look(self, node: Node) -> list[bytes]:
        """What a reader sees there."""
        try:
            found = shown(node.engine.owned[0].group)
        except (StreamNotFound, KeyError):
            return []
        self.read.append(found)
        return found

    def judge(self) -> None:
        """Raises Violation. Called when one owner is left and everything was healed."""
        final = self.look(self.owners()[0])
        if len(set(final)) != len(final):
            raise Violation("a record is there twice")
        if missing := [payload for payload in self.acked if payload not in set(final)]:
            raise Violation(f"acknowledged, and not there: {missing[:3]}")
        if there := [payload for payload in self.refused if payload in set(final)]:
            raise Violation(f"refused without effect, and there: {there[:3]}")
        for seen in self.read:
            if seen != final[: len(seen)]:
                raise Violation("somebody was shown what is not in the log, or in another order")


def shown(group: Group) -> list[bytes]:
    stream = group.find(KEY, touch=False)
    return [bytes(one) for one in plan(stream, max(START, stream.earliest), 1 << 40).payloads]


class Node:
    """One node's clock, way to the log, view of the others, engine and ownership."""

    def __init__(self, world: World, name: str, life: int, directory: Path) -> None:
        self.world = world
        self.me = name
        self.life = life
        self.directory = directory
        self.dead = False
        self.paused = False
        self.cut = False
        """From the log."""
        self.engine = Engine({}, 1, self)  # type: ignore[arg-type]
        self.engine.listeners.append(self)
        wiring = Wiring(
            log=self._log,
            build=self._build,
            catalog_path=lambda group: directory / f"{group}.db",
            snapshots=lambda group: CatalogSnapshots(world.store, group, name, directory),
            tell=self._tell,
            report=lambda what, why: world.reports.append(f"{world.now_s:.2f} {name}: {why}"),
            streams_loaded_max=1_000,
            snapshot_bytes=SNAPSHOT_BYTES,
        )
        self.ownership = Ownership(self.engine, self, wiring, TIMING, self, self)  # type: ignore[arg-type]

    @property
    def group(self) -> GroupOwnership:
        return self.ownership.groups[0]

    # ---- the clock and the source of tokens -----------------------------------------------------------------------

    def now_ms(self) -> int:
        return int(self.world.now_s * 1_000)

    def monotonic_s(self) -> float:
        return self.world.now_s

    def sleep(self, delay_s: float) -> Awaitable[None]:
        return self.world.sleep(self, delay_s)

    def token(self, size_bytes: int) -> bytes:
        return self.world.random.randbytes(size_bytes)

    # ---- the view -------------------------------------------------------------------------------------------------

    def alive(self) -> list[str]:
        seen = [node for node in self.world.nodes.values() if not node.dead and not node.paused]
        return sorted({self.me, *(node.me for node in seen if (self.me, node.me) not in self.world.unseen)})

    def in_line(self, group: int) -> list[str]:
        return self.alive()

    def successor(self, group: int) -> str | None:
        line = self.in_line(group)
        ready = [name for name in line if self.world.nodes[name].group.state == STANDBY]
        return (ready or line)[0]

    def is_urgent(self, group: int) -> bool:
        return False

    def set_ready(self, group: int, ready: bool) -> None: ...

    def claimed(self, group: int) -> tuple[str, int] | None:
        others = [self.world.nodes[name] for name in self.alive() if name != self.me]
        said = [(node.ownership.claims()[group], node.me) for node in others if group in node.ownership.claims()]
        return max(said)[::-1] if said else None

    async def _tell(self, member: str, group: int, epoch: int, take: bool) -> bool:
        await self.sleep(0.01)
        other = self.world.nodes[member]
        if other.dead or other.paused or (self.me, member) in self.world.unseen:
            raise Unavailable("no answer")
        return await other.ownership.asked(group, epoch, take)

    # ---- as a listener --------------------------------------------------------------------------------------------

    def entered(self, owned: OwnedGroup) -> None:
        """Whoever begins to serve has everything that was acknowledged so far."""
        self.world.entered_count += 1
        try:
            found = set(shown(owned.group))
        except StreamNotFound:
            found = set()
        if missing := [payload for payload in self.world.acked if payload not in found]:
            # Raised by the world: an owner survives whatever a listener raises.
            self.world.violations.append(f"{self.me} serves without {missing[:3]}")

    def left(self, owned: OwnedGroup) -> None: ...

    # ---- the group ------------------------------------------------------------------------------------------------

    async def _log(self, group: int) -> QuorumLog:
        return QuorumLog(Wire(self, self.world.medium()), patience_ms=3_000, clock=self, rng=self)  # type: ignore[arg-type]

    def _build(self, number: int, log: QuorumLog, catalog: SqliteCatalog) -> OwnedGroup:
        schedule = asyncio.get_running_loop().call_soon
        group = Group(log, catalog, self, schedule, Limits(), 1 << 30, number, 1)  # type: ignore[arg-type]
        blobs = StoreBlobs(self.world.store)
        return OwnedGroup(group, None, blobs, None, None, OPTIONS, self, lambda what, why: None)  # type: ignore[arg-type]


class Wire:
    """A node's way to the medium: slow, and cut when the node is."""

    def __init__(self, node: Node, medium: Entries) -> None:
        self._node = node
        self._medium = medium
        self.entry_bytes_max = medium.entry_bytes_max

    async def _there(self) -> None:
        await self._node.sleep(0.002 + self._node.world.random.random() / 100)
        if self._node.cut:
            raise Unavailable("the log is not reached")

    async def _back(self) -> None:
        await self._node.sleep(0.002)
        if self._node.cut:
            raise Unsure("the answer was lost")

    async def head(self) -> int:
        await self._there()
        return await self._medium.head()

    async def read(self, first: int, bytes_max: int) -> list[tuple[int, bytes]]:
        await self._there()
        return await self._medium.read(first, bytes_max)

    async def put(self, number: int, data: bytes) -> None:
        await self._there()
        await self._medium.put(number, data)
        await self._back()

    async def claim(self, number: int, data: bytes) -> None:
        await self._there()
        await self._medium.claim(number, data)
        await self._back()

    async def wait(self, number: int) -> None:
        await self._node.sleep(0.05)

    async def purge(self, below: int) -> None:
        await self._there()
        await self._medium.purge(below)

    async def close(self) -> None:
        await self._medium.close()
