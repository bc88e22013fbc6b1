"""Jobs that were handed out often enough, on a clock that stands still: moved once, whatever is killed meanwhile.
No test sleeps."""

from __future__ import annotations

import asyncio

import pytest

from headwater.model.labels import Labels
from headwater.model.queue_state import Counts
from tests.support.clock import turns
from tests.topics.queueing import World, play


@pytest.mark.parametrize("count", [1, 2])
def test_a_job_that_was_handed_out_often_enough_is_moved_to_the_dead_letters(count: int) -> None:
    async def body(world: World) -> None:
        await world.make(max_deliveries=2, dead_letter=world.dead)
        labels = Labels("red", "n", b'{"a":1}', "key")
        await world.put(b"a", b"b", labels=[labels, None])
        (job,) = await world.take()
        assert (await world.nack(job)).dead == []
        (job,) = await world.take()
        assert (await world.nack(job, reason="it burns")).dead == [1]
        await world.clock.advance(0)
        assert world.counts() == Counts(1, 0, 0, 1) and world.stream().live_count == 1
        letter = world.stream(world.dead).timeline
        assert letter.payloads == [b"a"] and world.stream(world.dead).content_type == "text/plain"
        epoch = world.stream().sid
        (found,) = letter.labels
        assert (found.tag, found.node, found.key) == ("red", "n", f"{world.key}:{epoch}:1")
        assert b'"a":1' in found.meta and b'"reason":"it burns"' in found.meta and b'"deliveries":2' in found.meta
        assert b'"key":"key"' in found.meta

    play(body, count)


def test_a_job_whose_last_lease_ends_is_moved_by_the_next_pass() -> None:
    async def body(world: World) -> None:
        await world.make(max_deliveries=1, dead_letter=world.dead)
        await world.put(b"a")
        await world.take(lease_ms=100)
        await world.clock.advance(100)
        assert await world.take() == []
        await world.clock.advance(0)
        assert world.stream(world.dead).timeline.payloads == [b"a"]
        assert b"lease expired" in world.stream(world.dead).timeline.labels[0].meta

    play(body)


def test_without_a_dead_letter_topic_the_job_is_deleted() -> None:
    async def body(world: World) -> None:
        await world.make(max_deliveries=1)
        await world.put(b"a")
        (job,) = await world.take()
        await world.nack(job)
        await world.clock.advance(0)
        assert world.counts() == Counts(0, 0, 0, 1) and world.stream().live_count == 0

    play(body)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("at", range(0, 24, 2))
def test_a_kill_while_a_job_is_moved_neither_loses_nor_doubles_it(at: int, durable: bool) -> None:
    async def body(world: World) -> None:
        await world.make(max_deliveries=1, dead_letter=world.dead, leases_durable=durable)
        await world.put(b"a", b"b")
        jobs = await world.take(2)
        asked = asyncio.ensure_future(world.nack(*jobs))
        await turns(at)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await world.restart()
        # A lease that nobody remembers leaves the job to be claimed, and to die, once more.
        for _ in range(3):
            for job in await world.take(2):
                await world.nack(job)
            await world.clock.advance(60_000)
        assert sorted(world.stream(world.dead).timeline.payloads) == [b"a", b"b"]
        assert world.stream().live_count == 0

    play(body, 2)


def test_there_is_no_trouble_once_the_jobs_that_had_it_are_deleted() -> None:
    async def body(world: World) -> None:
        await world.make(max_deliveries=1, dead_letter=world.dead)
        await world.put(b"a")
        (job,) = await world.take()
        await world.kill(1)
        await world.nack(job)
        await world.clock.advance(40_000)
        assert world.queue.trouble is not None
        await world.delete(1)
        world.queue.state.gone([(1, 2)])  # as a purge does
        await world.clock.advance(60_000)
        assert world.queue.trouble is None

    play(body, 2)


def test_a_dead_letter_topic_that_refuses_is_tried_again() -> None:
    async def body(world: World) -> None:
        await world.make(max_deliveries=1, dead_letter=world.dead)
        await world.put(b"a")
        (job,) = await world.take()
        await world.kill(1)
        await world.nack(job)
        await world.clock.advance(40_000)
        assert str(world.queue.trouble).startswith(f"letters cannot be written to {world.dead}: ")
        assert world.stream().live_count == 1
        world.start(1)
        await world.clock.advance(60_000)
        assert world.stream(world.dead).timeline.payloads == [b"a"] and world.queue.trouble is None

    play(body, 2)
