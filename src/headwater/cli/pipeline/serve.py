"""`headwater pipeline serve`, and what `status` shows of schedules.
Owns the process: its signals, its Spark session, and what it says. Never decides what is due."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from headwater.cli.pipeline.common import URL_DEFAULT, Master, Token, Verbose, telling
from headwater.client.connection import printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.ports import SystemClock
    from headwater.spark.schedules.file import Entry, Schedule
    from headwater.spark.schedules.ledger import State
    from headwater.spark.schedules.serving import Ended, Interrupted, Work

LEDGER_PATIENCE_S = 5.0
"""A call about the schedule's own state: who waits for it has a job to look after."""
MOMENTS_SHOWN = 3


def _clock() -> SystemClock:
    # Not loaded at the top: every command would load asyncio with it.
    from headwater.ports import SYSTEM_CLOCK

    return SYSTEM_CLOCK


class Process:
    """The `World` of a server: this process, its clocks and the signals that it gets."""

    def __init__(self) -> None:
        clock = _clock()
        self.now_ms = clock.now_ms
        self.monotonic_s = clock.monotonic_s
        self._stopping = threading.Event()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def wait(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def listen(self) -> None:
        """From now on SIGTERM and SIGINT only say that the server is to stop. A new Spark session takes SIGINT away."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopping.set())


class Sessions:
    """The one session of all jobs."""

    def __init__(self, schedule: Schedule, master: str | None, verbose: bool) -> None:
        self._schedule, self._master, self._verbose = schedule, master, verbose
        self._spark: SparkSession | None = None

    def start(self) -> None:
        """Raises SparkMissing."""
        from headwater.spark.failures import quiet
        from headwater.spark.session import session

        name = f"headwater schedule {self._schedule.name}"
        master = self._master or self._schedule.master
        self._spark = session(name, master, verbose=self._verbose, settings=self._schedule.spark)
        if not self._verbose:
            quiet(self._spark)

    def get(self) -> SparkSession:
        if self._spark is None:
            raise RuntimeError("the session was not started")
        return self._spark

    def cancel(self) -> None:
        """What runs on Spark ends, and queries that a job has left behind."""
        if self._spark is None:
            return
        with suppress(Exception):
            for query in self._spark.streams.active:
                query.stop()
        with suppress(Exception):
            from headwater.spark.failures import is_connect

            if is_connect(self._spark):
                self._spark.interruptAll()
            else:
                self._spark.sparkContext.cancelAllJobs()

    def works(self) -> bool:
        """Whether Spark's driver still answers. Runs nothing: there may be no executor just now."""
        from headwater.spark.failures import is_connect

        try:
            spark = self.get()
            return bool(spark.version) and (is_connect(spark) or not spark.sparkContext._jsc.sc().isStopped())
        except Exception:
            return False

    def stop(self) -> None:
        if self._spark is not None:
            with suppress(Exception):
                self._spark.stop()


def serve(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The schedule: a .toml file.")],
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether it would run, and when each job is due.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", envvar="HEADWATER_URL", help="Address of the node; else the file's."),
    ] = None,
    token: Token = None,
    master: Master = None,
    verbose: Verbose = False,
) -> None:
    """Run jobs at their times, on one Spark session, until told to stop.

    The whole file is checked before anything runs. What ran when is kept on the
    node: a server that is started again, here or elsewhere, goes on, and of
    several servers of one schedule one runs its jobs. SIGTERM and SIGINT end the
    job that runs, and the exit code is 0 then.

        headwater pipeline serve schedule.toml
    """
    with telling():
        from headwater.cli.pipeline.scheduled_jobs import complaints
        from headwater.spark.schedules.file import load

        commands = context.parent.command.commands["run"].commands  # type: ignore[union-attr]
        schedule = load(file, partial(complaints, commands))
        if check:
            _show_moments(schedule)
            return
        address = url or schedule.url or URL_DEFAULT
        sessions = Sessions(schedule, master, verbose)
        _serve(schedule, sessions, address, token, partial(_work, commands, sessions, address, token))


def _serve(schedule: Schedule, sessions: Sessions, url: str, token: str | None, work: Work) -> None:
    from headwater.spark.job_runs import JobRefused
    from headwater.spark.node import Node
    from headwater.spark.schedules.ledger import Ledger
    from headwater.spark.schedules.serving import Gone, Server

    world = Process()
    ledger = Ledger(Node(url, token, LEDGER_PATIENCE_S), schedule.name)

    def prepare() -> None:
        sessions.start()
        world.listen()

    world.listen()
    _say(schedule.name, f"{ledger.server} begins, {len(schedule.entries)} jobs of {url}")
    try:
        Server(schedule, ledger, world, work, partial(_say, schedule.name)).run(prepare)
    except Gone as why:
        raise JobRefused(str(why), "start the server again: it goes on where it was") from None
    finally:
        sessions.stop()
    _say(schedule.name, "stopped")


def _work(
    commands: Mapping[str, Any],
    sessions: Sessions,
    url: str,
    token: str | None,
    entry: Entry,
    interrupted: Interrupted,
) -> Ended:
    from headwater.cli.pipeline.scheduled_jobs import run
    from headwater.spark.job_runs import FAILED
    from headwater.spark.schedules.running import in_thread

    work = partial(run, commands, entry.job, entry.options, url, token, sessions.get)
    done = in_thread(work, interrupted, sessions.cancel)
    if done.fatal or interrupted() is not None:
        return done
    sessions.cancel()
    if done.outcome == FAILED and not sessions.works():
        return done._replace(fatal=f"Spark is gone, {entry.name} ended with: {done.error}")
    return done


def _say(schedule: str, text: str) -> None:
    from headwater.spark.schedules.serving import shown

    typer.echo(printable(f"{shown(_clock().now_ms())} {schedule}: {text}"), err=True)


def _show_moments(schedule: Schedule) -> None:
    from headwater.spark.schedules.serving import shown

    now_ms = _clock().now_ms()
    for entry in schedule.entries:
        moments = [now_ms]
        for _ in range(MOMENTS_SHOWN):
            moments.append(entry.moments.after(moments[-1]))
        facts = {"name": entry.name, "job": entry.job, "next": [shown(moment) for moment in moments[1:]]}
        if sys.stdout.isatty():
            typer.echo(printable(f"{entry.name:<24} {entry.job:<10} {', '.join(facts['next'])}"))
        else:
            typer.echo(json.dumps(facts))


def show_schedules(states: Mapping[str, State], as_json: bool) -> None:
    """A line for each job of each schedule."""
    from headwater.spark.schedules.serving import shown

    for schedule, state in sorted(states.items()):
        for name, job in state.jobs.items():
            last = job.runs[-1] if job.runs else None
            facts: dict[str, Any] = {
                "schedule": schedule,
                "name": name,
                "server": None if state.released else state.server,
                "running_since_ms": job.began_ms,
                "next_ms": job.next_ms,
                "runs": msgspec.to_builtins(job.runs),
            }
            if as_json or not sys.stdout.isatty():
                typer.echo(json.dumps(facts))
                continue
            what = "never ran" if last is None else f"{last.outcome} at {shown(last.at_ms)}"
            now = f"runs since {shown(job.began_ms)}" if job.began_ms else f"next at {shown(job.next_ms)}"
            served = "" if facts["server"] else "  (no server)"
            error = f"  {last.error}" if last is not None and last.error else ""
            typer.echo(printable(f"{schedule}/{name:<20} {what}, {now}{served}{error}"))
