"""The loop of a worker: against a queue in memory for what its timing means, and whole against a server.
No test waits for a length of time: heartbeats and stops happen when the test makes them happen."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from headwater.client import Headwater, NotAQueue, Reject, Retry, Unavailable, Worker
from headwater.client.values import Extended, ExtendedJob, FailedJob, JobFacts
from headwater.client.worker import REASON_BYTES_MAX
from tests.client.conftest import IMPATIENT, Connect
from tests.client.faulty_proxy import LoseAnswer, LoseRequest, Proxy
from tests.client.serving import Told

# --- a queue in memory ----------------------------------------------------------------------------------------


@dataclass
class HeldJob:
    facts: JobFacts
    source: Source
    settled: bool = False

    async def ack(self) -> None:
        self.settled = True
        self.source.done.append(("ack", self.facts.seq))

    async def nack(self, *, delay: Any = None, reason: str | None = None) -> None:
        self.settled = True
        self.source.done.append(("nack", self.facts.seq, delay, reason))


@dataclass
class Source:
    """Plays claims: each is a list of jobs' data, or a failure to raise. Then it stops the worker and gives nothing."""

    claims: deque[Any] = field(default_factory=deque)
    done: list[Any] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    extends: list[list[int]] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    extended: asyncio.Event = field(default_factory=asyncio.Event)
    at_the_end: Callable[[], None] = lambda: None
    _seq: int = 0

    async def claim(self, count_max: int, lease: float, node: str, wait_s: float) -> list[HeldJob]:
        self.asked.append(count_max)
        if not self.claims:
            self.at_the_end()
            await asyncio.sleep(0)
            return []
        claim = self.claims.popleft()
        if callable(claim):
            claim = claim()
        if isinstance(claim, Exception):
            raise claim
        return [self._job(data) for data in claim]

    def _job(self, data: Any) -> HeldJob:
        self._seq += 1
        return HeldJob(JobFacts(self._seq, 7, 0, 1, 0, data), self)

    async def extend(self, jobs: Sequence[JobFacts], lease: float) -> Extended:
        self.extends.append([job.seq for job in jobs])
        self.extended.set()
        failed = [FailedJob(job.seq, "lease_lost") for job in jobs if job.seq in self.lost]
        return Extended([ExtendedJob(job.seq, 1) for job in jobs if job.seq not in self.lost], failed)

    def in_thread(self, job: JobFacts) -> HeldJob:
        return HeldJob(job, self)


async def at_once(_: float) -> None:
    await asyncio.sleep(0)


def worked(source: Source, function: Callable[[Any], Any], **more: Any) -> int:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Source]:
        yield source

    options = {"concurrency": 2, "lease": 30.0, "max_jobs": None, "node": "n", **more}
    worker = Worker(function, opened, sleep=at_once, **options)
    source.at_the_end = worker.stop
    return worker.run()


async def nothing(job: Any) -> None:
    pass


def test_jobs_are_acked_when_the_function_returns() -> None:
    source = Source(deque([["a", "b"], ["c"]]))
    assert worked(source, nothing) == 3
    assert sorted(source.done) == [("ack", 1), ("ack", 2), ("ack", 3)]


def test_no_more_jobs_are_claimed_than_can_run() -> None:
    source = Source()
    running: set[int] = set()
    most = 0

    async def counted(job: HeldJob) -> None:
        nonlocal most
        running.add(job.facts.seq)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.discard(job.facts.seq)

    source.claims.extend([["a"], ["b", "c"], ["d"]])
    assert worked(source, counted, concurrency=3) == 4
    assert most <= 3
    assert all(1 <= count <= 3 for count in source.asked)
    many = Source()
    assert worked(many, nothing, concurrency=5_000) == 0 and many.asked == [1_000]


