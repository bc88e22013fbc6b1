"""Random histories of a queue on the real engine, with checkpoints and kills, beside a slow and obvious model.
The model knows only what clients were told; the clock moves when the history says so."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from headwater.catalog.sqlite import SqliteCatalog
from headwater.engine.checkpoint import checkpoint
from headwater.model.labels import Labels
from headwater.topics.cohorts import Job
from tests.engine import owned_on
from tests.support.clock import turns
from tests.support.processes import SyncingLog
from tests.topics.queueing import World, play

STEPS = 60
LEASES_MS = (100, 400, 2_000)
FAR_MS = 100_000


@dataclass
class Expected:
    """What must be true of the jobs by what clients were told."""

    live: set[int] = field(default_factory=set)
    ready_ms: dict[int, int] = field(default_factory=dict)
    """When a job may be handed out at the earliest; 0 for most."""
    holder: dict[int, Job] = field(default_factory=dict)
    """The last claim of each job that was not given back."""
    deadline_ms: dict[int, int] = field(default_factory=dict)
    deliveries: dict[int, int] = field(default_factory=dict)

    def claimable(self, now_ms: int) -> list[int]:
        return sorted(seq for seq in self.live if not self.is_held(seq, now_ms) and self.ready_ms[seq] <= now_ms)

    def is_held(self, seq: int, now_ms: int) -> bool:
        return seq in self.holder and self.deadline_ms[seq] > now_ms

    def drop(self, seq: int) -> None:
        self.live.discard(seq)
        for held in (self.ready_ms, self.holder, self.deadline_ms, self.deliveries):
            held.pop(seq, None)

    def forget_leases(self, scheduled: dict[int, int]) -> None:
        """A restart of a queue that does not keep them: only what the records say is left."""
        self.holder.clear()
        self.deadline_ms.clear()
        self.deliveries.clear()
        self.ready_ms = {seq: scheduled.get(seq, 0) for seq in self.live}


class History:
    def __init__(self, world: World, durable: bool, seed: int, clock_is_set: bool) -> None:
        self._world = world
        self._durable = durable
        self._clock_is_set = clock_is_set
        """Then no job is scheduled: that would be early or late by the wall clock's fault."""
        self._rng = random.Random(seed)
        self._expected = Expected()
        self._scheduled: dict[int, int] = {}
        self._claims: list[Job] = []
        """Every lease that anybody was ever told of."""

    @property
    def _now_ms(self) -> int:
        return self._world.clock.now_ms()

    async def run(self) -> None:
        steps = [self.put, self.claim, self.claim, self.ack, self.ack, self.nack, self.extend, self.advance]
        rare = [self.delete, self.restart, self.checkpoint, self.look]
        if self._clock_is_set:
            rare += [self.set_clock, self.set_clock]
        for _ in range(STEPS):
            await self._rng.choice(rare if self._rng.random() < 0.2 else steps)()
        await self.restart()
        await self._world.clock.advance(FAR_MS)
        left = await self._world.take(1_000)
        assert [job.lease.seq for job in left] == sorted(self._expected.live)

    async def put(self) -> None:
        rng, first = self._rng, self._world.stream().count + 1
        labels: list[Labels | None] = []
        for index in range(rng.randrange(1, 4)):
            at_ms = self._now_ms + rng.randrange(1, 1_000) if rng.random() < 0.3 and not self._clock_is_set else None
            labels.append(None if at_ms is None else Labels(deliver_at_ms=at_ms))
            self._expected.live.add(first + index)
            self._expected.ready_ms[first + index] = at_ms or 0
            if at_ms is not None:
                self._scheduled[first + index] = at_ms
        await self._world.put(*[b"%d" % (first + index) for index in range(len(labels))], labels=labels)

    async def claim(self) -> None:
        expected, most, lease_ms = self._expected, self._rng.randrange(1, 5), self._rng.choice(LEASES_MS)
        claimable = expected.claimable(self._now_ms)
        jobs = await self._world.take(most, lease_ms)
        assert {job.lease.seq for job in jobs} <= set(claimable) and len(jobs) == min(most, len(claimable))
        for job in jobs:
            seq = job.lease.seq
            assert bytes(job.record.payload) == b"%d" % seq
            expected.deliveries[seq] = expected.deliveries.get(seq, 0) + 1
            assert job.lease.deliveries == expected.deliveries[seq]
            assert job.lease.lease_id not in {other.lease.lease_id for other in self._claims}
            expected.holder[seq], expected.deadline_ms[seq] = job, self._now_ms + lease_ms
            self._claims.append(job)

    def _some(self) -> list[Job]:
        """Leases, old ones among them, each of another job."""
        some = self._rng.sample(self._claims, min(len(self._claims), self._rng.randrange(1, 4)))
        return list({job.lease.seq: job for job in some}.values())

    def _check(self, jobs: list[Job], done: list[int], failed: list[tuple[int, str]]) -> list[int]:
        """Each was answered, and as it had to be. A lease past its deadline may still be good."""
        codes = dict(failed)
        assert sorted([*done, *codes]) == sorted(job.lease.seq for job in jobs)
        for job in jobs:
            seq = job.lease.seq
            if seq not in self._expected.live:
                assert codes[seq] == "not_found"
            elif self._expected.holder.get(seq) is not job:
                assert codes[seq] == "lease_lost"
            elif self._expected.is_held(seq, self._now_ms):
                assert seq in done
        return done

    async def ack(self) -> None:
        if jobs := self._some():
            told = await self._world.ack(*jobs)
            for seq in self._check(jobs, told.done, told.failed):
                self._expected.drop(seq)

    async def nack(self) -> None:
        if jobs := self._some():
            delay_ms = self._rng.choice([0, 50, 500])
            told = await self._world.nack(*jobs, delay_ms=delay_ms)
            for seq in self._check(jobs, told.done, told.failed):
                del self._expected.holder[seq]
                self._expected.ready_ms[seq] = self._now_ms + delay_ms if delay_ms else 0

    async def extend(self) -> None:
        if jobs := self._some():
            told = await self._world.extend(300, *jobs)
            for seq in self._check(jobs, told.done, told.failed):
                self._expected.deadline_ms[seq] = self._now_ms + 300

    async def advance(self) -> None:
        await self._world.clock.advance(self._rng.choice([1, 40, 300, 1_500]))

    async def set_clock(self) -> None:
        """What was promised for so long from now is moved with it."""
        clock, expected = self._world.clock, self._expected
        before_ms = self._world.queue.now_ms()
        clock.wrong_ms = self._rng.choice([0, 3_600_000, -900_000, 40 * 86_400_000])
        step_ms = self._world.queue.now_ms() - before_ms
        for times in (expected.deadline_ms, expected.ready_ms):
            times.update({seq: ms + step_ms for seq, ms in times.items() if ms})
        await turns()  # it is logged

    async def delete(self) -> None:
        if self._expected.live:
            seq = self._rng.choice(sorted(self._expected.live))
            await self._world.delete(seq)
            self._expected.drop(seq)

    async def restart(self) -> None:
        await self._world.restart()
        if not self._durable:
            self._expected.forget_leases(self._scheduled)

    async def checkpoint(self) -> None:
        await checkpoint(self._world.processes[0].owned[0].group)

    async def look(self) -> None:
        counts, expected, now_ms = self._world.counts(), self._expected, self._now_ms
        held = sum(expected.is_held(seq, now_ms) for seq in expected.live)
        ready = len(expected.claimable(now_ms))
        assert (counts.ready, counts.leased, counts.delayed) == (ready, held, len(expected.live) - ready - held)


@pytest.mark.parametrize("durable", [False, True], ids=["leases-forgotten", "leases-kept"])
@pytest.mark.parametrize("clock_is_set", [False, True], ids=["right-clock", "clock-is-set"])
@pytest.mark.parametrize("seed", range(25))
def test_a_history_is_as_its_clients_were_told(seed: int, clock_is_set: bool, durable: bool) -> None:
    async def body(world: World) -> None:
        processes, catalogs = world.processes, {0: SqliteCatalog(None)}

        def own(number: int) -> Any:
            log = SyncingLog(processes.events[number])
            log.group = processes.group_on(log, catalogs[number], number)
            return owned_on(log.group)

        processes.own = own  # type: ignore[method-assign]
        await world.restart()
        await world.make(leases_durable=durable)
        await History(world, durable, seed, clock_is_set).run()

    play(body)
