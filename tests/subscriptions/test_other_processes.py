"""Subscriptions and streams in two processes: growth there wakes here, whatever is lost, cut or restarted between them.
It owns two engines in one loop; wakes are looked at, never timed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from headwater.engine.engine import Engine
from headwater.errors import BadAck, MemberUnavailable, NoPendingWork
from headwater.model import offsets
from headwater.model.commands import Append, Create, Delete
from headwater.model.subscriptions import PULL_WAKE, WEBHOOK, Config, Subscription
from headwater.ports import SystemRng
from headwater.subscriptions import hints, local_streams, neighbours
from headwater.subscriptions.keys import Keys
from headwater.subscriptions.manager import Bearer, Claim, Manager
from headwater.subscriptions.webhooks import Reply
from tests.support.processes import Processes, run, until

KEYS = Keys(b"s" * 32, b"t" * 32)
HERE, THERE = 0, 1
"""The process of the subscriptions, and the other one. With two processes an even group is here."""
LEASE_MS = 600_000


class Client:
    """Takes every webhook; its bodies are kept."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []
        self.done = True

    async def check(self, url: str) -> None: ...

    def host(self, url: str) -> str:
        return "hook.example"

    async def post(self, url: str, headers: list[tuple[str, str]], body: bytes, timeout_s: float) -> Reply:
        self.bodies.append(json.loads(body))
        return Reply(200, b'{"done":true}' if self.done else b"{}")


class World:
    def __init__(self, groups_count: int) -> None:
        self.client = Client()
        self.processes: Processes[Manager] = Processes(self._manager, 2, groups_count)
        self.wire = self.processes.wire
        for member in (HERE, THERE):
            self.start(member)
        group_here, group_there = groups_count - 2, groups_count - 1
        named = self.processes.named
        self.id = named(group_here, "__ds/sub").removeprefix("__ds/")
        self.away = named(group_there, "events/a")
        """A stream of the other process, which the pattern takes in."""
        self.near = named(group_here, "events/b")
        self.other = named(group_there, "other/c")
        """A stream of the other process, which the pattern does not take in."""
        self.wakes = named(group_there, "wake/pool")

    def _manager(self, engine: Engine) -> Manager:
        return Manager(engine, KEYS, self.client, SystemRng())

    def start(self, member: int) -> None:
        self.processes.start(member).part.start()

    async def restart(self, member: int) -> None:
        await self.kill(member)
        self.start(member)

    async def kill(self, member: int) -> None:
        await self.processes.kill(member).part.stop()

    async def stop(self) -> None:
        for process in list(self.processes.running.values()):
            await process.part.stop()

    @property
    def manager(self) -> Manager:
        return self.processes[HERE].part

    @property
    def sub(self) -> Subscription:
        return self.manager.find(self.id)

    async def subscribe(self, kind: str = PULL_WAKE, streams: tuple[str, ...] = (), pattern: str | None = "events/*"):
        to = ("https://hook.example/", None) if kind == WEBHOOK else (None, self.wakes)
        config = Config(kind, pattern, *to, LEASE_MS, None, "digest")
        return await self.manager.create(self.id, config, list(streams), "http://here")

    async def put(self, path: str, *records: bytes) -> None:
        await self.processes.submit(path, Create(path, "text/plain", list(records)))

    async def append(self, path: str, record: bytes = b"x") -> None:
        await self.processes.submit(path, Append([record]))

    async def delete(self, path: str) -> None:
        await self.processes.submit(path, Delete())

    async def claim(self) -> Claim:
        return await self.manager.claim(self.id, "worker")

    async def ack(self, claim: Claim, path: str, offset: int, done: bool = True) -> bool:
        bearer = Bearer(claim.token, claim.wake_id, claim.generation)
        return await self.manager.acknowledge(self.id, bearer, [(path, offset)], done)

    def hold(self, question: str) -> asyncio.Event:
        """Answers to the question wait on their way back until the event is set."""
        self.wire.asked.clear()
        gate = self.wire.gates[question] = asyncio.Event()
        return gate

    async def until_asked(self, question: str) -> None:
        await until(lambda: any(name == question for _, _, name in self.wire.asked))

    def acked(self, path: str) -> int | None:
        link = self.sub.links.get(path)
        return None if link is None else link.acked


@pytest.fixture(params=[2, 4])
def groups_count(request: pytest.FixtureRequest) -> int:
    return request.param


def play(groups_count: int, body: Callable[[World], Awaitable[None]]) -> None:
    async def work() -> None:
        world = World(groups_count)
        try:
            await body(world)
        finally:
            await world.stop()

    run(work)


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
        gate.set()
        await until(lambda: world.wire.under_way[THERE])  # the late answer was applied, and the next question waits
        assert world.away not in world.sub.links

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
        assert await waiting == []

    play(groups_count, body)


def test_subscriptions_that_name_a_stream_are_found_in_all_processes(groups_count: int) -> None:
    async def body(world: World) -> None:
        await world.subscribe(pattern=None, streams=(world.other,))
        for process in world.processes.running.values():
            assert await process.part.named_by(world.other) == [world.id]

    play(groups_count, body)
