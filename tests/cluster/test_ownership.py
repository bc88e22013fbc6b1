"""Who owns a group: claims, fencing, hand-over, and what each of them means for clients. Time is simulated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headwater.cluster.ownership import AWAY, OWNER, STANDBY, GroupOwnership
from headwater.engine.follower import Follower
from headwater.engine.outcome_future import OutcomeFuture
from headwater.errors import NotServedHere
from headwater.log.medium import Taken
from headwater.log.quorum import Behind, QuorumLog
from headwater.model.commands import Trim
from tests.cluster.simulated_nodes import KEY, Node, Violation, Wire, World, shown
from tests.engine import Ear
from tests.log.memory_entries import MemoryEntries, Place


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on a thread runs at once: no thread is faster or slower than simulated time."""

    async def to_thread(call: Callable[..., Any], *arguments: Any) -> Any:
        return call(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)


def simulate(directory: Path, body: Callable[[World], Awaitable[None]], seed: int = 1) -> World:
    found: list[World] = []

    async def run() -> None:
        world = World(seed, directory)
        found.append(world)
        try:
            await body(world)
        finally:
            await world.close()

    asyncio.run(run())
    return found[0]


async def serving(world: World, *names: str) -> list[Node]:
    nodes = [world.start(name) for name in names]
    await world.run(30, lambda: bool(world.owners()))
    world.spawn(world.create())
    await world.run(world.now_s + 1)
    return nodes


