"""Queues and clocks that are set: a lease and a delay are as long as they were promised to be, a scheduled job goes by
the wall clock, nothing waits for an hour that does not come. The clock is the test's."""

from __future__ import annotations

import pytest

from headwater.model.labels import Labels
from tests.topics.queueing import World, play, seqs

HOUR_MS = 3_600_000
LEASE_MS = 1_000
STEPS = pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS], ids=["ahead", "back"])
KEPT = pytest.mark.parametrize("kept", [False, True], ids=["leases-forgotten", "leases-kept"])


@KEPT
@STEPS
def test_a_clock_that_is_set_ends_no_lease_and_makes_none_longer(step_ms: int, kept: bool) -> None:
    async def body(world: World) -> None:
        await world.make(leases_durable=kept)
        await world.put(b"a")
        held = await world.take(1, LEASE_MS)
        world.clock.wrong_ms = step_ms
        assert await world.take() == []
        assert world.counts().leased == 1
        await world.clock.advance(LEASE_MS - 1)
        assert await world.take() == []
        await world.clock.advance(1)
        again = await world.take()
        assert seqs(again) == [1] and again[0].lease.deliveries == 2
        assert (await world.ack(*held)).failed == [(1, "lease_lost")]
        assert (await world.ack(*again)).done == [1]
        assert (await world.ack(*again)).failed == [(1, "not_found")]

    play(body)


@STEPS
def test_a_lease_that_a_wrong_clock_set_ends_when_it_was_promised_to(step_ms: int) -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(b"a", b"b")
        world.clock.wrong_ms = step_ms
        (job,) = await world.take(1, LEASE_MS)
        assert job.lease.deadline_ms == world.clock.now_ms() + LEASE_MS
        await world.clock.advance(10)
        world.clock.wrong_ms = 0
        waiting = await world.claim(2, wait_ms=10 * LEASE_MS)
        assert waiting.seqs == [2]
        waiting = await world.claim(1, wait_ms=10 * LEASE_MS)
        await world.clock.advance(LEASE_MS - 11)
        assert waiting.waits
        await world.clock.advance(1)
        assert waiting.seqs == [1]

    play(body)


@KEPT
@STEPS
def test_a_job_that_was_given_back_waits_as_long_as_it_was_told_to(step_ms: int, kept: bool) -> None:
    async def body(world: World) -> None:
        await world.make(leases_durable=kept)
        await world.put(b"a", b"b")
        first, second = await world.take(2, LEASE_MS)
        await world.nack(first, delay_ms=500)
        world.clock.wrong_ms = step_ms
        await world.nack(second, delay_ms=600)
        await world.clock.advance(499)
        assert await world.take() == []
        world.clock.wrong_ms = 0
        await world.clock.advance(1)
        assert seqs(await world.take(9, LEASE_MS)) == [1]
        await world.clock.advance(100)
        assert seqs(await world.take(9, LEASE_MS)) == [2]

    play(body)


def test_a_scheduled_job_goes_by_the_wall_clock() -> None:
    async def body(world: World) -> None:
        await world.make()
        at_ms = world.clock.now_ms() + HOUR_MS
        await world.put(b"a", b"b", labels=[Labels(deliver_at_ms=at_ms), None])
        assert seqs(await world.take(2, LEASE_MS)) == [2]
        waiting = await world.claim(1, wait_ms=HOUR_MS)
        await world.clock.advance(10)
        world.clock.wrong_ms = HOUR_MS  # set right, after it was an hour late
        await world.clock.advance(60_000)
        assert waiting.seqs == [1]

    play(body)


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, 30 * 24 * HOUR_MS])
def test_the_next_owner_does_not_wait_for_the_clock_of_the_last_one(ahead_ms: int) -> None:
    async def body(world: World) -> None:
        await world.make(leases_durable=True)
        await world.put(b"a", b"b")
        world.clock.wrong_ms = ahead_ms
        first, second = await world.take(2, LEASE_MS)
        await world.nack(second, delay_ms=300)
        world.clock.wrong_ms = 0
        for _ in range(2):  # what was moved is kept as well
            await world.restart()
            assert (world.counts().leased, world.counts().delayed) == (1, 1)
        await world.clock.advance(300)
        assert seqs(await world.take(9, LEASE_MS)) == [2]
        await world.clock.advance(LEASE_MS - 300)
        again = await world.take(9, LEASE_MS)
        assert seqs(again) == [1]
        assert (await world.ack(first)).failed == [(1, "lease_lost")]
        assert (await world.ack(*again)).done == [1]

    play(body)
