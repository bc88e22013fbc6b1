"""A queue and its jobs as programs see them: `Queue` and `Job` block, `AsyncQueue` and `AsyncJob` are awaited.

Owns the signatures and their documentation, and what a worker needs of a queue; what they do is in `queue_plans`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal, Unpack, overload

from headwater.client.async_transport import AsyncTransport
from headwater.client.joined_acks import JoinedAcks
from headwater.client.producers import Producer
from headwater.client.queue_plans import QueuePlans, demand
from headwater.client.retries import NO_RETRIES
from headwater.client.settings import Settings
from headwater.client.sync_transport import SyncTransport
from headwater.client.topic_plans import TopicPlans, drafts_of
from headwater.client.topics import AsyncTopic, Topic
from headwater.client.values import (
    Acked,
    Draft,
    Extended,
    JobFacts,
    Nacked,
    PeekedJob,
    QueueOptions,
    QueueStats,
    TopicInfo,
    Written,
)
from headwater.client.worker import Worker

JobState = Literal["ready", "leased", "delayed"]
Function = Callable[[Any], Any]
"""What a worker calls with each job."""


class _JobView:
    """What a job is."""

    def __init__(self, facts: JobFacts, plans: QueuePlans) -> None:
        self.facts, self._plans = facts, plans
        self.settled = False
        """Whether it was acked or given back through this object."""

    @property
    def data(self) -> Any:
        return self.facts.data

    @property
    def seq(self) -> int:
        return self.facts.seq

    @property
    def deliveries(self) -> int:
        """How often it was given out, this time included: 1 the first time."""
        return self.facts.deliveries

    @property
    def key(self) -> str | None:
        return self.facts.key

    @property
    def tag(self) -> str | None:
        return self.facts.tag

    @property
    def meta(self) -> dict[str, Any]:
        return self.facts.meta or {}

    @property
    def put_at_ms(self) -> int:
        return self.facts.ts_ms

    @property
    def deadline_ms(self) -> int:
        """When the lease ends, by the server's clock."""
        return self.facts.deadline_ms

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._plans.name} {self.seq}, delivery {self.deliveries}>"

    def _take_over(self, told: Extended) -> None:
        demand(self.facts, told.failed)
        for job in told.extended:
            self.facts = replace(self.facts, deadline_ms=job.deadline_ms)


class Job(_JobView):
    """A job that this program holds until `deadline_ms`: `ack` it, give it back with `nack`, or `extend` the lease."""

    def __init__(self, facts: JobFacts, plans: QueuePlans, transport: SyncTransport) -> None:
        super().__init__(facts, plans)
        self._transport = transport

    def ack(self) -> None:
        """It is done and leaves the queue. Raises LeaseLost, NotFound."""
        demand(self.facts, self._transport.run(self._plans.ack([self.facts])).failed)
        self.settled = True

    def nack(self, *, delay: float | timedelta | None = None, reason: str | None = None) -> Nacked:
        """Gives it back, for another try after `delay` (None: as the queue's backoff says). Raises LeaseLost, NotFound.

        A job whose deliveries are used up goes to the dead letters, with the reason.
        """
        told = self._transport.run(self._plans.nack([self.facts], delay, reason))
        demand(self.facts, told.failed)
        self.settled = True
        return told

    def extend(self, lease: float | timedelta | None = None) -> None:
        """The lease begins anew, for `lease` seconds (None: the queue's). Raises LeaseLost, NotFound."""
        self._take_over(self._transport.run(self._plans.extend([self.facts], lease)))


class AsyncJob(_JobView):
    """As `Job`, awaited."""

    def __init__(self, facts: JobFacts, plans: QueuePlans, transport: AsyncTransport) -> None:
        super().__init__(facts, plans)
        self._transport = transport

    async def ack(self) -> None:
        """As `Job.ack`."""
        demand(self.facts, (await self._transport.run(self._plans.ack([self.facts]))).failed)
        self.settled = True

    async def nack(self, *, delay: float | timedelta | None = None, reason: str | None = None) -> Nacked:
        """As `Job.nack`."""
        told = await self._transport.run(self._plans.nack([self.facts], delay, reason))
        demand(self.facts, told.failed)
        self.settled = True
        return told

    async def extend(self, lease: float | timedelta | None = None) -> None:
        """As `Job.extend`."""
        self._take_over(await self._transport.run(self._plans.extend([self.facts], lease)))


