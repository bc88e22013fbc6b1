"""Subscriptions of groups that come to a process and leave it: at work where their group is served, and nowhere
else."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.engine.engine import Engine
from headwater.engine.reads import Reads
from headwater.engine.recovery import Fold, recover
from headwater.errors import Overloaded
from headwater.model import subscriptions as model
from headwater.model.subscriptions import WEBHOOK, Config
from headwater.ports import SystemRng
from headwater.subscriptions.keys import Keys
from headwater.subscriptions.manager import Manager
from headwater.subscriptions.registry import Registry
from tests.engine import HandLog, group_on
from tests.subscriptions.desk import DONE, Client, Desk

HOOK = Config(WEBHOOK, "events/*", "https://hook.example/", None, 30_000, None, "digest")


def test_a_subscription_that_was_followed_is_at_work_once_its_group_is_served_here_and_not_after_it_left() -> None:
    async def body() -> None:
        first = Desk()
        first.put("events/a", b"x")
        await first.sync()
        await first.complete(first.manager.create("one", HOOK, [], "http://node"))
        first.append("events/a", b"y")
        await first.sync()
        delivered = len(first.client.posts)
        assert delivered
        # Another process follows the log of the first one.
        log = HandLog(first.events)
        log.tail = log.synced = log.written = first.log.synced
        group = group_on(log, None, first.clock, asyncio.get_running_loop().call_soon)
        engine = Engine({}, 1, first.clock)
        client = Client(first, lambda _: DONE)
        manager = Manager(engine, Keys.fresh(SystemRng()), client, SystemRng())
        manager.start()
        manager.follow(group)
        fold = Fold(group)
        fold.feed(log.replay())
        assert manager.subscriptions_count == 0 and not client.posts
        owned: Any = SimpleNamespace(group=group, reads=Reads(group, None), number=0)
        fold.finish()
        engine.enter(owned)
        assert manager.subscriptions_count == 1 and manager.find("one").id == "one"
        sub = manager.find("one")
        engine.leave(0)
        assert manager.subscriptions_count == 0
        manager.wakes.try_note(model.Lost(sub.uid, "events/a"))
        with pytest.raises(Overloaded):
            manager.wakes.note(model.Lost(sub.uid, "events/a"))
        assert isinstance(group.domains[Registry.name], Registry)
        engine.enter(owned)
        assert manager.subscriptions_count == 1
        await manager.stop()
        await first.manager.stop()
        owned.reads.close()

    asyncio.run(body())


def test_recovery_is_the_fold_of_a_standby_that_was_fed_event_by_event() -> None:
    async def body() -> None:
        desk = Desk()
        desk.put("events/a", b"x")
        desk.put("events/b", b"x")
        desk.append("events/a")
        await desk.sync()
        at_once, one_by_one = group_on(HandLog(desk.events)), group_on(HandLog(desk.events))
        recover(at_once)
        fold = Fold(one_by_one)
        for event in desk.events:
            fold.feed([event])
            fold.check()
        fold.finish()
        rows = [{key: stream.row() for key, stream in one.loaded.by_key.items()} for one in (at_once, one_by_one)]
        assert rows[0] == rows[1] and rows[0]
        assert all(stream.visible == stream.tail for stream in one_by_one.loaded.by_key.values())
        await desk.manager.stop()

    asyncio.run(body())
