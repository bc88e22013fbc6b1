"""Registrations: each node has a number of its own, whoever else starts, stops or is slow at the same time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headwater.cluster.nodes import CannotRegister, Node, Registry, kept_id
from headwater.log.medium import Unavailable, Unsure
from headwater.log.object_places import DirectoryPlace
from headwater.ports import SystemRng


def node(name: str, run: str = "first") -> Node:
    return Node(-1, name, f"{name}-{run}", "127.0.0.1:1", "", "1.0", "", 0, 1)


class Held(DirectoryPlace):
    """A place where a creation can be held back, and its answer lost."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.before_create: Any = None
        self.lose_answers = 0
        self.fail = 0

    async def create(self, key: str, data: bytes) -> bool:
        if self.before_create is not None:
            wait, self.before_create = self.before_create, None
            await wait()
        if self.fail:
            self.fail -= 1
            raise Unavailable("away")
        created = await super().create(key, data)
        if self.lose_answers:
            self.lose_answers -= 1
            raise Unsure("the answer was lost")
        return created


async def registered(place: DirectoryPlace, name: str, run: str = "first") -> Registry:
    registry = Registry(place)
    await registry.register(node(name, run))
    return registry


def number_of(registry: Registry) -> int:
    assert registry.mine is not None
    return registry.mine.number


def test_nodes_take_the_lowest_free_number_and_give_it_back(tmp_path: Path) -> None:
    async def body() -> None:
        place = DirectoryPlace(tmp_path)
        first, second = await registered(place, "a"), await registered(place, "b")
        assert (number_of(first), number_of(second)) == (0, 1)
        await first.release()
        assert [found.id for found in await second.nodes()] == ["b"]
        third = await registered(place, "c")
        assert number_of(third) == 0
        assert await third.nodes() == await second.nodes() == [third.mine, second.mine]

    asyncio.run(body())


def test_nodes_that_start_at_once_get_different_numbers(tmp_path: Path) -> None:
    async def body() -> None:
        made = await asyncio.gather(*(registered(DirectoryPlace(tmp_path), f"n{n}") for n in range(6)))
        assert sorted(map(number_of, made)) == list(range(6))
        found = await made[0].nodes()
        assert sorted(one.id for one in found) == [f"n{n}" for n in range(6)]

    asyncio.run(body())


def test_a_node_that_comes_back_after_a_crash_has_its_number_again(tmp_path: Path) -> None:
    async def body() -> None:
        place = DirectoryPlace(tmp_path)
        await registered(place, "a")
        crashed = await registered(place, "b")
        again = await registered(place, "b", "second")
        assert number_of(again) == number_of(crashed) == 1
        assert again.mine is not None and crashed.mine is not None and again.mine.turn > crashed.mine.turn
        await crashed.release()  # what is left of the earlier run takes nothing away
        assert [found.run for found in await again.nodes()] == ["a-first", "b-second"]

    asyncio.run(body())


def test_a_slow_node_never_gets_a_number_that_was_taken_and_given_back_meanwhile(tmp_path: Path) -> None:
    async def body() -> None:
        place = Held(tmp_path)
        await (await registered(place, "z")).release()  # number 0 is free, at some turn

        async def meanwhile() -> None:
            other = DirectoryPlace(tmp_path)
            await (await registered(other, "a")).release()  # the turn that the slow one wants is created and deleted
            await registered(other, "b")

        place.before_create = meanwhile
        slow = await registered(place, "slow")
        assert number_of(slow) == 1
        assert [found.id for found in await slow.nodes()] == ["b", "slow"]

    asyncio.run(body())


def test_a_registration_whose_answer_was_lost_counts(tmp_path: Path) -> None:
    async def body() -> None:
        place = Held(tmp_path)
        place.lose_answers, place.fail = 2, 1
        registry = await registered(place, "a")
        assert number_of(registry) == 0
        assert await registry.nodes() == [registry.mine]

    asyncio.run(body())


def test_a_dead_nodes_number_can_be_freed_but_not_that_of_its_successor(tmp_path: Path) -> None:
    async def body() -> None:
        place = DirectoryPlace(tmp_path)
        dead = await registered(place, "a")
        seer = await registered(place, "b")
        gone = dead.mine
        assert gone is not None and await seer.forget(gone)
        assert not await seer.forget(gone)
        await registered(place, "c")
        assert not await seer.forget(gone)
        assert [found.id for found in await seer.nodes()] == ["c", "b"]

    asyncio.run(body())


def test_a_registration_of_a_later_format_keeps_its_number_taken(tmp_path: Path) -> None:
    async def body() -> None:
        place = DirectoryPlace(tmp_path)
        await place.create("nodes/000000/000000000001", msgspec.json.encode({"format": 9, "node": {"who": "knows"}}))
        registry = await registered(place, "a")
        assert number_of(registry) == 1
        assert await registry.nodes() == [registry.mine]

    asyncio.run(body())


def test_a_node_keeps_its_id_with_its_data(tmp_path: Path) -> None:
    first = kept_id(tmp_path, SystemRng())
    assert kept_id(tmp_path, SystemRng()) == first
    (tmp_path / "node-id").write_text("nonsense!\n")
    with pytest.raises(CannotRegister):
        kept_id(tmp_path, SystemRng())
