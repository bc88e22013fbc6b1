"""The loop of a worker: claim jobs, run a function for each, ack; give back what fails; end when it is told to.

Owns which jobs run, their heartbeats and what an exception of the function means. Knows a queue only by `JobSource`.

One task claims as many jobs as there are free places, so no job waits in the worker while another worker is idle. One
task runs each job: a plain function in a thread, a coroutine function on the loop. One task extends the leases of all
running jobs every third of a lease. After a stop nothing more is claimed, what a claim under way still brings is given
back, and the running jobs are finished.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from headwater.client.failures import HeadwaterError, LeaseLost, NotFound, Throttled, Unavailable
from headwater.client.values import Extended, JobFacts, milliseconds

log = logging.getLogger("headwater.worker")

CLAIM_WAIT_S = 2.0
"""How long a claim waits at the server. A stop waits for it too, so that no job is claimed by a worker that is gone."""
CLAIM_JOBS_MAX = 1_000
"""The server gives no more at once. A worker with more free places claims again."""
PAUSE_S_FIRST, PAUSE_S_MAX = 0.1, 5.0
REASON_BYTES_MAX = 1_000
"""Of the reason that a job is given back with. The server refuses 1,024 and more."""


class Retry(Exception):
    """Raised by a worker's function: give the job back, to be run again after `delay` (seconds or a timedelta).

    raise Retry(delay=60)
    """

    def __init__(self, delay: float | timedelta = 0.0, reason: str = "retry") -> None:
        super().__init__(reason)
        milliseconds(delay)  # A delay that cannot be sent fails here, where the traceback shows its line.
        self.delay, self.reason = delay, reason


class Reject(Exception):
    """Raised by a worker's function: this job will never succeed.

    The job is given back at once with the reason. The server moves it to the dead letters when its deliveries are used
    up: a queue has no way to do so earlier.

    raise Reject("no such customer")
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LeasedJob(Protocol):
    """A job that this worker holds."""

    @property
    def facts(self) -> JobFacts: ...

    @property
    def settled(self) -> bool: ...

    async def ack(self) -> None: ...

    async def nack(self, *, delay: float | timedelta | None = None, reason: str | None = None) -> Any: ...


class ThreadJob(Protocol):
    """The same job for a function that runs in a thread."""

    @property
    def settled(self) -> bool: ...


class JobSource(Protocol):
    """The queue as the loop needs it. `claim` and `extend` are one attempt; the jobs' own calls are patient."""

    async def claim(self, count_max: int, lease: float, node: str, wait_s: float) -> Sequence[LeasedJob]: ...

    async def extend(self, jobs: Sequence[JobFacts], lease: float) -> Extended: ...

    def in_thread(self, job: JobFacts) -> ThreadJob: ...


