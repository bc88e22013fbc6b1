"""Acks that come while a request is under way are the next request, and each is told its own end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from headwater.client import joined_acks
from headwater.client.failures import LeaseLost, NotFound, Unavailable
from headwater.client.joined_acks import JoinedAcks
from headwater.client.values import Acked, FailedJob, JobFacts


class Server:
    """Answers a request when it is told to, or fails it."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.lost: dict[int, str] = {}
        self.failure: Exception | None = None
        self.answers = asyncio.Semaphore(0)

    async def send(self, jobs: Sequence[JobFacts]) -> Acked:
        self.asked.append([job.seq for job in jobs])
        await self.answers.acquire()
        if self.failure is not None:
            raise self.failure
        failed = [FailedJob(job.seq, self.lost[job.seq]) for job in jobs if job.seq in self.lost]
        return Acked([job.seq for job in jobs if job.seq not in self.lost], failed)


def play(body: Callable[[Server, Callable[[int], asyncio.Task[None]]], Awaitable[None]]) -> None:
    async def run() -> None:
        server = Server()
        acks = JoinedAcks(server.send)
        await asyncio.wait_for(body(server, lambda seq: asyncio.create_task(acks.ack(facts(seq)))), 30)

    asyncio.run(run())


def facts(seq: int) -> JobFacts:
    return JobFacts(seq, 7, 0, 1, 0, None)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_acks_that_come_meanwhile_go_together() -> None:
    async def body(server: Server, ack: Callable[[int], asyncio.Task[None]]) -> None:
        first = ack(1)
        await turns()
        others = [ack(2), ack(3), ack(4)]
        await turns()
        assert server.asked == [[1]]
        server.answers.release()
        await first
        await turns()
        assert server.asked == [[1], [2, 3, 4]]
        server.answers.release()
        await asyncio.gather(*others)
        later = ack(5)
        server.answers.release()
        await later
        assert server.asked[2:] == [[5]]

    play(body)


def test_each_is_told_its_own_end() -> None:
    async def body(server: Server, ack: Callable[[int], asyncio.Task[None]]) -> None:
        server.lost = {2: "lease_lost", 3: "not_found"}
        tasks = [ack(1), ack(2), ack(3)]
        server.answers.release()
        first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
        assert first is None and isinstance(second, LeaseLost) and isinstance(third, NotFound)
        assert server.asked == [[1, 2, 3]]

    play(body)


def test_a_request_that_fails_is_told_to_all_of_it_and_the_next_one_is_sent() -> None:
    async def body(server: Server, ack: Callable[[int], asyncio.Task[None]]) -> None:
        server.failure = Unavailable("unavailable", "gone")
        tasks = [ack(1), ack(2)]
        server.answers.release()
        assert [type(one) for one in await asyncio.gather(*tasks, return_exceptions=True)] == [Unavailable] * 2
        server.failure = None
        server.answers.release()
        await ack(3)
        assert server.asked == [[1, 2], [3]]

    play(body)


def test_one_that_is_not_waited_for_any_more_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_acks, "JOBS_MAX", 2)

    async def body(server: Server, ack: Callable[[int], asyncio.Task[None]]) -> None:
        tasks = [ack(seq) for seq in (1, 2, 3)]
        await turns()
        tasks[0].cancel()
        server.answers.release()
        await tasks[1]
        server.answers.release()
        await tasks[2]
        assert server.asked == [[1, 2], [3]]

    play(body)
