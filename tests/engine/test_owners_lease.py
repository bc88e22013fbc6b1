"""An owner whose lease has passed answers nothing out of what it remembers: neither reads nor refusals of appends.
Another node may own the group by then; this one has stood still, and does not know."""

from __future__ import annotations

import asyncio

import pytest

from headwater.engine.engine import Engine
from headwater.errors import GroupMoved, SequenceGap
from headwater.model.commands import Append, Create, Producer
from headwater.model.events import Appended
from tests.engine import KEY, Bench, Inbox, owned_on


class HandLease:
    def __init__(self) -> None:
        self.held = True

    def holds(self) -> bool:
        return self.held

    async def confirm(self) -> None: ...


def append(engine: Engine, seq: int) -> Inbox:
    inbox = Inbox()
    engine.submit(KEY, Append([b"x"], None, Producer("p", 0, seq)), inbox)
    return inbox


def test_a_producer_is_not_refused_by_an_owner_that_was_replaced() -> None:
    async def work() -> None:
        bench, lease = Bench(), HandLease()
        engine = Engine({}, 1, bench.clock)
        engine.enter(owned_on(bench.group), lease)
        engine.submit(KEY, Create(KEY, "text/plain", []), Inbox())
        bench.sync()
        first = append(engine, 0)
        bench.sync()
        assert isinstance(first.outcome, Appended)
        # The next owner has taken 1 to 4 meanwhile, and this one knows nothing of them.
        lease.held = False
        with pytest.raises(GroupMoved):
            append(engine, 5)
        with pytest.raises(GroupMoved):
            engine.find(KEY, False)
        assert len(bench.log.events) == 2
        lease.held = True
        assert isinstance(append(engine, 5).outcome, SequenceGap)

    asyncio.run(work())
