"""Who gets which job, whose ack is good and what comes back: the rules of the lease layer, one at a time.
The section named is that of the topics architecture, "A queue topic (DESIGN §10)". It never waits: time is a number."""

from __future__ import annotations

import pytest

from headwater.model.queue_events import Acked, DeadLettered, Extended, Lease, Released
from headwater.model.queues import (
    DISCONNECTED,
    EXPIRED,
    LEASE_LOST,
    NOT_FOUND,
    Nack,
    Wish,
    ack,
    backoff_ms,
    claim,
    deal,
    extend,
    in_order,
    nack,
    release,
)
from tests.model.queue_jobs import Config, Queue, acked, nacked, seqs

# ---- claiming ----------------------------------------------------------------------------------------------------


def test_fresh_jobs_are_handed_out_in_the_order_of_their_seqs() -> None:
    queue = Queue(jobs=3)
    assert seqs(queue.claim(2)) == [1, 2]
    assert seqs(queue.claim(2)) == [3]
    assert queue.claim(2) == []
    assert queue.state.claim_cursor == 4


def test_a_claim_says_who_has_the_job_until_when_and_how_often_it_was_delivered() -> None:
    queue = Queue(jobs=1)
    (lease,) = queue.claim(now_ms=1_000, lease_ms=30, connection=9)
    assert lease == Lease(seq=1, lease_id=1, deadline_ms=1_030, deliveries=1, node="n", connection=9)


def test_a_leased_job_is_not_handed_out_a_second_time() -> None:
    queue = Queue(jobs=1)
    queue.claim(now_ms=0, lease_ms=100)
    assert queue.claim(now_ms=99) == []


def test_an_expired_lease_is_taken_back_by_the_next_pass_and_not_before() -> None:
    """Lazy expiry: a claim pass sweeps leases past deadline_ms; there are no timers."""
    queue = Queue(jobs=1)
    (first,) = queue.claim(now_ms=0, lease_ms=100)
    assert 1 in queue.state.leases
    (second,) = queue.claim(now_ms=100)
    assert (second.seq, second.deliveries) == (1, 2)
    assert second.lease_id != first.lease_id


def test_reclaimed_jobs_are_handed_out_before_fresh_ones_lowest_seq_first() -> None:
    """The freelist is drained before the cursor moves."""
    queue = Queue(jobs=6)
    leases = queue.claim(4)
    for lease in (leases[3], leases[1], leases[2]):
        nacked(queue, lease)
    assert seqs(queue.claim(2)) == [2, 3]
    assert seqs(queue.claim(3)) == [4, 5, 6]


def test_what_expires_in_a_pass_is_merged_with_what_was_reclaimed_earlier() -> None:
    queue = Queue(jobs=4)
    queue.claim(2, lease_ms=10)
    (third,) = queue.claim(1, lease_ms=1_000)
    nacked(queue, third)
    assert seqs(queue.claim(4, now_ms=10)) == [1, 2, 3, 4]


def test_a_pass_without_wishes_takes_back_what_is_due() -> None:
    queue = Queue(jobs=2)
    queue.claim(2, lease_ms=10)
    assert queue.one_pass([], now_ms=9).event is None
    assert queue.one_pass([], now_ms=10).event is not None
    assert queue.state.counts(live=2).ready == 2


def test_a_pass_that_finds_nothing_is_no_event() -> None:
    queue = Queue(jobs=0)
    outcome = claim(queue.state, [Wish(5, 100)], queue.jobs, 0)
    assert (outcome.event, outcome.shares, outcome.more) == (None, [[]], False)


def test_wishes_for_nothing_get_nothing() -> None:
    queue = Queue(jobs=5)
    assert [len(share) for share in queue.cohort([Wish(0, 9), Wish(2, 9), Wish(-3, 9)])] == [0, 2, 0]


# ---- cohorts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "most", "shares"),
    [
        (6, [2, 2, 2], [2, 2, 2]),
        (4, [2, 2, 2], [2, 1, 1]),
        (2, [9, 9, 9], [1, 1, 0]),
        (6, [1, 9, 2], [1, 3, 2]),
        (9, [1, 2, 3], [1, 2, 3]),
        (0, [1, 1], [0, 0]),
    ],
)
def test_a_cohort_divides_what_there_is_evenly_up_to_the_max_of_each(
    count: int, most: list[int], shares: list[int]
) -> None:
    """The available set is divided evenly across the cohort, round robin, and nobody gets more than its max."""
    queue = Queue(jobs=count)
    assert [len(share) for share in queue.cohort([Wish(one, 100) for one in most])] == shares


