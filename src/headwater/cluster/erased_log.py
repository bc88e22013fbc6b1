"""A group's shared log as an erasure cuts it.

Owns nothing but the way to those who do it: the log ends its parts, the group's ownership forgets them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headwater.log.quorum import QuorumLog


class SharedErasedLog:
    """See `engine.erasure.ErasedLog`."""

    def __init__(self, log: QuorumLog, forget: Callable[[int], Awaitable[None]]) -> None:
        self._log = log
        self._forget = forget

    def begin_part(self) -> int:
        self._log.commit()
        return self._log.tail

    async def forget(self, below: int) -> None:
        await self._forget(below)
