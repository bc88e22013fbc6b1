"""How much a queue may hold and how much one pass may do, and what becomes of the rest.
Checks the bounds alone, with small ones; who gets what within them is in `test_queues`."""

from __future__ import annotations

from headwater.model.queue_state import Bounds
from headwater.model.queues import Wish
from tests.model.queue_jobs import Queue, acked, nacked, seqs


def test_no_more_leases_than_the_bound_exist_at_once() -> None:
    queue = Queue(jobs=5, bounds=Bounds(leases_max=3))
    leases = queue.claim(5)
    assert seqs(leases) == [1, 2, 3]
    assert queue.claim(5) == []
    assert acked(queue, leases[1]) == []
    assert seqs(queue.claim(5)) == [4]


def test_leases_that_expire_in_a_pass_make_room_in_the_same_pass() -> None:
    queue = Queue(jobs=3, bounds=Bounds(leases_max=2))
    queue.claim(2, lease_ms=10)
    assert seqs(queue.claim(3, now_ms=10)) == [1, 2]


def test_the_cursor_stands_still_while_too_many_jobs_are_held_and_reclaimed_ones_go_on() -> None:
    queue = Queue(jobs=5, bounds=Bounds(held_max=2))
    first, second = queue.claim(5, lease_ms=1_000)
    nacked(queue, first, delay_ms=50)
    outcome = queue.one_pass([Wish(5, 100)], now_ms=10)
    assert (outcome.shares, outcome.more) == ([[]], False)
    assert seqs(queue.claim(5, now_ms=50)) == [1]
    assert acked(queue, second) == []
    assert seqs(queue.claim(5, now_ms=60)) == [3]


def test_a_pass_takes_back_no_more_than_its_bound_and_says_that_there_is_more() -> None:
    queue = Queue(jobs=9, bounds=Bounds(pass_max=4))
    queue.claim(4, lease_ms=10)
    queue.claim(2, lease_ms=10)
    first = queue.one_pass([Wish(1, 100)], now_ms=20)
    assert first.more and len(queue.state.leases) == 3
    second = queue.one_pass([], now_ms=20)
    assert not second.more and len(queue.state.leases) == 1


def test_delayed_jobs_count_for_the_bound_of_a_pass_and_come_before_fresh_ones() -> None:
    queue = Queue(jobs=6, bounds=Bounds(pass_max=2))
    for lease in (*queue.claim(2), *queue.claim(1)):
        nacked(queue, lease, delay_ms=10)
    first = queue.one_pass([Wish(6, 100)], now_ms=10)
    assert (first.shares, first.more) == ([[1, 2]], True)
    second = queue.one_pass([Wish(1, 100)], now_ms=10)
    assert (second.shares, second.more) == ([[3]], False)


def test_a_pass_hands_out_no_more_than_its_bound_and_says_that_there_is_more() -> None:
    queue = Queue(jobs=9, bounds=Bounds(pass_max=4))
    first = queue.one_pass([Wish(9, 100)])
    assert (first.shares, first.more) == ([[1, 2, 3, 4]], True)
    exact = queue.one_pass([Wish(4, 100)])
    assert (exact.shares, exact.more) == ([[5, 6, 7, 8]], False)


def test_a_pass_goes_past_no_more_scheduled_jobs_than_its_bound() -> None:
    queue = Queue(bounds=Bounds(pass_max=3))
    queue.jobs.write(*[500] * 4, None)
    first = queue.one_pass([Wish(1, 100)])
    assert (first.shares, first.more, queue.state.claim_cursor) == ([[]], True, 4)
    second = queue.one_pass([Wish(1, 100)])
    assert (second.shares, second.more) == ([[5]], False)


def test_a_pass_drops_no_more_deleted_jobs_than_its_bound_before_it_goes_on() -> None:
    queue = Queue(jobs=8, bounds=Bounds(pass_max=4))
    for lease in (*queue.claim(4), *queue.claim(3)):
        nacked(queue, lease)
    queue.delete(1, 2, 3, 4, 5, 6)
    first = queue.one_pass([Wish(2, 100)])
    assert (first.shares, first.more) == ([[]], True)
    second = queue.one_pass([Wish(2, 100)])
    assert (second.shares, second.more) == ([[7, 8]], False)


def test_deleted_jobs_between_reclaimed_ones_count_for_the_bound_too() -> None:
    queue = Queue(jobs=9, bounds=Bounds(pass_max=3))
    for lease in (*queue.claim(3), *queue.claim(3)):
        nacked(queue, lease)
    queue.delete(2, 3, 4, 5)
    first = queue.one_pass([Wish(2, 100)])
    assert (first.shares, first.more) == ([[1]], True)
    second = queue.one_pass([Wish(2, 100)])
    assert (second.shares, second.more) == ([[]], True)
    assert queue.one_pass([Wish(2, 100)]).shares == [[6, 7]]
