"""Nothing leaves before the log holds what it rests on: no webhook, no wake event, no token, no answer, no refusal.
It owns the order of syncs; time and log move only when a test moves them."""

from __future__ import annotations

import asyncio

import pytest

from headwater.errors import AlreadyClaimed, Fenced, LogUnavailable
from headwater.model import subscriptions as model
from headwater.model.commands import Append, Create, Durability
from headwater.subscriptions.manager import Bearer
from tests.engine import Inbox
from tests.subscriptions.desk import DONE, TAKEN, Desk, in_a_loop


def test_no_webhook_is_sent_before_its_wake_is_durable() -> None:
    async def work() -> None:
        desk = Desk()
        await desk.subscribe("sub")
        desk.put("events/a", b"one")
        desk.log.synced = desk.log.written = desk.log.tail
        desk.group.progress()  # the stream is durable; the wake it causes is not yet
        await desk.turn()
        assert desk.registry.by_id["sub"].wake is not None
        assert desk.client.posts == []
        await desk.sync()
        (post,) = desk.client.posts
        woken = [n for n, (_, event) in enumerate(desk.events) if b"woken" in getattr(event, "body", b"")]
        assert post.log_length > woken[0]

    in_a_loop(work)


def test_no_wake_event_is_appended_before_its_wake_is_durable() -> None:
    async def work() -> None:
        desk = Desk()
        await desk.subscribe("sub", model.PULL_WAKE)
        desk.put("wake/pool")
        desk.put("events/a", b"one")
        desk.log.synced = desk.log.written = desk.log.tail
        desk.group.progress()
        await desk.turn()
        pool = desk.group.find("wake/pool", touch=False)
        assert (pool.tail, desk.registry.by_id["sub"].generation) == (0, 1)
        await desk.sync()
        assert pool.visible > 0

    in_a_loop(work)


def test_a_claim_is_answered_and_refused_only_when_what_it_rests_on_is_durable() -> None:
    async def work() -> None:
        desk = Desk()
        await desk.subscribe("sub", model.PULL_WAKE)
        desk.put("events/a", b"one")
        await desk.sync()
        first = desk.start(desk.manager.claim("sub", "worker-1"))
        await desk.turn()
        assert not first.done()
        with pytest.raises(AlreadyClaimed):
            await desk.manager.claim("sub", "worker-2")
        waiting = desk.start(desk.manager.durable("sub"))  # what the door does with every refusal
        await desk.turn()
        assert not waiting.done()
        await desk.sync()
        claimed = await first
        await waiting
        bearer = Bearer(claimed.token, claimed.wake_id, claimed.generation)
        acking = desk.start(desk.manager.acknowledge("sub", bearer, [("events/a", 3)], True))
        await desk.turn()
        assert not acking.done()
        await desk.sync()
        assert await acking is False

    in_a_loop(work)


def test_a_subscription_and_its_end_are_answered_when_they_are_durable() -> None:
    async def work() -> None:
        desk = Desk()
        config = model.Config(model.PULL_WAKE, "events/*", None, "wake/pool", 1_000, None, "digest")
        for action in (
            lambda: desk.manager.create("sub", config, ["named"], "http://here"),
            lambda: desk.manager.create("sub", config, ["named"], "http://here"),
            lambda: desk.manager.add_streams("sub", ["other"]),
            lambda: desk.manager.remove_stream("sub", "other"),
            lambda: desk.manager.remove("sub"),
        ):
            desk.put(f"unrelated{desk.log.tail}")  # a write under way that even a confirmation waits for
            task = desk.start(action())
            await desk.turn()
            assert not task.done()
            await desk.sync()
            await task

    in_a_loop(work)


def test_a_log_that_fails_answers_every_waiting_call_with_its_failure_and_sends_nothing() -> None:
    async def work() -> None:
        desk = Desk(lambda _: TAKEN)
        await desk.subscribe("hook")
        await desk.subscribe("pull", model.PULL_WAKE)
        desk.put("events/a", b"one")
        desk.log.synced = desk.log.written = desk.log.tail
        desk.group.progress()
        claim = desk.start(desk.manager.claim("pull", "worker"))
        await desk.turn()
        await desk.fail()
        with pytest.raises(LogUnavailable):
            await claim
        assert desk.client.posts == []
        with pytest.raises(LogUnavailable):
            await desk.manager.remove("hook")
        desk.clock.ms += 10**6
        desk.manager.wakes.tick()
        await desk.turn()
        assert desk.client.posts == []

    in_a_loop(work)


def test_a_stream_whose_records_are_seen_before_its_creation_is_durable_is_linked_from_its_beginning() -> None:
    async def work() -> None:
        desk = Desk()
        await desk.subscribe("sub", model.PULL_WAKE)
        create = Create("events/a", "text/plain", [b"first"], durability=Durability.MEMORY)
        desk.group.submit("events/a", create, Inbox())
        desk.group.submit("events/a", Append([b"second"]), Inbox())
        await desk.sync()
        assert desk.registry.by_id["sub"].links["events/a"].acked == 0

    in_a_loop(work)


@pytest.mark.parametrize("durable_first", [True, False])
def test_one_attempt_at_a_time_and_a_wake_made_meanwhile_is_delivered_after_it(durable_first: bool) -> None:
    async def work() -> None:
        desk = Desk()
        await desk.subscribe("sub")
        gate = asyncio.Event()
        sent = desk.client.post
        running: list[int] = []

        async def slow(*arguments):
            running.append(1)
            assert len(running) == 1
            reply = await sent(*arguments)
            await gate.wait()
            running.pop()
            return reply

        desk.client.post = slow  # type: ignore[method-assign]
        desk.put("events/a", b"one")
        await desk.sync()
        body = desk.client.posts[0].body
        bearer = Bearer(body["callback_token"], body["wake_id"], body["generation"])
        desk.append("events/a")
        await desk.sync()
        acking = desk.start(desk.manager.acknowledge("sub", bearer, [("events/a", 3)], True))
        await (desk.sync() if durable_first else desk.turn())
        assert len(desk.client.posts) == 1
        gate.set()
        await desk.turn()
        if not durable_first:
            assert (running, len(desk.client.posts)) == ([], 1)  # the next wake is decided and not durable
        await desk.sync()
        assert await acking is True
        assert [post.body["generation"] for post in desk.client.posts] == [1, 2]
        assert desk.registry.by_id["sub"].links["events/a"].acked == 4
        with pytest.raises(Fenced):
            await desk.manager.acknowledge("sub", bearer, [], True)

    in_a_loop(work)


def test_retries_follow_the_schedule_and_stop_with_success() -> None:
    async def work() -> None:
        desk = Desk(lambda number: DONE if number == 4 else None)
        await desk.subscribe("sub")
        desk.put("events/a", b"one")
        await desk.sync()
        sub = desk.registry.by_id["sub"]
        for failures, base_ms in ((1, 1_000), (2, 2_000), (3, 4_000)):
            assert (len(desk.client.posts), sub.failures) == (failures, failures)
            wait_ms = sub.retry_at_ms - desk.clock.ms
            assert 0.8 * base_ms <= wait_ms <= 1.2 * base_ms
            await desk.pass_time(wait_ms - 1)
            assert len(desk.client.posts) == failures
            await desk.pass_time(1)
        assert len(desk.client.posts) == 4
        assert (sub.failures, sub.wake, sub.pending) == (0, None, {})

    in_a_loop(work)
