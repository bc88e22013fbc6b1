"""A server of one schedule: it waits until the schedule is its own, then runs what is due, one job at a time.

Owns the order of claim, state and work: a moment is written down as begun before its job begins, under an epoch that
only this server has. So of several servers one begins it. Time, waiting, signals and the work itself are handed in.

A server that could not say for two thirds of the lease that it is still there stops its job; another one claims the
schedule when it has seen nothing of it for the whole lease. Both measure by clocks that nobody sets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from headwater.spark.job_runs import FAILED
from headwater.spark.node import NodeError, NodeRefused
from headwater.spark.schedules.file import Entry, Schedule
from headwater.spark.schedules.ledger import Fenced, Ledger
from headwater.spark.schedules.state import (
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

LOOK_S = 5.0
"""So often a server that waits for another one, or for the node, looks again."""
WAIT_S_MAX = 20.0
"""Of waiting for a moment: a clock that is set is noticed after it."""
STOPPING, LOST, LATE = "the server was told to stop", "the schedule is another server's now", "it took longer than "


class World(Protocol):
    def now_ms(self) -> int: ...

    def monotonic_s(self) -> float: ...

    def wait(self, seconds: float) -> None:
        """Returns early when the server is told to stop."""
        ...

    @property
    def stopping(self) -> bool: ...


class Ended(NamedTuple):
    outcome: str
    error: str = ""
    fatal: str = ""
    """Why nothing more can be run in this process."""


Interrupted = Callable[[], str | None]
"""Why the job that runs has to end now, or None."""
Work = Callable[[Entry, Interrupted], Ended]
Say = Callable[[str], None]


Keeping = Callable[["Keeper", float], AbstractContextManager[None]]


class Lost(Exception):
    """The schedule is not this server's any more, or may not be."""


class Gone(Exception):
    """This process can run nothing more. The message says why."""


class Keeper:
    """Renews a claim. Whoever works asks `lost` before anything that others could do at the same time."""

    def __init__(self, ledger: Ledger, lease_ms: int, world: World, say: Say, claimed_s: float) -> None:
        """`claimed_s`: a moment before the claim was sent."""
        self._ledger, self._lease_ms, self._world, self._say = ledger, lease_ms, world, say
        self._kept_s = claimed_s
        self._fenced = False
        self._silent = False

    def renew(self) -> None:
        began_s = self._world.monotonic_s()
        try:
            self._ledger.renew(self._world.now_ms())
        except Fenced:
            self._fenced = True
        except NodeError as why:
            if not self._silent:
                self._say(f"the node does not answer, waiting for it: {why}")
            self._silent = True
        else:
            self._kept_s = began_s
            self._silent = False

    def lost(self) -> str | None:
        if self._fenced:
            return LOST
        if self._world.monotonic_s() - self._kept_s > self._lease_ms / 1_500:
            return f"the node did not answer for {self._lease_ms / 1_500:.0f} s"
        return None

    def require(self) -> None:
        """Raises Lost."""
        if (why := self.lost()) is not None:
            raise Lost(why)


