"""A waiter that a coroutine can await.

Owns one future. Never resolves itself.
"""

from __future__ import annotations

import asyncio

from headwater.engine.group import Group
from headwater.engine.pending_answers import Outcome
from headwater.errors import Failure


class OutcomeFuture:
    """The outcome of one command."""

    def __init__(self) -> None:
        self._future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def resolve(self, outcome: Outcome) -> None:
        if not self._future.done():
            self._future.set_result(outcome)

    async def wait(self) -> Outcome:
        """The outcome, once it is final."""
        return await self._future

    async def success(self) -> Outcome:
        """The same. Raises the failure that it turned out to be."""
        outcome = await self._future
        if isinstance(outcome, Failure):
            raise outcome
        return outcome


async def synced(group: Group) -> None:
    """Returns when everything logged so far is synced, or the log has failed."""
    outcome = OutcomeFuture()
    group.barrier(outcome)
    await outcome.wait()
