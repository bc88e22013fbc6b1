"""How long answers wait for the log, measured for each batch: who is counted, with which time, and who is named."""

from __future__ import annotations

from headwater.engine.batch_times import SlowBatch
from headwater.model.commands import Append, Create, Durability
from tests.engine import KEY, Bench, HandClock


class Hands(HandClock):
    """Its monotonic clock moves by hand, too."""

    def __init__(self) -> None:
        super().__init__()
        self.s = 100.0

    def monotonic_s(self) -> float:
        return self.s


def bench(durability: Durability = Durability.FSYNC) -> tuple[Bench, Hands]:
    made, clock = Bench(), Hands()
    made.group.batches._now_s = clock.monotonic_s
    made.submit(Create(KEY, "text/plain", [], durability=durability))
    commit(made)
    sync(made)
    return made, clock


def commit(made: Bench) -> None:
    while made.scheduled:
        made.scheduled.pop(0)()


def sync(made: Bench) -> None:
    made.log.written = made.log.synced = made.log.tail
    made.group.progress()


def append(made: Bench, count: int = 1) -> None:
    for _ in range(count):
        made.submit(Append([b"x"], "text/plain"))


def test_all_answers_of_a_batch_count_with_the_time_of_its_first_command() -> None:
    made, clock = bench()
    times = made.group.batches.times
    counted, spent_s = sum(times.counts), times.sum_s
    append(made, 2)
    clock.s += 0.25
    append(made, 3)
    commit(made)
    clock.s += 0.25
    sync(made)
    assert sum(times.counts) - counted == 5
    assert times.sum_s - spent_s == 5 * 0.5


def test_batches_that_the_log_ends_together_keep_their_own_times() -> None:
    made, clock = bench()
    times = made.group.batches.times
    spent_s = times.sum_s
    append(made)
    commit(made)
    clock.s += 1
    append(made, 2)
    commit(made)
    clock.s += 1
    sync(made)
    assert times.sum_s - spent_s == 1 * 2 + 2 * 1


def test_a_batch_waits_for_the_sync_only_when_an_answer_in_it_does() -> None:
    made, clock = bench(Durability.DISK)
    times = made.group.batches.times
    counted = sum(times.counts)
    append(made)
    commit(made)
    clock.s += 1
    made.log.written = made.log.tail
    made.group.progress()
    assert sum(times.counts) - counted == 1 and times.last_s == 1


def test_what_waits_for_nothing_is_not_counted() -> None:
    made, _ = bench(Durability.MEMORY)
    counted = sum(made.group.batches.times.counts)
    append(made, 3)
    commit(made)
    sync(made)
    assert sum(made.group.batches.times.counts) == counted


def test_commands_that_answers_bring_about_are_counted_too() -> None:
    made, _ = bench()
    times = made.group.batches.times
    counted = sum(times.counts)

    class Next:
        def resolve(self, outcome: object) -> None:
            append(made)

    made.group.submit(KEY, Append([b"x"], "text/plain"), Next())
    commit(made)
    sync(made)
    commit(made)
    sync(made)
    assert sum(times.counts) - counted == 2


def test_a_slow_batch_is_told_before_its_answers_leave_with_some_of_those_that_wait() -> None:
    made, clock = bench()
    told: list[SlowBatch] = []
    made.group.batches.slow_s, made.group.batches.on_slow = 0.5, told.append
    waiting = [made.submit(Append([b"x"], "text/plain")) for _ in range(9)]
    clock.s += 0.125
    commit(made)
    clock.s += 0.5
    made.log.sync_times.add(0.375)
    sync(made)
    (batch,) = told
    assert (batch.took_s, batch.queued_s, batch.sync_s, batch.answers_count) == (0.625, 0.125, 0.375, 9)
    assert batch.waiters == waiting[:3]
    append(made)
    commit(made)
    sync(made)
    assert len(told) == 1