def test_what_the_function_raises_decides_how_the_job_is_given_back(caplog: pytest.LogCaptureFixture) -> None:
    async def raising(job: HeldJob) -> None:
        raise job.facts.data

    raised = [Retry(delay=60), Reject("no such customer"), ValueError("bad"), SystemExit(3), asyncio.CancelledError()]
    source = Source(deque([[one] for one in raised]))
    assert worked(source, raising) == 5
    assert sorted(source.done) == [
        ("nack", 1, 60, "retry"),
        ("nack", 2, 0, "rejected: no such customer"),
        ("nack", 3, None, "ValueError: bad"),
        ("nack", 4, None, "SystemExit: 3"),
        ("nack", 5, None, "CancelledError: "),
    ]
    assert [record.message for record in caplog.records if record.exc_info] == [
        f"job {seq} failed, delivery 1" for seq in (3, 4, 5)
    ]


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Formats(logging.Formatter):
    """Writes exceptions itself, as the JSON formatter of PySpark does."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.getMessage()} {record.exc_info and str(record.exc_info[1])}".encode().decode()


class Raising(logging.Handler):
    """Raises what its formatter raises, as the handler of pytest does."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(Formats())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


UNSPEAKABLE = [
    (ValueError("file \udcff is broken"), "ValueError: file \\udcff is broken"),
    (Retry(reason="\ud83d half"), "\\ud83d half"),
    (Retry(reason=Speechless()), "it has no text"),  # type: ignore[arg-type]
    (Reject("bad \udc80"), "rejected: bad \\udc80"),
    (Reject(ValueError("no text")), "rejected: no text"),  # type: ignore[arg-type]
    (Reject(Speechless()), "rejected: it has no text"),  # type: ignore[arg-type]
    (ValueError("é" * 2_000), "ValueError: " + "é" * 494),
    (Speechless(), "Speechless: it has no text"),
]