def test_the_first_in_line_owns_the_group_and_the_next_one_follows(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        a, b, c = await serving(world, "a", "b", "c")
        world.append(b"one")
        await world.run(world.now_s + 1)
        assert [a.group.state, b.group.state, c.group.state] == [OWNER, STANDBY, AWAY]
        assert world.acked == [b"one"]
        assert a.ownership.claims() == {0: 1}

    simulate(tmp_path, body)


def test_a_standby_takes_over_from_an_owner_that_died_without_a_replay(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        a, b = await serving(world, "a", "b")
        for n in range(20):
            world.append(b"%d" % n)
            await world.run(world.now_s + 0.1)
        loads: list[object] = []
        log = b.group._log
        assert log is not None
        log.load = loads.append  # type: ignore[assignment, method-assign]
        a.dead = True
        died_s = world.now_s
        await world.run(30, lambda: world.owners() == [b])
        assert world.now_s - died_s < 3
        assert shown(b.engine.owned[0].group) == [b"%d" % n for n in range(20)] and loads == []
        assert b.ownership.claims() == {0: 2}

    simulate(tmp_path, body)


def test_an_owner_that_was_paused_acknowledges_nothing_when_it_wakes_and_follows_again(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        a, b = await serving(world, "a", "b")
        world.append(b"before")
        await world.run(world.now_s + 1)
        a.paused = True
        await world.run(30, lambda: b in world.owners())
        world.append(b"zombie", a)
        world.append(b"new", b)
        await world.run(world.now_s + 1)
        stream = a.engine.owned[0].group.find(KEY, touch=False)
        ear = Ear()
        a.engine.follow(stream, ear)
        a.paused = False
        await world.run(world.now_s + 0.5)
        assert world.acked == [b"before", b"new"] and world.refused == [b"zombie"]
        assert ear.left_count == 1 and ear.wakes == []
        with pytest.raises(NotServedHere):
            a.engine.find(KEY, False)
        await world.run(world.now_s + 2)
        assert a.group.state == STANDBY
        # It is first in line, so the group comes back to it.
        await world.run(60, lambda: world.owners() == [a])
        assert shown(a.engine.owned[0].group) == [b"before", b"new"]

    simulate(tmp_path, body)


def test_an_owner_without_its_log_stops_serving_within_its_lease_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        (a,) = await serving(world, "a")
        a.cut = True
        stream = a.engine.find(KEY, False)
        ear = Ear()
        a.engine.follow(stream, ear)
        await world.run(world.now_s + 2.3)
        assert world.owners() == [] and ear.left_count == 1
        a.cut = False
        await world.run(world.now_s + 2)
        assert world.owners() == [a]
        world.append(b"again")
        await world.run(world.now_s + 1)
        assert world.acked == [b"again"]

    simulate(tmp_path, body)


def test_nodes_that_do_not_see_each_other_do_not_take_a_group_that_is_written_to(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        a, _ = await serving(world, "a", "b")
        world.unseen = {("a", "b"), ("b", "a")}
        await world.run(world.now_s + 60)
        assert world.owners() == [a] and a.group.epoch == 1

    simulate(tmp_path, body)


def test_a_node_that_drains_hands_its_group_over_at_once(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        a, b = await serving(world, "a", "b")
        for n in range(5):
            world.append(b"%d" % n)
        world.spawn(a.ownership.drain())
        began_s = world.now_s
        await world.run(30, lambda: b in world.owners())
        assert world.now_s - began_s < 0.5
        assert len(world.acked) == 5 and world.refused == []
        assert shown(b.engine.owned[0].group) == world.acked
        await world.run(world.now_s + 20)
        assert world.owners() == [b]

    simulate(tmp_path, body)


def test_a_better_placed_node_gets_the_group_back_without_an_append_lost(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await serving(world, "b")
        world.append(b"one")
        await world.run(world.now_s + 1)
        a = world.start("a")
        await world.run(60, lambda: world.owners() == [a])
        assert shown(a.engine.owned[0].group) == [b"one"] and a.group.epoch == 2
        assert not world.reports

    simulate(tmp_path, body)


def test_a_node_without_a_catalog_begins_with_a_snapshot_when_the_log_was_purged(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await serving(world, "a", "b")
        group = world.owners()[0].engine.owned[0].group
        for n in range(300):
            world.append(b"%d" % n)
            await world.run(world.now_s + 0.02)
        # What is in the lake, or let go of, is what a log can be purged of: here the records are trimmed.
        stream = group.find(KEY, touch=False)
        group.submit(KEY, Trim(stream.tail), OutcomeFuture())
        world.acked.clear()
        await world.run(world.now_s + 10)
        assert world.place.head > 1, "nothing was purged"
        world.append(b"after")
        await world.run(world.now_s + 1)
        expected = group.find(KEY, touch=False)
        for node in list(world.nodes.values()):
            node.dead = True
        c = world.start("c")
        await world.run(60 + world.now_s, lambda: c in world.owners())
        found = c.engine.owned[0].group.find(KEY, touch=False)
        assert (found.sid, found.tail, found.earliest) == (expected.sid, expected.tail, expected.earliest)
        assert c.engine.owned[0].group.lineage.incarnations[:-1] == group.lineage.incarnations

    simulate(tmp_path, body)


def test_nothing_is_purged_before_a_second_member_could_load_a_snapshot(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        a, b = await serving(world, "a", "b")
        log = a.group._log
        assert log is not None
        b.ownership.groups[0].leave()  # alive, and confirms nothing
        await world.run(world.now_s + 1)
        for n in range(200):
            world.append(b"%d" % n)
            await world.run(world.now_s + 0.05)
        assert list(world.store.list("catalogs/0/")) and world.place.head == 1 and log.kept_after == -1

    simulate(tmp_path, body)


def test_a_log_that_was_made_again_is_not_applied_to_an_old_catalog(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        (a,) = await serving(world, "a")
        await world.run(world.now_s + 5)
        a.dead = True
        other = Place()
        world.medium = lambda: MemoryEntries(other)
        a = world.start("a")
        await world.run(world.now_s + 20)
        assert world.owners() == []
        assert any("and this log is empty" in why for why in world.reports)

    simulate(tmp_path, body)


# ---- seeded histories ---------------------------------------------------------------------------------------------


async def history(world: World) -> None:
    for name in ("a", "b", "c"):
        world.start(name)
    await world.run(30, lambda: bool(world.owners()))
    world.spawn(world.create())
    await world.run(world.now_s + 0.5)
    end_s, count = world.now_s + 60, 0
    while world.now_s < end_s:
        for _ in range(world.random.randrange(4)):
            count += 1
            world.append(b"%d" % count)
        for node in world.owners():
            if not node.paused:
                world.look(node)
        if world.random.random() < 0.03:
            disturb(world)
        await world.run(world.now_s + world.random.random() / 4)
    for name, node in list(world.nodes.items()):
        node.paused = node.cut = False
        if node.dead:
            world.start(name)
    world.unseen.clear()
    a = world.nodes["a"]
    await world.run(world.now_s + 60, lambda: world.owners() == [a])
    await world.run(world.now_s + 5)
    if world.owners() != [a]:
        raise Violation(f"nobody serves, or several: {world.reports[-3:]}")
    world.judge()


def disturb(world: World) -> None:
    choice = world.random.randrange
    node = world.nodes["abc"[choice(3)]]
    if node.dead:
        world.start(node.me)
        return
    match choice(5):
        case 0:
            node.dead = True
        case 1:
            node.paused = not node.paused
        case 2:
            node.cut = not node.cut
        case 3:
            pair = (node.me, "abc"[choice(3)])
            world.unseen ^= {pair} if choice(2) else {pair, pair[::-1]}
        case _:
            for other in world.nodes.values():
                other.paused = other.cut = False
            world.unseen.clear()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_befalls_the_nodes_nothing_acknowledged_is_lost_and_nothing_refused_is_there(
    tmp_path: Path, seed: int
) -> None:
    world = simulate(tmp_path, history, seed)
    assert len(world.acked) > 20


def found_by_some_seed(directory: Path) -> bool:
    for seed in range(12):
        (directory / str(seed)).mkdir()
        try:
            simulate(directory / str(seed), history, seed)
        except Violation:
            return True
    return False


def test_planted_a_node_that_serves_before_the_end_of_the_log_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = QuorumLog.claim

    async def eager(self: QuorumLog, wanted: Any) -> Any:
        while True:
            try:
                return await claim(self, wanted)
            except Behind:
                await self.more()  # and what it says is passed over

    monkeypatch.setattr(QuorumLog, "claim", eager)
    monkeypatch.setattr(GroupOwnership, "_may_claim", lambda self, log: self._view.in_line(0)[0] == self._view.me)
    assert found_by_some_seed(tmp_path)


def test_planted_a_standby_that_claims_without_having_followed_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def advance(self: Follower) -> bool:
        await self._log.more()
        self._whole = True
        return False

    monkeypatch.setattr(Follower, "advance", advance)
    assert found_by_some_seed(tmp_path)


def test_planted_an_owner_that_does_not_notice_its_fence_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Wire.put

    async def deaf(self: Wire, number: int, data: bytes) -> None:
        with suppress(Taken):
            await put(self, number, data)

    monkeypatch.setattr(Wire, "put", deaf)
    assert found_by_some_seed(tmp_path)
