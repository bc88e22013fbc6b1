"""Subscriptions and streams in two processes: growth there wakes here, and what is told and acknowledged is true there.
It owns no rule; wakes are looked at, never timed."""

from __future__ import annotations

import asyncio
import json

import pytest

from headwater.engine.placements import Placed, Placements, encode
from headwater.errors import BadAck, NoPendingWork
from headwater.model import offsets
from headwater.model.commands import Append, Create
from headwater.model.subscriptions import PULL_WAKE, WEBHOOK, Config
from headwater.subscriptions import local_streams
from headwater.subscriptions.all_streams import AllStreams
from headwater.subscriptions.manager import Bearer
from tests.engine import Inbox
from tests.subscriptions.two_processes import HERE, LEASE_MS, THERE, World, play
from tests.support.processes import Processes, run, until


def test_growth_in_another_process_wakes_and_the_wake_event_is_appended_where_its_stream_lives(
    groups_count: int,
) -> None:
    async def body(world: World) -> None:
        await world.put(world.away, b"before")
        await world.put(world.wakes)
        await world.subscribe()
        assert world.acked(world.away) == 6
        assert world.sub.wake is None
        await world.append(world.away)
        await until(lambda: world.sub.wake is not None)
        pool = world.processes[THERE].engine.look(world.wakes)
        assert pool is not None
        await until(lambda: pool.visible > 0)
        (event,) = [json.loads(record) for record in pool.timeline.payloads]
        assert (event["subscription_id"], event["stream"], event["generation"]) == (world.id, world.away, 1)

    play(groups_count, body)


