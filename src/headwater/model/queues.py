"""Deciding about the jobs of a queue: who gets which, whose ack is good, what comes back and what is dead.

Owns the rules of leases. Never reads a clock or a record, and never changes what a client could see: a decision
returns an event, or None when there is nothing to change, and `QueueState.apply` makes it true. Nothing else may
change the state between the two. Whether a job is live, and when it may be handed out first, is asked of `Jobs`.

- A lease is good until a pass or a release takes it back. Past its deadline it can be taken back, but until then
  nobody else has the job, so its holder may still ack, nack or extend.
- Lease ids are never used again, so a holder whose lease was taken back cannot end the lease of another.
- Nothing happens by itself: a pass takes back what is due, and `QueueState.due_ms` tells when that will be.

A pass costs O(log n) for each job that it takes back, goes past or hands out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush, merge
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from headwater.model.queue_events import Acked, Extended, Grant, Passed, QueueEvent, Released
from headwater.model.queue_state import QueueState

LEASE_LOST, NOT_FOUND = "lease_lost", "not_found"
EXPIRED, DISCONNECTED, NACKED = "lease expired", "connection ended", "nacked"
"""Why a job is dead, when its worker gave no reason."""
DOUBLINGS_MAX = 40

E = TypeVar("E", bound=QueueEvent)
T = TypeVar("T", int, tuple[int, int])


class NotInMemory(Exception):
    """What was asked of a job has to be looked up elsewhere first; the decision can then be made again."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"job {seq} is not in memory")
        self.seq = seq


class Jobs(Protocol):
    """The stream behind a queue, as far as readers may see it. seqs count from 1."""

    def is_live(self, seq: int) -> bool: ...

    def next_live(self, seq: int) -> int | None:
        """The first live job at or after `seq`. May raise NotInMemory."""
        ...

    def deliver_at(self, seq: int) -> int | None:
        """The time in ms before which a live job is not handed out. May raise NotInMemory."""
        ...


class Wish(msgspec.Struct, frozen=True):
    """One claimer of a cohort."""

    max: int
    lease_ms: int
    node: str | None = None
    connection: int | None = None


class Nack(msgspec.Struct, frozen=True):
    seq: int
    lease_id: int
    delay_ms: int | None = None
    """None: as the queue's backoff says."""
    reason: str = NACKED


class Pass(msgspec.Struct, frozen=True):
    event: Passed | None
    shares: list[list[int]]
    """The seqs for each wish, in the order of the wishes. Their leases exist when the event is applied."""
    missing: int | None = None
    """A job that has to be looked up before the cursor can go past it. What could be had without it is handed out."""
    more: bool = False
    """The pass ended at its bound: another one may find more."""


class Verdict(msgspec.Struct, Generic[E], frozen=True):
    event: E | None
    failed: list[tuple[int, str]]
    """(seq, code): NOT_FOUND of a job that is not live, LEASE_LOST of one that this lease no longer is about."""


# ---- decisions --------------------------------------------------------------------------------------------------


