"""Forks live with their source, whatever group their name belongs to: over processes, restarts and races.
It plays the way of a request (`doors/http/elsewhere`) on engines alone; it owns no rule."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headwater.engine.engine import Engine
from headwater.engine.placements import Placement
from headwater.errors import Failure, MemberUnavailable, NotServedHere, SourceNotFound, StreamExists, StreamNotFound
from headwater.model.commands import Create, Delete, Fork
from tests.engine import owned_on
from tests.support.processes import Processes, until
from tests.support.processes import run as run_async

GROUPS = 3


class Town:
    """Three groups, a process each."""

    def __init__(self) -> None:
        self.processes: Processes[None] = Processes(lambda engine: None, GROUPS, GROUPS)
        for member in range(GROUPS):
            self.processes.start(member)

    def engine(self, group: int) -> Engine:
        return self.processes[group].engine

    def home(self, key: str) -> int:
        return self.processes.engine.home(key)

    def key(self, group: int, prefix: str = "town/s") -> str:
        return self.processes.named(group, prefix)

    async def create(self, key: str, source: str | None = None) -> Any:
        """As a PUT goes: to the name's home, and on to where the home places it."""
        home = self.home(key)
        if home not in self.processes.running:
            raise MemberUnavailable(home)
        process = self.processes[home]
        if source is not None:
            await process.placing.place(key, source)
        elif process.placing.is_deciding(key):
            await process.placing.decided(key)
        if self.processes.running.get(home) is not process:
            raise MemberUnavailable(home)  # a process that was killed sends nothing on
        fork = None if source is None else Fork(source, None, 0)
        return await self.deliver(key, process.engine.placement(key), Create(key, None, [], fork=fork))

    async def deliver(self, key: str, placed: Placement | None, command: Any) -> Any:
        group = self.home(key) if placed is None else placed.group
        if group not in self.processes.running:
            raise MemberUnavailable(group)
        engine = self.engine(group)
        if placed is not None:
            engine.admit(key, placed.group, placed.version, type(command) is Create)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        engine.submit(key, command, _Waiter(done))
        outcome = await done
        if isinstance(outcome, Failure):
            raise outcome
        return outcome

    async def delete(self, key: str) -> None:
        home = self.home(key)
        if home not in self.processes.running:
            raise MemberUnavailable(home)
        await self.deliver(key, self.engine(home).placement(key), Delete())

    def where(self, key: str) -> list[int]:
        """Groups that hold a stream of the name."""
        return [group for group in range(GROUPS) if self.engine(group).owned[group].group.has(key)]

    def placed(self, key: str) -> int | None:
        found = self.engine(self.home(key)).placement(key)
        return None if found is None else found.group


class _Waiter:
    def __init__(self, done: asyncio.Future[Any]) -> None:
        self._done = done

    def resolve(self, outcome: Any) -> None:
        if not self._done.done():
            self._done.set_result(outcome)


def run(body: Callable[[Town], Awaitable[None]]) -> None:
    async def within() -> None:
        await body(Town())

    run_async(within)


def test_a_fork_lives_with_its_source_and_its_home_knows_where() -> None:
    async def body(town: Town) -> None:
        source, fork = town.key(1), town.key(0, "town/f")
        await town.create(source)
        await town.create(fork, source)
        assert town.where(fork) == [1] and town.placed(fork) == 1
        assert [await town.engine(number).locate(fork) for number in range(GROUPS)] == [1, 1, 1]

    run(body)


def test_a_fork_whose_source_lives_at_its_home_is_not_placed() -> None:
    async def body(town: Town) -> None:
        source, fork = town.key(2), town.key(2, "town/f")
        await town.create(source)
        await town.create(fork, source)
        assert town.where(fork) == [2] and town.placed(fork) is None

    run(body)


def test_a_fork_of_a_fork_lives_with_the_first_source() -> None:
    async def body(town: Town) -> None:
        source, fork, child = town.key(1), town.key(0, "town/f"), town.key(2, "town/c")
        await town.create(source)
        await town.create(fork, source)
        await town.create(child, fork)
        assert town.where(child) == [1] and town.placed(child) == 1

    run(body)


