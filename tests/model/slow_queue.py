"""A queue the slow way: a list of jobs with everything that ever mattered of each, looked through for every question.

Owns the rules of leases a second time. Never shares code with the model it is held against, and has no cursor and no
heap: a job knows itself whether it was ever come past.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SlowJob:
    seq: int
    deliver_at: int | None
    live: bool = True
    passed: bool = False
    """Some claimer came past it, and got it or found it not due."""
    holder: tuple[int, int, int | None] | None = None
    """(lease id, deadline, connection)"""
    wait_until: int | None = None
    deliveries: int = 0
    dying: str | None = None


@dataclass
class SlowClaimer:
    most: int
    lease_ms: int
    connection: int | None


class SlowQueue:
    def __init__(self, leases_max: int, max_deliveries: int, backoff_ms: int, backoff_ms_max: int) -> None:
        self.leases_max = leases_max
        self.max_deliveries = max_deliveries
        self.backoff_ms = backoff_ms
        self.backoff_ms_max = backoff_ms_max
        self.jobs: list[SlowJob] = []
        self.dead_lettered = 0

    # ---- questions ----------------------------------------------------------------------------------------------

    def live(self) -> list[SlowJob]:
        return [job for job in self.jobs if job.live]

    def leased(self) -> dict[int, tuple[int, int, int, int | None]]:
        """seq -> (lease id, deadline, deliveries, connection)"""
        return {
            job.seq: (job.holder[0], job.holder[1], job.deliveries, job.holder[2])
            for job in self.live()
            if job.holder is not None
        }

    def delayed(self) -> dict[int, int]:
        return {job.seq: job.wait_until for job in self.live() if job.wait_until is not None}

    def dying(self) -> dict[int, str]:
        return {job.seq: job.dying for job in self.live() if job.dying is not None}

    def reclaimable(self) -> dict[int, int]:
        """seq -> deliveries"""
        return {job.seq: job.deliveries for job in self.live() if job.passed and self.is_free(job)}

    def is_free(self, job: SlowJob) -> bool:
        return job.holder is None and job.wait_until is None and job.dying is None

    # ---- what happens -------------------------------------------------------------------------------------------

    def write(self, deliver_at: int | None) -> None:
        self.jobs.append(SlowJob(len(self.jobs) + 1, deliver_at))

    def delete(self, seqs: list[int]) -> None:
        for job in self.jobs:
            if job.seq in seqs:
                job.live = False

    def sweep(self, now_ms: int) -> None:
        for job in self.live():
            if job.holder is not None and job.holder[1] <= now_ms:
                self.give_back(job, None, "lease expired")
            if job.wait_until is not None and job.wait_until <= now_ms:
                job.wait_until = None

    def claim(self, claimers: list[SlowClaimer], now_ms: int, first_lease_id: int) -> list[list[int]]:
        self.sweep(now_ms)
        wanted = sum(claimer.most for claimer in claimers)
        wanted = min(wanted, self.leases_max - len(self.leased()))
        available = [job for job in self.live() if job.passed and self.is_free(job)][:wanted]
        for job in self.live():
            if not job.passed and len(available) < wanted:
                job.passed = True
                if job.deliver_at is not None and job.deliver_at > now_ms:
                    job.wait_until = job.deliver_at
                else:
                    available.append(job)
        hands: list[list[SlowJob]] = [[] for _ in claimers]
        while available:
            for hand, claimer in zip(hands, claimers, strict=True):
                if available and len(hand) < claimer.most:
                    hand.append(available.pop(0))
        lease_id = first_lease_id
        for hand, claimer in zip(hands, claimers, strict=True):
            for job in hand:
                job.holder = (lease_id, now_ms + claimer.lease_ms, claimer.connection)
                job.deliveries += 1
                lease_id += 1
        return [[job.seq for job in hand] for hand in hands]

    def judge(self, seq: int, lease_id: int) -> str:
        job = next((job for job in self.live() if job.seq == seq), None)
        if job is None:
            return "not_found"
        return "good" if job.holder is not None and job.holder[0] == lease_id else "lease_lost"

    def ack(self, seq: int, lease_id: int) -> str:
        verdict = self.judge(seq, lease_id)
        if verdict == "good":
            self.delete([seq])
        return verdict

    def nack(self, seq: int, lease_id: int, delay_ms: int | None, reason: str, now_ms: int) -> str:
        verdict = self.judge(seq, lease_id)
        if verdict == "good":
            job = self.jobs[seq - 1]
            if delay_ms is None:
                delay_ms = self.backoff_ms
                for _ in range(job.deliveries - 1):
                    delay_ms = min(delay_ms * 2, self.backoff_ms_max)
                delay_ms = min(delay_ms, self.backoff_ms_max)
            return self.give_back(job, now_ms + delay_ms if delay_ms else None, reason)
        return verdict

    def give_back(self, job: SlowJob, wait_until: int | None, reason: str) -> str:
        job.holder = None
        if self.max_deliveries and job.deliveries >= self.max_deliveries:
            job.dying = reason
            return "dead"
        job.wait_until = wait_until
        return "released"

    def extend(self, seq: int, lease_id: int, lease_ms: int, now_ms: int) -> str:
        verdict = self.judge(seq, lease_id)
        if verdict == "good":
            holder = self.jobs[seq - 1].holder
            assert holder is not None
            self.jobs[seq - 1].holder = (holder[0], now_ms + lease_ms, holder[2])
        return verdict

    def disconnect(self, connection: int) -> None:
        for job in self.live():
            if job.holder is not None and job.holder[2] == connection:
                self.give_back(job, None, "connection ended")

    def move_dead(self) -> list[int]:
        moved = list(self.dying())
        self.delete(moved)
        self.dead_lettered += len(moved)
        return moved

    def crash(self, durable: bool) -> None:
        if durable:
            for connection in {job.holder[2] for job in self.live() if job.holder is not None}:
                if connection is not None:
                    self.disconnect(connection)
            return
        self.jobs = [SlowJob(job.seq, job.deliver_at, job.live) for job in self.jobs]
        self.dead_lettered = 0
