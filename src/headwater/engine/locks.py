"""The locks of a group: what each one protects, and the order they are taken in.

Owns that order and holds every task to it: a task that asks for a lock out of order is told so at once, where otherwise
two tasks would wait for each other some day. Never is taken for an append or a read: those run without any lock.

A lock that a worker thread's question takes (`LakeGc._pending`) is another task's: it is not held to the order, and
waits only for flushes, which wait for nothing above them.
"""

from __future__ import annotations

import asyncio
from types import TracebackType


class OrderedLock:
    """An `asyncio.Lock` with a place in its group's order. Not reentrant."""

    def __init__(self, name: str, rank: int, held: dict[asyncio.Task[object] | None, list[OrderedLock]]) -> None:
        self._lock = asyncio.Lock()
        self._name = name
        self._rank = rank
        self._held = held

    def locked(self) -> bool:
        return self._lock.locked()

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        mine = self._held.get(task)
        if mine and mine[-1]._rank >= self._rank:
            raise RuntimeError(f"the lock `{self._name}` is taken before `{mine[-1]._name}`, not while that is held")
        await self._lock.acquire()
        self._held.setdefault(task, []).append(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        mine = self._held[task]
        mine.remove(self)
        if not mine:
            del self._held[task]
        self._lock.release()


ORDER = ("copying", "swapping", "sweeping", "flushing", "relocating", "checkpointing")
"""Whoever takes several takes them in this order."""


class GroupLocks:
    def __init__(self) -> None:
        held: dict[asyncio.Task[object] | None, list[OrderedLock]] = {}
        """What each task holds, in the order it was taken."""

        def lock(name: str) -> OrderedLock:
            return OrderedLock(name, ORDER.index(name), held)

        self.copying = lock("copying")
        """Catalog and log are being copied for a backup, or cleared of what an erasure removes."""
        self.swapping = lock("swapping")
        """A swap of the lake's files is checked or carried out."""
        self.sweeping = lock("sweeping")
        """A run of gc, or a swap that changes files: what one of them looks at, the other must not change."""
        self.flushing = lock("flushing")
        """Records are on their way to the lake: what the table took may not be logged yet."""
        self.relocating = lock("relocating")
        """Catalog and table are made to say the same, after a swap or a crash."""
        self.checkpointing = lock("checkpointing")
        """The catalog is being written: by a checkpoint, or by what must not meet one."""
