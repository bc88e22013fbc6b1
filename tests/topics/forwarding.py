"""Processes with routers in one loop, and what clients do to their topics.
It owns that world; it decides nothing about routers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headwater.engine.read_plan import Slice, plan
from headwater.model.commands import Append, Create, Delete, Durability, Retention
from headwater.model.labels import Labels
from headwater.model.routers import RouterConfig, TagFilter
from headwater.topics.access import TopicAccess
from headwater.topics.router_worker import RouterWorker
from headwater.topics.routers import Routers
from tests.support.processes import Process, Processes, run, until


class Part:
    """What a process has of routers."""

    def __init__(self, process: Process[Part]) -> None:
        self.access = TopicAccess(process.engine, process.placing)
        self.routers = Routers(process.engine, self.access)


class World:
    """`count` processes with a group each: routers are in the first, the source in the second, the dest in the third,
    as far as there are so many."""

    def __init__(self, count: int = 1) -> None:
        self.processes: Processes[Part] = Processes(Part, count, count)
        self.wire = self.processes.wire
        for member in range(count):
            self.start(member)
        self.source = self.processes.named(1 % count, "town/source")
        self.dest = self.processes.named(2 % count, "town/dest")

    def start(self, member: int) -> None:
        self.processes.start(member).part.routers.start()

    async def kill(self, member: int) -> None:
        """Without a last word: what its workers were doing is cut off."""
        process = self.processes.kill(member)
        for owned in process.owned.values():
            owned.group.left = True
        tasks = list(process.part.routers._ended)
        for worker, task in process.part.routers._at_work.values():
            tasks += [task] if worker._writing is None else [task, worker._writing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def restart(self, *members: int) -> None:
        for member in members:
            await self.kill(member)
        for member in members:
            self.start(member)

    async def stop(self) -> None:
        for part in self.processes.parts:
            part.access.close()
            await part.routers.stop()

    @property
    def routers(self) -> Routers:
        return self.processes[0].part.routers

    async def put(self, name: str = "r", tag_filter: TagFilter | None = None, **more: Any) -> dict[str, Any]:
        shown, _ = await self.routers.put(name, RouterConfig(self.source, self.dest, tag_filter, **more))
        return shown

    async def make(
        self,
        key: str | None = None,
        content_type: str = "text/plain",
        durability: Durability | None = None,
        retention: Retention | None = None,
    ) -> None:
        key = self.source if key is None else key
        create = Create(key, content_type, [], durability=durability, retention=retention)
        await self.processes.submit(key, create)

    async def append(self, *records: bytes, labels: list[Labels | None] | None = None, key: str | None = None) -> None:
        await self.processes.submit(self.source if key is None else key, Append(list(records), labels=labels))

    async def delete(self, key: str) -> None:
        await self.processes.submit(key, Delete())

    def stream(self, key: str) -> Any:
        member = self.processes.engine.home(key) % self.processes.count
        process = self.processes.running.get(member)
        return None if process is None else process.engine.look(key)

    def copies(self) -> list[bytes]:
        """What readers see of the destination."""
        return self.records(self.dest)

    def records(self, key: str) -> list[bytes]:
        stream = self.stream(key)
        if stream is None or stream.visible <= stream.earliest:
            return []
        found = plan(stream, stream.earliest, 1 << 30)
        assert isinstance(found, Slice)
        return [bytes(one) for one in found.payloads]

    def labels(self) -> list[Labels | None]:
        timeline = self.stream(self.dest).timeline
        return [None] * len(timeline.payloads) if timeline.labels is None else list(timeline.labels)

    async def until_copied(self, *records: bytes) -> None:
        await until(lambda: len(self.copies()) >= len(records))
        assert self.copies() == list(records)

    async def until_idle(self) -> None:
        """The router has come to the end of its source."""
        await until(lambda: self.worker.cursor == self.stream(self.source).count)

    @property
    def worker(self) -> RouterWorker:
        (found,) = self.routers._at_work.values()
        return found[0]


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def play(body: Callable[[World], Awaitable[None]], count: int = 1) -> None:
    async def work() -> None:
        world = World(count)
        try:
            await body(world)
        finally:
            await world.stop()

    run(work)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
