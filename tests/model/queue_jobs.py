"""Jobs and rules for the tests of queues: a stream as the lease layer sees it, as a plain table.

Owns no rule of leases. Never looks at the state of a queue, except to drive it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headwater.model.queue_events import Lease, Released
from headwater.model.queue_state import Bounds, QueueState
from headwater.model.queues import Nack, NotInMemory, Pass, Wish, ack, claim, nack


@dataclass(frozen=True)
class Config:
    max_deliveries: int = 0
    backoff_ms: int = 0
    backoff_ms_max: int = 600_000


@dataclass
class JobTable:
    """seq -> deliver_at of each live job."""

    live: dict[int, int | None] = field(default_factory=dict)
    head: int = 0
    cold: set[int] = field(default_factory=set)
    """Jobs of which more than their being live has to be looked up."""

    def write(self, *deliver_at: int | None) -> None:
        for at_ms in deliver_at:
            self.head += 1
            self.live[self.head] = at_ms

    def delete(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self.live.pop(seq, None)

    def is_live(self, seq: int) -> bool:
        return seq in self.live

    def next_live(self, seq: int) -> int | None:
        return next((later for later in range(seq, self.head + 1) if later in self.live), None)

    def deliver_at(self, seq: int) -> int | None:
        if seq in self.cold:
            raise NotInMemory(seq)
        return self.live[seq]


class Queue:
    """A state and its jobs, driven as a caller does: what is decided is applied at once."""

    def __init__(self, jobs: int = 0, config: Config | None = None, bounds: Bounds | None = None) -> None:
        self.jobs = JobTable()
        self.jobs.write(*[None] * jobs)
        self.state = QueueState(config or Config(), 1, bounds)

    def claim(self, most: int = 1, now_ms: int = 0, lease_ms: int = 100, connection: int | None = None) -> list[Lease]:
        return self.cohort([Wish(most, lease_ms, "n", connection)], now_ms)[0]

    def cohort(self, wishes: list[Wish], now_ms: int = 0) -> list[list[Lease]]:
        outcome = self.one_pass(wishes, now_ms)
        return [[self.state.leases[seq] for seq in share] for share in outcome.shares]

    def one_pass(self, wishes: list[Wish], now_ms: int = 0) -> Pass:
        outcome = claim(self.state, wishes, self.jobs, now_ms)
        if outcome.event is not None:
            self.state.apply(outcome.event)
        return outcome

    def delete(self, *seqs: int) -> None:
        self.jobs.delete(seqs)
        self.state.gone([(seq, seq + 1) for seq in seqs])


def seqs(leases: Iterable[Lease]) -> list[int]:
    return [lease.seq for lease in leases]


def acked(queue: Queue, *leases: Lease) -> list[tuple[int, str]]:
    """Acks as a caller does: the records go first. Returns what failed."""
    verdict = ack(queue.state, [(lease.seq, lease.lease_id) for lease in leases], queue.jobs)
    if verdict.event is not None:
        queue.jobs.delete(verdict.event.seqs)
        queue.state.apply(verdict.event)
    return verdict.failed


def nacked(
    queue: Queue, lease: Lease, now_ms: int = 0, delay_ms: int | None = None, reason: str = "no"
) -> Released | None:
    verdict = nack(queue.state, [Nack(lease.seq, lease.lease_id, delay_ms, reason)], queue.jobs, now_ms)
    if verdict.event is not None:
        queue.state.apply(verdict.event)
    return verdict.event
