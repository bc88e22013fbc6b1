"""Processes that restart, cannot be reached or whose answers are lost: nothing that their streams did is missed.
It owns no rule; wakes are looked at, never timed."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from headwater.cluster.calls import ANSWERED
from headwater.errors import MemberUnavailable, NoPendingWork
from headwater.model.subscriptions import WEBHOOK
from headwater.subscriptions import hints, neighbours
from tests.subscriptions.two_processes import HERE, THERE, World, play
from tests.support.processes import until


def test_an_acknowledgement_for_a_process_that_is_away_can_be_repeated(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.subscribe()
        await world.put(world.away, b"one")
        claim = await world.claim()
        world.wire.cut.add(THERE)
        with pytest.raises(MemberUnavailable):
            await world.ack(claim, world.away, 3)
        world.wire.cut.clear()
        assert await world.ack(claim, world.away, 3) is False

    play(groups_count, body)


def test_answers_that_are_lost_are_given_again_and_count_once(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.put(world.away)
        await world.subscribe()
        world.wire.losing.add("subscriptions_news")
        await world.append(world.away, b"one")
        with pytest.raises(NoPendingWork):
            await world.claim()
        world.wire.losing.clear()
        claim = await world.claim()
        await world.ack(claim, world.away, 3)
        for _ in range(3):
            with pytest.raises(NoPendingWork):
                await world.claim()

    play(groups_count, body)


def test_an_answer_that_arrives_late_does_not_undo_what_was_heard_since(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.put(world.away)
        await world.subscribe()
        await until(lambda: world.wire.under_way[THERE])
        gate = world.hold("subscriptions_news")
        await world.append(world.away, b"one")
        await until(lambda: not world.wire.under_way[THERE])  # the question that waited has its answer, held back
        del world.wire.gates["subscriptions_news"]
        claim = await world.claim()
        await world.ack(claim, world.away, 3)
        gate.set()
        with pytest.raises(NoPendingWork):
            await world.claim()
        assert world.sub.wake is None

    play(groups_count, body)


def test_a_hint_that_arrives_after_the_streams_deletion_was_heard_of_does_not_link_it_again(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.put(world.away)
        await world.subscribe()
        await until(lambda: world.wire.under_way[THERE])
        gate = world.hold("subscriptions_news")
        await world.append(world.away, b"one")
        await until(lambda: not world.wire.under_way[THERE])
        del world.wire.gates["subscriptions_news"]
        await world.delete(world.away)
        with pytest.raises(NoPendingWork):
            await world.claim()
        assert world.away not in world.sub.links
        logs = [owned.group.log for owned in world.processes[HERE].owned.values()]
        tails = [log.tail for log in logs]
        gate.set()
        await until(lambda: world.wire.under_way[THERE])  # the late answer was applied, and the next question waits
        assert [log.tail for log in logs] == tails

    play(groups_count, body)


def test_a_hint_of_an_earlier_life_or_of_what_is_done_changes_nothing(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.put(world.away, b"one")
        await world.subscribe()
        sid = world.sub.links[world.away].sid
        for stale in (sid, sid - groups_count):
            for deleted in (False, stale != sid):
                world.manager._growth.heard(hints.Hint(1, world.away, stale, 0, 0, 3, deleted))
        link = world.sub.links[world.away]
        assert (link.sid, link.acked, world.sub.pending) == (sid, 3, {})

    play(groups_count, body)


def test_growth_and_deletions_around_a_restart_of_the_other_process_are_found(groups_count: int) -> None:
    async def body(world: World) -> None:
        away2 = world.processes.named(groups_count - 1, "events/second")
        new = world.processes.named(groups_count - 1, "events/new")
        await world.put(world.away, b"one")
        await world.put(away2, b"one")
        await world.put(world.other, b"one")
        await world.subscribe(streams=(world.other,))
        world.wire.cut.add(HERE)  # what happens there now is not heard of here
        await world.append(world.away)
        await world.append(world.other)
        await world.delete(away2)
        await world.put(new, b"one")
        await world.restart(THERE)
        world.wire.cut.clear()
        await until(lambda: world.sub.wake is not None)
        await until(lambda: set(world.sub.pending) == {world.away, world.other, new})
        assert away2 not in world.sub.links
        assert (world.acked(world.away), world.acked(world.other), world.acked(new)) == (3, 3, 0)

    play(groups_count, body)


def test_a_claim_right_after_a_restart_of_the_other_process_sees_what_was_appended_there(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.put(world.away)
        await world.subscribe()
        await world.kill(THERE)
        with pytest.raises(NoPendingWork):
            await world.claim()
        world.start(THERE)
        await world.append(world.away)
        claim = await world.claim()
        assert [info.path for info in claim.streams if info.has_pending] == [world.away]

    play(groups_count, body)


def test_growth_around_a_restart_of_the_subscriptions_process_is_found(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.put(world.away, b"one")
        await world.subscribe()
        await world.append(world.away)
        await until(lambda: world.sub.wake is not None)
        await world.kill(HERE)
        await world.append(world.away)
        world.start(HERE)
        claim = await world.claim()
        assert await world.ack(claim, world.away, 5) is False

    play(groups_count, body)


def test_work_of_a_process_that_is_away_is_told_of_without_its_tail(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.subscribe()
        await world.put(world.away, b"one")
        await until(lambda: world.sub.wake is not None)
        world.wire.cut.add(THERE)
        claim = await world.claim()
        (info,) = claim.streams
        assert info.has_pending and info.tail_offset == info.acked_offset
        world.wire.cut.clear()
        assert await world.ack(claim, world.away, 3) is False

    play(groups_count, body)


def test_a_webhook_waits_for_a_process_that_is_away_and_acknowledges_what_it_told(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.subscribe(WEBHOOK)
        gate = world.hold("subscriptions_look")
        await world.put(world.away, b"one")
        await until(lambda: world.sub.wake is not None)
        await world.until_asked("subscriptions_look")
        world.wire.cut.add(THERE)
        gate.set()
        await until(lambda: world.sub.failures)
        assert world.client.bodies == []
        world.wire.cut.clear()
        world.processes.clock.ms = world.sub.retry_at_ms
        world.manager.wakes.tick()
        await until(lambda: world.sub.wake is None and not world.sub.pending)
        assert len(world.client.bodies) == 1
        assert world.acked(world.away) == 3

    play(groups_count, body)


def test_a_subscription_is_not_created_while_a_process_is_away(groups_count: int) -> None:
    async def body(world: World) -> None:
        world.wire.cut.add(THERE)
        with pytest.raises(MemberUnavailable):
            await world.subscribe()
        assert world.manager.subscriptions_count == 0
        world.wire.cut.clear()
        await world.subscribe()

    play(groups_count, body)


def test_linking_that_a_crash_cut_short_goes_on_over_all_processes(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.put(world.away, b"one")
        gate = world.hold("subscriptions_matching")
        creating = asyncio.ensure_future(world.subscribe())
        await world.until_asked("subscriptions_matching")
        assert not world.sub.complete
        await world.kill(HERE)
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
        gate.set()
        world.start(HERE)
        await until(lambda: world.sub.complete)
        assert world.acked(world.away) == 3 and not world.sub.pending

    play(groups_count, body)


def test_what_hints_do_not_say_is_found_when_the_interval_has_passed(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.put(world.away)
        await world.subscribe()
        process = world.processes[THERE]
        for owned in process.engine.owned.values():
            owned.group.observers.clear()  # it tells of nothing any more
        await world.append(world.away)
        with pytest.raises(NoPendingWork):
            await world.claim()
        world.processes.clock.ms += neighbours.RECONCILE_INTERVAL_MS
        with pytest.raises(NoPendingWork):
            await world.claim()  # which does not wait for a comparison of every link
        await until(lambda: world.sub.wake is not None)

    play(groups_count, body)


def test_a_process_that_is_not_asked_for_long_forgets_its_hints_and_nothing_is_lost(
    groups_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "HINTS_MAX", 3)

    async def body(world: World) -> None:
        await world.subscribe()
        world.wire.cut.add(HERE)
        paths = [world.processes.named(groups_count - 1, f"events/{letter}") for letter in "klmnopqr"]
        for path in paths:
            await world.put(path, b"one")
        world.wire.cut.clear()
        claim = await world.claim()
        assert {info.path for info in claim.streams if info.has_pending} == set(paths)

    play(groups_count, body)


def test_nobody_is_asked_once_the_last_subscription_is_gone(groups_count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "WAIT_MS", 5)

    async def body(world: World) -> None:
        assert world.wire.asked == []
        await world.subscribe()
        await world.manager.remove(world.id)
        neighbour = world.manager._neighbours._all[THERE]
        await until(lambda: neighbour._following is None)
        (asker,) = world.processes[THERE].part._hints._askers.values()
        assert not asker.wants(world.away)
        await world.subscribe()
        await world.put(world.away, b"one")
        await until(lambda: world.sub.wake is not None)

    play(groups_count, body)


def test_a_process_that_ends_answers_those_that_wait_for_its_news(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.subscribe()
        await until(lambda: world.wire.under_way.get(THERE))
        (waiting,) = world.wire.under_way[THERE]
        world.processes[THERE].part.close()
        assert await waiting == (ANSWERED, msgspec.msgpack.encode([]))
        await until(lambda: sum(name == "subscriptions_news" for _, _, name in world.wire.asked) > 1)
        await world.put(world.away, b"one")
        assert [info.path for info in (await world.claim()).streams if info.has_pending] == [world.away]

    play(groups_count, body)
