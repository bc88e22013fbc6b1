"""Jobs on their way to a claimer, and answers that wait until a state has changed.

Owns the time between a lease and its claimer's knowledge of it. Never decides who gets a job.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.engine.pending_answers import Outcome
from headwater.engine.record_reads import TopicRecord
from headwater.errors import Failure
from headwater.model.queue_events import Lease
from headwater.topics.cohorts import Claimer, Job
from headwater.topics.queue_jobs import QueueJobs

GiveBack = Callable[[list[Lease]], None]


class Answer:
    """A waiter whose outcome is told no earlier than `release`: it may be there before the state has changed."""

    __slots__ = ("_outcome", "_released", "_tell")

    def __init__(self, tell: Callable[[Outcome], None]) -> None:
        self._tell = tell
        self._outcome: Outcome | None = None
        self._released = False

    def resolve(self, outcome: Outcome) -> None:
        if self._released:
            self._tell(outcome)
        else:
            self._outcome = outcome

    def release(self) -> None:
        self._released = True
        if self._outcome is not None:
            self._tell(self._outcome)


def hand_out(
    jobs: QueueJobs,
    shares: list[tuple[Claimer, list[int]]],
    leases: dict[int, Lease],
    bytes_max: int,
    give_back: GiveBack,
) -> Callable[[Outcome], None]:
    """The leases exist. Whoever calls what is returned, once they are as durable as promised, has every claimer told.

    This is a `Handing` of each, in fewer steps for those whose jobs are in memory.
    """
    ready: list[tuple[Claimer, list[Job] | Handing]] = []
    for claimer, share in shares:
        handed: list[Job] | Handing | None = _at_hand(jobs, share, leases, bytes_max)
        if handed is None:
            handed = Handing(jobs, claimer, share, bytes_max, give_back)
            handed.begin(leases)
        ready.append((claimer, handed))

    def logged(outcome: Outcome) -> None:
        for claimer, handed in ready:
            if isinstance(handed, Handing):
                handed.logged(outcome)
            elif isinstance(outcome, Failure):
                give_back([one.lease for one in handed])
                claimer.got(outcome)
            else:
                claimer.got(handed)

    return logged


def _at_hand(jobs: QueueJobs, share: list[int], leases: dict[int, Lease], bytes_max: int) -> list[Job] | None:
    """None when memory does not hold all of them, or they are more than one answer holds."""
    records = jobs.held(share)
    if records is None or (len(share) > 1 and sum([len(one.payload) for one in records]) > bytes_max):
        return None
    return [Job(leases[one.seq], one) for one in records]


class Handing:
    """One claimer's share of a pass. It is told when the records are read and the leases are as durable as promised."""

    def __init__(self, jobs: QueueJobs, claimer: Claimer, seqs: list[int], bytes_max: int, give_back: GiveBack) -> None:
        """`give_back` takes the leases of jobs that do not reach the claimer."""
        self._jobs = jobs
        self.claimer = claimer
        self._seqs = seqs
        self._bytes_max = bytes_max
        self._give_back = give_back
        self._leases: list[Lease] = []
        self._records: list[TopicRecord] | Failure | None = None
        self._outcome: Outcome | None = None

    def begin(self, leases: dict[int, Lease]) -> None:
        """The leases exist."""
        self._leases = [leases[seq] for seq in self._seqs]
        found = self._jobs.held(self._seqs)
        if found is None:
            self._jobs.read(self._seqs, self._bytes_max, self._read)
        else:
            self._read(found)

    def logged(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._hand_over()

    def _read(self, found: list[TopicRecord] | Failure) -> None:
        self._records = found
        self._hand_over()

    def _hand_over(self) -> None:
        records, outcome = self._records, self._outcome
        if records is None or outcome is None:
            return
        if isinstance(outcome, Failure):
            records = outcome
        if isinstance(records, Failure):
            self._give_back(self._leases)
            self.claimer.got(records)
            return
        if len(records) == len(self._leases) == 1:
            self.claimer.got([Job(self._leases[0], records[0])])
            return
        leases = {lease.seq: lease for lease in self._leases}
        handed: list[Job] = []
        size = 0
        for one in records:
            size += len(one.payload)
            if handed and size > self._bytes_max:
                break
            handed.append(Job(leases.pop(one.seq), one))
        if leases:
            self._give_back([lease for lease in leases.values() if self._jobs.is_live(lease.seq)])
        self.claimer.got(handed)