def test_a_cohort_is_dealt_jobs_in_turn_so_that_nobody_gets_only_the_newest() -> None:
    assert deal([1, 2, 3, 4, 5], [Wish(9, 1), Wish(1, 1), Wish(9, 1)]) == [[1, 4], [2], [3, 5]]


def test_each_of_a_cohort_has_its_own_lease_time_node_and_connection() -> None:
    queue = Queue(jobs=3)
    mine, yours = queue.cohort([Wish(1, 10, "a", 1), Wish(2, 20, "b")], now_ms=5)
    assert [(lease.node, lease.deadline_ms, lease.connection) for lease in mine] == [("a", 15, 1)]
    assert [(lease.node, lease.deadline_ms, lease.connection) for lease in yours] == [("b", 25, None)] * 2
    assert len({lease.lease_id for lease in (*mine, *yours)}) == 3


# ---- ack ---------------------------------------------------------------------------------------------------------


def test_an_acked_job_is_done_and_a_second_ack_finds_nothing() -> None:
    queue = Queue(jobs=1)
    (lease,) = queue.claim()
    assert acked(queue, lease) == []
    assert acked(queue, lease) == [(1, NOT_FOUND)]
    assert queue.state.leases == {}
    assert queue.claim(now_ms=10_000) == []
    assert (queue.state.claims_count, queue.state.acks_count) == (1, 1)


def test_one_request_acks_a_job_once() -> None:
    queue = Queue(jobs=1)
    (lease,) = queue.claim()
    assert acked(queue, lease, lease) == [(1, NOT_FOUND)]
    assert queue.state.acks_count == 1


def test_a_deleted_job_cannot_be_acked_even_when_nobody_told_the_state() -> None:
    queue = Queue(jobs=1)
    (lease,) = queue.claim()
    queue.jobs.delete([1])
    assert acked(queue, lease) == [(1, NOT_FOUND)]


def test_the_ack_of_a_lease_past_its_deadline_is_good_until_a_pass_took_it_back() -> None:
    late, lost = Queue(jobs=1), Queue(jobs=1)
    (lease,) = late.claim(lease_ms=10)
    assert late.state.due_ms() == 10
    assert acked(late, lease) == []

    (lease,) = lost.claim(lease_ms=10)
    lost.one_pass([], now_ms=10)
    assert acked(lost, lease) == [(1, LEASE_LOST)]


def test_a_holder_whose_job_went_to_another_cannot_end_the_lease_of_that_one() -> None:
    queue = Queue(jobs=1)
    (first,) = queue.claim(lease_ms=10)
    (second,) = queue.claim(now_ms=10, lease_ms=10)
    state, jobs = queue.state, queue.jobs
    assert acked(queue, first) == [(1, LEASE_LOST)]
    assert nack(state, [Nack(1, first.lease_id)], jobs, 11).failed == [(1, LEASE_LOST)]
    assert extend(state, [(1, first.lease_id, 50)], jobs, 11).failed == [(1, LEASE_LOST)]
    assert acked(queue, second) == []


def test_good_and_bad_acks_of_one_request_are_told_apart() -> None:
    queue = Queue(jobs=3)
    first, second = queue.claim(2)
    verdict = ack(queue.state, [(1, first.lease_id), (2, 99), (3, 1), (4, 1)], queue.jobs)
    assert verdict.event == Acked([1])
    assert verdict.failed == [(2, LEASE_LOST), (3, LEASE_LOST), (4, NOT_FOUND)]
    assert second.seq in queue.state.leases


# ---- nack --------------------------------------------------------------------------------------------------------


def test_a_nack_without_delay_gives_the_job_back_at_once_and_keeps_its_count() -> None:
    queue = Queue(jobs=1)
    (lease,) = queue.claim()
    nacked(queue, lease)
    assert queue.state.deliveries_of(1) == 1
    (again,) = queue.claim()
    assert again.deliveries == queue.state.deliveries_of(1) == 2


def test_a_nack_with_a_delay_keeps_the_job_back_until_then() -> None:
    """delayed: (ready_at_ms, seq), swept by a claim pass when ready_at <= now."""
    queue = Queue(jobs=1)
    (lease,) = queue.claim()
    nacked(queue, lease, now_ms=1_000, delay_ms=50)
    assert queue.state.due_ms() == 1_050
    assert queue.claim(now_ms=1_049) == []
    assert seqs(queue.claim(now_ms=1_050)) == [1]


