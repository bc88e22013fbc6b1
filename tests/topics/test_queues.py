"""Queues on a clock that stands still: leases end, delays pass and windows close when the test says so.
Processes are killed and moved under them; no test sleeps."""

from __future__ import annotations

import asyncio

import pytest

from headwater.engine.queue_leases import QueueLeases
from headwater.errors import GroupMoved, NotAQueue, StreamNotFound
from headwater.model.commands import Configure, Durability, Retention
from headwater.model.labels import Labels
from headwater.model.queue_state import Counts
from headwater.topics import cohorts, queues
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


# ---- dead letters ---------------------------------------------------------------------------------------------------


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


def test_a_dead_letter_topic_that_refuses_is_tried_again() -> None:
    async def body(world: World) -> None:
        await world.make(max_deliveries=1, dead_letter=world.dead)
        await world.put(b"a")
        (job,) = await world.take()
        await world.kill(1)
        await world.nack(job)
        await world.clock.advance(40_000)
        assert world.queue.trouble is not None and world.stream().live_count == 1
        world.start(1)
        await world.clock.advance(60_000)
        assert world.stream(world.dead).timeline.payloads == [b"a"] and world.queue.trouble is None

    play(body, 2)


# ---- workers --------------------------------------------------------------------------------------------------------


def test_a_worker_has_no_more_jobs_than_it_wants_and_gets_another_when_one_is_acked() -> None:
    async def body(world: World) -> None:
        await world.make()
        worker = await world.work(2)
        await world.put(b"a", b"b", b"c", b"d")
        assert worker.seqs == [1, 2]
        await world.ack(worker.jobs[0])
        assert worker.seqs == [1, 2, 3]
        await world.nack(worker.jobs[1])
        assert worker.seqs == [1, 2, 3, 2]

    play(body)


def test_what_a_worker_holds_goes_back_when_it_ends() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(b"a", b"b")
        worker = await world.work(2)
        waiting = await world.claim(2, wait_ms=1_000)
        assert worker.seqs == [1, 2] and waiting.waits
        world.queue.leave(worker.connection)
        await turns()
        assert waiting.seqs == [1, 2] and [job.lease.deliveries for job in waiting.jobs] == [2, 2]

    play(body)


def test_workers_take_turns() -> None:
    async def body(world: World) -> None:
        await world.make()
        workers = [await world.work(5), await world.work(5)]
        for _ in range(6):
            await world.put(b"x")
        assert [worker.seqs for worker in workers] == [[1, 3, 5], [2, 4, 6]]

    play(body)


def test_a_worker_that_reads_again_goes_on() -> None:
    async def body(world: World) -> None:
        await world.make()
        worker = await world.work(5)
        worker.paused = True
        await world.put(b"a")
        assert worker.seqs == []
        worker.paused = False
        world.queue.resume(worker.connection)
        await turns()
        assert worker.seqs == [1]

    play(body)


def test_a_worker_whose_leases_end_gets_them_again_when_somebody_claims() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(b"a", b"b")
        worker = await world.work(2, lease_ms=100)
        await world.clock.advance(100)
        assert seqs(await world.take(1)) == [1]
        assert worker.seqs == [1, 2, 2]

    play(body)


# ---- what happens to the topic --------------------------------------------------------------------------------------


def test_records_that_are_deleted_or_evicted_are_jobs_no_more() -> None:
    async def body(world: World) -> None:
        await world.make(retention=Retention(age_ms=1_000))
        await world.put(*[b"x"] * 4)
        jobs = await world.take(2, lease_ms=60_000)
        await world.delete(2, 3)
        assert world.counts() == Counts(1, 1, 0, 0)
        assert (await world.ack(jobs[1])).failed == [(2, "not_found")]
        await world.clock.advance(1_001)
        assert await world.take(5) == []
        assert world.counts() == Counts(0, 0, 0, 0)

    play(body)


def test_a_topic_that_is_deleted_tells_whoever_waits() -> None:
    async def body(world: World) -> None:
        await world.make()
        waiting, worker = await world.claim(wait_ms=1_000), await world.work()
        await world.delete_topic()
        await turns()
        assert isinstance(waiting.told, StreamNotFound) and isinstance(worker.failure, StreamNotFound)
        await world.make()
        await world.put(b"a")
        assert seqs(await world.take()) == [1]

    play(body)


def test_a_topic_that_is_no_queue_any_more_refuses() -> None:
    async def body(world: World) -> None:
        await world.make()
        waiting = await world.claim(wait_ms=1_000)
        queue = world.queue
        await world.processes.submit(world.key, Configure(None, None))
        await world.put(b"a")
        assert isinstance(waiting.told, NotAQueue)
        with pytest.raises(NotAQueue):
            world.enter()
        with pytest.raises(NotAQueue):
            queue.ack([(1, 1)], lambda told: None)

    play(body)


def test_what_is_configured_later_holds_from_then_on() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(b"a")
        (job,) = await world.take()
        await world.configure(backoff_ms=500)
        await world.nack(job)
        assert await world.take() == []
        await world.clock.advance(500)
        assert seqs(await world.take()) == [1]

    play(body)