@pytest.mark.parametrize(("why", "reason"), UNSPEAKABLE, ids=[str(n) for n in range(len(UNSPEAKABLE))])
@pytest.mark.parametrize("handler", [logging.NullHandler, Raising])
def test_whatever_text_an_exception_has_its_job_is_given_back_with_a_reason_that_can_be_sent(
    why: Exception, reason: str, handler: type[logging.Handler], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(deque([["a"], ["b"]]))

    async def fails(job: HeldJob) -> None:
        if job.facts.data == "a":
            raise why

    heard = logging.getLogger("headwater.worker")
    monkeypatch.setattr(heard, "handlers", [handler()])
    monkeypatch.setattr(heard, "propagate", False)  # pytest cannot send such texts from one process to another
    assert worked(source, fails) == 2
    assert sorted((done[0], done[1]) for done in source.done) == [("ack", 2), ("nack", 1)]
    (told,) = [done[3] for done in source.done if done[0] == "nack"]
    assert told == reason
    assert len(told.encode()) <= REASON_BYTES_MAX


@pytest.mark.parametrize("delay", ["soon", float("nan"), -1, None])
def test_a_delay_that_is_none_fails_the_job_where_it_is_given(delay: Any) -> None:
    source = Source(deque([["a"], ["b"]]))

    async def fails(job: HeldJob) -> None:
        if job.facts.data == "a":
            raise Retry(delay=delay)

    assert worked(source, fails) == 2
    told = {done[1]: done for done in source.done}
    assert told[1][:3] == ("nack", 1, None) and told[1][3].startswith(("ValueError: ", "TypeError: "))
    assert told[2] == ("ack", 2)


def test_a_job_that_cannot_be_settled_for_any_reason_does_not_end_the_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Source(deque([["a"], ["b"]]))

    async def broken() -> None:
        raise Speechless

    def job_of(data: Any) -> HeldJob:
        job = Source._job(source, data)
        if data == "a":
            job.ack = broken  # type: ignore[method-assign]
        return job

    source._job = job_of  # type: ignore[method-assign]
    assert worked(source, nothing) == 2
    assert source.done == [("ack", 2)]
    assert [line for line in caplog.messages if "job 1 is not settled and will come again: it has no text" in line]


def test_a_job_that_the_function_settled_itself_is_left_alone() -> None:
    async def acking(job: HeldJob) -> None:
        await job.ack()

    source = Source(deque([["a"]]))
    worked(source, acking)
    assert source.done == [("ack", 1)]


def test_leases_of_running_jobs_are_extended_until_they_end() -> None:
    source = Source()

    async def until_extended(job: HeldJob) -> None:
        source.extended.clear()
        await source.extended.wait()

    source.claims.append(["a", "b"])
    worked(source, until_extended)
    assert [1, 2] in source.extends
    assert sorted(source.done) == [("ack", 1), ("ack", 2)]


def test_a_lost_lease_is_told_once_and_not_extended_again(caplog: pytest.LogCaptureFixture) -> None:
    source = Source(lost={1})

    async def until_extended_thrice(job: HeldJob) -> None:
        while len(source.extends) < 3:
            source.extended.clear()
            await source.extended.wait()

    source.claims.append(["a", "b"])
    worked(source, until_extended_thrice)
    assert source.extends[:3] == [[1, 2], [2], [2]]
    assert len([line for line in caplog.messages if "lost while it runs" in line]) == 1


def test_a_server_that_is_away_is_waited_for_and_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    away = Unavailable("unreachable", "away", passing=True)
    source = Source(deque([away, away, ["a"], away]))
    assert worked(source, nothing) == 1
    assert len([line for line in caplog.messages if "cannot claim" in line]) == 2


def test_a_failure_that_lasts_ends_the_worker_after_its_jobs() -> None:
    source = Source()
    release = asyncio.Event()

    async def held(job: HeldJob) -> None:
        await release.wait()

    def refused() -> Exception:
        release.set()
        return NotAQueue("not_a_queue", "no queue")

    source.claims.extend([["a"], refused])
    with pytest.raises(NotAQueue):
        worked(source, held)
    assert source.done == [("ack", 1)]


def test_after_so_many_jobs_it_ends() -> None:
    source = Source(deque([["a", "b"], ["c"], ["d"]]))
    assert worked(source, nothing, max_jobs=3) == 3
    assert source.asked == [2, 1]


def test_what_a_claim_brings_after_a_stop_is_given_back() -> None:
    source = Source()

    def stop_meanwhile() -> list[str]:
        source.at_the_end()
        return ["late"]

    async def slow_claim(*args: Any) -> list[HeldJob]:
        jobs = await Source.claim(source, *args)
        await asyncio.sleep(0)
        return jobs

    source.claims.append(stop_meanwhile)
    source.claim = slow_claim  # type: ignore[method-assign]
    assert worked(source, nothing) == 0
    assert source.done == [("nack", 1, 0, "the worker stopped")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_running_jobs_finish(number: int) -> None:
    source, begun = Source(), list[str]()

    async def signalled(job: HeldJob) -> None:
        begun.append("begun")
        os.kill(os.getpid(), number)
        await source.extended.wait()
        begun.append("ended")

    source.claims.append(["a"])
    before = signal.getsignal(number)
    assert worked(source, signalled, concurrency=1) == 1
    assert begun == ["begun", "ended"]
    assert source.done == [("ack", 1)]
    assert signal.getsignal(number) == before


def test_a_plain_function_runs_in_a_thread_and_several_at_once() -> None:
    together = threading.Barrier(2, timeout=30)
    threads: set[str] = set()

    def both(job: HeldJob) -> None:
        together.wait()
        threads.add(threading.current_thread().name)

    source = Source(deque([["a", "b"]]))
    assert worked(source, both) == 2
    assert len(threads) == 2 and threading.main_thread().name not in threads


def test_calling_a_worker_calls_its_function() -> None:
    worker = Worker(lambda job: job + 1, lambda: None, concurrency=1, lease=1, max_jobs=None, node=None)  # type: ignore[arg-type,return-value]
    assert worker(1) == 2
    with pytest.raises(ValueError, match="positive"):
        Worker(lambda job: job, lambda: None, concurrency=0, lease=1, max_jobs=None, node=None)  # type: ignore[arg-type,return-value]


def test_a_function_with_a_yield_is_refused_because_nothing_of_it_would_run() -> None:
    async def pages(job: Any) -> AsyncIterator[Any]:
        yield job

    for function in (pages, lambda job: (yield job)):
        with pytest.raises(TypeError, match="yield"):
            worked(Source(), function)


def test_a_job_whose_function_returns_work_that_is_not_done_is_given_back() -> None:
    for function in (lambda job: nothing(job), lambda job: (page for page in job.facts.data)):
        source = Source(deque([["a"]]))
        assert worked(source, function) == 1
        (done,) = source.done
        assert done[:3] == ("nack", 1, None) and "not yet run" in done[3]


def test_a_plain_function_that_raises_stop_iteration_ends_its_job() -> None:
    source = Source(deque([["a"], ["b"]]))
    assert worked(source, lambda job: next(iter(())), concurrency=1) == 2
    assert source.done == [("nack", seq, None, "RuntimeError: StopIteration") for seq in (1, 2)]


# --- a whole queue --------------------------------------------------------------------------------------------


def test_a_queue_is_worked_until_it_is_empty(hw: Any, name: str) -> None:
    queue = hw.queue(name)
    queue.create()
    queue.put_many(range(20))
    done: list[int] = []

    @queue.worker(concurrency=4, lease=60)
    def collect(job: Any) -> None:
        done.append(job.data)

    with Headwater(hw.url) as beside:
        thread = threading.Thread(target=lambda: collect.run(until_empty=True))
        thread.start()
        thread.join(60)
        stats = beside.queue(name).stats()
    assert sorted(done) == list(range(20))
    assert (stats.ready, stats.leased) == (0, 0)


def test_a_worker_needs_no_options(topics_url: str, name: str) -> None:
    with Headwater(topics_url) as hw:
        queue = hw.queue(name)
        queue.create()
        queue.put("job")

        @queue.worker
        def ignore(job: Any) -> None: ...

        assert ignore.run(until_empty=True) == 1


def test_a_function_of_either_kind_gets_a_job_it_can_use(topics_url: str, name: str) -> None:
    seen: list[Any] = []
    with Headwater(topics_url) as hw:
        queue = hw.queue(name)
        queue.create()
        queue.put_many(["thread", "loop"])

        @queue.worker(max_jobs=1)
        def in_thread(job: Any) -> None:
            job.extend(120)
            seen.append((job.data, job.deliveries))
            job.ack()

        @queue.worker(max_jobs=1)
        async def on_loop(job: Any) -> None:
            await job.extend(120)
            seen.append((job.data, job.deliveries))

        assert in_thread.run() == 1
        assert on_loop.run() == 1
        assert queue.stats().leased == 0
    assert seen == [("thread", 1), ("loop", 1)]


def test_a_failing_job_is_tried_again_and_ends_with_the_dead_letters(
    topics_url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "headwater.worker")
    deliveries: list[int] = []
    with Headwater(topics_url) as hw:
        queue = hw.queue(name)
        queue.create(max_deliveries=3, dead_letter=f"{name}-dead")
        queue.put("poison")

        @queue.worker(lease=60)
        def failing(job: Any) -> None:
            deliveries.append(job.deliveries)
            raise ValueError("never")

        failing.run(until_empty=True)
        (letter,) = hw.topic(f"{name}-dead").records()
    assert deliveries == [1, 2, 3]
    assert letter.data == "poison"
    assert letter.meta["dead_letter"]["reason"] == "ValueError: never"


def test_a_worker_lives_through_lost_answers_and_settles_each_job_once(
    topics_url: str, lossy: Proxy, name: str
) -> None:
    done: list[int] = []
    with Headwater(topics_url) as beside, Headwater(lossy.url, retries=IMPATIENT) as hw:
        beside.queue(name).create()
        beside.queue(name).put_many(range(10))
        lossy.meant = lambda method, path: path.endswith("/ack")
        lossy.faults.extend([LoseAnswer(), LoseRequest(), Told(503)] * 5)

        @hw.queue(name).worker(concurrency=3, lease=60, max_jobs=10)
        def collect(job: Any) -> None:
            done.append(job.data)

        assert collect.run() == 10
        stats = beside.queue(name).stats()
    assert sorted(done) == list(range(10))
    assert (stats.ready, stats.leased) == (0, 0)


def test_working_a_topic_without_a_queue_says_so(connect: Connect, topics_url: str, name: str) -> None:
    hw = connect(topics_url)
    hw.topic(name).create()
    worker = hw.queue(name).worker()(nothing)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except NotAQueue as why:
            failures.append(why)

    thread = threading.Thread(target=run)  # The test may have a loop of its own.
    thread.start()
    thread.join(60)
    assert len(failures) == 1