def test_the_home_knows_it_after_a_restart() -> None:
    async def body(town: Town) -> None:
        source, fork = town.key(1), town.key(0, "town/f")
        await town.create(source)
        await town.create(fork, source)
        town.processes.kill(0)
        town.processes.start(0)
        assert town.placed(fork) == 1

    run(body)


def test_a_name_goes_back_to_its_home_when_its_stream_is_deleted() -> None:
    async def body(town: Town) -> None:
        source, fork = town.key(1), town.key(0, "town/f")
        await town.create(source)
        await town.create(fork, source)
        await town.delete(fork)
        await until(lambda: town.placed(fork) is None)
        await town.create(fork)
        assert town.where(fork) == [0]

    run(body)


def test_a_name_whose_placement_was_not_taken_back_is_forked_from_another_group() -> None:
    async def body(town: Town) -> None:
        one, two, fork = town.key(1), town.key(2), town.key(0, "town/f")
        await town.create(one)
        await town.create(two)
        await town.create(fork, one)
        town.processes.wire.cut.add(1)  # its home does not hear of the deletion
        await town.deliver(fork, town.engine(0).placement(fork), Delete())
        await asyncio.sleep(0.01)
        assert town.placed(fork) == 1
        town.processes.wire.cut.clear()
        await town.create(fork, two)
        assert town.where(fork) == [2] and town.placed(fork) == 2

    run(body)


def test_a_stream_is_created_where_an_old_placement_says_and_nowhere_else() -> None:
    async def body(town: Town) -> None:
        one, two, fork = town.key(1), town.key(2), town.key(0, "town/f")
        await town.create(one)
        await town.create(two)
        await town.create(fork, one)
        with pytest.raises(StreamExists):
            await town.create(fork, two)
        assert town.where(fork) == [1] and town.placed(fork) == 1

    run(body)


def test_a_creation_that_was_under_way_by_an_older_placement_is_refused() -> None:
    async def body(town: Town) -> None:
        one, two, fork = town.key(1), town.key(2), town.key(0, "town/f")
        await town.create(one)
        await town.create(two)
        await town.create(fork, one)
        old = town.engine(0).placement(fork)
        town.processes.wire.cut.add(1)
        await town.deliver(fork, old, Delete())
        await asyncio.sleep(0.01)
        town.processes.wire.cut.clear()
        await town.create(fork, two)
        with pytest.raises(NotServedHere):
            await town.deliver(fork, old, Create(fork, None, []))
        assert town.where(fork) == [2]
        with pytest.raises(StreamNotFound):
            await town.deliver(fork, old, Delete())  # whatever creates nothing is served by what is there

    run(body)


def test_a_stream_at_home_keeps_its_name() -> None:
    async def body(town: Town) -> None:
        source, name = town.key(1), town.key(0, "town/f")
        await town.create(source)
        await town.create(name)
        with pytest.raises(StreamExists):
            await town.create(name, source)
        assert town.where(name) == [0] and town.placed(name) is None

    run(body)


def test_a_fork_that_was_sent_where_its_name_was_taken_is_not_told_that_its_source_is_missing() -> None:
    async def body(town: Town) -> None:
        one, two, fork = town.key(1), town.key(2), town.key(0, "town/f")
        await town.create(one)
        await town.create(two)
        await town.create(fork, one)
        old = town.engine(0).placement(fork)
        await town.deliver(fork, old, Delete())
        with pytest.raises(NotServedHere):  # as a PUT that the home sent before it heard of the deletion
            await town.deliver(fork, old, Create(fork, None, [], fork=Fork(two, None, 0)))
        with pytest.raises(SourceNotFound):
            await town.create(fork, town.key(2, "town/none"))

    run(body)