def test_a_group_that_leaves_tells_whoever_waits_and_its_jobs_are_claimable_where_it_goes() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(b"a", b"b")
        (job,) = await world.take(lease_ms=60_000)
        await world.take(lease_ms=60_000)
        waiting, worker = await world.claim(wait_ms=1_000), await world.work()
        queue, owned = world.queue, world.engine.owned[0]
        world.engine.leave(0)
        assert isinstance(waiting.told, GroupMoved) and isinstance(worker.failure, GroupMoved)
        assert queue.closed and world.queues.count == 0
        world.engine.owned[0] = owned  # whoever serves it next has its log
        await world.restart()
        assert seqs(await world.take(2)) == [1, 2]
        assert (await world.ack(job)).failed == [(1, "lease_lost")]

    play(body)


def test_idle_queues_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "QUEUES_MAX", 3)

    async def body(world: World) -> None:
        first = world.key
        for number in range(10):
            world.key = f"{first}-{number}"
            await world.make()
            await world.put(b"a")
            if number % 5 == 0:
                await world.take(lease_ms=60_000)
            else:
                await world.ack(*await world.take())
        assert world.queues.count <= 5
        world.key = f"{first}-0"
        assert await world.take() == []
        assert world.queues.claims_count == 10 and world.queues.acks_count == 8

    play(body)


# ---- restarts -------------------------------------------------------------------------------------------------------


def test_after_a_restart_every_job_that_was_not_acked_is_claimable() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(b"a", b"b", b"c")
        jobs = await world.take(2, lease_ms=60_000)
        await world.ack(jobs[0])
        await world.restart()
        again = await world.take(5)
        assert seqs(again) == [2, 3] and [job.lease.deliveries for job in again] == [1, 1]
        assert (await world.ack(jobs[1])).failed == [(2, "lease_lost")]

    play(body)


def test_leases_that_are_durable_survive_a_restart() -> None:
    async def body(world: World) -> None:
        await world.make(leases_durable=True)
        await world.put(*[b"x"] * 5)
        jobs = await world.take(3, lease_ms=10_000)
        await world.ack(jobs[0])
        await world.nack(jobs[1], delay_ms=5_000)
        worker = await world.work(1, lease_ms=10_000)
        assert worker.seqs == [4]
        await world.restart()
        assert world.counts() == Counts(2, 1, 1, 0)
        assert seqs(await world.take(5, lease_ms=10_000)) == [4, 5]
        await world.clock.advance(5_000)
        (again,) = await world.take()
        assert (again.lease.seq, again.lease.deliveries) == (2, 2)
        assert (await world.ack(jobs[2])).done == [3]

    play(body)


def test_a_claim_of_a_durable_queue_is_told_when_its_lease_is_in_the_log() -> None:
    async def body(world: World) -> None:
        await world.make(leases_durable=True)
        await world.put(b"a")
        log = world.processes[0].owned[0].group.log
        claimed = world.enter()
        log._sync, sync = (lambda: None), log._sync
        await turns()
        assert claimed.waits and len(world.queue.state.leases) == 1
        sync()
        assert claimed.seqs == [1]

    play(body)


@pytest.mark.parametrize("at", range(12))
def test_a_durable_queue_that_is_killed_in_any_turn_gives_no_job_to_two(at: int) -> None:
    async def body(world: World) -> None:
        await world.make(leases_durable=True)
        await world.put(*[b"x"] * 4)
        claimed = world.enter(2, lease_ms=10_000)
        await turns(at)
        await world.restart()
        told = [] if claimed.waits else claimed.seqs
        again = seqs(await world.take(4, lease_ms=10_000))
        assert not set(told) & set(again)
        await world.clock.advance(10_000)
        assert sorted(seqs(await world.take(4))) == [1, 2, 3, 4]

    play(body)


def test_leases_become_durable_and_volatile_when_that_is_configured() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(*[b"x"] * 3)
        await world.take(lease_ms=60_000)
        await world.configure(leases_durable=True)
        await world.take(lease_ms=60_000)
        await world.restart()
        assert world.counts() == Counts(1, 2, 0, 0)
        await world.configure(leases_durable=False)
        await world.restart()
        assert seqs(await world.take(5)) == [1, 2, 3]
        leases = world.processes[0].owned[0].group.domains[QueueLeases.name]
        assert leases.states == {}

    play(body)


def test_the_leases_of_a_topic_that_was_deleted_are_forgotten() -> None:
    async def body(world: World) -> None:
        await world.make(leases_durable=True)
        await world.put(b"a")
        await world.take(lease_ms=60_000)
        leases = world.processes[0].owned[0].group.domains[QueueLeases.name]
        assert len(leases.states) == 1
        await world.delete_topic()
        await turns()
        assert leases.states == {} and list(leases.changes().values()) == [None]
        await world.restart()
        assert world.processes[0].owned[0].group.domains[QueueLeases.name].states == {}

    play(body)


def test_an_ephemeral_queue_answers_at_once_and_forgets_its_jobs() -> None:
    async def body(world: World) -> None:
        await world.make(durability=Durability.EPHEMERAL)
        await world.put(b"a", b"b")
        jobs = await world.take(2)
        assert (await world.ack(jobs[0])).done == [1]
        await world.nack(jobs[1])
        assert seqs(await world.take()) == [2]

    play(body)
