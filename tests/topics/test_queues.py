"""Queues on a clock that stands still: leases end, delays pass and windows close when the test says so.
Processes are killed and moved under them; no test sleeps."""

from __future__ import annotations

import asyncio

import pytest

from headwater.model.labels import Labels
from headwater.model.queue_state import Counts
from headwater.topics import cohorts
from tests.support.clock import turns
from tests.topics.queueing import World, play, seqs

# ---- claims and leases ----------------------------------------------------------------------------------------------


def test_jobs_are_claimed_in_order_and_gone_once_they_are_acked() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(b"a", b"b", b"c")
        jobs = await world.take(2)
        assert [bytes(job.record.payload) for job in jobs] == [b"a", b"b"]
        assert world.counts() == Counts(1, 2, 0, 0)
        assert await world.ack(*jobs) == ([1, 2], [], (), ())
        assert world.counts() == Counts(1, 0, 0, 0)
        assert world.stream().live_count == 1
        assert (await world.ack(jobs[0])).failed == [(1, "not_found")]
        assert seqs(await world.take(10)) == [3] and await world.take() == []

    play(body)


def test_a_lease_that_ends_makes_its_job_claimable_and_its_holder_cannot_ack_any_more() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(b"a")
        (job,) = await world.take(lease_ms=500)
        await world.clock.advance(499)
        assert await world.take() == []
        await world.clock.advance(1)
        (again,) = await world.take()
        assert again.lease.deliveries == 2 and again.lease.lease_id != job.lease.lease_id
        assert (await world.ack(job)).failed == [(1, "lease_lost")]
        assert (await world.ack(again)).done == [1]

    play(body)


def test_a_lease_is_extended_from_now_on() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(b"a")
        (job,) = await world.take(lease_ms=500)
        await world.clock.advance(400)
        assert (await world.extend(500, job)).deadlines == [(1, world.clock.now_ms() + 500)]
        await world.clock.advance(400)
        assert await world.take() == []
        await world.clock.advance(100)
        assert seqs(await world.take()) == [1]
        assert (await world.extend(500, job)).failed == [(1, "lease_lost")]

    play(body)


def test_whoever_waits_is_woken_when_a_lease_that_was_shortened_ends() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(b"a")
        (job,) = await world.take(lease_ms=50_000)
        waiting = await world.claim(wait_ms=10_000)
        await world.extend(100, job)
        await world.clock.advance(99)
        assert waiting.waits
        await world.clock.advance(1)
        assert waiting.seqs == [1]

    play(body)


def test_reclaimed_jobs_go_before_fresh_ones() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(b"a", b"b", b"c")
        await world.take(1, lease_ms=100)
        await world.clock.advance(100)
        assert seqs(await world.take(2)) == [1, 2]

    play(body)


# ---- waiting --------------------------------------------------------------------------------------------------------


def test_a_claim_waits_for_a_job_and_gets_it_as_soon_as_it_is_visible() -> None:
    async def body(world: World) -> None:
        await world.make()
        waiting = await world.claim(wait_ms=5_000)
        assert waiting.waits
        await world.put(b"a")
        assert waiting.seqs == [1]

    play(body)


def test_a_claim_that_waited_in_vain_is_told_so_when_its_time_is_over_and_not_before() -> None:
    async def body(world: World) -> None:
        await world.make()
        short, long = await world.claim(wait_ms=100), await world.claim(wait_ms=200)
        await world.clock.advance(99)
        assert short.waits
        await world.clock.advance(1)
        assert short.jobs == [] and long.waits
        await world.clock.advance(100)
        assert long.jobs == []
        assert world.clock.timers_count == 0

    play(body)


def test_a_waiting_claim_gets_a_job_whose_lease_ends() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(b"a")
        await world.take(lease_ms=300)
        waiting = await world.claim(wait_ms=10_000)
        await world.clock.advance(299)
        assert waiting.waits
        await world.clock.advance(1)
        assert waiting.seqs == [1]

    play(body)


def test_whoever_waits_longest_is_first() -> None:
    async def body(world: World) -> None:
        await world.make()
        waiting = [await world.claim(wait_ms=1_000 - 100 * number) for number in range(5)]
        await world.put(b"a", b"b")
        await world.put(b"c")
        assert [one.seqs for one in waiting[:3]] == [[1], [2], [3]]
        assert all(one.waits for one in waiting[3:])

    play(body)


def test_jobs_are_divided_among_the_claims_of_one_turn() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(*[b"x"] * 7)
        claims = [world.enter(10), world.enter(1), world.enter(3)]
        await turns()
        assert [one.seqs for one in claims] == [[1, 4, 6], [2], [3, 5, 7]]

    play(body)