def test_an_explicit_delay_of_zero_is_not_the_backoff() -> None:
    queue = Queue(jobs=1, config=Config(backoff_ms=500))
    (lease,) = queue.claim()
    nacked(queue, lease, delay_ms=0)
    assert seqs(queue.claim()) == [1]


def test_without_a_delay_the_backoff_doubles_with_each_delivery_up_to_its_bound() -> None:
    queue = Queue(jobs=1, config=Config(backoff_ms=100, backoff_ms_max=350))
    now_ms, waits = 0, []
    for _ in range(4):
        (lease,) = queue.claim(now_ms=now_ms)
        nacked(queue, lease, now_ms=now_ms)
        due_ms = queue.state.delayed[1]
        waits.append(due_ms - now_ms)
        now_ms = due_ms
    assert waits == [100, 200, 350, 350]


def test_the_backoff_of_a_job_that_was_delivered_very_often_is_a_small_number() -> None:
    queue = Queue(config=Config(backoff_ms=7, backoff_ms_max=60_000))
    assert backoff_ms(queue.state, 1_000_000_000) == 60_000
    assert backoff_ms(queue.state, 0) == 7


def test_one_request_nacks_a_job_once() -> None:
    queue = Queue(jobs=1)
    (lease,) = queue.claim()
    twice = [Nack(1, lease.lease_id, 5), Nack(1, lease.lease_id, 9)]
    verdict = nack(queue.state, twice, queue.jobs, 0)
    assert verdict.event == Released([(1, 5)], [])
    assert verdict.failed == [(1, LEASE_LOST)]


def test_a_nack_of_a_job_that_is_gone_finds_nothing() -> None:
    queue = Queue(jobs=1)
    (lease,) = queue.claim()
    queue.delete(1)
    verdict = nack(queue.state, [Nack(1, lease.lease_id)], queue.jobs, 0)
    assert (verdict.event, verdict.failed) == (None, [(1, NOT_FOUND)])


# ---- extend ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lease_ms", "deadline_ms"), [(500, 560), (10, 70)])
def test_an_extended_lease_ends_that_long_after_now_be_it_later_or_sooner(lease_ms: int, deadline_ms: int) -> None:
    queue = Queue(jobs=1)
    (lease,) = queue.claim(lease_ms=100)
    verdict = extend(queue.state, [(1, lease.lease_id, lease_ms)], queue.jobs, 60)
    assert verdict.event == Extended([(1, deadline_ms)])
    queue.state.apply(verdict.event)
    assert queue.state.due_ms() == deadline_ms
    assert queue.claim(now_ms=deadline_ms - 1) == []
    (again,) = queue.claim(now_ms=deadline_ms)
    assert again.deliveries == 2


def test_a_late_extend_keeps_a_job_that_nobody_else_has() -> None:
    queue = Queue(jobs=1)
    (lease,) = queue.claim(lease_ms=10)
    verdict = extend(queue.state, [(1, lease.lease_id, 100)], queue.jobs, 50)
    assert verdict.event is not None
    queue.state.apply(verdict.event)
    assert queue.claim(now_ms=149) == []
    assert acked(queue, lease) == []


# ---- connections -------------------------------------------------------------------------------------------------


def test_what_a_connection_holds_comes_back_when_it_ends_and_nothing_else_does() -> None:
    queue = Queue(jobs=4)
    mine = queue.claim(2, connection=7)
    queue.claim(1, connection=8)
    queue.claim(1)
    assert acked(queue, mine[0]) == []
    event = release(queue.state, 7)
    assert event == Released([(2, 0)], [])
    queue.state.apply(event)
    assert seqs(queue.claim(4)) == [2]
    assert release(queue.state, 7) is None
    assert queue.state.connections == {8: {3}}


# ---- dead letters ------------------------------------------------------------------------------------------------


def test_a_job_whose_last_lease_expires_is_dead_and_not_handed_out_again() -> None:
    """deliveries is the dead-letter trigger."""
    queue = Queue(jobs=1, config=Config(max_deliveries=2))
    queue.claim(now_ms=0, lease_ms=10)
    queue.claim(now_ms=10, lease_ms=10)
    assert queue.claim(now_ms=20) == []
    assert queue.state.dying == {1: EXPIRED}
    assert queue.state.deliveries_of(1) == 2
    assert queue.state.counts(live=1).ready == 0


