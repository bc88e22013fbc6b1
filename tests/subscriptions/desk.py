"""A manager on a hand-made log: nothing is durable, and no time passes, before the test says so.
It owns that world; it decides nothing about subscriptions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.recovery import recover
from headwater.model import subscriptions as model
from headwater.model.commands import Append, Create, Delete
from headwater.model.events import Event
from headwater.model.subscriptions import Config
from headwater.ports import BROKEN, Catalog, LogFailure, SystemRng
from headwater.subscriptions.keys import Keys
from headwater.subscriptions.manager import Manager
from headwater.subscriptions.webhooks import DeliveryFailed, Reply
from tests.engine import HandClock, HandLog, Inbox, engine_on, group_on

TURNS = 12
"""Turns of the loop after which everything that could go on without the log has done so."""
KEYS = Keys(b"s" * 32, b"t" * 32)
URL = "https://hook.example/"


class Post:
    """One webhook that a scripted client was asked to send."""

    def __init__(self, body: dict[str, Any], log_length: int) -> None:
        self.body = body
        self.log_length = log_length
        """Events that were durable when it left."""


class Client:
    def __init__(self, desk: Desk, answer: Callable[[int], Reply | None]) -> None:
        self._desk = desk
        self._answer = answer
        self.posts: list[Post] = []

    async def check(self, url: str) -> None: ...

    def host(self, url: str) -> str:
        return "hook.example"

    async def post(self, url: str, headers: list[tuple[str, str]], body: bytes, timeout_s: float) -> Reply:
        self.posts.append(Post(json.loads(body), self._desk.durable_count()))
        reply = self._answer(len(self.posts))
        if reply is None:
            raise DeliveryFailed("the test says so")
        return reply


DONE, TAKEN = Reply(200, b'{"done":true}'), Reply(200, b"{}")


class Desk:
    """One node's subscriptions. `replayed` is what an earlier life left in the log."""

    def __init__(
        self,
        answer: Callable[[int], Reply | None] = lambda _: DONE,
        replayed: list[tuple[int, Event]] | None = None,
        catalog: Catalog | None = None,
        now_ms: int = 1_000_000,
    ) -> None:
        self.clock = HandClock(now_ms)
        self.before = list(replayed or [])
        self.log = HandLog(self.before)
        loop = asyncio.get_running_loop()
        self.group = group_on(self.log, catalog, self.clock, loop.call_soon)
        self.client = Client(self, answer)
        self.manager = Manager(engine_on(self.group), KEYS, self.client, SystemRng())
        self.registry = self.manager.wakes.registries[0]
        recover(self.group)
        self.manager.start()

    @property
    def events(self) -> list[tuple[int, Event]]:
        return self.before + self.log.events

    def durable_count(self) -> int:
        return sum(position <= self.log.synced for position, _ in self.events)

    async def turn(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def sync(self) -> None:
        """Everything logged becomes durable, and so does what follows from that, until nothing follows any more."""
        while True:
            await self.turn()
            if self.log.synced == self.log.tail:
                return
            self.log.synced = self.log.written = self.log.tail
            self.group.progress()

    async def fail(self) -> None:
        self.log.failure = LogFailure(BROKEN, "the disk is on fire")
        self.group.progress()
        await self.turn()

    async def pass_time(self, ms: int) -> None:
        self.clock.ms += ms
        self.manager.wakes.tick()
        await self.sync()

    async def complete(self, work: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.get_running_loop().create_task(work)
        await self.sync()
        return await asyncio.wait_for(task, 60)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(work)

    # ---- streams ------------------------------------------------------------------------------------------------

    def put(self, path: str, *records: bytes) -> Inbox:
        inbox = Inbox()
        self.group.submit(model.key_of(path), Create(model.key_of(path), "text/plain", list(records)), inbox)
        return inbox

    def append(self, path: str, record: bytes = b"x") -> Inbox:
        inbox = Inbox()
        self.group.submit(model.key_of(path), Append([record]), inbox)
        return inbox

    def delete(self, path: str) -> Inbox:
        inbox = Inbox()
        self.group.submit(model.key_of(path), Delete(), inbox)
        return inbox

    def streams(self) -> list[LoadedStream]:
        return list(self.group.loaded.by_key.values())

    # ---- subscriptions ------------------------------------------------------------------------------------------

    async def subscribe(self, name: str, kind: str = model.WEBHOOK, streams: tuple[str, ...] = ()) -> None:
        to = (URL, None) if kind == model.WEBHOOK else (None, "wake/pool")
        config = Config(kind, "events/*", *to, 1_000, None, "digest")
        await self.complete(self.manager.create(name, config, list(streams), "http://here"))


def in_a_loop(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 120))
