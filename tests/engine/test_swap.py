"""Swaps of files on a log that several nodes follow: every node has them at the same place, an owner that was followed
by another does no harm, and what a job planned with one owner is not done by the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from headwater.engine import swap as swapping
from headwater.engine.checkpoint import checkpoint
from headwater.errors import Failure, GroupMoved, OwnerChanged
from headwater.lake.info import read_table
from headwater.lake.names import epoch_of
from headwater.model.events import SwapPart, Swapped
from headwater.ports import BlobsUnavailable
from tests.engine.changing_owners import Job, Node, World, in_a_world

KEYS = ("_default/r", "_default/s", "_default/t")


async def fill(world: World, rounds: int = 3) -> None:
    """A file for each round, with records of all streams."""
    for _ in range(rounds):
        for key in KEYS:
            await world.append(key)
        await world.owner.flusher.flush_all()


class Mute:
    """A lake whose table does not answer to a swap."""

    def __init__(self, lake: Any) -> None:
        self._lake = lake

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lake, name)

    def relocate(self, *arguments: Any) -> None:
        raise BlobsUnavailable("the table is out of reach")


def mute(node: Node) -> None:
    assert node.owned.swapper is not None
    node.owned.swapper._lake = Mute(node.lake)


@pytest.mark.parametrize("part", [1, 2, 5_000])
def test_a_standby_has_the_swap_at_the_same_place_and_serves_from_the_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(swapping, "PART_EXTENTS", part)

    async def body(world: World) -> None:
        await fill(world)
        b = world.nodes["b"]
        await b.follow()
        await b.follower.rest()
        job = await world.owner.plan()
        done = await world.swap(job)
        assert done.added_rows == 27 and await world.swap(job) == swapping.Swapped(27, 27, 0)
        await b.follow()
        assert b.extents() == world.owner.extents() and {one.file for one in b.extents()} == set(job.add)
        await fill(world, 1)
        await world.owner.sweep()
        await world.owner.sweep()
        assert [name for name in job.remove if world.store.head(name) is not None] == []
        await world.change_owner("b")
        await world.check()
        assert await world.swap(job) == swapping.Swapped(27, 27, 0), "done is done, whoever is asked"
        # One that begins with nothing has it from the log alone.
        await world.change_owner("c")
        await world.check()

    in_a_world(tmp_path, body)


def test_streams_deleted_and_trimmed_while_a_swap_is_judged_stay_so_on_every_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swapping, "PART_EXTENTS", 1)

    async def body(world: World) -> None:
        await fill(world)
        job = await world.owner.plan()
        b = world.nodes["b"]
        added = swapping.Swapper._add
        amid: list[str] = []

        def add(self: Any, event: SwapPart | Swapped) -> Any:
            amid.append(type(event).__name__)
            return added(self, event)

        monkeypatch.setattr(swapping.Swapper, "_add", add)
        task = asyncio.get_running_loop().create_task(world.swap(job))
        while not amid:
            await asyncio.sleep(0.001)
        await world.delete(KEYS[0])
        await world.submit(KEYS[1], trim := _trim(world, KEYS[1], 5))
        assert trim is not None
        await b.follow()
        await b.follower.rest()
        await task
        assert amid[-1] == "Swapped" and len(amid) > 2
        await b.follow()
        await checkpoint(world.owner.group)
        assert b.extents() == world.owner.extents()
        await world.change_owner("b")
        await world.check()

    in_a_world(tmp_path, body)


def _trim(world: World, key: str, upto: int) -> Any:
    from headwater.model.commands import Trim

    world.model[key] = (world.model[key][0], upto)
    return Trim(6 * upto)


def test_a_node_that_slept_through_a_swap_and_the_gc_after_it_serves_from_the_new_files(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await fill(world)
        await world.nodes["b"].follow()
        await world.nodes["b"].follower.rest()
        await world.swap(await world.owner.plan())
        await world.owner.sweep()
        await world.owner.sweep()
        b = await world.start("b")
        assert not b.group.loaded.new_swaps, "the old files may be gone: nothing is served from them"
        await world.change_owner("b")
        await world.check()

    in_a_world(tmp_path, body)


def test_a_crash_between_the_log_and_the_table_is_made_good_by_the_next_owner(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await fill(world)
        job = await world.owner.plan()
        mute(world.owner)
        with pytest.raises(BlobsUnavailable):
            await world.swap(job)
        assert set(job.remove) <= set(world.owner.lake.files())
        await world.change_owner("b")
        await world.owner.flusher.follow()
        assert set(world.owner.lake.files()) == set(job.add)
        await world.check()

    in_a_world(tmp_path, body)


def test_a_swap_that_ended_in_the_middle_of_its_parts_changed_nothing_and_holds_up_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swapping, "PART_EXTENTS", 1)

    async def body(world: World) -> None:
        await fill(world)
        job, a = await world.owner.plan(), world.owner
        added = swapping.Swapper._add

        def add(self: Any, event: SwapPart | Swapped) -> Any:
            if isinstance(event, Swapped):
                raise GroupMoved(0)
            return added(self, event)

        monkeypatch.setattr(swapping.Swapper, "_add", add)
        with pytest.raises(GroupMoved):
            await world.swap(job)
        monkeypatch.setattr(swapping.Swapper, "_add", added)
        b, c = world.nodes["b"], world.nodes["c"]
        await b.follow()
        before = b.group.catalog.position
        await b.follower.rest()
        assert b.group.catalog.position == before, "its end may come, and the parts are in no catalog"
        await world.change_owner("c")
        await b.follow()
        await b.follower.rest()
        assert b.group.catalog.position == b.log.tail, "its end never comes"
        await world.check()
        assert {one.file for one in c.extents()} >= set(job.remove)
        with pytest.raises(OwnerChanged):
            await world.swap(job)
        await world.swap(await world.owner.plan())
        await b.follow()
        assert b.extents() == world.owner.extents()
        assert not a.group.failed

    in_a_world(tmp_path, body)


def test_what_was_planned_with_one_owner_is_refused_by_the_next_and_planned_again(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await fill(world)
        job = await world.owner.plan()
        await world.change_owner("b")
        with pytest.raises(OwnerChanged, match="epoch 1 of group 0, whose owner has epoch 2"):
            await world.swap(job)
        await world.check()
        again = await world.owner.plan()
        assert {epoch_of(name) for name in again.add} == {2}
        await world.swap(again)
        await world.owner.sweep()
        assert world.store.head(job.add[0]) is None, "nobody ever refers to it"
        await world.check()

    in_a_world(tmp_path, body)


def test_what_an_owner_commits_after_it_was_followed_is_taken_out_of_the_table_by_the_next_one(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await fill(world)
        a = world.owner
        await world.append(KEYS[0])
        await world.change_owner("b")
        a.cut()
        await a.flusher.flush_all()
        assert len(a.lake.files()) == 4, "the later owner has not looked at the table yet"
        await world.check()

    in_a_world(tmp_path, body)


def test_an_owner_that_does_not_know_that_it_was_followed_does_no_harm(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await fill(world)
        a = world.owner
        await world.append(KEYS[0])
        await world.change_owner("b")
        a.cut()
        await world.swap(await world.owner.plan())
        await fill(world, 1)
        before = read_table(world.store)
        with pytest.raises(BlobsUnavailable, match="later owner"):
            await a.flusher.flush_all()
        a.group.catalog.table_behind = True
        with pytest.raises(BlobsUnavailable, match="later owner"):
            await a.flusher.follow()
        a.group.catalog.table_behind = False
        for _ in range(3):
            await a.sweep()
        assert read_table(world.store) == before, "the table took nothing of it"
        await world.check()

    in_a_world(tmp_path, body)


def test_files_that_one_owner_is_about_to_remove_are_never_swapped_in_by_the_next(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await fill(world)
        a = world.owner
        early = await a.plan()
        await world.change_owner("b")
        a.cut()
        late = await world.owner.plan()
        with pytest.raises(OwnerChanged):
            await world.swap(early)
        await world.swap(late)
        for _ in range(3):
            await a.sweep()
        assert world.store.head(early.add[0]) is None and world.store.head(late.add[0]) is not None
        await world.check()

    in_a_world(tmp_path, body)


def test_files_that_were_swapped_out_stay_until_a_catalog_that_is_kept_elsewhere_has_the_swap(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await fill(world)
        gc = world.owner.owned.lake_gc
        assert gc is not None
        kept = world.owner.group.catalog.position
        gc.covered = lambda: kept
        job = await world.owner.plan()
        kept = world.owner.group.catalog.position  # a snapshot of the catalog that counts on the old files
        await world.swap(job)
        for _ in range(3):
            await gc.sweep()
        assert all(world.store.head(name) is not None for name in job.remove)
        assert set(world.owner.lake.files()) == set(job.add)
        kept = world.owner.group.catalog.position
        await gc.sweep()
        assert all(world.store.head(name) is None for name in job.remove)
        await world.check()

    in_a_world(tmp_path, body)


async def refused(act: Awaitable[Any]) -> None:
    """Whether it is told or only does nothing: the owner does not have the group any more."""
    try:
        await act
    except (Failure, BlobsUnavailable, OSError):
        pass


STEPS = ["append"] * 5 + ["flush"] * 3 + ["swap"] * 4 + ["follow"] * 3 + ["change"] * 3 + ["zombie"] * 3
STEPS += ["trim", "delete", "plan", "late", "torn", "amid", "gc", "restart"]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_every_owner_serves_what_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    run_history(tmp_path, monkeypatch, seed, 40)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 140))
def test_whatever_happens_at_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    run_history(tmp_path, monkeypatch, seed, 120)


def run_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, steps_count: int) -> None:
    monkeypatch.setattr(swapping, "PART_EXTENTS", 2)

    async def body(world: World) -> None:
        await fill(world, 1)
        jobs: list[Job] = []
        for _ in range(steps_count):
            await step(world, world.random.choice(STEPS), jobs)
        await world.change_owner(world.random.choice("abc"))
        await world.check()
        assert world.swaps_count, "nothing was proved"

    in_a_world(tmp_path, body, seed)


async def step(world: World, name: str, jobs: list[Job]) -> None:
    choice = world.random.choice
    key, other = choice(KEYS), choice("abc")
    if name == "append":
        await world.append(key, world.random.randint(1, 3))
    elif name == "trim":
        await world.trim(key)
    elif name == "delete":
        await world.delete(key)
    elif name == "flush":
        await world.owner.flusher.flush_all()
    elif name == "gc":
        await world.owner.sweep()
    elif name == "swap":
        await world.try_swap(await world.owner.plan(world.random.randint(1, 5)))
    elif name == "plan":
        jobs.append(await world.owner.plan(world.random.randint(1, 5)))
    elif name == "late" and jobs:
        await world.try_swap(choice(jobs))
    elif name == "torn":
        job = await world.owner.plan()
        mute(world.owner)
        await world.try_swap(job)
        await world.change_owner(other)
        await world.check()
    elif name == "amid":
        swap = asyncio.get_running_loop().create_task(world.try_swap(await world.owner.plan(), world.owner))
        for _ in range(world.random.randint(0, 200)):
            await asyncio.sleep(world.random.choice((0, 0, 0.001)))
        await change(world, other)
        await swap
        await world.check()
    elif name == "follow":
        node = world.nodes[other]
        if not node.epoch:
            await node.follow()
            if world.random.random() < 0.7:
                await node.follower.rest()
    elif name == "restart" and not world.nodes[other].epoch:
        await world.start(other)
    elif name == "change":
        await change(world, other, cut=world.random.random() < 0.7)
        if world.random.random() < 0.5:
            await world.check()
    elif name == "zombie":
        zombies = [node for node in world.lives if node.epoch and node is not world.owner]
        if zombies:
            await meddle(world, choice(zombies), jobs)


async def change(world: World, name: str, cut: bool = False) -> None:
    """Somebody may write while it is tried: then it is tried again."""
    from headwater.log.quorum import Behind

    before = world.owner
    while True:
        try:
            await world.change_owner(name)
            if cut:
                before.cut()
            return
        except Behind:
            pass


async def meddle(world: World, zombie: Node, jobs: list[Job]) -> None:
    zombie.flusher._doubt = world.random.random() < 0.5
    if zombie.medium.broken is None and jobs:
        await refused(zombie.swap(world.random.choice(jobs)))
    await refused(zombie.flusher.flush_all())
    await refused(zombie.sweep())
    await refused(zombie.sweep())
