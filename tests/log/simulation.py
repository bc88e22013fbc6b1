"""A simulated world for logs in objects: processes that race, sleep and die, over a network that loses and repeats.

Owns what happens next, which is chosen by a function that is given; the same choices are the same world. No time passes
here: a pause ends whenever it is chosen to. The code under test is the real log and the real medium; only the place of
the objects is a dictionary. `Violation` says what was promised and not kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headwater.log.medium import Gone, Lost, Unavailable, Unsure
from headwater.log.objects import ObjectEntries
from headwater.log.quorum import Behind, LogFailed, QuorumLog
from headwater.log.quorum_entries import Claim, Cursor, LogDamaged
from headwater.model.events import Event
from headwater.ports import BROKEN, FENCED, LogFailure
from tests.log import appended

Choose = Callable[[int], int]
PROCESSES = ("a", "b", "c")
LIVES = 3
EVENTS_PER_LIFE = 9
FAULTY_STEPS_MAX = 1_200
STEPS_MAX = 40_000


class Violation(AssertionError):
    """A promise of the log was broken."""


class Place:
    """Objects that everybody sees, created once."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def create(self, key: str, data: bytes) -> bool:
        return self.objects.setdefault(key, data) is data

    def get(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def keys(self, folder: str, after: str) -> list[str]:
        return sorted(key for key in self.objects if key.startswith(f"{folder}/") and key > after)

    def folders(self, folder: str) -> list[str]:
        depth = folder.count("/") + 1
        return sorted({key.split("/")[depth] for key in self.objects if key.startswith(f"{folder}/")})

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)


class World:
    """Where everything waits for its turn. `choose(n)` gives a number below n."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self.place = Place()
        self.waiting: list[tuple[str, asyncio.Future[None]]] = []
        self.frozen = ""
        self.quiet = False
        self.steps = 0
        self.tokens = 0
        self.tasks: set[asyncio.Task[None]] = set()

    # ---- the clock and the source of tokens of every process -----------------------------------------------------

    def monotonic_s(self) -> float:
        return self.steps / 200

    def now_ms(self) -> int:
        return self.steps

    def sleep(self, delay_s: float) -> Any:
        return self.turn("clock")

    def call_later(self, delay_s: float, call: Callable[[], object]) -> object:
        raise NotImplementedError

    def token(self, size_bytes: int) -> bytes:
        self.tokens += 1
        return self.tokens.to_bytes(size_bytes, "little")

    def below(self, bound: int) -> int:
        return self.choose(bound)

    # ---- turns ---------------------------------------------------------------------------------------------------

    async def turn(self, name: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((name, turn))
        await turn

    def later(self, act: Callable[[], object]) -> None:
        """Something on the wire that nobody waits for."""

        async def run() -> None:
            await self.turn("wire")
            act()

        self.spawn(run())

    def spawn(self, body: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(body)
        self.tasks.add(task)
        return task

    def chance(self, one_in: int) -> bool:
        return not self.quiet and self.choose(one_in) == 0

    async def run(self) -> None:
        """Gives turns until everything has ended."""
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
        while True:
            await asyncio.sleep(0)
            while ready:
                await asyncio.sleep(0)
            for task in [task for task in self.tasks if task.done()]:
                self.tasks.remove(task)
                if not task.cancelled():
                    task.result()
            self.waiting = [(name, turn) for name, turn in self.waiting if not turn.done()]
            if not self.waiting:
                if self.tasks:
                    raise Violation("something waits for what never comes")
                return
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise Violation("it never ends")
            self.quiet = self.steps > FAULTY_STEPS_MAX
            if self.chance(40):
                self.frozen = (*PROCESSES, "")[self.choose(4)]
            awake = [n for n, (name, _) in enumerate(self.waiting) if self.quiet or name != self.frozen]
            if not awake:
                self.frozen = ""
                continue
            _, turn = self.waiting.pop(awake[self.choose(len(awake))])
            turn.set_result(None)


class Wire:
    """One process's way to the place. See `ObjectPlace`."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._place = world.place
        self._name = name

    async def create(self, key: str, data: bytes) -> bool:
        world = self._world

        def act() -> bool:
            return self._place.create(key, bytes(bytearray(data)))  # a copy: who created it is told by identity

        try:
            await world.turn(self._name)
        except asyncio.CancelledError:
            if world.chance(2):
                world.later(act)
            raise
        if world.chance(20):
            raise Unavailable("it was refused")
        if world.chance(20):
            raise Unsure("it was lost on the way there")
        if world.chance(20):
            world.later(act)
            raise Unsure("it is late")
        created = act()
        if world.chance(20):
            world.later(act)  # a proxy that repeats
        if world.chance(12):
            raise Unsure("it was lost on the way back")
        await world.turn(self._name)
        return created

    async def get(self, key: str) -> bytes | None:
        return await self._ask(lambda: self._place.get(key))

    async def keys(self, folder: str, after: str = "") -> list[str]:
        return await self._ask(lambda: self._place.keys(folder, after))

    async def folders(self, folder: str) -> list[str]:
        return await self._ask(lambda: self._place.folders(folder))

    async def delete(self, keys: list[str]) -> None:
        for key in keys:
            await self._world.turn(self._name)
            if self._world.chance(20):
                self._world.later(lambda key=key: self._place.delete(key))
                raise Unavailable("it is late")
            self._place.delete(key)

    async def _ask(self, act: Callable[[], Any]) -> Any:
        await self._world.turn(self._name)
        if self._world.chance(60):
            raise Unavailable("no answer")
        answer = act()
        await self._world.turn(self._name)
        return answer