class Queue:
    """A queue of jobs; made by `Headwater.queue`. For any number of threads.

    q = hw.queue("emails")
    q.ensure(max_deliveries=5, dead_letter="emails-dead")
    q.put({"to": "ada@example.com"}, key="welcome-7")

    for job in q.claim(10, lease=30, wait=20):
        send(job.data)
        job.ack()
    """

    def __init__(self, transport: SyncTransport, plans: QueuePlans, settings: Settings) -> None:
        self._transport, self._plans, self._settings = transport, plans, settings
        self.topic = Topic(transport, plans.topic)
        """The topic that the queue is: to read its jobs, change other options than the queue's, or delete it."""

    @property
    def name(self) -> str:
        return self._plans.name

    def create(self, **options: Unpack[QueueOptions]) -> TopicInfo:
        """Creates the queue, or finds it as it should be. Raises Conflict when it is there with other options."""
        return self._transport.run(self._plans.topic.create({"queue": options}))

    def ensure(self, **options: Unpack[QueueOptions]) -> TopicInfo:
        """Creates the queue, or changes the options in which it differs."""
        return self._transport.run(self._plans.topic.ensure({"queue": options}))

    def put(
        self,
        job: Any,
        *,
        key: str | None = None,
        delay: float | timedelta | None = None,
        deliver_at: datetime | int | None = None,
        tag: str | None = None,
        meta: dict[str, Any] | None = None,
    ) -> Written:
        """Puts a job, to be given out now, after `delay` seconds, or at a moment; sent again safely.

        A job whose `key` a live job has is not put again: `duplicates` of the result is then `[0]`.

            q.put({"to": "ada@example.com"}, key="welcome-7", delay=60)
        """
        draft = Draft(job, tag, None, meta, key, deliver_at, delay)
        return self._transport.run(self._plans.topic.write([draft], None, False), self._producer)

    def put_many(self, jobs: Iterable[Any]) -> Written:
        """Puts jobs, many in a request: data, or `Draft(data, key=…, delay=…)`."""
        return self._transport.run(self._plans.topic.write(drafts_of(jobs), None, False), self._producer)

    def claim(
        self, max: int = 1, lease: float | timedelta | None = None, *, wait: float = 0.0, node: str | None = None
    ) -> list[Job]:
        """Up to `max` jobs, held for `lease` seconds (None: the queue's). `wait`: seconds to wait for the first one."""
        facts = self._transport.run(self._plans.claim(max, lease, node, wait))
        return [Job(one, self._plans, self._transport) for one in facts]

    def ack(self, jobs: Iterable[Job]) -> Acked:
        """Acks many jobs in one request. Raises nothing for single ones: see `failed`."""
        return self._transport.run(self._plans.ack([job.facts for job in jobs]))

    def stats(self) -> QueueStats:
        """How many jobs are ready, leased, delayed, dead. Raises NotFound, NotAQueue."""
        return self._transport.run(self._plans.stats())

    def peek(self, state: JobState = "ready", limit: int = 10) -> list[PeekedJob]:
        """The next jobs of that state, without taking them."""
        return self._transport.run(self._plans.peek(state, limit))

    def purge(self) -> int:
        """Deletes every job; returns how many there were."""
        return self._transport.run(self._plans.purge())

    def retry_dead(self, max: int | None = None) -> int:
        """Puts dead letters back into the queue, oldest first, and deletes them there; returns how many.

        Raises Conflict when the queue has no dead letter topic, or when its oldest record is another queue's.
        """
        return self._transport.run(self._plans.retry_dead(max), self._producer)

    @overload
    def worker(self, function: Function) -> Worker: ...

    @overload
    def worker(
        self, *, concurrency: int = 1, lease: float = 30.0, max_jobs: int | None = None, node: str | None = None
    ) -> Callable[[Function], Worker]: ...

    def worker(
        self,
        function: Function | None = None,
        *,
        concurrency: int = 1,
        lease: float = 30.0,
        max_jobs: int | None = None,
        node: str | None = None,
    ) -> Worker | Callable[[Function], Worker]:
        """Makes a function the worker of this queue; `.run()` of the result works until it is stopped.

        The function has the job as its only argument. It runs `concurrency` times at once, in threads, or on the loop
        when it is a coroutine function (its job is then an AsyncJob). When it returns, the job is acked; an exception
        is logged and gives the job back with the queue's backoff; `Retry` and `Reject` say more. While it runs, the
        lease is extended. `max_jobs`: end after so many.

            @q.worker(concurrency=4, lease=30)
            def send(job):
                smtp.send(job.data["to"])

            send.run()

        `@q.worker` alone does with the defaults.
        """
        made = _worker_maker(self._settings, self.name, concurrency, lease, max_jobs, node)
        return made if function is None else made(function)

    @property
    def _producer(self) -> Producer | None:
        return self._plans.topic.producer


