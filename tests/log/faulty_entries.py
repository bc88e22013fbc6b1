"""Any medium behind a wire that misbehaves on request: what is sent may be held back, and answers may be lost.

Owns the faults of one process. Never changes what the medium keeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headwater.log.medium import Entries, Unsure


class FaultyEntries:
    """Passes everything on, except where it was told otherwise."""

    def __init__(self, medium: Entries) -> None:
        self.medium = medium
        self.broken: Exception | None = None
        """Raised by every put from now on. Nothing is sent."""
        self.answers_lost = 0
        """How many of the next puts and claims are sent and done, and then answered with Unsure."""
        self.unsent = 0
        """How many of the next puts and claims are not sent at all, and answered with Unsure."""
        self.held: dict[int, asyncio.Event] = {}
        """Puts of these numbers are sent once the event is set."""
        self.put_numbers: list[int] = []

    @property
    def entry_bytes_max(self) -> int:
        return self.medium.entry_bytes_max

    def hold(self, number: int) -> asyncio.Event:
        return self.held.setdefault(number, asyncio.Event())

    async def put(self, number: int, data: bytes) -> None:
        self.put_numbers.append(number)
        if number in self.held:
            await self.held[number].wait()
        if self.broken is not None:
            raise self.broken
        await self._send(self.medium.put, number, data)

    async def claim(self, number: int, data: bytes) -> None:
        await self._send(self.medium.claim, number, data)

    async def _send(self, call: Callable[[int, bytes], Awaitable[None]], number: int, data: bytes) -> None:
        if self.unsent:
            self.unsent -= 1
            raise Unsure("the connection was lost before")
        await call(number, data)
        if self.answers_lost:
            self.answers_lost -= 1
            raise Unsure("the connection was lost after")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.medium, name)
