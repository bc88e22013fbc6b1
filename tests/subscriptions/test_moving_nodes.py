"""Nodes that come and go, and groups that change hands: no subscription loses a wake-up for good.
It owns no rule; wakes are looked at, never timed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from headwater.errors import Failure, NoPendingWork
from headwater.model.subscriptions import WEBHOOK
from headwater.subscriptions import hints
from headwater.subscriptions.webhooks import Reply
from tests.subscriptions.moving_nodes import Cluster, play
from tests.subscriptions.player import Player
from tests.support.processes import until

SUB, STREAM = 0, 1
"""The group of the subscription, and that of a stream; with three nodes, also who owns them first."""

FAULTS = ["move", "move", "move", "orphan", "adopt", "kill", "start", "see one", "see", "cut", "heal", "lose"]
forgetful = pytest.mark.parametrize("forgetful", [False, True], ids=["loaded", "at rest"])


class Gate(asyncio.Event):
    """Knows how many answers have come to it."""

    held_count = 0

    async def wait(self) -> bool:  # type: ignore[override]
        self.held_count += 1
        return await super().wait()


@forgetful
def test_what_a_dead_owner_had_not_told_is_found_at_the_next_one(forgetful: bool) -> None:
    async def body(world: Cluster) -> None:
        old, new, gone = (world.named(STREAM, f"events/{name}") for name in ("old", "new", "gone"))
        await world.put(old)
        await world.put(gone)
        await world.subscribe()
        world.wire.cut.add(STREAM)  # its owner tells nobody any more
        await world.append(old)
        await world.put(new, b"one")
        await world.delete(gone)
        await world.kill(STREAM)
        world.wire.cut.clear()
        world.enter(STREAM, 2)
        world.see()
        await until(lambda: set(world.sub.pending) == {old, new})
        await until(lambda: gone not in world.sub.links)
        assert {info.path for info in (await world.claim()).streams if info.has_pending} == {old, new}

    play(body, forgetful=forgetful)


@forgetful
def test_a_claim_right_after_a_group_came_to_the_subscriptions_own_node_sees_what_was_appended(forgetful: bool) -> None:
    async def body(world: Cluster) -> None:
        path = world.named(STREAM, "events/a")
        await world.put(path)
        await world.subscribe()
        world.wire.cut.add(STREAM)
        await world.append(path)
        await world.kill(STREAM)
        world.wire.cut.clear()
        world.enter(STREAM, SUB)
        world.see()
        assert [info.path for info in (await world.claim()).streams if info.has_pending] == [path]

    play(body, forgetful=forgetful)


@forgetful
def test_a_subscription_whose_group_moved_knows_of_work_that_no_log_holds(forgetful: bool) -> None:
    async def body(world: Cluster) -> None:
        paths = [world.named(group, "events/a") for group in range(world.groups_count)]
        named = world.named(STREAM, "other/named")
        await world.subscribe((named,))
        for path in (*paths, named):
            await world.put(path, b"one")
        await until(lambda: set(world.sub.pending) == {*paths, named})
        world.move(SUB, 2)  # that there is work after the cursors was known in memory alone
        world.see()
        claim = await world.claim()
        assert {info.path for info in claim.streams if info.has_pending} == {*paths, named}

    play(body, forgetful=forgetful)


def test_a_subscription_whose_group_moved_is_told_of_what_happens_from_then_on() -> None:
    async def body(world: Cluster) -> None:
        path, named = world.named(STREAM, "events/a"), world.named(STREAM, "other/named")
        await world.subscribe((named,))
        world.move(SUB, 2)
        world.see()
        with pytest.raises(NoPendingWork):
            await world.claim()
        await world.put(path, b"one")
        await world.put(named, b"one")
        await until(lambda: set(world.sub.pending) == {path, named})
        # Whoever served it before wants to hear of nothing any more.
        assert not world.nodes[SUB].manager._index.by_uid
        assert not any(world.nodes[0].manager._neighbours.wants(one) for one in ((True, "events/*"), (False, named)))

    play(body)


def test_a_node_that_came_is_asked_and_one_that_went_is_forgotten_by_both_sides() -> None:
    async def body(world: Cluster) -> None:
        await world.subscribe()
        assert [*world.nodes[1].manager._hints._askers] == [0]
        await world.kill(2)
        world.enter(2, 1)
        world.see()
        assert [*world.manager._neighbours._all] == [1]
        world.start(5)
        world.move(2, 5)
        world.see()
        path = world.named(2, "events/a")
        await world.put(path, b"one")
        await until(lambda: path in world.sub.pending)
        assert sorted(world.manager._neighbours._all) == [1, 5]
        await world.kill(0)
        world.enter(SUB, 1)
        world.enter(3, 1)
        world.see()
        assert [*world.nodes[5].manager._hints._askers] in ([], [1])
        await until(lambda: path in world.sub.pending)

    play(body)


def test_a_node_that_is_not_seen_for_a_while_is_listened_to_again() -> None:
    async def body(world: Cluster) -> None:
        path = world.named(STREAM, "events/a")
        await world.put(path)
        await world.subscribe()
        seen = world.nodes[SUB].seen
        seen.everyone.remove(STREAM)
        for call in seen.on_change:
            call()
        await world.append(path)
        with pytest.raises(NoPendingWork):
            await world.claim()
        world.see()
        await until(lambda: path in world.sub.pending)

    play(body)


def test_hints_that_are_kept_for_a_node_have_a_limit_however_often_groups_enter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(world: Cluster) -> None:
        await world.subscribe()
        world.wire.cut.add(SUB)
        for at in range(20):
            world.move(STREAM, 1 + (at + 1) % 2)
        for member in (1, 2):
            for asker in world.nodes[member].manager._hints._askers.values():
                assert len(asker.hints) <= world.groups_count
        monkeypatch.setattr(hints, "HINTS_MAX", 0)
        world.move(STREAM, 2)
        assert not world.nodes[2].manager._hints._askers

    play(body)


def test_existing_streams_are_linked_although_groups_move_in_front_of_the_walk() -> None:
    async def body(world: Cluster) -> None:
        paths = [world.named(group, f"events/{at}") for group in range(world.groups_count) for at in range(2)]
        for path in paths:
            await world.put(path, b"one")
        gate = world.wire.gates["subscriptions_matching"] = asyncio.Event()
        creating = asyncio.ensure_future(world.subscribe())
        await until(lambda: any(name == "subscriptions_matching" for _, _, name in world.wire.asked))
        world.move(2, 1)  # from a node that is asked later to the one that is being asked
        world.see()
        gate.set()
        await creating
        assert {path: link.acked for path, link in world.sub.links.items()} == dict.fromkeys(paths, 3)
        assert not world.sub.pending

    play(body)


def test_a_stream_that_was_created_behind_the_walk_and_never_told_of_is_found() -> None:
    async def body(world: Cluster) -> None:
        first = world.wire.gates["subscriptions_matching"] = Gate()
        creating = asyncio.ensure_future(world.subscribe())
        await until(lambda: first.held_count)
        gate = world.wire.gates["subscriptions_matching"] = asyncio.Event()
        first.set()
        await until(lambda: any(to == 2 for _, to, name in world.wire.asked if name == "subscriptions_matching"))
        path = world.named(STREAM, "events/a")
        world.wire.cut.add(STREAM)
        await world.put(path, b"one")
        await world.kill(STREAM)
        world.wire.cut.clear()
        world.enter(STREAM, 2)
        world.see()
        gate.set()
        await creating
        await until(lambda: path in world.sub.pending)

    play(body)


def test_a_walk_goes_on_where_the_subscriptions_group_went() -> None:
    async def body(world: Cluster) -> None:
        path = world.named(STREAM, "events/a")
        await world.put(path, b"one")
        gate = world.wire.gates["subscriptions_matching"] = asyncio.Event()
        creating = asyncio.ensure_future(world.subscribe())
        await until(lambda: any(name == "subscriptions_matching" for _, _, name in world.wire.asked))
        world.move(SUB, 2)
        world.see()
        with pytest.raises(Failure):
            await creating
        gate.set()
        await until(lambda: world.sub.complete)
        assert world.sub.links[path].acked == 3 and not world.sub.pending

    play(body)


def test_a_webhook_whose_group_left_and_came_back_is_delivered_and_an_answer_to_the_one_before_ends_nothing() -> None:
    async def body(world: Cluster) -> None:
        path = world.named(STREAM, "events/a")
        await world.subscribe(kind=WEBHOOK)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        posts: list[bytes] = []

        async def post(url: str, headers: list[tuple[str, str]], body: bytes, timeout_s: float) -> Reply:
            posts.append(body)
            return await answer if len(posts) == 1 else Reply(200, b"{}")

        world.client.post = post  # type: ignore[method-assign]
        await world.put(path, b"one")
        await until(lambda: posts)
        world.move(SUB, 2)
        world.see()
        await until(lambda: len(posts) == 2 and world.sub.leased)  # the next owner has it delivered again
        world.move(SUB, 0)
        world.see()
        generation = world.sub.generation
        answer.set_result(Reply(200, b'{"done":true}'))
        for _ in range(50):
            await asyncio.sleep(0)
        assert world.sub.leased and world.sub.generation == generation and path in world.sub.links
        assert world.sub.links[path].acked == 0

    play(body)


def test_a_wake_waits_for_no_delivery_that_was_begun_before_its_group_left_and_came_back() -> None:
    async def body(world: Cluster) -> None:
        await world.subscribe(kind=WEBHOOK)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        posts: list[bytes] = []

        async def post(url: str, headers: list[tuple[str, str]], body: bytes, timeout_s: float) -> Reply:
            posts.append(body)
            return await answer if len(posts) == 1 else Reply(200, b'{"done":true}')

        world.client.post = post  # type: ignore[method-assign]
        await world.put(world.named(STREAM, "events/a"), b"one")
        await until(lambda: posts)
        world.move(SUB, 0)  # it left and came back, and nobody delivered meanwhile
        world.see()
        answer.set_result(Reply(200, b'{"done":true}'))
        await until(lambda: len(posts) == 2 and world.sub.wake is None and not world.sub.pending)

    play(body)


def test_a_late_hint_of_an_owner_before_does_not_link_a_stream_that_was_deleted_since() -> None:
    async def body(world: Cluster) -> None:
        path = world.named(STREAM, "events/a")
        await world.put(path)
        await world.subscribe()
        await until(lambda: world.wire.under_way.get(STREAM))
        world.wire.cut.add(STREAM)
        await world.append(path)  # its owner keeps the hint, and nobody hears it
        world.move(STREAM, SUB)
        world.see()
        await world.delete(path)
        world.wire.cut.clear()
        (asker,) = world.nodes[STREAM].manager._hints._askers.values()
        await until(lambda: not asker.hints)
        assert path not in world.sub.links and not world.sub.pending

    play(body)


class MovingPlayer(Player):
    def __init__(self, world: Cluster, seed: int) -> None:
        super().__init__(world, seed, world.groups_count, world.named)

    async def fault(self) -> None:
        world, choice = self.world, self.random.choice
        members = sorted(world.nodes)
        match choice(FAULTS):
            case "move":
                group = choice([*world.owner] or [0])
                if group in world.owner:
                    world.move(group, choice(members))
            case "orphan":
                if world.owner:
                    world.leave(choice([*world.owner]))
            case "adopt":
                for group in {*range(world.groups_count)} - world.owner.keys():
                    world.enter(group, choice(members))
            case "kill":
                if len(members) > 1:
                    await world.kill(choice(members))
            case "start":
                world.start(max(members) + 1 if self.random.random() < 0.3 else min({*range(9)} - {*members}))
            case "see one":
                world.see(choice(members))
            case "see":
                world.see()
            case "cut":
                world.wire.cut.add(choice(members))
            case "heal":
                world.wire.cut.clear()
                world.wire.losing.clear()
            case "lose":
                world.wire.losing.add("subscriptions_news")

    def heal(self) -> None:
        world = self.world
        world.wire.losing.clear()
        world.wire.cut.clear()
        for group in {*range(world.groups_count)} - world.owner.keys():
            world.enter(group, self.random.choice(sorted(world.nodes)))
        world.see()


@pytest.mark.parametrize("seed", [*range(24), 100, 188, 515, 524])
def test_whatever_happened_all_work_is_known_in_the_end(seed: int) -> None:
    async def body(world: Cluster) -> None:
        player = MovingPlayer(world, seed)
        await world.subscribe(player.named)
        for _ in range(150):
            with suppress(Failure):
                await player.step()
        player.heal()
        await until(lambda: not world.wrong(player.paths))
        await world.manager.show(world.id)
        assert world.wrong(player.paths) == []

    play(body, forgetful=bool(seed % 2))
