"""Upkeep: what a group does between requests. Expires streams and takes checkpoints.

Owns the pace of that work. Never holds the event loop longer than a slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headwater.engine.checkpoint import checkpoint
from headwater.engine.group import Group
from headwater.ports import Blobs, BlobsUnavailable

EXPIRE_SLICE = 200
EVICT_SLICE = 5_000
EXPIRE_INTERVAL_S = 0.25
UNLISTED_MAX = 10_000
LABELS_MAX = 200_000
DELETE_SLICE = 500
"""Blobs deleted between two checkpoints: a slow store must not hold these up."""


class Upkeep:
    """`failure` says why the last checkpoint did not succeed; None while they do."""

    def __init__(
        self,
        group: Group,
        blobs: Blobs,
        checkpoint_interval_ms: int,
        streams_loaded_max: int,
        report: Callable[[str], None],
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """`then` is called after each checkpoint that was due, taken or not."""
        self._then = then
        self._streams_loaded_max = streams_loaded_max
        self._group = group
        self._blobs = blobs
        self._checkpoint_interval_s = checkpoint_interval_ms / 1000
        self._report = report
        self._tasks: list[asyncio.Task[None]] = []
        self.held: Callable[[], bool] = lambda: False
        """True while a backup counts on every blob that is there."""
        self.failure: str | None = None
        self.checkpoints_count = 0

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._expire()), loop.create_task(self._checkpoint())]

    async def _expire(self) -> None:
        while True:
            while self._group.expire_due(EXPIRE_SLICE) == EXPIRE_SLICE:
                await asyncio.sleep(0)
            self._group.apply_retention()
            self._group.loaded.evict(self._streams_loaded_max, EVICT_SLICE)
            await self._group.clock.sleep(EXPIRE_INTERVAL_S)

    async def _delete_blobs(self) -> None:
        """Deletes blobs whose last reference is durably gone. One that cannot be deleted now is left to `gc`."""
        discarded = self._group.loaded.blobs_discarded
        for _ in range(DELETE_SLICE):
            if not discarded or discarded[0][0] > self._group.log.synced or self.held():
                return
            _, blob = discarded.popleft()
            try:
                await asyncio.to_thread(self._blobs.delete, blob)
            except BlobsUnavailable as error:
                self._report(f"blob {blob} is left behind: {error}")

    async def _checkpoint(self) -> None:
        if self._group.loaded.new_swaps:
            await self._try_checkpoint()  # who owned the group before may have deleted the files that were swapped out
        while True:
            await self._until_checkpoint()
            await self._try_checkpoint()
            await self._delete_blobs()
            self._group.expire_unloaded(EXPIRE_SLICE)
            self._then()

    async def _until_checkpoint(self) -> None:
        """The interval, or less when many streams were created: a listing walks those the catalog does not know yet.
        Or when many labelled records settled: memory holds their labels until the catalog does."""
        left_s = self._checkpoint_interval_s
        loaded = self._group.loaded
        while left_s > 0 and len(loaded.unlisted) < UNLISTED_MAX and loaded.new_marks_count() < LABELS_MAX:
            step_s = min(left_s, EXPIRE_INTERVAL_S)
            await self._group.clock.sleep(step_s)
            left_s -= step_s
        await asyncio.sleep(0)

    async def _try_checkpoint(self, always: bool = False) -> None:
        if self._group.log.failure is not None:
            return
        try:
            if await checkpoint(self._group, always):
                self.checkpoints_count += 1
            self.failure = None
        except Exception as error:
            # The log still holds everything: the node goes on and tries again, and /readyz says so meanwhile.
            if self.failure is None:
                self._report(str(error))
            self.failure = f"the last checkpoint failed: {error}"

    async def stop(self) -> None:
        """Ends the tasks and takes a last checkpoint, so that the next start has little to replay."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._try_checkpoint()
        if self._group.unlogged_heads.in_use:
            # The checkpoint reserved more numbers behind itself. One behind those makes the heads exact again.
            await self._try_checkpoint(always=True)