def test_a_job_whose_last_delivery_is_nacked_is_dead_for_the_reason_given() -> None:
    queue = Queue(jobs=1, config=Config(max_deliveries=1))
    (lease,) = queue.claim()
    event = nacked(queue, lease, delay_ms=5, reason="bad address")
    assert event == Released([], [(1, "bad address")])
    assert queue.state.dying == {1: "bad address"}
    assert acked(queue, lease) == [(1, LEASE_LOST)]


def test_a_job_whose_last_delivery_ends_with_its_connection_is_dead() -> None:
    queue = Queue(jobs=1, config=Config(max_deliveries=1))
    queue.claim(connection=3)
    assert release(queue.state, 3) == Released([], [(1, DISCONNECTED)])


def test_a_job_that_is_acked_in_its_last_delivery_is_not_dead() -> None:
    queue = Queue(jobs=1, config=Config(max_deliveries=1))
    (lease,) = queue.claim()
    assert acked(queue, lease) == []
    assert (queue.state.dying, queue.state.dead_lettered) == ({}, 0)


def test_a_dead_job_that_was_moved_is_counted_and_forgotten() -> None:
    queue = Queue(jobs=1, config=Config(max_deliveries=1))
    (lease,) = queue.claim()
    nacked(queue, lease)
    queue.delete(1)
    queue.state.apply(DeadLettered([1]))
    assert (queue.state.dying, queue.state.deliveries) == ({}, {})
    assert queue.state.counts(live=0).dead_lettered == 1


def test_without_a_bound_a_job_is_delivered_for_ever() -> None:
    queue = Queue(jobs=1, config=Config(max_deliveries=0))
    for turn in range(50):
        (lease,) = queue.claim(now_ms=turn * 10, lease_ms=10)
    assert lease.deliveries == 50


# ---- scheduled jobs ----------------------------------------------------------------------------------------------


def test_a_scheduled_job_is_not_handed_out_early_and_does_not_hold_up_those_behind_it() -> None:
    queue = Queue()
    queue.jobs.write(500, None, 300)
    assert seqs(queue.claim(5, now_ms=0)) == [2]
    assert queue.state.delayed == {1: 500, 3: 300}
    assert queue.state.due_ms() == 100
    assert seqs(queue.claim(5, now_ms=300, lease_ms=9_000)) == [2, 3]
    (lease,) = queue.claim(5, now_ms=500)
    assert (lease.seq, lease.deliveries) == (1, 1)


def test_a_scheduled_job_whose_time_has_come_before_the_cursor_did_is_a_fresh_job() -> None:
    queue = Queue()
    queue.jobs.write(500, None)
    assert seqs(queue.claim(5, now_ms=500)) == [1, 2]


def test_a_job_that_must_be_looked_up_stops_the_cursor_and_not_the_jobs_before_it() -> None:
    queue = Queue(jobs=3)
    queue.jobs.cold = {2}
    first = queue.one_pass([Wish(3, 100)])
    assert (first.shares, first.missing) == ([[1]], 2)
    blocked = claim(queue.state, [Wish(3, 100)], queue.jobs, 0)
    assert (blocked.event, blocked.missing) == (None, 2)
    queue.jobs.cold = set()
    assert seqs(queue.claim(3)) == [2, 3]


# ---- deletions from elsewhere ------------------------------------------------------------------------------------


def test_deleted_jobs_are_not_handed_out_whatever_place_they_had() -> None:
    queue = Queue(jobs=6)
    leases = queue.claim(4, lease_ms=10)
    nacked(queue, leases[0])
    nacked(queue, leases[1], delay_ms=10)
    queue.delete(1, 2, 3, 5)
    assert queue.state.counts(live=2).leased == 1
    assert seqs(queue.claim(9, now_ms=50)) == [4, 6]
    assert queue.state.deliveries == {}


def test_a_deletion_that_nobody_told_of_is_found_out_before_a_job_is_handed_out() -> None:
    queue = Queue(jobs=3)
    first, _ = queue.claim(2, lease_ms=10)
    nacked(queue, first, delay_ms=5)
    queue.jobs.delete([1, 2])
    assert seqs(queue.claim(9, now_ms=50)) == [3]


def test_a_heap_is_walked_in_order_and_stays_as_it_is() -> None:
    heap = [1, 4, 2, 9, 5, 3, 8]
    assert list(in_order(heap)) == [1, 2, 3, 4, 5, 8, 9]
    assert heap == [1, 4, 2, 9, 5, 3, 8]
    empty: list[int] = []
    assert list(in_order(empty)) == []
