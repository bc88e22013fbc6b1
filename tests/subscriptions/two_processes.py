"""Two processes with subscriptions in one loop, and what a client does to them.
It owns that world; it decides nothing about subscriptions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from headwater.model.commands import Append, Create, Delete
from headwater.model.subscriptions import PULL_WAKE, WEBHOOK, Config, Subscription
from headwater.ports import SystemRng
from headwater.subscriptions.keys import Keys
from headwater.subscriptions.manager import Bearer, Claim, Manager
from headwater.subscriptions.webhooks import Reply
from tests.support.processes import Process, Processes, run, until

KEYS = Keys(b"s" * 32, b"t" * 32)
HERE, THERE = 0, 1
"""The process of the subscriptions, and the other one. With two processes an even group is here."""
LEASE_MS = 600_000


class Client:
    """Takes every webhook; its bodies are kept."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []
        self.done = True

    async def check(self, url: str) -> None: ...

    def host(self, url: str) -> str:
        return "hook.example"

    async def post(self, url: str, headers: list[tuple[str, str]], body: bytes, timeout_s: float) -> Reply:
        self.bodies.append(json.loads(body))
        return Reply(200, b'{"done":true}' if self.done else b"{}")


class World:
    def __init__(self, groups_count: int) -> None:
        self.client = Client()
        self.processes: Processes[Manager] = Processes(self._manager, 2, groups_count)
        self.wire = self.processes.wire
        for member in (HERE, THERE):
            self.start(member)
        group_here, group_there = groups_count - 2, groups_count - 1
        named = self.processes.named
        self.id = named(group_here, "__ds/sub").removeprefix("__ds/")
        self.away = named(group_there, "events/a")
        """A stream of the other process, which the pattern takes in."""
        self.near = named(group_here, "events/b")
        self.other = named(group_there, "other/c")
        """A stream of the other process, which the pattern does not take in."""
        self.wakes = named(group_there, "wake/pool")

    def _manager(self, process: Process[Manager]) -> Manager:
        return Manager(process.engine, KEYS, self.client, SystemRng())

    def start(self, member: int) -> None:
        self.processes.start(member).part.start()

    async def restart(self, member: int) -> None:
        await self.kill(member)
        self.start(member)

    async def kill(self, member: int) -> None:
        await self.processes.kill(member).part.stop()

    async def stop(self) -> None:
        for process in list(self.processes.running.values()):
            await process.part.stop()

    @property
    def manager(self) -> Manager:
        return self.processes[HERE].part

    @property
    def sub(self) -> Subscription:
        return self.manager.find(self.id)

    async def subscribe(self, kind: str = PULL_WAKE, streams: tuple[str, ...] = (), pattern: str | None = "events/*"):
        to = ("https://hook.example/", None) if kind == WEBHOOK else (None, self.wakes)
        config = Config(kind, pattern, *to, LEASE_MS, None, "digest")
        return await self.manager.create(self.id, config, list(streams), "http://here")

    async def put(self, path: str, *records: bytes) -> None:
        await self.processes.submit(path, Create(path, "text/plain", list(records)))

    async def append(self, path: str, record: bytes = b"x") -> None:
        await self.processes.submit(path, Append([record]))

    async def delete(self, path: str) -> None:
        await self.processes.submit(path, Delete())

    async def claim(self) -> Claim:
        return await self.manager.claim(self.id, "worker")

    async def ack(self, claim: Claim, path: str, offset: int, done: bool = True) -> bool:
        bearer = Bearer(claim.token, claim.wake_id, claim.generation)
        return await self.manager.acknowledge(self.id, bearer, [(path, offset)], done)

    def hold(self, question: str) -> asyncio.Event:
        """Answers to the question wait on their way back until the event is set."""
        self.wire.asked.clear()
        gate = self.wire.gates[question] = asyncio.Event()
        return gate

    async def until_asked(self, question: str) -> None:
        await until(lambda: any(name == question for _, _, name in self.wire.asked))

    def acked(self, path: str) -> int | None:
        link = self.sub.links.get(path)
        return None if link is None else link.acked


def play(groups_count: int, body: Callable[[World], Awaitable[None]]) -> None:
    async def work() -> None:
        world = World(groups_count)
        try:
            await body(world)
        finally:
            await world.stop()

    run(work)
