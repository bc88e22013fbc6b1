"""Clocks that are wrong for a while: what was to happen soon by them happens soon, not in an hour.
The clock is the test's; an hour ahead is what an owner's was, or what another node's is."""

from __future__ import annotations

import pytest

from headwater.model import subscriptions as model
from headwater.subscriptions.webhooks import Reply
from tests.subscriptions.desk import DONE, TAKEN, Desk, in_a_loop

HOUR_MS = 3_600_000
LEASE_MS = 1_000


async def stuck(answer: Reply | None) -> Desk:
    """A desk whose first webhook was answered so, by a clock that is an hour ahead."""
    desk = Desk(lambda count: answer if count == 1 else DONE, now_ms=1_000_000 + HOUR_MS)
    await desk.subscribe("sub")
    desk.put("events/a", b"one")
    await desk.sync()
    assert len(desk.client.posts) == 1
    return desk


@pytest.mark.parametrize("answer", [None, TAKEN], ids=["a retry", "a lease"])
def test_a_clock_that_is_set_back_holds_nothing_up(answer: Reply | None) -> None:
    async def work() -> None:
        desk = await stuck(answer)
        await desk.pass_time(1)
        await desk.pass_time(-HOUR_MS)
        await desk.pass_time(LEASE_MS)
        assert len(desk.client.posts) == 2
        assert desk.registry.by_id["sub"].pending == {}

    in_a_loop(work)


@pytest.mark.parametrize("answer", [None, TAKEN], ids=["a retry", "a lease"])
def test_the_next_owner_does_not_wait_for_the_clock_of_the_last_one(answer: Reply | None) -> None:
    async def work() -> None:
        desk = await stuck(answer)
        again = Desk(replayed=desk.events, now_ms=1_000_000)
        await again.sync()
        await again.pass_time(LEASE_MS)
        assert len(again.client.posts) == 1
        assert again.registry.by_id["sub"].pending == {}

    in_a_loop(work)


@pytest.mark.parametrize("step_ms", [-1, -5_000, -model.CLOCK_STEP_MS_MAX])
def test_a_clock_that_is_set_back_a_little_ends_no_lease(step_ms: int) -> None:
    async def work() -> None:
        desk = await stuck(TAKEN)
        await desk.pass_time(step_ms)
        assert desk.registry.by_id["sub"].leased
        assert len(desk.client.posts) == 1
        await desk.pass_time(LEASE_MS - step_ms)
        assert len(desk.client.posts) == 2

    in_a_loop(work)