def test_a_claimer_that_is_gone_gets_nothing() -> None:
    async def body(world: World) -> None:
        await world.make()
        first, second = await world.claim(wait_ms=1_000), await world.claim(wait_ms=1_000)
        first.gone = True
        await world.put(b"a")
        assert first.waits and second.seqs == [1]

    play(body)


def test_more_claimers_than_there_may_be_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohorts, "LINE_MAX", 2)

    async def body(world: World) -> None:
        await world.make()
        waiting = [await world.claim(wait_ms=1_000) for _ in range(3)]
        assert [one.waits for one in waiting] == [True, True, False]
        assert waiting[2].jobs == []

    play(body)


def test_waits_that_ended_early_leave_nothing_behind() -> None:
    async def body(world: World) -> None:
        await world.make()
        for _ in range(500):
            waiting = await world.claim(wait_ms=60_000)
            await world.put(b"x")
            await world.ack(*waiting.jobs)
        assert len(world.queue._line._waits) < 200 and world.clock.timers_count < 5
        assert len(world.queue.state.deadlines) < 200 and not world.queue.jobs.places

    play(body)


# ---- jitter ---------------------------------------------------------------------------------------------------------


def test_claims_of_one_jitter_window_are_served_together_at_its_end() -> None:
    async def body(world: World) -> None:
        await world.make(claim_jitter_ms=20)
        await world.put(*[b"x"] * 4)
        first = await world.claim(4)
        await world.clock.advance(19)
        second = await world.claim(4)
        assert first.waits and second.waits
        await world.clock.advance(1)
        assert first.seqs == [1, 3] and second.seqs == [2, 4]

    play(body)


def test_jobs_that_come_within_a_window_wait_for_its_end_and_later_ones_do_not() -> None:
    async def body(world: World) -> None:
        await world.make(claim_jitter_ms=20)
        waiting = [await world.claim(wait_ms=1_000), await world.claim(wait_ms=1_000)]
        await world.put(b"a")
        assert waiting[0].waits
        await world.clock.advance(20)
        assert waiting[0].seqs == [1] and waiting[1].waits
        await world.put(b"b")
        assert waiting[1].seqs == [2]

    play(body)


# ---- delays ---------------------------------------------------------------------------------------------------------


def test_a_nacked_job_comes_back_at_once_or_after_its_delay() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(b"a")
        (job,) = await world.take()
        assert (await world.nack(job)).done == [1]
        (job,) = await world.take()
        await world.nack(job, delay_ms=700)
        assert world.counts() == Counts(0, 0, 1, 0)
        waiting = await world.claim(wait_ms=5_000)
        await world.clock.advance(699)
        assert waiting.waits
        await world.clock.advance(1)
        assert waiting.seqs == [1] and waiting.jobs[0].lease.deliveries == 3

    play(body)


def test_a_nack_without_a_delay_waits_twice_as_long_each_time() -> None:
    async def body(world: World) -> None:
        await world.make(backoff_ms=100, backoff_ms_max=350)
        await world.put(b"a")
        for delay_ms in (100, 200, 350, 350):
            (job,) = await world.take(lease_ms=10_000)
            await world.nack(job)
            await world.clock.advance(delay_ms - 1)
            assert await world.take() == []
            await world.clock.advance(1)

    play(body)


def test_a_scheduled_job_is_handed_out_when_its_time_comes_and_others_pass_it() -> None:
    async def body(world: World) -> None:
        await world.make()
        at_ms = world.clock.now_ms() + 1_000
        await world.put(b"later", b"now", labels=[Labels(deliver_at_ms=at_ms), None])
        assert world.counts() == Counts(1, 0, 1, 0)
        assert seqs(await world.take(10, lease_ms=60_000)) == [2]
        assert world.counts() == Counts(0, 1, 1, 0)
        waiting = await world.claim(wait_ms=5_000)
        await world.clock.advance(999)
        assert waiting.waits
        await world.clock.advance(1)
        assert waiting.seqs == [1] and waiting.jobs[0].lease.deliveries == 1

    play(body)


# ---- keys -----------------------------------------------------------------------------------------------------------


def test_a_key_is_taken_while_its_job_is_there() -> None:
    async def body(world: World) -> None:
        await world.make()
        assert await world.put_keyed("k", "l", "k") == ([1, 2, 1], [2])
        assert await world.put_keyed("m", "k") == ([3, 1], [1])
        (job,) = await world.take()
        assert await world.put_keyed("k") == ([1], [0])
        await world.ack(job)
        assert await world.put_keyed("k") == ([4], [])

    play(body)


def test_of_two_writers_at_once_one_writes() -> None:
    async def body(world: World) -> None:
        await world.make()
        answers = await asyncio.gather(*(world.put_keyed("k") for _ in range(10)))
        assert sorted(duplicates for _, duplicates in answers) == [[]] + [[0]] * 9
        assert {tuple(found) for found, _ in answers} == {(1,)} and world.stream().count == 1

    play(body)