def test_those_who_wait_for_a_decision_do_not_make_each_other_wait() -> None:
    async def body(town: Town) -> None:
        source, fork = town.key(1), town.key(0, "town/f")
        placing = town.processes[0].placing
        gate = town.processes.wire.gates["placement"] = asyncio.Event()
        await town.create(source)
        placing_it = asyncio.ensure_future(placing.place(fork, source))
        await asyncio.sleep(0)

        async def wait() -> None:
            while placing.is_deciding(fork):
                await placing.decided(fork)

        waiting = [asyncio.ensure_future(wait()) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert not any(one.done() for one in waiting)
        gate.set()
        await asyncio.gather(placing_it, *waiting)
        assert town.placed(fork) == 1

    run(body)


def test_a_name_stays_placed_while_a_creation_is_under_way_to_there() -> None:
    async def body(town: Town) -> None:
        source, fork = town.key(1), town.key(0, "town/f")
        await town.create(source)
        await town.create(fork, source)
        placing = town.processes[0].placing
        answered = placing.sent(fork)
        await town.delete(fork)
        await asyncio.sleep(0.01)
        await placing.decided(fork)
        assert town.placed(fork) == 1
        await town.deliver(fork, town.engine(0).placement(fork), Create(fork, None, []))
        answered()
        await town.delete(fork)
        await until(lambda: town.placed(fork) is None)

    run(body)


@pytest.mark.parametrize("seed", range(30))
def test_a_name_never_has_two_streams_and_is_always_found_where_it_lives(seed: int) -> None:
    async def body(town: Town) -> None:
        rng = random.Random(seed)
        sources = [town.key(group) for group in range(GROUPS)]
        for source in sources:
            await town.create(source)
        forks = [town.key(group, prefix) for group in range(GROUPS) for prefix in ("town/f", "town/g")]
        tasks: list[asyncio.Task[Any]] = []

        async def act() -> None:
            for _ in range(12):
                key, source = rng.choice(forks), rng.choice([*sources, None])
                try:
                    await (town.delete(key) if rng.random() < 0.4 else town.create(key, source))
                except Failure:
                    pass
                await asyncio.sleep(rng.choice((0, 0, 0.001)))

        tasks = [asyncio.ensure_future(act()) for _ in range(6)]
        for _ in range(3):
            await asyncio.sleep(0.003)
            member = rng.randrange(GROUPS)
            town.processes.kill(member)
            await asyncio.sleep(0.001)
            town.processes.start(member)
        # What a killed process was asked is never answered here, as on a connection that ended.
        await asyncio.wait(tasks, timeout=1.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for key in forks:
            await town.processes[town.home(key)].placing.decided(key)
            held = town.where(key)
            assert len(held) <= 1, (key, held)
            if held:
                assert await town.engine(rng.randrange(GROUPS)).locate(key) == held[0]

    run(body)


def test_a_creation_by_a_placement_that_is_not_true_any_more_is_not_confirmed_whoever_serves_the_group_now() -> None:
    async def body(town: Town) -> None:
        source, other, fork = town.key(1), town.key(2), town.key(0, "town/f")
        await town.create(source)
        await town.create(other)
        await town.processes[0].placing.place(fork, source)
        late = town.engine(0).placement(fork)
        assert late is not None and late.group == 1
        await town.processes[0].placing.place(fork, other)
        # Another process serves the group now: it was never asked to refuse what comes by the first placement.
        town.processes.kill(1)
        now = town.processes.start(1)
        now.engine.admit(fork, late.group, late.version, creates=True)
        with pytest.raises(NotServedHere):
            await now.placing.confirm(fork, 1)
        assert await town.processes[2].placing.confirm(fork, 2) is town.engine(2).owned[2]
        town.processes.kill(0)
        with pytest.raises(MemberUnavailable):
            await town.processes[2].placing.confirm(fork, 2)

    run(body)


def test_what_was_confirmed_is_void_when_the_group_has_left_meanwhile() -> None:
    async def body(town: Town) -> None:
        source, fork = town.key(1), town.key(0, "town/f")
        await town.create(source)
        await town.processes[0].placing.place(fork, source)
        gate = town.processes.wire.gates["placement_confirm"] = asyncio.Event()
        asked = asyncio.ensure_future(town.processes[1].placing.confirm(fork, 1))
        await until(lambda: any(name == "placement_confirm" for _, _, name in town.processes.wire.asked))
        engine = town.engine(1)
        owned = engine.owned[1]
        engine.leave(1)
        engine.enter(owned_on(owned.group))  # as another owner's group would come back
        gate.set()
        with pytest.raises(NotServedHere):
            await asked

    run(body)


def test_only_a_group_that_may_change_its_owner_asks_for_a_confirmation() -> None:
    async def body(town: Town) -> None:
        placing, engine = town.processes[1].placing, town.engine(1)
        assert not placing.is_doubtful(1)
        engine.owned[1].group.epoch = 3
        assert placing.is_doubtful(1) and not placing.is_doubtful(0)

    run(body)
