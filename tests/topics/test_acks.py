"""Acks of one turn of the event loop: the first at once, the others together, each answered as if it were alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headwater.errors import Failure, StreamNotFound
from headwater.model import stream as stream_rules
from headwater.model.events import RecordsDeleted
from headwater.topics import acks
from headwater.topics.acks import Done
from headwater.topics.cohorts import Job
from tests.support.clock import turns
from tests.topics.queueing import World, _pair, play, seqs


class Deletions:
    """Counts the events by which jobs are deleted."""

    def __init__(self, world: World) -> None:
        log: Any = world.queue._group.log
        self.runs: list[int] = []
        add = log.add

        def counted(event: Any, sync: bool) -> int:
            if isinstance(event, RecordsDeleted):
                self.runs.append(len(event.runs))
            return int(add(event, sync))

        log.add = counted


async def ack_in_one_turn(world: World, *parts: list[Job]) -> list[Done | Failure]:
    loop = asyncio.get_running_loop()
    told: list[asyncio.Future[Done | Failure]] = [loop.create_future() for _ in parts]
    for jobs, future in zip(parts, told, strict=True):
        world.queue.ack([_pair(job) for job in jobs], future.set_result, together=True)
    found = list(await asyncio.gather(*told))
    await turns()
    return found


def test_acks_of_one_turn_are_two_deletions_and_each_is_answered() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(*[b"job"] * 10)
        jobs = await world.take(10)
        deletions = Deletions(world)
        found = await ack_in_one_turn(world, jobs[:1], jobs[3:5], jobs[7:8], jobs[9:])
        assert found == [Done([1], []), Done([4, 5], []), Done([8], []), Done([10], [])]
        assert deletions.runs == [1, 3]
        assert world.counts().leased == 5
        found = await ack_in_one_turn(world, jobs[1:2], jobs[2:3])
        assert found == [Done([2], []), Done([3], [])], "the next turn begins anew"
        assert deletions.runs == [1, 3, 1, 1]

    play(body)


def test_a_job_that_two_ack_in_one_turn_is_acked_once() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(*[b"job"] * 4)
        jobs = await world.take(4)
        first, second, third, fourth = await ack_in_one_turn(world, jobs[:1], jobs[:2], jobs[1:3], [jobs[3], jobs[3]])
        assert first == Done([1], [])
        assert second == Done([2], [(1, "not_found")])
        assert third == Done([3], [(2, "not_found")])
        assert fourth == Done([4], [(4, "not_found")])
        assert world.queue.state.acks_count == 4

    play(body)


def test_an_ack_comes_before_a_pass_of_the_same_turn_that_would_take_its_job_back() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(*[b"job"] * 3)
        jobs = await world.take(3, lease_ms=1_000)
        waiting = world.enter(3, wait_ms=60_000)
        told = asyncio.get_running_loop().create_future()
        for job in jobs[:2]:
            world.queue.ack([_pair(job)], lambda found: None, together=True)
        world.queue.ack([_pair(jobs[2])], told.set_result, together=True)
        world.clock.ms += 1_001  # the pass is planned before the acks' end of the turn, and finds the leases over
        assert await told == Done([3], [])
        await turns()
        assert waiting.waits

    play(body)


def test_too_many_at_once_go_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acks, "TOGETHER_MAX", 2)

    async def body(world: World) -> None:
        await world.make()
        await world.put(*[b"job"] * 8)
        jobs = await world.take(8)
        deletions = Deletions(world)
        world.queue._acks._room = 2  # it was made before
        found = await ack_in_one_turn(world, *([job] for job in jobs))
        assert [one.done for one in found if isinstance(one, Done)] == [[number] for number in range(1, 9)]
        assert sorted(deletions.runs) == [1] * 7, "one and six by themselves, two together that are neighbours"

    play(body)


def test_what_is_refused_together_is_done_one_by_one_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(*[b"job"] * 9)
        jobs = await world.take(9)
        monkeypatch.setattr(stream_rules, "HOLES_MAX", 2)
        found = await ack_in_one_turn(world, [jobs[2]], [jobs[4]], [jobs[6]], [jobs[8]])
        assert found[:2] == [Done([3], []), Done([5], [])]
        assert all(isinstance(one, Failure) for one in found[2:])
        assert sorted(world.queue.state.leases) == [1, 2, 4, 6, 7, 8, 9]
        found = await ack_in_one_turn(world, [jobs[0]], [jobs[1], jobs[3]])
        assert found == [Done([1], []), Done([2, 4], [])]

    play(body)


def test_acks_that_wait_when_the_topic_goes_are_told() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(*[b"job"] * 3)
        jobs = await world.take(3)
        told: list[Any] = []
        queue = world.queue
        for job in jobs:
            queue.ack([_pair(job)], told.append, together=True)
        assert len(queue._acks) == 2
        queue.close(StreamNotFound())
        assert [type(one) for one in told] == [StreamNotFound, StreamNotFound]
        await turns()
        assert told[2:] == [Done([1], [])], "it was done before"

    play(body)


def test_a_worker_gets_more_when_its_acks_were_done_together() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(*[b"job"] * 6)
        workers = [await world.work(1) for _ in range(3)]
        held = [worker.jobs[0] for worker in workers]
        assert seqs(held) == [1, 2, 3]
        await ack_in_one_turn(world, *([job] for job in held))
        assert sorted(seqs([job for worker in workers for job in worker.jobs])) == [1, 2, 3, 4, 5, 6]

    play(body)
