"""Processes with queues in one loop, on a clock that the test moves, and what clients do to their topics.
It owns that world; it decides nothing about queues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headwater.engine.engine import Engine
from headwater.errors import Failure
from headwater.model.commands import Append, Configure, Create, Delete, DeleteRecords, Durability, Retention
from headwater.model.labels import Labels
from headwater.model.queue_state import Counts
from headwater.model.queues import Nack, Wish
from headwater.model.topics import QueueConfig, TopicConfig
from headwater.topics import job_keys
from headwater.topics.access import TopicAccess
from headwater.topics.cohorts import Job
from headwater.topics.queue import Done, Queue
from headwater.topics.queues import Queues
from tests.support.clock import SimClock, turns
from tests.support.processes import Process, Processes, run


class CountingRng:
    """Its numbers are far apart, and no two are the same."""

    def __init__(self) -> None:
        self._number = 0

    def below(self, bound: int) -> int:
        self._number += 1_000_000
        return self._number

    def token(self, size_bytes: int) -> bytes:
        return bytes(size_bytes)


class Claimed:
    """A claimer: holds what it was told, and refuses to be told twice unless it stays."""

    def __init__(self, world: World, most: int, lease_ms: int, wait_ms: float, node: str | None) -> None:
        self.until_s = world.clock.monotonic_s() + wait_ms / 1000
        self.stays = False
        self._wish = Wish(most, lease_ms, node)
        self.gone = False
        self.told: list[Job] | Failure | None = None

    def wish(self) -> Wish | None:
        return None if self.gone else self._wish

    def got(self, jobs: list[Job] | Failure) -> None:
        assert self.told is None, "told twice"
        self.told = jobs

    @property
    def waits(self) -> bool:
        return self.told is None

    @property
    def jobs(self) -> list[Job]:
        assert isinstance(self.told, list), self.told
        return self.told

    @property
    def seqs(self) -> list[int]:
        return [job.lease.seq for job in self.jobs]


class Worker:
    """A claimer that stays."""

    stays = True
    until_s = float("inf")

    def __init__(self, queue: Queue, connection: int, most: int, lease_ms: int) -> None:
        self._queue = queue
        self.connection = connection
        self._most = most
        self._lease_ms = lease_ms
        self.jobs: list[Job] = []
        self.failure: Failure | None = None
        self.paused = False

    def wish(self) -> Wish | None:
        room = self._most - len(self._queue.state.connections.get(self.connection, ()))
        return None if room <= 0 or self.paused else Wish(room, self._lease_ms, None, self.connection)

    def got(self, jobs: list[Job] | Failure) -> None:
        if isinstance(jobs, Failure):
            self.failure = jobs
        else:
            self.jobs += jobs

    @property
    def seqs(self) -> list[int]:
        return [job.lease.seq for job in self.jobs]


class Part:
    """What a process has of queues."""

    def __init__(self, process: Process[Part], rng: CountingRng) -> None:
        self.access = TopicAccess(process.engine, process.placing)
        self.queues = Queues(process.engine, self.access, rng)


class World:
    """`count` processes with a group each: the queue is in the first, its dead letters in the last."""

    def __init__(self, count: int = 1) -> None:
        self.clock = SimClock()
        rng = CountingRng()
        self.processes: Processes[Part] = Processes(lambda one: Part(one, rng), count, count, clock=self.clock)
        for member in range(count):
            self.start(member)
        self.key = self.processes.named(0, "town/jobs")
        self.dead = self.processes.named(count - 1, "town/dead")

    def start(self, member: int) -> None:
        self.processes.start(member).part.queues.start()

    async def kill(self, member: int = 0) -> None:
        """Without a last word."""
        process = self.processes.kill(member)
        await process.part.queues.stop()
        for owned in process.owned.values():
            owned.group.left = True

    async def restart(self, member: int = 0) -> None:
        await self.kill(member)
        self.start(member)

    async def stop(self) -> None:
        for part in self.processes.parts:
            part.access.close()
            part.queues.close()
            await part.queues.stop()

    @property
    def engine(self) -> Engine:
        return self.processes[0].engine

    @property
    def queues(self) -> Queues:
        return self.processes[0].part.queues

    def stream(self, key: str | None = None) -> Any:
        key = self.key if key is None else key
        return self.processes[self.engine.home(key) % self.processes.count].engine.find(key, False)

    @property
    def queue(self) -> Queue:
        return self.queues.of(self.stream())

    async def make(
        self, durability: Durability | None = None, retention: Retention | None = None, **config: Any
    ) -> None:
        topic = TopicConfig(queue=QueueConfig(**config))
        create = Create(self.key, "text/plain", [], durability=durability, topic=topic, retention=retention)
        await self.processes.submit(self.key, create)

    async def configure(self, **config: Any) -> None:
        await self.processes.submit(self.key, Configure(None, TopicConfig(queue=QueueConfig(**config))))

    async def put(self, *records: bytes, labels: list[Labels | None] | None = None) -> None:
        await self.processes.submit(self.key, Append(list(records), labels=labels))
        await turns()

    async def put_keyed(self, *keys: str) -> tuple[list[int], list[int]]:
        """Jobs with these keys; their numbers, and which of them were duplicates."""
        append = Append([key.encode() for key in keys], labels=[Labels(key=key) for key in keys])
        parted = job_keys.split(self.engine, self.stream(), append)
        first = self.stream().count + 1
        if parted.append.records:
            await self.processes.submit(self.key, parted.append)
        return parted.seqs(first, len(keys)), parted.duplicates

    async def delete(self, *seqs: int) -> None:
        runs = self.queue.jobs.runs(seqs)
        assert isinstance(runs, list)
        await self.processes.submit(self.key, DeleteRecords(runs))

    async def delete_topic(self) -> None:
        await self.processes.submit(self.key, Delete())

    def enter(self, most: int = 1, wait_ms: float = 0, lease_ms: int = 1_000, node: str | None = None) -> Claimed:
        """A claim that nobody has looked at yet."""
        claimed = Claimed(self, most, lease_ms, wait_ms, node)
        self.queue.enter(claimed)
        return claimed

    async def claim(self, most: int = 1, wait_ms: float = 0, lease_ms: int = 1_000) -> Claimed:
        claimed = self.enter(most, wait_ms, lease_ms)
        await turns()
        return claimed

    async def take(self, most: int = 1, lease_ms: int = 1_000) -> list[Job]:
        """What there is."""
        return (await self.claim(most, 0, lease_ms)).jobs

    async def work(self, most: int = 1, lease_ms: int = 1_000) -> Worker:
        worker = Worker(self.queue, self.queues.new_connection(), most, lease_ms)
        self.queue.join(worker.connection, worker)
        await turns()
        return worker

    async def ack(self, *jobs: Job) -> Done:
        return await self._told(lambda tell: self.queue.ack([_pair(job) for job in jobs], tell))

    async def nack(self, *jobs: Job, delay_ms: int | None = None, reason: str = "nacked") -> Done:
        nacks = [Nack(*_pair(job), delay_ms, reason) for job in jobs]
        return await self._told(lambda tell: self.queue.nack(nacks, tell))

    async def extend(self, lease_ms: int, *jobs: Job) -> Done:
        return await self._told(lambda tell: self.queue.extend([(*_pair(job), lease_ms) for job in jobs], tell))

    async def _told(self, act: Callable[[Callable[[Done | Failure], None]], None]) -> Done:
        future: asyncio.Future[Done | Failure] = asyncio.get_running_loop().create_future()
        act(future.set_result)
        found = await future
        await turns()
        if isinstance(found, Failure):
            raise found
        return found

    def counts(self) -> Counts:
        return self.queue.counts()


def _pair(job: Job) -> tuple[int, int]:
    return job.lease.seq, job.lease.lease_id


def seqs(jobs: list[Job]) -> list[int]:
    return [job.lease.seq for job in jobs]


def play(body: Callable[[World], Awaitable[None]], count: int = 1) -> None:
    async def work() -> None:
        world = World(count)
        try:
            await body(world)
        finally:
            await world.stop()

    run(work)
