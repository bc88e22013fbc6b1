"""Several processes of one node in one event loop: an engine each, joined by questions that a test may cut or hold.
It owns their logs, so that a process can be killed and started again; it decides nothing about what is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import msgspec

from headwater.catalog.sqlite import SqliteCatalog
from headwater.engine.engine import Engine
from headwater.engine.fork_placement import ForkPlacement
from headwater.engine.group import Group
from headwater.engine.placements import Placements
from headwater.engine.questions import Answer
from headwater.engine.reads import Reads
from headwater.engine.reads_by_id import ReadsById
from headwater.engine.recovery import recover
from headwater.errors import Failure, MemberUnavailable, OutcomeUnknown
from headwater.model.commands import Command
from headwater.model.events import Event
from headwater.model.stream import Limits
from tests.engine import HandClock, HandLog

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


class Wire:
    """The way between processes."""

    def __init__(self) -> None:
        self.answers: dict[int, dict[str, Answer]] = {}
        """Of each process that runs."""
        self.cut: set[int] = set()
        """Processes that cannot be reached."""
        self.gates: dict[str, asyncio.Event] = {}
        """By question: its answers wait on their way back until this is set."""
        self.losing: set[str] = set()
        """Questions whose answers are lost on their way back, until their names are taken out."""
        self.asked: list[tuple[int, int, str]] = []
        """(from, to, question), in order."""
        self.under_way: dict[int, set[asyncio.Task[Any]]] = {}


class WiredQuestions:
    """See `Questions`. Whatever leaves the process goes through msgpack."""

    def __init__(self, wire: Wire, me: int, count: int) -> None:
        self.me = me
        self.count = count
        self._wire = wire
        self._answers: dict[str, Answer] = {}

    def listen(self) -> None:
        self._wire.answers[self.me] = self._answers

    def owner(self, group: int) -> int:
        return group % self.count

    def register(self, name: str, answer: Answer) -> None:
        self._answers[name] = answer

    async def ask(self, member: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        if member == self.me:
            return await self._answers[name](*arguments)
        wire = self._wire
        if member not in wire.answers or {member, self.me} & wire.cut:
            raise MemberUnavailable(member)
        wire.asked.append((self.me, member, name))
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(arguments))
        task = asyncio.ensure_future(wire.answers[member][name](*sent))
        wire.under_way.setdefault(member, set()).add(task)
        try:
            answer = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise OutcomeUnknown(member) from None
            task.cancel()
            raise
        finally:
            wire.under_way[member].discard(task)
        if name in wire.gates:
            await wire.gates[name].wait()
        if name in wire.losing or {member, self.me} & wire.cut:
            raise OutcomeUnknown(member)
        return msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=into)

    async def ask_owner(self, group: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        return await self.ask(self.owner(group), name, *arguments, into=into)

    async def ask_all(self, name: str, *arguments: Any, into: Any = Any) -> list[Any]:
        asked = (self.ask(member, name, *arguments, into=into) for member in range(self.count))
        return list(await asyncio.gather(*asked))


class Process(Generic[Part]):
    """One process: its groups on logs that keep what earlier lives wrote, and the part that is tested."""

    def __init__(self, processes: Processes[Part], me: int) -> None:
        self.questions = WiredQuestions(processes.wire, me, processes.count)
        self.logs: dict[int, SyncingLog] = {}
        owned: dict[int, Any] = {}
        schedule = asyncio.get_running_loop().call_soon
        for number in range(me, processes.groups_count, processes.count):
            log = self.logs[number] = SyncingLog(processes.events[number])
            group = log.group = Group(
                log,
                SqliteCatalog(None),
                processes.clock,
                schedule,
                Limits(),
                1 << 30,
                number,
                processes.groups_count,
            )
            reads = Reads(group, None)
            placements = group.domains[Placements.name] = Placements(group.catalog)
            by_id = ReadsById(group, reads)
            owned[number] = SimpleNamespace(group=group, reads=reads, by_id=by_id, number=number, placements=placements)
        self.engine = Engine(owned, processes.groups_count, processes.clock, self.questions)
        self.placing = ForkPlacement(self.engine)
        self.part = processes.make(self.engine)
        for one in owned.values():
            recover(one.group)
        self.questions.listen()


class Processes(Generic[Part]):
    """`make` builds the part that is tested on a process's engine, before its groups are recovered."""

    def __init__(self, make: Callable[[Engine], Part], count: int = 2, groups_count: int = 2) -> None:
        self.make = make
        self.count = count
        self.groups_count = groups_count
        self.clock = HandClock()
        self.wire = Wire()
        self.events: dict[int, list[tuple[int, Event]]] = {number: [] for number in range(groups_count)}
        self.running: dict[int, Process[Part]] = {}

    def start(self, member: int) -> Process[Part]:
        self.running[member] = Process(self, member)
        return self.running[member]

    def kill(self, member: int) -> Process[Part]:
        """Whatever it was asked and has not answered stays unanswered; what its logs synced stays."""
        process = self.running.pop(member)
        del self.wire.answers[member]
        for task in self.wire.under_way.pop(member, set()):
            task.cancel()
        self.wire.under_way[member] = set()
        for number, log in process.logs.items():
            self.events[number] += [(position, event) for position, event in log.events if position <= log.synced]
            log._sync = lambda: None  # type: ignore[method-assign]
        return process

    def __getitem__(self, member: int) -> Process[Part]:
        return self.running[member]

    @property
    def engine(self) -> Engine:
        return next(iter(self.running.values())).engine

    def named(self, group: int, prefix: str) -> str:
        """A text that begins with `prefix` and whose home is the group."""
        return next(text for n in range(10_000) if self.engine.home(text := f"{prefix}{n}") == group)

    async def submit(self, key: str, command: Command) -> Any:
        """What the owner of the key's home says to a command, once that is durable. Raises its refusal."""
        engine = self.running[self.engine.home(key) % self.count].engine
        waiter = _Waiter()
        engine.submit(key, command, waiter)
        return await waiter.future


class _Waiter:
    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def resolve(self, outcome: Any) -> None:
        if isinstance(outcome, Failure):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


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