class AsyncQueue:
    """A queue of jobs; made by `AsyncHeadwater.queue`. Its methods are those of `Queue`, awaited."""

    def __init__(self, transport: AsyncTransport, plans: QueuePlans, settings: Settings) -> None:
        self._transport, self._plans, self._settings = transport, plans, settings
        self.topic = AsyncTopic(transport, plans.topic)
        """The topic that the queue is."""

    @property
    def name(self) -> str:
        return self._plans.name

    async def create(self, **options: Unpack[QueueOptions]) -> TopicInfo:
        """As `Queue.create`."""
        return await self._transport.run(self._plans.topic.create({"queue": options}))

    async def ensure(self, **options: Unpack[QueueOptions]) -> TopicInfo:
        """As `Queue.ensure`."""
        return await self._transport.run(self._plans.topic.ensure({"queue": options}))

    async def put(
        self,
        job: Any,
        *,
        key: str | None = None,
        delay: float | timedelta | None = None,
        deliver_at: datetime | int | None = None,
        tag: str | None = None,
        meta: dict[str, Any] | None = None,
    ) -> Written:
        """As `Queue.put`."""
        draft = Draft(job, tag, None, meta, key, deliver_at, delay)
        return await self._transport.run(self._plans.topic.write([draft], None, False), self._producer)

    async def put_many(self, jobs: Iterable[Any]) -> Written:
        """As `Queue.put_many`."""
        return await self._transport.run(self._plans.topic.write(drafts_of(jobs), None, False), self._producer)

    async def claim(
        self, max: int = 1, lease: float | timedelta | None = None, *, wait: float = 0.0, node: str | None = None
    ) -> list[AsyncJob]:
        """As `Queue.claim`."""
        facts = await self._transport.run(self._plans.claim(max, lease, node, wait))
        return [AsyncJob(one, self._plans, self._transport) for one in facts]

    async def ack(self, jobs: Iterable[AsyncJob]) -> Acked:
        """As `Queue.ack`."""
        return await self._transport.run(self._plans.ack([job.facts for job in jobs]))

    async def stats(self) -> QueueStats:
        """As `Queue.stats`."""
        return await self._transport.run(self._plans.stats())

    async def peek(self, state: JobState = "ready", limit: int = 10) -> list[PeekedJob]:
        """As `Queue.peek`."""
        return await self._transport.run(self._plans.peek(state, limit))

    async def purge(self) -> int:
        """As `Queue.purge`."""
        return await self._transport.run(self._plans.purge())

    async def retry_dead(self, max: int | None = None) -> int:
        """As `Queue.retry_dead`."""
        return await self._transport.run(self._plans.retry_dead(max), self._producer)

    @overload
    def worker(self, function: Function) -> Worker: ...

    @overload
    def worker(
        self, *, concurrency: int = 1, lease: float = 30.0, max_jobs: int | None = None, node: str | None = None
    ) -> Callable[[Function], Worker]: ...

    def worker(
        self,
        function: Function | None = None,
        *,
        concurrency: int = 1,
        lease: float = 30.0,
        max_jobs: int | None = None,
        node: str | None = None,
    ) -> Worker | Callable[[Function], Worker]:
        """As `Queue.worker`; `await worker.serve()` works on the loop that runs already."""
        made = _worker_maker(self._settings, self.name, concurrency, lease, max_jobs, node)
        return made if function is None else made(function)

    @property
    def _producer(self) -> Producer | None:
        return self._plans.topic.producer


class _WorkerJob(AsyncJob):
    """A job of a worker: its ack may go together with those of others."""

    def __init__(self, facts: JobFacts, plans: QueuePlans, transport: AsyncTransport, acks: JoinedAcks) -> None:
        super().__init__(facts, plans, transport)
        self._acks = acks

    async def ack(self) -> None:
        await self._acks.ack(self.facts)
        self.settled = True


class _WorkerSource:
    """A queue as a worker needs it. Claims and heartbeats are one attempt: the worker's loop tries again itself."""

    def __init__(self, settings: Settings, name: str, lease: float) -> None:
        topic = TopicPlans(name, None, settings.retries)
        self._patient, self._once = QueuePlans(topic, settings.retries), QueuePlans(topic, NO_RETRIES)
        self._transport, self._in_threads = AsyncTransport(settings), SyncTransport(settings)
        # A heartbeat that hangs must end before the lease does, so that the next one can be sent.
        self._acks = JoinedAcks(lambda jobs: self._transport.run(self._patient.ack(jobs)))
        self._heartbeats = AsyncTransport(replace(settings, timeout_s=min(settings.timeout_s, lease / 3)))

    async def claim(self, count_max: int, lease: float, node: str, wait_s: float) -> list[AsyncJob]:
        facts = await self._transport.run(self._once.claim(count_max, lease, node, wait_s))
        return [_WorkerJob(one, self._patient, self._transport, self._acks) for one in facts]

    async def extend(self, jobs: Sequence[JobFacts], lease: float) -> Extended:
        return await self._heartbeats.run(self._once.extend(jobs, lease))

    def in_thread(self, job: JobFacts) -> Job:
        return Job(job, self._patient, self._in_threads)

    async def close(self) -> None:
        self._in_threads.close()
        await self._heartbeats.close()
        await self._transport.close()


def _worker_maker(
    settings: Settings, name: str, concurrency: int, lease: float, max_jobs: int | None, node: str | None
) -> Callable[[Function], Worker]:
    @asynccontextmanager
    async def source() -> AsyncIterator[_WorkerSource]:
        opened = _WorkerSource(settings, name, lease)
        try:
            yield opened
        finally:
            await opened.close()

    def made(function: Function) -> Worker:
        return Worker(function, source, concurrency=concurrency, lease=lease, max_jobs=max_jobs, node=node)

    return made