def test_a_claim_sees_an_append_that_was_acknowledged_just_before_it(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.subscribe()
        await world.put(world.away)
        gate = world.hold("subscriptions_news")
        await world.append(world.away, b"abc")
        claiming = asyncio.ensure_future(world.claim())
        await asyncio.sleep(0)
        gate.set()
        claim = await claiming
        (info,) = claim.streams
        assert (info.path, info.has_pending, offsets.parse(info.tail_offset)) == (world.away, True, 3)
        assert await world.ack(claim, world.away, 3) is False
        with pytest.raises(NoPendingWork):
            await world.claim()

    play(groups_count, body)


def test_growth_while_a_worker_is_busy_stays_pending_after_its_acknowledgement(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.subscribe()
        await world.put(world.away, b"one")
        claim = await world.claim()
        await world.append(world.away, b"two")
        assert await world.ack(claim, world.away, 3) is True
        claim = await world.claim()
        assert await world.ack(claim, world.away, 6) is False

    play(groups_count, body)


def test_an_acknowledgement_beyond_the_tail_or_inside_a_record_of_another_process_is_refused(
    groups_count: int,
) -> None:
    async def body(world: World) -> None:
        await world.subscribe()
        await world.put(world.away, b"one", b"two")
        claim = await world.claim()
        with pytest.raises(BadAck, match="beyond the tail"):
            await world.ack(claim, world.away, 7)
        with pytest.raises(BadAck, match="inside a message"):
            await world.ack(claim, world.away, 4)
        assert world.acked(world.away) == 0
        assert await world.ack(claim, world.away, 3, done=False) is False
        assert world.acked(world.away) == 3 and world.away in world.sub.pending
        assert await world.ack(claim, world.away, 6) is False

    play(groups_count, body)


def test_a_stream_deleted_in_another_process_is_unlinked_and_its_next_life_begins_at_its_beginning(
    groups_count: int,
) -> None:
    async def body(world: World) -> None:
        await world.put(world.away, b"old")
        await world.put(world.other, b"old")
        await world.subscribe(streams=(world.other,))
        for path in (world.away, world.other):
            await world.delete(path)
        await until(lambda: world.away not in world.sub.links and world.sub.links[world.other].sid == 0)
        for path in (world.away, world.other):
            await world.put(path, b"new")
        claim = await world.claim()
        assert {info.path: info.has_pending for info in claim.streams} == {world.away: True, world.other: True}
        assert world.acked(world.away) == world.acked(world.other) == 0

    play(groups_count, body)


def test_work_of_a_stream_that_is_deleted_and_made_again_between_two_news_is_the_new_streams(
    groups_count: int,
) -> None:
    async def body(world: World) -> None:
        await world.put(world.away, b"old")
        await world.subscribe()
        before = world.sub.links[world.away].sid
        world.wire.losing.add("subscriptions_news")
        await world.append(world.away)
        await world.delete(world.away)
        await world.put(world.away, b"new")
        world.wire.losing.clear()
        await world.claim()
        link = world.sub.links[world.away]
        assert link.sid != before and link.acked == 0

    play(groups_count, body)


def test_a_new_stream_of_a_pattern_is_linked_from_its_beginning_wherever_it_is_made(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.subscribe()
        await world.put(world.away, b"one")
        await world.put(world.near, b"one")
        await world.put(world.other, b"one")
        await until(lambda: len(world.sub.links) == 2)
        assert {world.acked(world.away), world.acked(world.near)} == {0}
        claim = await world.claim()
        assert {info.path for info in claim.streams if info.has_pending} == {world.away, world.near}

    play(groups_count, body)


def test_a_stream_named_before_it_exists_is_heard_of_from_another_process(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.subscribe(pattern=None, streams=(world.near,))
        await world.manager.add_streams(world.id, [world.other])
        await world.put(world.other, b"one")
        claim = await world.claim()
        assert [info.path for info in claim.streams if info.has_pending] == [world.other]
        await world.ack(claim, world.other, 3)
        await world.manager.remove_stream(world.id, world.other)
        await world.append(world.other)
        with pytest.raises(NoPendingWork):
            await world.claim()

    play(groups_count, body)


def test_a_stream_that_grows_while_another_acknowledgement_is_checked_stays_pending(groups_count: int) -> None:
    async def body(world: World) -> None:
        second = world.processes.named(groups_count - 1, "events/second")
        await world.subscribe()
        await world.put(world.away, b"one")
        await world.put(second, b"one", b"two")
        claim = await world.claim()
        gate = world.hold("subscriptions_inside")
        bearer = Bearer(claim.token, claim.wake_id, claim.generation)
        acks = [(world.away, 3), (second, 3)]
        acking = asyncio.ensure_future(world.manager.acknowledge(world.id, bearer, acks, False))
        await world.until_asked("subscriptions_inside")
        await world.append(world.away)
        await world.manager._neighbours.refresh()
        gate.set()
        await acking
        assert set(world.sub.pending) == {world.away, second}

    play(groups_count, body)


def test_a_webhook_that_is_done_leaves_what_grew_meanwhile(groups_count: int) -> None:
    async def body(world: World) -> None:
        sent = world.client.post

        async def slow(*arguments):
            if not world.client.bodies:
                await world.append(world.away, b"two")
                await world.manager._neighbours.refresh()
            return await sent(*arguments)

        world.client.post = slow  # type: ignore[method-assign]
        await world.subscribe(WEBHOOK)
        await world.put(world.away, b"one")
        await until(lambda: len(world.client.bodies) == 2 and world.sub.wake is None)
        assert world.acked(world.away) == 6 and not world.sub.pending

    play(groups_count, body)


def test_what_grows_while_a_subscription_is_created_is_work_or_was_there_before(
    groups_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_streams, "SLICE_STREAMS", 2)

    async def body(world: World) -> None:
        named = world.processes.named
        paths = [named(groups_count - 1, f"events/{letter}") for letter in "klmnopqr"]
        for path in paths:
            await world.put(path, b"one")
        gate = world.hold("subscriptions_matching")
        creating = asyncio.ensure_future(world.subscribe(streams=(world.other,)))
        await world.until_asked("subscriptions_matching")
        world.wire.losing.add("subscriptions_news")
        for path in (paths[0], paths[0], paths[-1]):
            await world.append(path, b"two")
        await world.delete(paths[1])
        world.wire.losing.clear()
        await world.manager._neighbours.refresh()
        gate.set()
        await creating
        assert world.sub.complete and set(world.sub.links) == {*paths, world.other} - {paths[1]}
        claim = await world.claim()
        assert {info.path for info in claim.streams if info.has_pending} == {paths[0], paths[-1]}
        assert {world.acked(path) for path in (*paths[:1], *paths[2:])} == {3}

    play(groups_count, body)


def test_a_named_stream_that_grows_between_the_lookup_and_the_creation_is_looked_up_again(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.subscribe()  # so that there is a session
        await world.put(world.other, b"one")
        second = next(
            name
            for n in range(1_000)
            if world.processes.engine.home(f"__ds/{(name := f'second{n}')}") == groups_count - 2
        )
        gate = world.hold("subscriptions_look")
        config = Config(PULL_WAKE, None, None, world.wakes, LEASE_MS, None, "digest")
        creating = asyncio.ensure_future(world.manager.create(second, config, [world.other], "http://here"))
        await world.until_asked("subscriptions_look")
        await world.append(world.other)
        await world.manager._neighbours.refresh()
        gate.set()
        sub, _ = await creating
        assert sub.links[world.other].acked == 4 and not sub.pending

    play(groups_count, body)


def test_subscriptions_that_name_a_stream_are_found_in_all_processes(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.subscribe(pattern=None, streams=(world.other,))
        for process in world.processes.running.values():
            assert await process.part.named_by(world.other) == [world.id]

    play(groups_count, body)


def test_a_named_stream_that_lives_elsewhere_than_its_home_is_found_where_it_lives(groups_count: int) -> None:
    async def body(world: World) -> None:
        process = world.processes[THERE]
        lives_in = groups_count - 1
        name = world.processes.named(groups_count - 2, "other/fork")  # its home is here
        group = process.engine.owned[lives_in].group
        home = world.processes[HERE].engine.owned[groups_count - 2].group
        home.note(Placements.name, encode(Placed(name, lives_in)))
        inbox = Inbox()
        group.submit(name, Create(name, "text/plain", [b"one"]), inbox)
        await until(lambda: not inbox.waits)
        other = world.processes.named(groups_count - 1, "__ds/far").removeprefix("__ds/")
        config = Config(PULL_WAKE, None, None, world.wakes, LEASE_MS, None, "digest")
        near, _ = await world.manager.create(world.id, config, [name], "http://here")
        far, _ = await process.part.create(other, config, [name], "http://here")
        for sub in (near, far):
            assert (sub.links[name].sid % groups_count, sub.links[name].acked) == (lives_in, 3)
        group.submit(name, Append([b"two"]), Inbox())
        claim = await world.claim()
        assert [info.path for info in claim.streams if info.has_pending] == [name]
        assert await world.ack(claim, name, 6) is False

    play(groups_count, body)


def test_a_stream_that_lives_in_neither_this_process_nor_its_homes_is_found_in_the_third() -> None:
    async def body() -> None:
        processes = Processes(lambda process: AllStreams(process.engine), count=3, groups_count=3)
        asking, home, living = (processes.start(member) for member in range(3))
        name = processes.named(1, "other/fork")
        home.engine.owned[1].group.note(Placements.name, encode(Placed(name, 2)))
        inbox = Inbox()
        living.engine.owned[2].group.submit(name, Create(name, "text/plain", [b"one"]), inbox)
        await until(lambda: not inbox.waits)
        looked = await asking.part.look({name: asking.part.place(name)})
        sid, tail, _ = looked.found[name]
        assert (sid % 3, tail) == (2, 3)

    run(body)
