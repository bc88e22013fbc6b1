"""Swapping files of the lake: others that hold the same live records take their place, while everything goes on.

Owns the order of a swap, and that it meets neither a checkpoint nor a run of gc. Never moves a record: the log needs no
word of it, because what a stream holds is the same before and after.

    keys read -> checkpoint -> live rows compared -> catalog (one transaction: from here on it is done) -> table

Old objects stay until gc's grace period is over: reads that were planned before still find them. A crash before the
transaction leaves new objects that nothing refers to; one behind it leaves a catalog that says the table is behind, and
the next start makes it follow (see `Flusher.follow`). docs/decisions/0008 says why it is done like this.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing

import msgspec

from headwater.engine.checkpoint import write_out
from headwater.engine.flush import Flusher
from headwater.engine.group import Group
from headwater.errors import LogUnavailable, Overloaded, ShuttingDown, SwapRefused
from headwater.ports import Lake, Relocated, Relocation, SwapFiles


class Swapped(msgspec.Struct, frozen=True):
    removed_rows: int
    """Live rows of the old files."""
    added_rows: int
    """The same, in the new ones."""
    dropped_rows: int
    """Rows of the new files that were let go of or deleted since they were written."""


class Swapper:
    def __init__(self, group: Group, lake: Lake, flusher: Flusher, lake_files: Callable[[], SwapFiles]) -> None:
        self._group = group
        self._lake = lake
        self._flusher = flusher
        self._lake_files = lake_files
        """Opens the catalog, beside the connections that others use. Called in a thread."""
        self._locks = group.locks
        self._stopping = threading.Event()
        self.swaps_count = 0

    async def stop(self) -> None:
        """A swap under way ends at its next step, or is finished: no thread of it outlives the node's lock."""
        self._stopping.set()
        async with self._locks.swapping:
            pass

    async def swap(self, remove: list[str], add: list[str]) -> Swapped:
        """Makes the records of the files `remove` be read from the files `add`, which are stored already.

        The same swap again changes nothing and succeeds. Raises SwapRefused, and then nothing has changed; after
        BlobsUnavailable it may be done: repeat it.
        """
        async with self._locks.swapping:
            self._check()
            done = await asyncio.to_thread(self._done, remove, add)
            if done is not None:
                await self._flusher.follow()
                return done
            swapped = await self._swap(remove, add)
            self.swaps_count += 1
            return swapped

    def _check(self) -> None:
        if self._stopping.is_set():
            raise ShuttingDown
        if self._group.log.failure is not None:
            raise LogUnavailable(self._group.log.failure.reason)

    def _done(self, remove: list[str], add: list[str]) -> Swapped | None:
        """What the same swap has done before; None when it is still to be done. Raises SwapRefused."""
        with closing(self._lake_files()) as lake_files:
            known = lake_files.standing([*remove, *add])
            numbers = {known[name].went if name in known else None for name in remove}
            numbers |= {known[name].came if name in known else None for name in add}
            number = numbers.pop() if len(numbers) == 1 else None
            if number is not None and lake_files.swapped(number) == (set(remove), set(add)):
                rows = sum(extent.row_count for name in add for extent in lake_files.extents_in(name))
                return Swapped(rows, rows, 0)
        for name in remove:
            if name not in known:
                raise SwapRefused(f"the lake has no file {name}")
            if known[name].dead_ms is not None:
                raise SwapRefused(f"the file {name} is no longer part of the lake")
        for name in add:
            if name in known:
                raise SwapRefused(f"the file {name} is part of the lake already, or was")
        return None

    async def _swap(self, remove: list[str], add: list[str]) -> Swapped:
        # gc takes what is old and unknown: what is being swapped in may be both, until it is known.
        async with self._locks.sweeping:
            self._check()
            relocation = await asyncio.to_thread(self._lake.relocation, remove, add, self._group.number, self._check)
            async with self._locks.relocating:
                async with self._locks.checkpointing:
                    self._check()
                    await self._checkpoint()
                    found = await asyncio.to_thread(self._commit, relocation, remove, add)
                await self._tell_table(remove, found)
            return Swapped(found.live_rows, found.live_rows, found.dropped_rows)

    async def _checkpoint(self) -> None:
        """Afterwards all extents of files that the catalog knows are in it, and none of them is on its way there."""
        try:
            await write_out(self._group)
        except Exception as error:
            raise Overloaded(f"the checkpoint failed ({error})") from error

    def _commit(self, relocation: Relocation, remove: list[str], add: list[str]) -> Relocated:
        with closing(self._lake_files()) as lake_files:
            live = {name: lake_files.extents_in(name) for name in remove}
            found = relocation.match(live)
            count = sum(map(len, live.values()))
            try:
                lake_files.swap(remove, add, found.extents(), count, self._group.clock.now_ms())
            except Exception as error:
                raise Overloaded(f"the catalog did not take the swap ({error!r})") from error
            return found

    async def _tell_table(self, remove: list[str], found: Relocated) -> None:
        catalog = self._group.catalog
        try:
            await asyncio.to_thread(self._lake.relocate, remove, found)
            await asyncio.to_thread(catalog.table_followed)
        except BaseException:
            catalog.table_behind = True  # the flusher sees to it
            raise
