"""Nodes with subscriptions in one loop: they come and go, groups change hands, and each sees the others as it was last
told. It owns that world; it decides nothing about subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any

from headwater.catalog.sqlite import SqliteCatalog
from headwater.engine.engine import Engine
from headwater.engine.fork_placement import ForkPlacement
from headwater.engine.group import Group
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.recovery import Fold
from headwater.errors import MemberUnavailable, NoOwner
from headwater.model.commands import Append, Command, Create, Delete
from headwater.model.events import Event
from headwater.model.stream import Limits
from headwater.model.subscriptions import PULL_WAKE, WEBHOOK, Config, Subscription
from headwater.ports import FENCED, LogFailure, SystemRng
from headwater.subscriptions.keys import Keys
from headwater.subscriptions.manager import Bearer, Claim, Manager
from tests.engine import HandClock, owned_on
from tests.subscriptions.two_processes import LEASE_MS, Client
from tests.support.processes import SyncingLog, run
from tests.support.wire import Wire, WiredQuestions

KEYS = Keys(b"s" * 32, b"t" * 32)


class Seen:
    """The nodes as one of them sees them: `membership.Membership`, as far as questions go."""

    alone = False
    version = 0

    def __init__(self, me: int, groups_count: int) -> None:
        self.me = me
        self.groups_count = groups_count
        self.everyone: list[int] = [me]
        self.owners: dict[int, int] = {}
        self.on_change: list[Callable[[], None]] = []

    def owner(self, group: int) -> int:
        if group not in self.owners:
            raise NoOwner(group)
        return self.owners[group]

    def groups_of(self, member: int) -> list[int]:
        return sorted(group for group, owner in self.owners.items() if owner == member)

    def public_address(self, member: int) -> str | None:
        return None

    async def connect(self, member: int, door: str, protocol: asyncio.Protocol) -> Any:
        raise NotImplementedError


class Node:
    def __init__(self, world: Cluster, me: int) -> None:
        self.seen = Seen(me, world.groups_count)
        self.questions = WiredQuestions(world.wire, self.seen)  # type: ignore[arg-type]
        self.engine = Engine({}, world.groups_count, world.clock, self.questions)
        self.placing = ForkPlacement(self.engine)
        self.manager = Manager(self.engine, KEYS, world.client, SystemRng())
        if world.forgetful:
            # As if every stream of a group that enters were at rest: none is told of by having been loaded.
            self.manager._recall = lambda owned: None  # type: ignore[method-assign]
        self.manager.start()
        self.questions.listen()


class Cluster:
    def __init__(self, nodes_count: int, groups_count: int, forgetful: bool = False) -> None:
        self.groups_count = groups_count
        self.forgetful = forgetful
        self.clock = HandClock()
        self.client = Client()
        self.wire = Wire()
        self.events: dict[int, list[tuple[int, Event]]] = {number: [] for number in range(groups_count)}
        self.nodes: dict[int, Node] = {}
        self.owner: dict[int, int] = {}
        """By group: who serves it in truth."""
        self.epoch = 0
        self.gone: list[Node] = []
        for member in range(nodes_count):
            self.nodes[member] = Node(self, member)
        for group in range(groups_count):
            self.enter(group, group % nodes_count)
        self.see()
        self.id = self.named(0, "__ds/sub").removeprefix("__ds/")

    # ---- nodes and groups -------------------------------------------------------------------------------------------

    def start(self, member: int) -> None:
        self.nodes[member] = Node(self, member)

    def see(self, *members: int) -> None:
        """These nodes, or all, see everything as it is."""
        for member in members or list(self.nodes):
            seen = self.nodes[member].seen
            seen.everyone, seen.owners = sorted(self.nodes), dict(self.owner)
            for call in list(seen.on_change):
                call()

    def enter(self, group: int, member: int) -> None:
        """As if the node had followed the group's log to its end, and claimed it."""
        engine = self.nodes[member].engine
        log = SyncingLog(self.events[group])
        schedule = asyncio.get_running_loop().call_soon
        made = Group(log, SqliteCatalog(None), self.clock, schedule, Limits(), 1 << 30, group, self.groups_count)
        log.group = made
        self.epoch += 1
        made.epoch = self.epoch
        owned = owned_on(made)
        self.nodes[member].manager.follow(made)
        fold = Fold(made)
        fold.feed(log.replay())
        fold.finish()
        self.owner[group] = member
        engine.enter(owned)

    def leave(self, group: int) -> None:
        """The owner is fenced: what its log has not taken is gone."""
        node = self.nodes[self.owner.pop(group)]
        owned = node.engine.owned[group]
        self._cut_off(owned)
        node.engine.leave(group)
        owned.group.progress()

    def _cut_off(self, owned: Any) -> None:
        log = owned.group.log
        self.events[owned.number] += [(position, event) for position, event in log.events if position <= log.synced]
        log._sync = lambda: None
        log.failure = LogFailure(FENCED, "another node owns the group")

    def move(self, group: int, member: int) -> None:
        self.leave(group)
        self.enter(group, member)

    async def kill(self, member: int) -> None:
        """Whatever it was asked and has not answered stays unanswered; its groups have no owner."""
        node = self.nodes.pop(member)
        del self.wire.running[member]
        for task in self.wire.under_way.pop(member, set()):
            task.cancel()
        self.wire.under_way[member] = set()
        for owned in node.engine.owned.values():
            self._cut_off(owned)
            del self.owner[owned.number]
        await node.manager.stop()

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.manager.stop()

    # ---- what clients do --------------------------------------------------------------------------------------------

    def engine(self, group: int) -> Engine:
        """Of who serves the group. Raises NoOwner."""
        if group not in self.owner:
            raise NoOwner(group)
        return self.nodes[self.owner[group]].engine

    def home(self, key: str) -> int:
        return next(iter(self.nodes.values())).engine.home(key)

    def named(self, group: int, prefix: str, at: int = 0) -> str:
        found = (f"{prefix}{n}" for n in range(10_000))
        return next(islice((text for text in found if self.home(text) == group), at, None))

    async def submit(self, key: str, command: Command) -> Any:
        future = OutcomeFuture()
        self.engine(self.home(key)).submit(key, command, future)
        return await future.success()

    async def put(self, path: str, *records: bytes) -> None:
        await self.submit(path, Create(path, "text/plain", list(records)))

    async def append(self, path: str, record: bytes = b"x") -> None:
        await self.submit(path, Append([record]))

    async def delete(self, path: str) -> None:
        await self.submit(path, Delete())

    @property
    def manager(self) -> Manager:
        member = self.owner.get(0)
        if member is None:
            raise MemberUnavailable(0)
        return self.nodes[member].manager

    @property
    def sub(self) -> Subscription:
        return self.manager.find(self.id)

    async def subscribe(
        self, streams: tuple[str, ...] = (), pattern: str | None = "events/*", kind: str = PULL_WAKE
    ) -> None:
        to = ("https://hook.example/", None) if kind == WEBHOOK else (None, "wake/pool")
        config = Config(kind, pattern, *to, LEASE_MS, None, "digest")
        await self.manager.create(self.id, config, list(streams), "http://here")

    async def claim(self) -> Claim:
        return await self.manager.claim(self.id, "worker")

    async def ack(self, claim: Claim, path: str, offset: int) -> bool:
        bearer = Bearer(claim.token, claim.wake_id, claim.generation)
        return await self.manager.acknowledge(self.id, bearer, [(path, offset)], True)

    def stream(self, path: str) -> Any:
        return self.engine(self.home(path)).look(path)

    def wrong(self, paths: list[str]) -> list[str]:
        """What the subscription does not know, or knows and is not so."""
        sub, found = self.sub, []
        for path in paths:
            stream, link = self.stream(path), sub.links.get(path)
            if stream is None:
                if link is not None and link.sid:
                    found.append(f"{path} is gone and linked")
            elif stream.visible and (link is None or link.sid != stream.sid):
                found.append(f"{path} is there and not linked")
            elif link is not None and stream.visible > link.acked and path not in sub.pending:
                found.append(f"{path} has work and is not pending")
        return found


def play(
    body: Callable[[Cluster], Awaitable[None]], nodes_count: int = 3, groups_count: int = 4, forgetful: bool = False
) -> None:
    async def work() -> None:
        world = Cluster(nodes_count, groups_count, forgetful)
        try:
            await body(world)
        finally:
            await world.stop()

    run(work)