class Life:
    """What one process did with one log, and what it was told."""

    def __init__(self, view: list[Event], epoch: int) -> None:
        self.view = view
        """What it held when its claim stood."""
        self.epoch = epoch
        self.added: list[tuple[int, Event]] = []
        self.acked: list[Event] = []
        self.failure: LogFailure | None = None


class History:
    """What everybody saw and was told, and the judgement on it."""

    def __init__(self) -> None:
        self.lives: list[Life] = []
        self.views: list[list[Event]] = []
        """What standbys and claimants held at some moment."""
        self.snapshot: tuple[Cursor, Claim | None, list[Event]] = Cursor(), None, []
        self.ack_steps: dict[bytes, tuple[int, int]] = {}
        """When an event was added, and when it was acknowledged."""
        self.claim_steps: dict[int, int] = {}
        self.barriers: list[tuple[int, int]] = []
        """(epoch of the owner, step at which it asked) of barriers that held."""

    def judge(self, final: list[Event]) -> None:
        """Raises Violation. `final` is what the log holds at the end of the world."""
        names = [_name(event) for event in final]
        places = {name: n for n, name in enumerate(names)}
        if len(places) != len(names):
            raise Violation("an event is there twice")
        for view in self.views:
            if view != final[: len(view)]:
                raise Violation("somebody saw what is not there, or in another order")
        epochs = [life.epoch for life in self.lives]
        if len(set(epochs)) != len(epochs):
            raise Violation("two owners of one epoch")
        for life in self.lives:
            self._judge_life(life, places)
        acked = sorted(self.ack_steps.items(), key=lambda item: item[1][1])
        for name, (_, acked_step) in acked:
            for other, (added_step, _) in acked:
                if acked_step < added_step and places[name] > places[other]:
                    raise Violation("an event stands before one that was acknowledged before it was added")
        for epoch, asked in self.barriers:
            if any(other > epoch and step < asked for other, step in self.claim_steps.items()):
                raise Violation("a barrier held although another had claimed before it")

    def _judge_life(self, life: Life, places: dict[bytes, int]) -> None:
        if [event for _, event in life.added[: len(life.acked)]] != life.acked:
            raise Violation("acknowledged out of order")
        if any(_name(event) not in places for event in life.acked):
            raise Violation("an acknowledged event is not there")
        there = [places[_name(event)] for _, event in life.added if _name(event) in places]
        if there != sorted(there):
            raise Violation("an owner's events are not in their order")
        for later in self.lives:
            if later.epoch > life.epoch and any(places[_name(event)] >= len(later.view) for event in life.acked):
                raise Violation("a later owner did not see an acknowledged event")
        if life.failure is not None and life.failure.kind in (FENCED, BROKEN):
            lost = [event for _, event in life.added[len(life.acked) :]]
            if any(_name(event) in places for event in lost):
                raise Violation(f"{life.failure.kind}, and yet an event is there")


