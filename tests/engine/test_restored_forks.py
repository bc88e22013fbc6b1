"""Groups of a backup that were cut at different times: after the walk every name has one stream, and its home knows it.
A restore is played by taking some groups' files from one moment, and others' from another."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from headwater.cli.stopped_node import writable
from headwater.data_directory import DataDirectory
from headwater.engine.checkpoint import checkpoint
from headwater.engine.engine import home_of
from headwater.engine.group import Group
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.placements import Placed, Placements, encode
from headwater.engine.restored_forks import Mended, place_forks
from headwater.model.commands import Append, Command, Create, Delete, Fork

GROUPS = 3


def key(home: int, prefix: str = "town/s") -> str:
    return next(name for n in range(1_000) if home_of(name := f"{prefix}{n}", GROUPS) == home)


class World:
    """The groups of a node, and what is done in them as a node would do it."""

    def __init__(self, groups: list[Group]) -> None:
        self.groups = groups

    async def submit(self, group: int, name: str, command: Command) -> None:
        future = OutcomeFuture()
        self.groups[group].submit(name, command, future)
        await future.success()

    async def create(self, name: str, payload: bytes = b"own") -> None:
        await self.submit(home_of(name, GROUPS), name, Create(name, "text/plain", [payload]))

    async def fork(self, name: str, source: str) -> None:
        home, group = home_of(name, GROUPS), home_of(source, GROUPS)
        if home != group:
            await self._place(home, name, group)
        await self.submit(group, name, Create(name, None, [], fork=Fork(source, None, 0)))

    async def delete(self, name: str) -> None:
        home = home_of(name, GROUPS)
        found = self.placed(name)
        await self.submit(home if found is None else found, name, Delete())
        if found is not None:
            await self._place(home, name, None)

    async def _place(self, home: int, name: str, group: int | None) -> None:
        future = OutcomeFuture()
        self.groups[home].note(Placements.name, encode(Placed(name, group)), future)
        await future.success()

    def placed(self, name: str) -> int | None:
        placements = self.groups[home_of(name, GROUPS)].domains[Placements.name]
        assert isinstance(placements, Placements)
        found = placements.get(name)
        return None if found is None else found.group

    def where(self, name: str) -> list[int]:
        return [group.number for group in self.groups if group.has(name)]


Act = Callable[[World], Awaitable[None]]


def played(directory: Path, before: Act, later: Act, later_groups: set[int], check: Act) -> Mended:
    """`before`, then `later`; the groups in `later_groups` are cut after both, the others between them."""

    async def run() -> Mended:
        first, second, restored = directory / "first", directory / "second", directory / "restored"
        first.mkdir()
        DataDirectory(first).prepare(GROUPS, GROUPS)
        async with writable(first, 1 << 20) as groups:
            await before(World(groups))
        shutil.copytree(first, second)
        async with writable(second, 1 << 20) as groups:
            await later(World(groups))
            for group in groups[::2]:
                await checkpoint(group)  # what is told of in the log alone counts as well
        shutil.copytree(first, restored)
        for number in later_groups:
            cut, target = DataDirectory(second), DataDirectory(restored)
            shutil.rmtree(target.wal(number))
            shutil.copytree(cut.wal(number), target.wal(number))
            for path in target.path.glob(f"catalog/{number}.db*"):
                path.unlink()
            for path in cut.path.glob(f"catalog/{number}.db*"):
                shutil.copy(path, target.path / "catalog" / path.name)
        async with writable(restored, 1 << 20) as groups:
            mended = await place_forks(groups)
            await check(World(groups))
        async with writable(restored, 1 << 20) as groups:
            await check(World(groups))  # it is durable
            assert await place_forks(groups) == Mended()
        return mended

    return asyncio.run(run())


async def nothing(world: World) -> None: ...


SOURCE, FORK, PLAIN = key(0), key(1, "town/fork"), key(2)


def test_a_fork_whose_home_was_cut_before_it_was_made_is_found_again(tmp_path: Path) -> None:
    async def before(world: World) -> None:
        await world.create(SOURCE)
        await world.create(PLAIN)

    async def later(world: World) -> None:
        await world.fork(FORK, SOURCE)
        await world.submit(0, FORK, Append([b"more"], None, None))

    async def check(world: World) -> None:
        assert world.where(FORK) == [0] and world.placed(FORK) == 0
        assert world.where(SOURCE) == [0] and world.where(PLAIN) == [2]

    assert played(tmp_path, before, later, {0}, check) == Mended(forks_placed=1)


def test_a_home_that_was_cut_later_takes_its_name_back(tmp_path: Path) -> None:
    async def before(world: World) -> None:
        await world.create(SOURCE)

    async def later(world: World) -> None:
        await world.fork(FORK, SOURCE)

    async def check(world: World) -> None:
        assert world.where(FORK) == [] and world.placed(FORK) is None

    assert played(tmp_path, before, later, {1}, check) == Mended(names_home=1)


def test_of_two_streams_of_one_name_the_one_that_was_made_later_stays(tmp_path: Path) -> None:
    """The home was cut when a stream of its own had the name; that was deleted before the fork was made."""

    async def before(world: World) -> None:
        await world.create(SOURCE)
        await world.create(FORK, b"older")

    async def later(world: World) -> None:
        await world.delete(FORK)
        await asyncio.sleep(0.005)  # moments of streams are told in milliseconds
        await world.fork(FORK, SOURCE)

    async def check(world: World) -> None:
        assert world.where(FORK) == [0] and world.placed(FORK) == 0

    assert played(tmp_path, before, later, {0}, check) == Mended(forks_placed=1, streams_deleted=1)


def test_a_fork_that_had_been_deleted_makes_way_for_the_stream_at_home(tmp_path: Path) -> None:
    async def before(world: World) -> None:
        await world.create(SOURCE)
        await world.fork(FORK, SOURCE)

    async def later(world: World) -> None:
        await world.delete(FORK)
        await asyncio.sleep(0.005)
        await world.create(FORK, b"newer")

    async def check(world: World) -> None:
        assert world.where(FORK) == [1] and world.placed(FORK) is None

    assert played(tmp_path, before, later, {1}, check) == Mended(streams_deleted=1)


def test_a_fork_that_moved_on_to_another_source_has_one_place(tmp_path: Path) -> None:
    async def before(world: World) -> None:
        await world.create(SOURCE)
        await world.create(PLAIN)
        await world.fork(FORK, SOURCE)

    async def later(world: World) -> None:
        await world.delete(FORK)
        await asyncio.sleep(0.005)
        await world.fork(FORK, PLAIN)

    async def check(world: World) -> None:
        assert world.where(FORK) == [2] and world.placed(FORK) == 2

    # The home and the first source were cut before.
    assert played(tmp_path, before, later, {2}, check) == Mended(forks_placed=1, streams_deleted=1)


def test_groups_that_agree_are_left_alone(tmp_path: Path) -> None:
    async def before(world: World) -> None:
        await world.create(SOURCE)
        await world.fork(FORK, SOURCE)
        await world.fork(key(0, "town/near"), SOURCE)

    async def check(world: World) -> None:
        assert world.where(FORK) == [0] and world.placed(FORK) == 0

    assert played(tmp_path, before, nothing, {0, 1, 2}, check) == Mended()
