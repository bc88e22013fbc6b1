"""A lock for each name that somebody holds or waits for.

Owns the locks. Never keeps one that nobody uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class KeyedLocks:
    def __init__(self) -> None:
        self._held: dict[str, tuple[asyncio.Lock, int]] = {}
        """The lock of a name, and how many hold it or wait for it."""

    def __contains__(self, name: str) -> bool:
        return name in self._held

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """One at a time for each name."""
        lock, users_count = self._held.get(name) or (asyncio.Lock(), 0)
        self._held[name] = lock, users_count + 1
        try:
            async with lock:
                yield
        finally:
            users_count = self._held[name][1] - 1
            if users_count:
                self._held[name] = lock, users_count
            else:
                del self._held[name]