@contextmanager
def renewing(keeper: Keeper, every_s: float) -> Iterator[None]:
    """Renews in a thread while the block runs."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(every_s):
            keeper.renew()

    thread = threading.Thread(target=renew, daemon=True, name="headwater-schedule-lease")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(every_s)


class Server:
    def __init__(self, schedule: Schedule, ledger: Ledger, world: World, work: Work, say: Say) -> None:
        self._schedule, self._ledger, self._world, self._work, self._say = schedule, ledger, world, work, say
        self._entries = schedule.entries
        self._jobs: dict[str, Job] = {}
        self._is_known = False
        """Nobody has served the schedule since this server did: what it has in mind counts, and was not all written."""

    def run(self, prepare: Callable[[], None] = lambda: None, keeping: Keeping = renewing) -> None:
        """Until it is told to stop. Raises Gone, and NodeRefused for what waiting does not mend.

        `prepare` is called once, before the first job.
        """
        prepared = False
        while (claimed_s := self._take()) is not None:
            keeper = Keeper(self._ledger, self._schedule.lease_ms, self._world, self._say, claimed_s)
            try:
                with keeping(keeper, self._schedule.lease_ms / 4_000):
                    if not prepared:
                        self._prepare(prepare)
                        prepared = True
                    self._serve(keeper)
                    self._release()
                    return
            except (Lost, Fenced) as why:
                self._say(f"it waits until it may serve the schedule again: {why}")

    # ---- whose it is ----------------------------------------------------------------------------------------------

    def _take(self) -> float | None:
        """Waits until the schedule is this server's: a moment before it was. None when it was told to stop."""
        seen_s: float | None = None
        told = ""
        self._ledger.forget()
        while not self._world.stopping:
            try:
                new = self._ledger.read()
                state = self._ledger.state
                now_s = self._world.monotonic_s()
                if new or seen_s is None:
                    seen_s = now_s
                mine = state is None or state.released or state.server == self._ledger.server
                if mine or (state is not None and now_s - seen_s > state.lease_ms / 1_000):
                    self._is_known = state is None or state.server == self._ledger.server
                    if self._ledger.claim(self._schedule.lease_ms, self._world.now_ms()):
                        return now_s
                    self._ledger.forget()
                    seen_s = None
                    continue
                waits = "" if state is None else f"{state.server} serves it, or did until now; waiting for its end"
            except NodeRefused as refused:
                if refused.status in (400, 401, 403):
                    raise
                waits, seen_s = f"waiting for the node: {refused}", None
                self._ledger.forget()
            except NodeError as why:
                waits, seen_s = f"waiting for the node: {why}", None
            if waits != told:
                self._say(waits)
                told = waits
            self._world.wait(LOOK_S)
        return None

    def _prepare(self, prepare: Callable[[], None]) -> None:
        try:
            prepare()
        except BaseException:  # another server need not wait for this one
            state = self._ledger.state
            self._jobs = {} if state is None else state.jobs
            self._release()
            raise

    def _release(self) -> None:
        try:
            self._ledger.write(self._jobs, self._world.now_ms(), released=True)
        except (Fenced, NodeError) as why:
            self._say(f"it could not give the schedule back; another server waits for its lease to end: {why}")

    # ---- what is due ----------------------------------------------------------------------------------------------

    def _serve(self, keeper: Keeper) -> None:
        state = self._ledger.state
        now_ms = self._world.now_ms()
        known = self._jobs if self._is_known else {} if state is None else state.jobs
        self._jobs = taken_over(self._entries, known, now_ms, self._schedule.lease_ms)
        self._write(keeper, self._jobs)
        for entry in self._entries:
            self._say(f"{entry.name}: next at {shown(self._jobs[entry.name].next_ms)}")
        while not self._world.stopping:
            keeper.require()
            action = decide(self._entries, self._jobs, self._world.now_ms())
            match action:
                case Begin():
                    self._run(keeper, action)
                case Skip(entry, due_ms, why):
                    self._say(f"{entry.name}: passed over at {shown(due_ms)}: {why}")
                    self._write(keeper, skipped(self._jobs, action, self._world.now_ms()))
                case Wait(until_ms):
                    left_s = (until_ms - self._world.now_ms()) / 1_000
                    self._world.wait(min(max(left_s, 0.001), WAIT_S_MAX))

    def _run(self, keeper: Keeper, begin: Begin) -> None:
        entry = begin.entry
        self._write(keeper, began(self._jobs, begin, self._world.now_ms()))
        if self._world.stopping:
            self._jobs = ended(self._jobs, entry, STOPPED, STOPPING, 0.0, self._world.now_ms())
            return
        again = f", attempt {begin.attempt}" if begin.attempt > 1 else ""
        self._say(f"{entry.name}: {entry.job} begins (due {shown(begin.due_ms)}{again})")
        began_s = self._world.monotonic_s()
        why: list[str] = []

        def interrupted() -> str | None:
            found = self._why_not(keeper, entry, began_s)
            if found is not None and not why:
                why.append(found)
            return why[0] if why else None

        done = self._work(entry, interrupted)
        seconds = self._world.monotonic_s() - began_s
        outcome, error = done.outcome, done.error
        if why:
            outcome, error = (STOPPED if why[0] == STOPPING else FAILED), why[0]
        self._say(f"{entry.name}: {outcome} after {seconds:.1f} s{f': {error}' if error else ''}")
        jobs = ended(self._jobs, entry, outcome, error, seconds, self._world.now_ms())
        if done.fatal:
            self._jobs = jobs
            self._release()
            raise Gone(done.fatal)
        self._write(keeper, jobs)

    def _why_not(self, keeper: Keeper, entry: Entry, began_s: float) -> str | None:
        if self._world.stopping:
            return STOPPING
        if (lost := keeper.lost()) is not None:
            return lost
        if self._world.monotonic_s() - began_s > entry.timeout_ms / 1_000:
            return f"{LATE}{entry.timeout_ms / 1_000:.0f} s"
        return None

    def _write(self, keeper: Keeper, jobs: dict[str, Job]) -> None:
        """On return the node has it, or the server is told to stop. Raises Lost, Fenced."""
        self._jobs = jobs
        while True:
            keeper.require()
            try:
                self._ledger.write(jobs, self._world.now_ms())
                return
            except NodeError as why:
                if self._world.stopping:
                    return
                self._say(f"waiting for the node: {why}")
                self._world.wait(LOOK_S)


def shown(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