def claim(state: QueueState, wishes: Sequence[Wish], jobs: Jobs, now_ms: int) -> Pass:
    """One pass over a cohort: takes back what is due, then hands out reclaimed jobs, then fresh ones.

    What there is goes round the wishes in their order, one job each, until it is out or everyone has its `max`:
    of two claimers that both wanted more, neither has two jobs more than the other.
    """
    bounds = state.bounds
    expired, due, dead, complete = sweep(state, now_ms)
    asked = sum([wish.max for wish in wishes if wish.max > 0])
    room = bounds.leases_max - len(state.leases) + len(expired) + len(dead)
    wanted = max(min(asked, room, bounds.pass_max), 0)
    picked: list[int] = []
    if state.reclaim or expired or due:
        picked, walked = reclaimed(state, [*expired, *due], wanted, jobs)
        complete = complete and walked
    cursor = state.claim_cursor
    scheduled: list[tuple[int, int]] = []
    missing = None
    # A due job that this pass did not come to goes before any fresh one.
    if len(picked) < wanted and complete:
        steps = 0
        steps_max = bounds.held_max - len(state.leases) - len(state.reclaim) - len(state.delayed) - len(state.dying)
        try:
            while len(picked) < wanted and steps < steps_max:
                seq = jobs.next_live(cursor)
                if seq is None:
                    break
                if steps == bounds.pass_max:
                    complete = False
                    break
                ready_ms = jobs.deliver_at(seq)
                if ready_ms is None or ready_ms <= now_ms:
                    picked.append(seq)
                else:
                    scheduled.append((seq, ready_ms))
                cursor = seq + 1
                steps += 1
        except NotInMemory as unknown:
            missing = unknown.seq
    more = not complete or (len(picked) == bounds.pass_max < min(asked, room))
    shares = deal(picked, wishes)
    if not (picked or expired or due or dead or scheduled):
        return Pass(None, shares, missing, more)
    grants, lease_id = [], state.next_lease_id
    for share, wish in zip(shares, wishes, strict=True):
        if share:
            grants.append(Grant(share, lease_id, now_ms + wish.lease_ms, wish.node, wish.connection))
            lease_id += len(share)
    return Pass(Passed(expired, due, dead, scheduled, grants, cursor), shares, missing, more)


def ack(state: QueueState, pairs: Iterable[tuple[int, int]], jobs: Jobs) -> Verdict[Acked]:
    """`pairs` of (seq, lease id). The event's records are to be deleted before it is applied."""
    event, ((_, failed),) = ack_all(state, [pairs], jobs)
    return Verdict(event, failed)


def ack_all(
    state: QueueState, wishes: Iterable[Iterable[tuple[int, int]]], jobs: Jobs
) -> tuple[Acked | None, list[tuple[list[int], list[tuple[int, str]]]]]:
    """Several acks as if one came after the other: one event, and for each what it has done and what it has not."""
    done: dict[int, None] = {}
    told = []
    for pairs in wishes:
        mine: list[int] = []
        failed: list[tuple[int, str]] = []
        for seq, lease_id in pairs:
            code = NOT_FOUND if seq in done else refusal(state, seq, lease_id, jobs)
            if code is None:
                done[seq] = None
                mine.append(seq)
            else:
                failed.append((seq, code))
        told.append((mine, failed))
    return Acked(list(done)) if done else None, told


def nack(state: QueueState, nacks: Iterable[Nack], jobs: Jobs, now_ms: int) -> Verdict[Released]:
    released: dict[int, int] = {}
    dead: dict[int, str] = {}
    failed = []
    for wish in nacks:
        seq = wish.seq
        code = LEASE_LOST if seq in released or seq in dead else refusal(state, seq, wish.lease_id, jobs)
        if code is not None:
            failed.append((seq, code))
            continue
        deliveries = state.leases[seq].deliveries
        if spent(state, deliveries):
            dead[seq] = wish.reason
        else:
            delay_ms = backoff_ms(state, deliveries) if wish.delay_ms is None else wish.delay_ms
            released[seq] = now_ms + delay_ms if delay_ms > 0 else 0
    event = Released(list(released.items()), list(dead.items())) if released or dead else None
    return Verdict(event, failed)


def extend(state: QueueState, wishes: Iterable[tuple[int, int, int]], jobs: Jobs, now_ms: int) -> Verdict[Extended]:
    """`wishes` of (seq, lease id, lease ms): the lease ends that long after now, be it sooner or later."""
    deadlines, failed = [], []
    for seq, lease_id, lease_ms in wishes:
        code = refusal(state, seq, lease_id, jobs)
        if code is None:
            deadlines.append((seq, now_ms + lease_ms))
        else:
            failed.append((seq, code))
    return Verdict(Extended(deadlines) if deadlines else None, failed)


def release(state: QueueState, connection: int) -> Released | None:
    """Gives back what a connection holds when it ends. Its deliveries count: the job may be why it ended."""
    back, dead = [], []
    for seq in sorted(state.connections.get(connection, ())):
        if spent(state, state.leases[seq].deliveries):
            dead.append((seq, DISCONNECTED))
        else:
            back.append((seq, 0))
    return Released(back, dead) if back or dead else None