class Worker:
    """A function and how its jobs are run; made by `Queue.worker`. Calling it calls the function.

    @q.worker(concurrency=4, lease=30)
    def send(job):
        smtp.send(job.data["to"], job.data["text"])

    send.run()      # until SIGINT or SIGTERM
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        open_source: Callable[[], AbstractAsyncContextManager[JobSource]],
        *,
        concurrency: int,
        lease: float,
        max_jobs: int | None,
        node: str | None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if concurrency < 1 or lease <= 0:
            raise ValueError("concurrency and lease must be positive")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function!r} has a yield: calling it runs nothing of it, so its jobs would never be done")
        self.function, self.concurrency, self.lease, self.max_jobs = function, concurrency, lease, max_jobs
        self.node = node or f"{socket.gethostname()}-{os.getpid()}"
        self.__doc__, self.__name__ = function.__doc__, getattr(function, "__name__", "worker")
        self._open_source, self._sleep = open_source, sleep
        self._stopping: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False

    def __call__(self, job: Any) -> Any:
        return self.function(job)

    def run(self, *, until_empty: bool = False) -> int:
        """Works until `stop`, SIGINT, SIGTERM or `max_jobs`; `until_empty`: or until no job is ready. Blocks.

        Returns how many jobs it ran. A server that is away is waited for. Raises NotFound, NotAQueue and the like when
        there is no such queue.
        """
        return asyncio.run(self.serve(until_empty=until_empty))

    def stop(self) -> None:
        """Lets `run` finish the running jobs and return. From any thread."""
        self._stopped = True
        loop, stopping = self._loop, self._stopping
        if loop is not None and stopping is not None:
            with suppress(RuntimeError):  # The loop has ended meanwhile.
                loop.call_soon_threadsafe(stopping.set)

    async def serve(self, *, until_empty: bool = False) -> int:
        """As `run`, for a program that has an event loop. Cancelling it finishes the running jobs too."""
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        if self._stopped:
            self._stopping.set()
        threads = None if inspect.iscoroutinefunction(self.function) else ThreadPoolExecutor(self.concurrency)
        try:
            async with self._open_source() as source:
                with _signals(self._loop, self._stopping.set):
                    return await _Run(self, source, threads, self._stopping, self._sleep).work(until_empty)
        finally:
            self._loop = self._stopping = None
            self._stopped = False
            if threads is not None:
                threads.shutdown(wait=False)


class _Run:
    """One call of `serve`."""

    def __init__(
        self,
        worker: Worker,
        source: JobSource,
        threads: ThreadPoolExecutor | None,
        stopping: asyncio.Event,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._worker, self._source, self._threads = worker, source, threads
        self._stopping, self._sleep = stopping, sleep
        self._running: dict[int, JobFacts] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pause_s = 0.0

    async def work(self, until_empty: bool) -> int:
        heartbeat = asyncio.create_task(self._heartbeats())
        try:
            return await self._claims(until_empty)
        finally:
            if self._tasks:
                await asyncio.wait(self._tasks)
            heartbeat.cancel()
            await asyncio.gather(heartbeat, return_exceptions=True)

    async def _claims(self, until_empty: bool) -> int:
        worker, begun = self._worker, 0
        while not self._stopping.is_set():
            free = min(worker.concurrency - len(self._tasks), CLAIM_JOBS_MAX)
            if worker.max_jobs is not None:
                free = min(free, worker.max_jobs - begun)
                if begun >= worker.max_jobs:
                    break
            if not free:
                await self._until_one_ends()
                continue
            jobs = await self._claimed(free, until_empty)
            if self._stopping.is_set():
                await self._give_back(jobs)
                break
            if not jobs and until_empty:
                if not self._tasks:
                    break
                await self._until_one_ends()  # It may put further jobs, or be given back.
            for job in jobs:
                begun += 1
                self._running[job.facts.seq] = job.facts
                task = asyncio.create_task(self._perform(job))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return begun

    async def _until_one_ends(self) -> None:
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({stop, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()

    async def _claimed(self, count_max: int, until_empty: bool) -> Sequence[LeasedJob]:
        worker = self._worker
        wait_s = 0.0 if until_empty else CLAIM_WAIT_S
        try:
            jobs = await self._source.claim(count_max, worker.lease, worker.node, wait_s)
        except (Unavailable, Throttled) as why:
            if until_empty:
                raise
            if not self._pause_s:
                log.warning("cannot claim, trying again: %s", why)
            self._pause_s = min(max(PAUSE_S_FIRST, self._pause_s * 2), PAUSE_S_MAX)
            await self._pause(max(self._pause_s, min(why.retry_after_s, PAUSE_S_MAX)))
            return ()
        self._pause_s = 0.0
        return jobs

    async def _pause(self, seconds: float) -> None:
        stop, pause = asyncio.create_task(self._stopping.wait()), asyncio.ensure_future(self._sleep(seconds))
        await asyncio.wait({stop, pause}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        pause.cancel()

    async def _give_back(self, jobs: Sequence[LeasedJob]) -> None:
        for job in jobs:
            await self._settled(job.facts, job.nack(delay=0, reason="the worker stopped"))

    async def _perform(self, job: LeasedJob) -> None:
        facts = job.facts
        given: LeasedJob | ThreadJob = job
        settle: Callable[[], Awaitable[Any]] = job.ack
        try:
            if self._threads is None:
                result = await self._worker.function(job)
            else:
                given = self._source.in_thread(facts)
                loop = asyncio.get_running_loop()
                result = await loop.run_in_executor(self._threads, _called, self._worker.function, given)
            _demand_done(result)
        except Retry as why:
            settle = partial(job.nack, delay=why.delay, reason=_sendable(_text(why.reason)))
        except Reject as why:
            reason = _sendable(f"rejected: {_text(why.reason)}")
            settle = partial(job.nack, delay=0, reason=reason)
            _log(logging.WARNING, "job %d is %s", facts.seq, reason)
        except (Exception, asyncio.CancelledError, SystemExit) as why:
            settle = partial(job.nack, reason=_sendable(f"{type(why).__name__}: {_text(why)}"))
            _log(logging.ERROR, "job %d failed, delivery %d", facts.seq, facts.deliveries, exc_info=why)
        finally:
            # Before it is settled: a heartbeat for a job that is done would look like a lost lease.
            self._running.pop(facts.seq, None)
        if not given.settled:
            await self._settled(facts, settle())

    async def _settled(self, job: JobFacts, settling: Awaitable[Any]) -> None:
        """Whatever fails here, the job comes again when its lease ends; the loop goes on."""
        try:
            await settling
        except (LeaseLost, NotFound) as why:
            log.warning(
                "job %d may run twice: it ran longer than its lease, or the queue's node restarted: %s", job.seq, why
            )
        except Exception as why:
            _log(logging.ERROR, "job %d is not settled and will come again: %s", job.seq, _text(why))

    async def _heartbeats(self) -> None:
        lost: set[int] = set()
        while True:
            await self._sleep(self._worker.lease / 3)
            jobs = [job for seq, job in self._running.items() if seq not in lost]
            if not jobs:
                lost &= self._running.keys()
                continue
            try:
                told = await self._source.extend(jobs, self._worker.lease)
            except HeadwaterError as why:
                log.warning("leases are not extended, trying again: %s", why)
                continue
            for failed in told.failed:
                if failed.seq in self._running:
                    log.warning("the lease of job %d is lost while it runs; it may run twice", failed.seq)
                    lost.add(failed.seq)


def _called(function: Callable[[Any], Any], job: object) -> Any:
    """In a thread. A future that is given a StopIteration is never done in Python 3.11, and the job would never end."""
    try:
        return function(job)
    except StopIteration as why:
        raise RuntimeError("StopIteration") from why


def _demand_done(result: object) -> None:
    """A plain function that wraps one with `async` or `yield` returns work that nobody would do. Raises TypeError."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result) or inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            f"the function returned {type(result).__name__}, not yet run: give the worker the coroutine function itself"
        )


