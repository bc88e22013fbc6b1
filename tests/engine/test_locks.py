"""The locks of a group: exclusive, and taken in one order by every task."""

from __future__ import annotations

import asyncio

import pytest

from headwater.engine.locks import ORDER, GroupLocks, OrderedLock


def _all(locks: GroupLocks) -> list[OrderedLock]:
    return [getattr(locks, name) for name in ORDER]


def test_every_lock_has_its_place_in_the_order() -> None:
    assert set(vars(GroupLocks())) == set(ORDER)


@pytest.mark.parametrize("first", range(len(ORDER)))
@pytest.mark.parametrize("second", range(len(ORDER)))
def test_a_lock_is_taken_while_only_earlier_ones_are_held(first: int, second: int) -> None:
    async def body() -> None:
        locks = _all(GroupLocks())
        async with locks[first]:
            if first < second:
                async with locks[second]:
                    pass
            else:
                with pytest.raises(RuntimeError, match=ORDER[second]):
                    async with locks[second]:
                        pass
                assert locks[second].locked() == (first == second), "a lock that was refused is free"

    asyncio.run(body())


def test_locks_that_were_given_back_do_not_count() -> None:
    async def body() -> None:
        locks = GroupLocks()
        async with locks.checkpointing:
            pass
        async with locks.copying:
            async with locks.flushing:
                pass
            async with locks.sweeping:
                pass
        assert not any(lock.locked() for lock in _all(locks))

    asyncio.run(body())


def test_each_task_and_each_group_has_an_order_of_its_own() -> None:
    async def body() -> None:
        locks, others = GroupLocks(), GroupLocks()

        async def takes_an_earlier_one() -> None:
            async with locks.copying:
                pass

        async with locks.checkpointing, others.copying:
            await asyncio.create_task(takes_an_earlier_one())

    asyncio.run(body())


def test_a_task_that_is_cancelled_while_it_waits_holds_nothing() -> None:
    async def body() -> None:
        locks = GroupLocks()

        async def waits() -> None:
            async with locks.checkpointing:
                pass

        async with locks.checkpointing:
            task = asyncio.create_task(waits())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert locks.checkpointing.locked()
        async with locks.checkpointing:
            assert locks.checkpointing.locked()

    asyncio.run(body())