def backoff_ms(state: QueueState, deliveries: int) -> int:
    """The delay after a nack that names none: doubles with each delivery, up to the configured bound."""
    doubled = state.rules.backoff_ms << min(max(deliveries - 1, 0), DOUBLINGS_MAX)
    return min(doubled, state.rules.backoff_ms_max)


# ---- parts of a decision ----------------------------------------------------------------------------------------


def refusal(state: QueueState, seq: int, lease_id: int, jobs: Jobs) -> str | None:
    if not jobs.is_live(seq):
        return NOT_FOUND
    lease = state.leases.get(seq)
    return None if lease is not None and lease.lease_id == lease_id else LEASE_LOST


def spent(state: QueueState, deliveries: int) -> bool:
    return 0 < state.rules.max_deliveries <= deliveries


def sweep(state: QueueState, now_ms: int) -> tuple[list[int], list[int], list[tuple[int, str]], bool]:
    """What is due, up to the bound of a pass: expired, due, dead, and whether that is all."""
    state.drop_stale()
    deadlines, ready_times = state.deadlines, state.ready_times
    if not (deadlines and deadlines[0][0] <= now_ms) and not (ready_times and ready_times[0][0] <= now_ms):
        return [], [], [], True
    pass_max = state.bounds.pass_max
    expired: dict[int, None] = {}
    dead: dict[int, str] = {}
    for deadline_ms, seq in in_order(deadlines):
        if deadline_ms > now_ms:
            break
        lease = state.leases.get(seq)
        if lease is None or lease.deadline_ms != deadline_ms:
            continue
        if len(expired) + len(dead) >= pass_max:
            return list(expired), [], list(dead.items()), False
        if spent(state, lease.deliveries):
            dead[seq] = EXPIRED
        else:
            expired[seq] = None
    due: dict[int, None] = {}
    for ready_ms, seq in in_order(ready_times):
        if ready_ms > now_ms:
            break
        if state.delayed.get(seq) != ready_ms:
            continue
        if len(expired) + len(dead) + len(due) >= pass_max:
            return list(expired), list(due), list(dead.items()), False
        due[seq] = None
    return list(expired), list(due), list(dead.items()), True


def reclaimed(state: QueueState, returned: list[int], wanted: int, jobs: Jobs) -> tuple[list[int], bool]:
    """The first `wanted` live jobs of reclaim and `returned` together, in the order of their seqs.

    False: the pass came to its bound on the way, past jobs that are not live any more.
    """
    reclaim = state.reclaim
    steps = 0
    picked: list[int] = []
    while reclaim and not jobs.is_live(reclaim[0]):
        if steps == state.bounds.pass_max:
            return picked, False
        state.deliveries.pop(heappop(reclaim), None)
        steps += 1
    for seq in merge(in_order(reclaim), sorted(returned)):
        if len(picked) == wanted:
            break
        if jobs.is_live(seq):
            picked.append(seq)
        elif steps == state.bounds.pass_max:
            return picked, False
        else:
            steps += 1
    return picked, True


def deal(seqs: list[int], wishes: Sequence[Wish]) -> list[list[int]]:
    """One job each in turn, in the order of the wishes, past those that have their `max`."""
    if len(wishes) == 1:
        return [seqs]
    shares: list[list[int]] = [[] for _ in wishes]
    open_shares = [(share, wish.max) for share, wish in zip(shares, wishes, strict=True) if wish.max > 0]
    left = iter(seqs)
    while open_shares:
        for share, _ in open_shares:
            seq = next(left, None)
            if seq is None:
                return shares
            share.append(seq)
        open_shares = [(share, most) for share, most in open_shares if len(share) < most]
    return shares


def in_order(heap: list[T]) -> Iterator[T]:
    """The items of a heap from the least on, which stays as it is. The first k cost O(k log k)."""
    frontier: list[Any] = [(heap[0], 0)] if heap else []
    while frontier:
        item, place = heappop(frontier)
        yield item
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(heap):
                heappush(frontier, (heap[child], child))
