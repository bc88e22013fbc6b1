"""Queues through both clients, against a server of the contract, with and without a lossy proxy.
Each test has queues of its own; the server is shared."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headwater.client import Conflict, Draft, LeaseLost, NotAQueue, NotFound
from tests.client.conftest import Connect
from tests.client.faulty_proxy import LoseAnswer, Proxy
from tests.client.serving import Told


@pytest.fixture
def queue(hw: Any, name: str) -> Any:
    queue = hw.queue(name)
    queue.create(lease_ms=60_000)
    return queue


def test_a_job_is_claimed_acked_and_gone(queue: Any) -> None:
    put = queue.put({"to": "ada"}, key="k", tag="t", meta={"m": 1})
    (job,) = queue.claim(10, lease=30)
    assert (job.seq, job.data, job.key, job.tag, job.meta) == (put.seq, {"to": "ada"}, "k", "t", {"m": 1})
    assert job.deliveries == 1 and not job.settled
    assert queue.claim() == []
    job.ack()
    assert job.settled
    with pytest.raises(NotFound):
        job.ack()
    stats = queue.stats()
    assert (stats.ready, stats.leased, stats.delayed, stats.dead_lettered) == (0, 0, 0, 0)


def test_jobs_come_in_order_and_at_most_as_many_as_asked_for(queue: Any) -> None:
    queue.put_many([0, Draft(1, key="one"), 2])
    assert [job.data for job in queue.claim(2)] == [0, 1]
    assert [job.data for job in queue.claim(2)] == [2]


def test_a_job_with_the_key_of_a_live_one_is_not_put_again(queue: Any) -> None:
    first = queue.put("first", key="k")
    again = queue.put("second", key="k")
    assert (again.seqs, again.duplicates) == (first.seqs, [0])
    queue.claim()[0].ack()
    assert queue.put("third", key="k").duplicates == []


def test_a_job_given_back_comes_again_with_one_delivery_more(queue: Any) -> None:
    queue.put("x")
    (job,) = queue.claim()
    assert job.nack(delay=0, reason="not now").released == [job.seq]
    assert job.settled
    (again,) = queue.claim(wait=10)
    assert (again.seq, again.deliveries) == (job.seq, 2)
    with pytest.raises(LeaseLost):
        job.ack()


def test_a_lease_that_ended_gives_the_job_to_the_next(queue: Any) -> None:
    queue.put("x")
    (late,) = queue.claim(lease=0.1)
    (next_one,) = queue.claim(wait=30)
    assert next_one.seq == late.seq
    for attempt in (late.ack, late.nack, late.extend):
        with pytest.raises(LeaseLost) as lost:
            attempt()
        assert lost.value.code == "lease_lost" and lost.value.detail == {"seq": late.seq}
    next_one.ack()


def test_a_lease_that_is_extended_ends_later(queue: Any) -> None:
    queue.put("x")
    (job,) = queue.claim(lease=30)
    before = job.deadline_ms
    job.extend(timedelta(hours=1))
    assert job.deadline_ms >= before + 3_000_000


def test_delayed_jobs_are_not_given_out_before_their_time(queue: Any) -> None:
    queue.put("later", delay=3_600)
    queue.put("much later", deliver_at=datetime(2090, 1, 1, tzinfo=UTC))
    assert queue.claim(2) == []
    assert queue.stats().delayed == 2
    assert [job.data for job in queue.peek("delayed")] == ["later", "much later"]


def test_a_claim_waits_for_a_job(queue: Any) -> None:
    queue.put("soon", delay=0.05)
    assert [job.data for job in queue.claim(wait=30)] == ["soon"]


def test_peeking_takes_nothing_and_a_purge_takes_all(queue: Any) -> None:
    queue.put_many([1, 2, 3])
    queue.claim()
    assert [(job.data, job.state, job.deliveries) for job in queue.peek(limit=1)] == [(2, "ready", 0)]
    assert [(job.data, job.deliveries) for job in queue.peek("leased")] == [(1, 1)]
    assert queue.stats().ready == 2
    assert queue.purge() == 3
    assert queue.claim(10) == []


def test_many_jobs_are_acked_in_one_request(queue: Any) -> None:
    queue.put_many([1, 2, 3])
    jobs = queue.claim(3)
    jobs[1].ack()
    told = queue.ack(jobs)
    assert told.acked == [jobs[0].seq, jobs[2].seq]
    assert [(failed.seq, failed.code) for failed in told.failed] == [(jobs[1].seq, "not_found")]


def test_a_topic_without_a_queue_says_so(hw: Any, name: str) -> None:
    hw.topic(name).create()
    for attempt in (hw.queue(name).claim, hw.queue(name).stats, hw.queue(name).retry_dead):
        with pytest.raises(NotAQueue):
            attempt()


def test_options_of_a_queue_are_changed_by_ensure(hw: Any, name: str) -> None:
    queue = hw.queue(name)
    assert queue.ensure(lease_ms=60_000).created
    changed = queue.ensure(lease_ms=61_000, backoff_ms=5).config.queue
    assert (changed.lease_ms, changed.backoff_ms, changed.max_deliveries) == (61_000, 5, 0)


# --- over a bad line ------------------------------------------------------------------------------------------


def test_a_job_whose_put_was_answered_to_nobody_is_put_once(connect: Connect, lossy: Proxy, name: str) -> None:
    queue = connect(lossy.url).queue(name)
    queue.create()
    lossy.faults.append(LoseAnswer())
    assert queue.put("x").repeated
    assert [job.data for job in queue.claim(10)] == ["x"]


def test_an_ack_or_nack_whose_answer_was_lost_is_done(connect: Connect, lossy: Proxy, name: str) -> None:
    queue = connect(lossy.url).queue(name)
    queue.create()
    queue.put_many(["acked", "nacked"])
    acked, nacked = queue.claim(2, lease=60)
    lossy.faults.append(LoseAnswer())
    acked.ack()
    lossy.faults.append(LoseAnswer())
    nacked.nack(delay=0)
    (again,) = queue.claim(2, wait=10)
    assert (again.data, again.deliveries) == ("nacked", 2)


# --- dead letters ---------------------------------------------------------------------------------------------


def killed(queue: Any, *jobs: Any) -> None:
    """Puts jobs of a queue with max_deliveries=1 and lets each fail."""
    queue.put_many(jobs)
    for job in queue.claim(len(jobs)):
        assert job.nack(reason="no").dead_lettered == [job.seq]


def test_dead_letters_are_put_back_and_leave_their_topic(hw: Any, name: str) -> None:
    queue, dead = hw.queue(name), hw.topic(f"{name}-dead")
    queue.create(max_deliveries=1, dead_letter=f"{name}-dead")
    assert queue.retry_dead() == 0
    killed(queue, Draft("a", tag="t", meta={"own": 1}), "b", "c")
    assert [letter.data for letter in dead.records()] == ["a", "b", "c"]
    assert queue.stats().dead_lettered == 3
    assert queue.retry_dead(2) == 2
    assert [letter.data for letter in dead.records()] == ["c"]
    first, second = queue.claim(10)
    assert (first.data, first.tag, first.meta, first.deliveries) == ("a", "t", {"own": 1}, 1)
    assert second.data == "b"
    assert queue.retry_dead() == 1
    assert list(dead.records()) == []


def test_dead_letters_are_not_put_back_twice_when_it_was_cut_off_between(
    connect: Connect, lossy: Proxy, name: str
) -> None:
    queue = connect(lossy.url).queue(name)
    queue.create(max_deliveries=1, dead_letter=f"{name}-dead")
    killed(queue, "a", "b")
    lossy.meant = lambda method, path: path.endswith("/delete")
    lossy.faults.append(Told(409, [], b'{"error":{"code":"cut_off","message":"here"}}'))
    with pytest.raises(Conflict):
        queue.retry_dead()
    assert queue.retry_dead() == 2
    assert [job.data for job in queue.claim(10)] == ["a", "b"]


def test_letters_of_another_queue_are_left_where_they_are(hw: Any, name: str) -> None:
    mine, other = hw.queue(f"{name}-mine"), hw.queue(f"{name}-other")
    for queue in (mine, other):
        queue.create(max_deliveries=1, dead_letter=f"{name}-dead")
    killed(mine, 1)
    killed(other, 2)
    killed(mine, 3)
    assert mine.retry_dead() == 1
    with pytest.raises(Conflict) as foreign:
        mine.retry_dead()
    assert foreign.value.code == "foreign_dead_letter"
    assert [letter.data for letter in hw.topic(f"{name}-dead").records()] == [2, 3]


def test_a_queue_without_dead_letters_has_none_to_put_back(queue: Any) -> None:
    with pytest.raises(Conflict) as none:
        queue.retry_dead()
    assert none.value.code == "no_dead_letter"
