"""One queue: its workers, what happens to its topic, and what of it survives a restart. The clock stands still until a
test moves it; processes are killed and moved under the queue."""

from __future__ import annotations

import pytest

from headwater.engine.queue_leases import QueueLeases
from headwater.errors import GroupMoved, NotAQueue, StreamNotFound
from headwater.model.commands import Configure, Durability, Retention
from headwater.model.queue_state import Counts
from headwater.topics import queues
from tests.support.clock import turns
from tests.topics.queueing import World, play, seqs

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
