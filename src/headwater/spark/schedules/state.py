"""What a schedule has done and has to do next: a pure state, and what each event makes of it.

Owns the rules: which moment of which job is next, what is tried again, what counts as missed. Never looks at a clock,
and never runs anything. One job runs at a time.

A moment of a job is done with once it is begun, or passed over: `since_ms`. Moments that come while it is late are one:
the newest. `due_ms` is a moment that was begun and is to be tried again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from headwater.spark.job_runs import DONE, FAILED
from headwater.spark.schedules.file import BACKOFF_MS_MAX, Entry

RUNS_KEPT = 10
ERROR_CHARS_MAX = 300
CLOCK_BACK_MS = 86_400_000
"""A moment that far in the future was written by a clock that was wrong."""
STOPPED, INTERRUPTED, SKIPPED = "stopped", "interrupted", "skipped"
"""How else a run ended: its server was told to stop; its server went away; it was passed over."""


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    due_ms: int
    at_ms: int
    """When it began, or was passed over."""
    outcome: str
    """`done`, `findings`, `failed`, or one of the above."""
    seconds: float = 0.0
    error: str = ""
    attempt: int = 1


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job of a schedule."""

    when: str
    since_ms: int
    due_ms: int | None = None
    attempt: int = 0
    """How often that moment was begun."""
    retry_ms: int = 0
    began_ms: int | None = None
    """Set while it runs."""
    next_ms: int = 0
    """For whoever looks: when it is due, or was when it began to wait for others."""
    runs: list[Run] = []
    """The last ones, newest last."""

    @property
    def ended_well(self) -> bool:
        return bool(self.runs) and self.runs[-1].outcome == DONE


Jobs = Mapping[str, Job]


class Begin(NamedTuple):
    entry: Entry
    due_ms: int
    attempt: int


class Skip(NamedTuple):
    entry: Entry
    due_ms: int
    why: str


class Wait(NamedTuple):
    until_ms: int


def taken_over(entries: Sequence[Entry], jobs: Jobs, now_ms: int, grace_ms: int) -> dict[str, Job]:
    """The jobs as a server finds them that begins to serve. What came up to `grace_ms` ago is late, and not missed."""
    found: dict[str, Job] = {}
    for entry in entries:
        job = jobs.get(entry.name)
        if job is None or job.when != entry.when or job.since_ms > now_ms + CLOCK_BACK_MS:
            job = Job(entry.when, now_ms, runs=[] if job is None else job.runs)
        if job.began_ms is not None:
            job = _ended(entry, job, INTERRUPTED, "its server went away", job.began_ms, now_ms)
        newest = entry.moments.before(now_ms)
        if newest > job.since_ms and not entry.run_missed and newest < now_ms - grace_ms:
            job = _closed(job, Run(newest, now_ms, SKIPPED, error="nobody served the schedule then"))
        found[entry.name] = _told(entry, job, now_ms)
    return found


def decide(entries: Sequence[Entry], jobs: Jobs, now_ms: int) -> Begin | Skip | Wait:
    """What to do now: the oldest moment that is due, of those of one time the first in the file."""
    ready = [(found.due_ms, number, found) for number, found in enumerate(_ready(entries, jobs, now_ms))]
    waiting = {found.entry.name for _, _, found in ready} | {
        name for name, job in jobs.items() if job.due_ms is not None
    }
    for _, _, found in sorted(ready):
        others = found.entry.only_after
        if any(name in waiting for name in others):
            continue  # they come first
        if bad := [name for name in others if not jobs[name].ended_well]:
            return Skip(found.entry, found.due_ms, f"{', '.join(bad)} did not end well")
        return found
    moments = [entry.moments.after(now_ms) for entry in entries]
    retries = [job.retry_ms for job in jobs.values() if job.due_ms is not None and job.retry_ms > now_ms]
    return Wait(min(moments + retries))


def _ready(entries: Sequence[Entry], jobs: Jobs, now_ms: int) -> list[Begin]:
    found: list[Begin] = []
    for entry in entries:
        job = jobs[entry.name]
        newest = entry.moments.before(now_ms)
        if newest > job.since_ms:
            found.append(Begin(entry, newest, 1))
        elif job.due_ms is not None and job.retry_ms <= now_ms:
            found.append(Begin(entry, job.due_ms, job.attempt + 1))
    return found


def began(jobs: Jobs, begin: Begin, now_ms: int) -> dict[str, Job]:
    entry = begin.entry
    job = msgspec.structs.replace(
        jobs[entry.name],
        since_ms=max(begin.due_ms, jobs[entry.name].since_ms),
        due_ms=begin.due_ms,
        attempt=begin.attempt,
        began_ms=now_ms,
    )
    return {**jobs, entry.name: _told(entry, job, now_ms)}


def ended(jobs: Jobs, entry: Entry, outcome: str, error: str, seconds: float, now_ms: int) -> dict[str, Job]:
    """Of the job that runs. One that failed is tried again, unless that was the last time."""
    job = jobs[entry.name]
    if job.began_ms is None:
        raise ValueError(f"{entry.name} does not run")
    job = _ended(entry, job, outcome, error, job.began_ms, now_ms, seconds)
    return {**jobs, entry.name: _told(entry, job, now_ms)}


def skipped(jobs: Jobs, skip: Skip, now_ms: int) -> dict[str, Job]:
    run = Run(skip.due_ms, now_ms, SKIPPED, error=skip.why)
    return {**jobs, skip.entry.name: _told(skip.entry, _closed(jobs[skip.entry.name], run), now_ms)}


def _ended(entry: Entry, job: Job, outcome: str, error: str, began_ms: int, now_ms: int, seconds: float = 0.0) -> Job:
    due_ms = job.since_ms if job.due_ms is None else job.due_ms
    run = Run(due_ms, began_ms, outcome, round(seconds, 3), error[:ERROR_CHARS_MAX], job.attempt)
    if outcome == STOPPED:  # not the job's fault: that attempt does not count
        again = _closed(job, run)
        return msgspec.structs.replace(again, due_ms=due_ms, attempt=job.attempt - 1, retry_ms=now_ms)
    if outcome in (FAILED, INTERRUPTED) and job.attempt <= entry.retries:
        pause_ms = min(entry.backoff_ms << (job.attempt - 1), BACKOFF_MS_MAX)
        again = _closed(job, run)
        return msgspec.structs.replace(again, due_ms=due_ms, attempt=job.attempt, retry_ms=now_ms + pause_ms)
    return _closed(job, run)


def _closed(job: Job, run: Run) -> Job:
    runs = [*job.runs, run][-RUNS_KEPT:]
    since_ms = max(job.since_ms, run.due_ms)
    return msgspec.structs.replace(job, since_ms=since_ms, due_ms=None, attempt=0, retry_ms=0, began_ms=None, runs=runs)


def _told(entry: Entry, job: Job, now_ms: int) -> Job:
    newest = entry.moments.before(now_ms)
    if newest > job.since_ms:
        next_ms = newest
    else:
        next_ms = entry.moments.after(now_ms)
        if job.due_ms is not None and job.began_ms is None:
            next_ms = min(next_ms, job.retry_ms)
    return msgspec.structs.replace(job, next_ms=next_ms)