def _text(why: object) -> str:
    try:
        return str(why)
    except Exception:
        return "it has no text"


def _sendable(reason: str) -> str:
    """As UTF-8 can say it, and no longer than the server takes."""
    return reason.encode("utf-8", "backslashreplace")[:REASON_BYTES_MAX].decode("utf-8", "ignore")


def _log(level: int, text: str, *values: object, exc_info: BaseException | None = None) -> None:
    """Says it, without the traceback when that cannot be written: what handlers and formatters of the process do with
    an exception is not known here, and a job is given back whatever they raise."""
    for shown in (exc_info, None):
        try:
            return log.log(level, text, *values, exc_info=shown)
        except Exception:
            if shown is None:
                return


@contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Iterator[None]:
    """SIGINT and SIGTERM stop, once; the second has its usual effect. Only the main thread can have them."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    def heard() -> None:
        log.info("stopping: the running jobs are finished")
        for number in numbers:
            loop.remove_signal_handler(number)
        stop()

    try:
        for number in numbers:
            loop.add_signal_handler(number, heard)
    except (ValueError, RuntimeError, NotImplementedError):
        pass
    try:
        yield
    finally:
        for number in numbers:
            with suppress(ValueError, RuntimeError, NotImplementedError):
                loop.remove_signal_handler(number)