def _name(event: Any) -> bytes:
    return bytes(event.records[0])


class Process:
    """Follows, claims, writes, snapshots, trims, dies, and begins again."""

    def __init__(self, world: World, history: History, name: str) -> None:
        self._world = world
        self._history = history
        self._name = name
        self._count = 0

    async def run(self) -> None:
        for _ in range(LIVES):
            world = self._world
            log = QuorumLog(
                ObjectEntries(Wire(world, self._name), "log/3", world),
                patience_ms=(150, 3_000)[world.choose(2)],
                clock=world,
                rng=world,
            )
            try:
                life = await self._take_over(log)
            except (Unavailable, Unsure, Gone, Behind):
                continue
            except (Lost, LogDamaged) as error:
                raise Violation(f"a sound log was called damaged: {error}") from error
            if life is not None:
                await self._own(log, life)

    async def _take_over(self, log: QuorumLog) -> Life | None:
        cursor, claim, events = self._history.snapshot
        await log.load(cursor, claim)
        view = [*events, *(event for _, event in log.replay())]
        self._history.views.append(list(view))
        while True:
            for _ in range(self._world.choose(3)):
                await self._follow(log, view)
            try:
                await log.claim(Claim(self._name, ""))
                break
            except Behind:
                await self._follow(log, view)
                if self._world.choose(2):
                    return None
        assert log.owner is not None
        self._history.views.append(list(view))
        self._history.claim_steps[log.owner.epoch] = self._world.steps
        life = Life(view, log.owner.epoch)
        self._history.lives.append(life)
        return life

    async def _follow(self, log: QuorumLog, view: list[Event]) -> None:
        while more := await log.more():
            view += [event for _, event in more]
        self._history.views.append(list(view))

    async def _own(self, log: QuorumLog, life: Life) -> None:
        world, history = self._world, self._history

        def progress() -> None:
            while len(life.acked) < len(life.added) and life.added[len(life.acked)][0] <= log.synced:
                event = life.added[len(life.acked)][1]
                life.acked.append(event)
                history.ack_steps[_name(event)] = added_steps[_name(event)], world.steps

        added_steps: dict[bytes, int] = {}
        log.start(progress)
        for _ in range(EVENTS_PER_LIFE):
            self._count += 1
            event = appended(b"%s %d" % (self._name.encode(), self._count))
            added_steps[_name(event)] = world.steps
            life.added.append((log.add(event, True), event))
            if world.choose(3):
                log.commit()
            for _ in range(world.choose(6)):
                await world.turn(self._name)
            if log.failure is not None:
                break
            if world.chance(6):
                await self._snapshot(log, life)
            if world.chance(30):
                log.failure = LogFailure("killed", "killed")
                for sent in log._sent:
                    assert sent.task is not None
                    sent.task.cancel()
                return
        await log.closed()
        life.failure = log.failure

    async def _snapshot(self, log: QuorumLog, life: Life) -> None:
        asked = self._world.steps
        try:
            await log.barrier()
        except LogFailed:
            return
        self._history.barriers.append((life.epoch, asked))
        cursor = log.cursor
        if cursor.number > self._history.snapshot[0].number:
            self._history.snapshot = cursor, log.owner, [*life.view, *life.acked]
        log.trim(cursor.position)


def simulate(choose: Choose) -> History:
    """Runs a world to its end. Raises Violation."""
    history = History()

    async def body() -> None:
        world = World(choose)
        for name in PROCESSES:
            world.spawn(Process(world, history, name).run())
        await world.run()
        reader = QuorumLog(ObjectEntries(Wire(world, "reader"), "log/3", world), clock=world, rng=world)
        final: list[Event] = []

        async def read() -> None:
            cursor, claim, events = history.snapshot
            await reader.load(cursor, claim)
            final.extend([*events, *(event for _, event in reader.replay())])

        world.steps, world.quiet = FAULTY_STEPS_MAX + 1, True
        world.spawn(read())
        await world.run()
        history.judge(final)

    asyncio.run(body())
    return history
