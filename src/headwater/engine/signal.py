"""A waiter for coroutines: where the callbacks of a group meet `await`.

Owns one future. Never resolves itself.
"""

from __future__ import annotations

import asyncio

from headwater.engine.group import Group
from headwater.engine.pending_answers import Outcome


class Signal:
    """A waiter that a coroutine can await."""

    def __init__(self) -> None:
        self._future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def resolve(self, outcome: Outcome) -> None:
        if not self._future.done():
            self._future.set_result(outcome)

    async def wait(self) -> Outcome:
        return await self._future


async def synced(group: Group) -> None:
    """Returns when everything logged so far is synced, or the log has failed."""
    signal = Signal()
    group.barrier(signal)
    await signal.wait()
