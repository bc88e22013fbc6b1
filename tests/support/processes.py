"""Several processes of one node in one event loop: an engine each, joined by a wire.
It owns their logs, so that a process can be killed and started again; it decides nothing about what is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from headwater.catalog.sqlite import SqliteCatalog
from headwater.cluster.members import Members
from headwater.engine.engine import Engine
from headwater.engine.fork_placement import ForkPlacement
from headwater.engine.group import Group
from headwater.engine.outcome_future import OutcomeFuture
from headwater.model.commands import Command
from headwater.model.events import Event
from headwater.model.stream import Limits
from headwater.ports import Catalog, Log
from tests.engine import HandClock, HandLog, owned_on
from tests.support.wire import Wire, WiredQuestions

WITHIN_S = 60.0
Part = TypeVar("Part")


class SyncingLog(HandLog):
    """A log in memory that syncs whatever is committed, in a later turn of the loop."""

    group: Group

    def commit(self) -> None:
        super().commit()
        asyncio.get_running_loop().call_soon(self._sync)

    def _sync(self) -> None:
        if self.synced < self.tail:
            self.written = self.synced = self.tail
            self.group.progress()


class Process(Generic[Part]):
    """One process: its groups, its engine, and the part that is tested."""

    def __init__(self, processes: Processes[Part], me: int) -> None:
        self.members = Members(me, processes.count, processes.groups_count, processes.directory)
        self.questions = WiredQuestions(processes.wire, self.members)
        self.owned = {number: processes.own(number) for number in self.members.groups_of(me)}
        self.engine = Engine(self.owned, processes.groups_count, processes.clock, self.questions)
        self.placing = ForkPlacement(self.engine)
        self.part = processes.make(self)
        for one in self.owned.values():
            one.recover()
        self.questions.listen()


class Processes(Generic[Part]):
    """`make` builds the part that is tested in a process, before its groups are recovered.

    Groups are in memory, on logs that keep what earlier lives of a process synced, unless `own` says otherwise.
    """

    def __init__(
        self,
        make: Callable[[Process[Part]], Part],
        count: int = 2,
        groups_count: int = 2,
        directory: Path = Path("nowhere"),
        clock: Any = None,
    ) -> None:
        self.make = make
        self.count = count
        self.groups_count = groups_count
        self.directory = directory
        """Where sockets between processes are, for those that have any."""
        self.clock = HandClock() if clock is None else clock
        self.wire = Wire()
        self.events: dict[int, list[tuple[int, Event]]] = {number: [] for number in range(groups_count)}
        self.running: dict[int, Process[Part]] = {}

    def own(self, number: int) -> Any:
        log = SyncingLog(self.events[number])
        log.group = self.group_on(log, SqliteCatalog(None), number)
        return owned_on(log.group)

    def group_on(self, log: Log, catalog: Catalog, number: int) -> Group:
        schedule = asyncio.get_running_loop().call_soon
        return Group(log, catalog, self.clock, schedule, Limits(), 1 << 30, number, self.groups_count)

    def start(self, member: int) -> Process[Part]:
        self.running[member] = Process(self, member)
        return self.running[member]

    def kill(self, member: int) -> Process[Part]:
        """Whatever it was asked and has not answered stays unanswered; what its logs synced stays."""
        process = self.running.pop(member)
        del self.wire.running[member]
        for task in self.wire.under_way.pop(member, set()):
            task.cancel()
        self.wire.under_way[member] = set()
        for number, owned in process.owned.items():
            log = owned.group.log
            self.events[number] += [(position, event) for position, event in log.events if position <= log.synced]
            log._sync = lambda: None
        return process

    @property
    def parts(self) -> list[Part]:
        """Of all processes that run, in order."""
        return [self.running[member].part for member in sorted(self.running)]

    def __getitem__(self, member: int) -> Process[Part]:
        return self.running[member]

    @property
    def engine(self) -> Engine:
        return next(iter(self.running.values())).engine

    def named(self, group: int, prefix: str) -> str:
        """A text that begins with `prefix` and whose home is the group."""
        return self.names(group, 1, prefix)[0]

    def names(self, group: int, count: int, prefix: str = "town/s") -> list[str]:
        """Texts that begin with `prefix` and whose home is the group."""
        found = (f"{prefix}{n}" for n in range(10_000))
        return list(islice((text for text in found if self.engine.home(text) == group), count))

    async def submit(self, key: str, command: Command) -> Any:
        """What the owner of the key's home says to a command, once that is durable. Raises its refusal."""
        future = OutcomeFuture()
        self.running[self.engine.home(key) % self.count].engine.submit(key, command, future)
        return await future.success()


async def until(holds: Callable[[], Any]) -> Any:
    """What `holds` returns as soon as it is true."""
    async with asyncio.timeout(WITHIN_S):
        while not (found := holds()):
            await asyncio.sleep(0.002)
    return found


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        await asyncio.wait_for(body(), WITHIN_S)

    asyncio.run(within())
