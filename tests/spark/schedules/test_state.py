"""What is due next, and what each event makes of it: rules by example, and any history held against what
they promise."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.spark.job_runs import DONE, FAILED, FINDINGS
from headwater.spark.schedules.file import Entry
from headwater.spark.schedules.state import (
    CLOCK_BACK_MS,
    INTERRUPTED,
    RUNS_KEPT,
    SKIPPED,
    STOPPED,
    Begin,
    Job,
    Skip,
    Wait,
    began,
    decide,
    ended,
    skipped,
    taken_over,
)
from headwater.spark.schedules.times import Every, cron

M = 60_000
LEASE_MS = 2 * M


def entry(name: str = "a", minutes: int = 15, **given: object) -> Entry:
    facts = {
        **{"name": name, "job": "compact", "moments": Every(minutes * M), "when": f"{minutes}m UTC"},
        **{"timeout_ms": M, "retries": 2, "backoff_ms": M, "run_missed": True, "only_after": (), "options": {}},
        **given,
    }
    return Entry(**facts)  # type: ignore[arg-type]


def run(jobs: dict[str, Job], begin: object, outcome: str, began_ms: int, ended_ms: int) -> dict[str, Job]:
    assert isinstance(begin, Begin)
    return ended(began(jobs, begin, began_ms), begin.entry, outcome, "", (ended_ms - began_ms) / 1_000, ended_ms)


def test_a_job_that_was_never_seen_waits_for_its_next_moment() -> None:
    jobs = taken_over([entry()], {}, 20 * M, LEASE_MS)
    assert decide([entry()], jobs, 20 * M) == Wait(30 * M)
    assert jobs["a"].next_ms == 30 * M
    assert decide([entry()], jobs, 30 * M) == Begin(entry(), 30 * M, 1)


def test_a_moment_that_was_begun_is_done_with_and_late_ones_are_one() -> None:
    jobs = run(taken_over([entry()], {}, 20 * M, 0), Begin(entry(), 30 * M, 1), DONE, 30 * M, 70 * M)
    assert decide([entry()], jobs, 70 * M) == Begin(entry(), 60 * M, 1)  # not that of 45 minutes as well
    jobs = run(jobs, Begin(entry(), 60 * M, 1), FINDINGS, 70 * M, 71 * M)
    assert decide([entry()], jobs, 71 * M) == Wait(75 * M)
    assert [(one.due_ms, one.outcome, one.seconds) for one in jobs["a"].runs] == [
        (30 * M, DONE, 2_400.0),
        (60 * M, FINDINGS, 60.0),
    ]


def test_a_job_that_failed_is_tried_again_with_growing_pauses_until_its_next_moment() -> None:
    one = entry(minutes=60)
    jobs = taken_over([one], {}, 1, 0)
    now = 60 * M
    for attempt, pause in ((1, M), (2, 2 * M)):
        begin = decide([one], jobs, now)
        assert begin == Begin(one, 60 * M, attempt)
        jobs = run(jobs, begin, FAILED, now, now)
        assert decide([one], jobs, now) == Wait(now + pause)
        assert jobs["a"].next_ms == now + pause
        now += pause
    jobs = run(jobs, decide([one], jobs, now), FAILED, now, now)
    assert decide([one], jobs, now) == Wait(120 * M)
    assert [(one.outcome, one.attempt) for one in jobs["a"].runs] == [(FAILED, 1), (FAILED, 2), (FAILED, 3)]
    failed_once = run(taken_over([one], {}, 1, 0), Begin(one, 60 * M, 1), FAILED, 119 * M, 119 * M + 1)
    assert decide([one], failed_once, 120 * M) == Begin(one, 120 * M, 1)


@pytest.mark.parametrize(("missed", "at", "next_action"), [(True, 52, 45), (False, 52, None), (False, 46, 45)])
def test_moments_that_nobody_served_are_run_once_or_passed_over(missed: bool, at: int, next_action: int | None) -> None:
    one = entry(run_missed=missed)
    jobs = taken_over([one], {"a": Job(one.when, 15 * M)}, at * M, LEASE_MS)
    if next_action is not None:
        assert decide([one], jobs, at * M) == Begin(one, next_action * M, 1)
        return
    assert decide([one], jobs, at * M) == Wait(60 * M)
    assert [(run.due_ms, run.outcome) for run in jobs["a"].runs] == [(45 * M, SKIPPED)]


def test_a_run_whose_server_went_away_counts_as_an_attempt_and_one_that_was_stopped_does_not() -> None:
    one = entry(retries=1)
    jobs = began(taken_over([one], {}, 1, 0), Begin(one, 15 * M, 1), 15 * M)
    again = taken_over([one], jobs, 16 * M, LEASE_MS)
    assert again["a"].runs[-1].outcome == INTERRUPTED
    assert decide([one], again, 17 * M) == Begin(one, 15 * M, 2)
    last = taken_over([one], began(again, Begin(one, 15 * M, 2), 17 * M), 18 * M, LEASE_MS)
    assert decide([one], last, 18 * M) == Wait(30 * M)
    stopped = ended(jobs, one, STOPPED, "told", 1.0, 16 * M)
    for _ in range(3):
        stopped = taken_over([one], stopped, 16 * M, LEASE_MS)
        begin = decide([one], stopped, 16 * M)
        assert begin == Begin(one, 15 * M, 1)
        stopped = run(stopped, begin, STOPPED, 16 * M, 16 * M)


def test_another_rhythm_begins_anew_and_what_was_removed_is_forgotten() -> None:
    jobs = {"a": Job("15m UTC", 15 * M), "gone": Job("15m UTC", 15 * M)}
    found = taken_over([entry(minutes=20)], jobs, 50 * M, LEASE_MS)
    assert list(found) == ["a"]
    assert decide([entry(minutes=20)], found, 50 * M) == Wait(60 * M)


def test_a_moment_far_in_the_future_was_a_wrong_clock() -> None:
    jobs = {"a": Job("15m UTC", 50 * M + CLOCK_BACK_MS + 1)}
    assert decide([entry()], taken_over([entry()], jobs, 50 * M, LEASE_MS), 60 * M) == Begin(entry(), 60 * M, 1)
    jobs = {"a": Job("15m UTC", 75 * M)}  # set back by some minutes: nothing is run twice
    assert decide([entry()], taken_over([entry()], jobs, 50 * M, LEASE_MS), 75 * M) == Wait(90 * M)


def test_a_job_begins_only_after_those_that_it_names_and_only_when_they_ended_well() -> None:
    both = [entry("fold", only_after=("derive",)), entry("derive")]
    jobs = taken_over(both, {}, 1, 0)
    first = decide(both, jobs, 15 * M)
    assert first == Begin(both[1], 15 * M, 1)
    done = run(jobs, first, DONE, 15 * M, 16 * M)
    assert decide(both, done, 16 * M) == Begin(both[0], 15 * M, 1)
    failed = run(jobs, first, FAILED, 15 * M, 16 * M)
    assert decide(both, failed, 16 * M) == Wait(17 * M)  # it is tried again first
    for at in (17, 19):
        failed = run(failed, decide(both, failed, at * M), FAILED, at * M, at * M)
    skip = decide(both, failed, 19 * M)
    assert skip == Skip(both[0], 15 * M, "derive did not end well")
    assert isinstance(skip, Skip)
    after = skipped(failed, skip, 19 * M)
    assert decide(both, after, 19 * M) == Wait(30 * M)
    assert after["fold"].runs[-1].error == "derive did not end well"


def test_what_is_due_first_begins_first_and_of_one_time_the_first_in_the_file() -> None:
    three = [entry("c", 30), entry("a", 15), entry("b", 10)]
    jobs = taken_over(three, {}, 1, 0)
    order = []
    while isinstance(begin := decide(three, jobs, 30 * M), Begin):
        order.append((begin.entry.name, begin.due_ms // M))
        jobs = run(jobs, begin, DONE, 30 * M, 30 * M)
    assert order == [("c", 30), ("a", 30), ("b", 30)]


outcomes = st.sampled_from([DONE, FINDINGS, FAILED, STOPPED, "killed"])
steps = st.lists(st.tuples(outcomes, st.integers(0, 40)), max_size=60)


@given(steps, st.integers(0, 3), st.booleans())
def test_whatever_happens_each_moment_ends_once_and_in_order(
    history: list[tuple[str, int]], retries: int, run_missed: bool
) -> None:
    entries = [
        entry("a", 15, retries=retries, run_missed=run_missed),
        entry("b", 0, moments=cron("*/20 * * * *", ZoneInfo("UTC")), when="b", retries=retries),
        entry("c", 35, only_after=("a", "b"), retries=retries, run_missed=run_missed),
    ]
    now = 7 * M
    jobs = taken_over(entries, {}, now, LEASE_MS)
    over: dict[str, int] = {"a": 0, "b": 0, "c": 0}
    tries: dict[tuple[str, int], int] = {}
    for outcome, minutes in history:
        action = decide(entries, jobs, now)
        match action:
            case Wait(until_ms):
                assert until_ms > now
                now = until_ms
            case Skip(one, due_ms, _):
                assert due_ms > over[one.name] and one.only_after
                over[one.name] = due_ms
                jobs = skipped(jobs, action, now)
            case Begin(one, due_ms, attempt):
                assert over[one.name] < due_ms <= now and one.moments.before(due_ms) == due_ms
                tries[one.name, due_ms] = tries.get((one.name, due_ms), 0) + 1
                assert attempt <= retries + 1
                assert all(jobs[name].ended_well and jobs[name].due_ms is None for name in one.only_after)
                jobs = began(jobs, action, now)
                now += minutes * M
                if outcome == "killed":
                    jobs = taken_over(entries, jobs, now, LEASE_MS)
                    # Of a job that missed moments meanwhile those are passed over, if it is told to.
                else:
                    jobs = ended(jobs, one, outcome, "", minutes * 60.0, now)
                if outcome in (DONE, FINDINGS) or jobs[one.name].due_ms is None:
                    over[one.name] = due_ms
        assert all(len(job.runs) <= RUNS_KEPT and job.began_ms is None for job in jobs.values())
    counted = [run for job in jobs.values() for run in job.runs if run.outcome in (DONE, FINDINGS)]
    for name, job in jobs.items():
        good = [run.due_ms for run in job.runs if run.outcome in (DONE, FINDINGS)]
        assert good == sorted(set(good)), name
    assert len(counted) <= len(history)
