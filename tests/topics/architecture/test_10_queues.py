"""Topics architecture, "A queue topic (DESIGN §10)": the lease layer over a topic's jobs, on time that tests move.
Each docstring quotes the sentence that the test holds; what needs a node stands at the end."""

from __future__ import annotations

from headwater.model.queue_events import DeadLettered, QueueEvent, decode_event, encode
from headwater.model.queue_state import QueueState
from headwater.model.queues import DISCONNECTED, LEASE_LOST, NOT_FOUND, Wish, release
from tests.model.queue_jobs import Config, Queue, acked, nacked, seqs


class Noting(QueueState):
    """Keeps what was applied, as it would be logged."""

    def __init__(self, rules: Config, first_lease_id: int) -> None:
        super().__init__(rules, first_lease_id)
        self.events: list[bytes] = []

    def apply(self, event: QueueEvent) -> None:
        self.events.append(encode(event))
        super().apply(event)


def test_the_state_is_the_projection_of_its_events() -> None:
    """ "The live who-holds-what state is the materialized projection of the leases log (event-sourced)"."""
    queue = Queue(jobs=6)
    state = queue.state = Noting(Config(), 1)
    first, second, third = queue.claim(3, now_ms=0, lease_ms=50)
    acked(queue, first)
    nacked(queue, second, now_ms=5, delay_ms=100)
    queue.claim(2, now_ms=60)
    replayed = QueueState(Config(), 1)
    for body in state.events:
        replayed.apply(decode_event(body))
    assert replayed.snapshot() == queue.state.snapshot()
    assert third.seq in replayed.leases and second.seq in replayed.delayed


def test_without_its_leases_every_job_in_flight_is_claimable_at_once() -> None:
    """ "a crash typically replays no active leases, so every in-flight job is immediately claimable"."""
    queue = Queue(jobs=4)
    (first, *_) = queue.claim(3, lease_ms=1_000_000)
    acked(queue, first)
    queue.state = QueueState(Config(), 1_000)
    assert seqs(queue.claim(10)) == [2, 3, 4]


def test_an_ack_removes_the_job_for_good() -> None:
    """ "acked events remove the seq (it is also deleted from the jobs log via §3.5)"."""
    queue = Queue(jobs=1)
    (lease,) = queue.claim()
    assert acked(queue, lease) == []
    assert not queue.jobs.is_live(1) and queue.claim(now_ms=10**9) == []
    assert acked(queue, lease) == [(1, NOT_FOUND)]


def test_reclaimed_jobs_go_before_fresh_ones() -> None:
    """ "A claim pass drains this first (reclaimed work jumps ahead of never-delivered work ...) before advancing
    claim_cursor"; "a min-heap of seqs"."""
    queue = Queue(jobs=6)
    leases = queue.claim(3)
    for lease in reversed(leases):
        nacked(queue, lease)
    assert seqs(queue.claim(2)) == [1, 2]
    assert seqs(queue.claim(3)) == [3, 4, 5]


def test_expiry_is_lazy_and_needs_no_timer() -> None:
    """ "Lease expiry is lazy - no per-job timers; a claim pass sweeps ... any leases past deadline_ms into reclaim"."""
    queue = Queue(jobs=1)
    (first,) = queue.claim(now_ms=0, lease_ms=100)
    assert queue.claim(now_ms=99) == []
    assert 1 in queue.state.leases
    (second,) = queue.claim(now_ms=100)
    assert (second.seq, second.deliveries) == (1, 2)
    assert acked(queue, first) == [(1, LEASE_LOST)] and acked(queue, second) == []


def test_a_delayed_nack_comes_back_when_its_time_has_come() -> None:
    """ "delayed: (ready_at_ms, seq) for delayed nacks": "a claim pass sweeps delayed (whose ready_at <= now)"."""
    queue = Queue(jobs=2)
    (first,) = queue.claim(now_ms=0)
    nacked(queue, first, now_ms=10, delay_ms=1_000)
    assert seqs(queue.claim(5, now_ms=1_009)) == [2]
    assert queue.state.due_ms() == 1_010
    assert seqs(queue.claim(5, now_ms=1_010)) == [1]


def test_the_cursor_hands_out_each_fresh_job_once() -> None:
    """ "a monotonic pointer over the jobs log handing out the next never-yet-leased seq"."""
    queue = Queue(jobs=5)
    handed = [seq for _ in range(7) for seq in seqs(queue.claim(1))]
    assert handed == [1, 2, 3, 4, 5] and queue.state.claim_cursor == 6


def test_a_cohort_is_served_in_one_pass_and_evenly() -> None:
    """ "one batched coordinator pass ... divides the available set (reclaim ++ fresh-from-cursor) evenly across the
    cohort". Shares are even up to each max: see the decision about differences."""
    queue = Queue(jobs=10)
    (lease,) = queue.claim()
    nacked(queue, lease)
    shares = queue.cohort([Wish(10, 100), Wish(10, 100), Wish(2, 100), Wish(1, 100)])
    assert sorted(seq for share in shares for seq in seqs(share)) == list(range(1, 11))
    assert [len(share) for share in shares] == [4, 3, 2, 1]


def test_a_job_that_was_delivered_often_enough_is_dead() -> None:
    """ "deliveries: seq -> delivery count (dead-letter trigger)"; dead-lettering is "an internal append ... plus a
    permanent delete from the jobs log"."""
    queue = Queue(jobs=2, config=Config(max_deliveries=2))
    for now_ms in (0, 100):
        assert seqs(queue.claim(now_ms=now_ms, lease_ms=100)) == [1]
    assert seqs(queue.claim(5, now_ms=200)) == [2]
    assert list(queue.state.dying) == [1]
    queue.jobs.delete([1])
    queue.state.apply(DeadLettered([1]))
    assert queue.state.dead_lettered == 1 and not queue.state.dying


def test_what_a_work_connection_holds_comes_back_when_it_ends() -> None:
    """ "by_work_conn: Option<ConnId>": a lease that a connection holds ends with it."""
    queue = Queue(jobs=3, config=Config(max_deliveries=1))
    queue.claim(1, lease_ms=10**6, connection=7)
    queue.claim(1, lease_ms=10**6)
    event = release(queue.state, 7)
    assert event is not None and event.dead == [(1, DISCONNECTED)]
    queue.state.apply(event)
    assert list(queue.state.leases) == [2] and release(queue.state, 7) is None


def test_a_deleted_job_is_handed_out_to_nobody() -> None:
    """ "ack reuses the permanent-delete path (§3.5)": so a deletion by anyone ends a job like an ack."""
    queue = Queue(jobs=4)
    (lease, _) = queue.claim(2)
    queue.delete(1, 3)
    assert acked(queue, lease) == [(1, NOT_FOUND)]
    assert seqs(queue.claim(5, now_ms=10**6)) == [2, 4]
