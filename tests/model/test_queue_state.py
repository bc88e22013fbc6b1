"""What events change, what is kept of a queue, and that nothing is kept longer than it counts.
Drives the state through decisions, and never checks those: `test_queues` does."""

from __future__ import annotations

import pytest

from headwater.model.queue_events import Acked, QueueEvent, decode_event, encode
from headwater.model.queue_state import STALE_MIN, QueueState
from headwater.model.queues import Nack, Wish, claim, extend, nack, release
from tests.model.queue_jobs import Config, Queue, seqs


def busy_queue() -> tuple[Queue, list[QueueEvent]]:
    """A queue with a job in every place, and the events that led there."""
    queue, events = Queue(config=Config(max_deliveries=1)), list[QueueEvent]()
    queue.jobs.write(None, None, None, None, 9_000, None, None)

    def happen(event: QueueEvent | None) -> None:
        assert event is not None
        events.append(event)
        queue.state.apply(event)

    state, jobs = queue.state, queue.jobs
    happen(claim(state, [Wish(1, 100, "a"), Wish(3, 200, "b", 7)], jobs, 0).event)
    happen(nack(state, [Nack(2, state.leases[2].lease_id, reason="why")], jobs, 5).event)
    state.rules = Config(max_deliveries=9)
    happen(nack(state, [Nack(3, state.leases[3].lease_id, delay_ms=400)], jobs, 5).event)
    happen(claim(state, [Wish(1, 300)], jobs, 10).event)
    happen(extend(state, [(1, 1, 600)], jobs, 20).event)
    happen(release(state, 7))
    return queue, events


def test_the_busy_queue_has_a_job_in_every_place() -> None:
    state = busy_queue()[0].state
    assert (set(state.leases), state.reclaim, state.delayed, state.dying, state.claim_cursor) == (
        {1, 6},
        [4],
        {3: 405, 5: 9_000},
        {2: "why"},
        7,
    )


def test_the_same_events_give_the_same_state_also_as_bytes() -> None:
    """leases is a projection of the leases log, rebuilt by replaying it."""
    queue, events = busy_queue()
    twin = QueueState(Config(), 1)
    for event in events:
        twin.apply(decode_event(encode(event)))
    assert twin.snapshot() == queue.state.snapshot()
    assert twin.due_ms() == queue.state.due_ms()


def test_a_restored_state_goes_on_where_the_other_was() -> None:
    queue, _ = busy_queue()
    other = Queue(config=Config(max_deliveries=9))
    other.jobs = queue.jobs
    other.state.restore(queue.state.snapshot())
    assert other.state.snapshot() == queue.state.snapshot()
    for now_ms in (30, 310, 405, 620, 9_000):
        assert other.claim(9, now_ms, lease_ms=50) == queue.claim(9, now_ms, lease_ms=50)
    assert other.state.snapshot() == queue.state.snapshot()


def test_connections_of_a_restored_state_can_be_released() -> None:
    queue = Queue(jobs=2)
    queue.claim(2, connection=4)
    queue.state.restore(queue.state.snapshot())
    event = release(queue.state, 4)
    assert event is not None
    queue.state.apply(event)
    assert (queue.state.leases, queue.state.connections) == ({}, {})


@pytest.mark.parametrize("first_lease_id", [2, 5_000])
def test_lease_ids_are_not_used_again_after_a_replay(first_lease_id: int) -> None:
    queue, events = busy_queue()
    given = 5
    assert queue.state.next_lease_id == 1 + given
    for start in ("snapshot", "events"):
        state = QueueState(Config(), first_lease_id)
        if start == "snapshot":
            state.restore(queue.state.snapshot())
        else:
            for event in events:
                state.apply(event)
        assert state.next_lease_id == max(first_lease_id, 1 + given)


def test_without_its_events_a_queue_hands_every_live_job_out_again() -> None:
    """leases_durable: false: a crash replays no leases, so every job in flight is claimable at once."""
    queue, _ = busy_queue()
    queue.state = QueueState(Config(), 5_000)
    assert seqs(queue.claim(9, now_ms=30)) == [1, 2, 3, 4, 6, 7]
    assert queue.state.delayed == {5: 9_000}


def test_a_replay_without_acks_forgets_the_jobs_that_are_not_live_at_its_end() -> None:
    queue = Queue(jobs=6)
    events = [claim(queue.state, [Wish(5, 100, None, 1)], queue.jobs, 0).event]
    assert events[0] is not None
    queue.state.apply(events[0])
    back = [Nack(seq, seq, delay_ms) for seq, delay_ms in ((3, 0), (4, 50))]
    events.append(nack(queue.state, back, queue.jobs, 0).event)
    queue.jobs.delete([1, 3, 4])
    twin = QueueState(Config(), 100)
    for event in events:
        assert event is not None
        twin.apply(event)
    twin.prune(queue.jobs.is_live)
    assert (set(twin.leases), twin.reclaim, twin.delayed, twin.deliveries) == ({2, 5}, [], {}, {})
    assert twin.connections == {1: {2, 5}}


@pytest.mark.parametrize("runs", [[(1, 1_000_000)], [(seq, seq + 1) for seq in range(1, 8)], [(1, 4), (4, 8)]])
def test_a_purge_empties_every_place(runs: list[tuple[int, int]]) -> None:
    queue, _ = busy_queue()
    queue.jobs.delete(range(1, 8))
    queue.state.gone(runs)
    state = queue.state
    assert (state.leases, state.delayed, state.dying, state.deliveries, state.connections) == ({}, {}, {}, {}, {})
    assert state.due_ms() is None
    queue.jobs.write(None)
    assert seqs(queue.claim(9, now_ms=10_000)) == [8]
    assert state.reclaim == []


def test_a_deletion_before_or_after_what_is_held_changes_nothing() -> None:
    queue, _ = busy_queue()
    before = queue.state.snapshot()
    queue.state.gone([(7, 1_000_000), (0, 1), (8, 9)])
    assert queue.state.snapshot() == before


def test_an_ack_may_be_applied_after_the_state_was_told_that_the_job_is_gone() -> None:
    queue = Queue(jobs=1)
    queue.claim()
    queue.delete(1)
    queue.state.apply(Acked([1]))
    assert (queue.state.leases, queue.state.acks_count) == ({}, 1)


def test_counts_are_of_the_live_jobs_by_place() -> None:
    queue, _ = busy_queue()
    counts = queue.state.counts(live=7)
    assert (counts.ready, counts.leased, counts.delayed, counts.dead_lettered) == (2, 2, 2, 0)


def test_deadlines_of_leases_that_were_acked_do_not_stay_in_memory() -> None:
    queue = Queue(jobs=1_000)
    queue.claim(10, lease_ms=10**9)
    for _ in range(900):
        (lease,) = queue.claim(lease_ms=10**6)
        queue.jobs.delete([lease.seq])
        queue.state.apply(Acked([lease.seq]))
        assert len(queue.state.deadlines) <= 2 * len(queue.state.leases) + STALE_MIN
    assert queue.state.due_ms() == 10**9


def test_times_of_jobs_that_are_no_longer_delayed_do_not_stay_in_memory() -> None:
    queue = Queue(jobs=500)
    for _ in range(500):
        (lease,) = queue.claim()
        assert len(queue.state.ready_times) <= STALE_MIN
        event = nack(queue.state, [Nack(lease.seq, lease.lease_id, delay_ms=10**6)], queue.jobs, 0).event
        assert event is not None
        queue.state.apply(event)
        queue.delete(lease.seq)
