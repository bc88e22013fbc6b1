"""Swapping files of the lake: others that hold the same live records take their place, while everything goes on.

Owns the order of a swap, and that it meets neither a checkpoint nor a run of gc. Never moves a record: what a stream
holds is the same before and after. The log says where its records lie from then on, so that whoever follows it, or
starts again, has them in the same files at the same position.

    keys read -> checkpoint -> live rows compared -> log (from here on it is done) -> catalog -> table

Old objects stay until gc's grace period is over: reads that were planned before still find them. A crash before the
log has the swap leaves new objects that nothing refers to; one behind it leaves a catalog or a table that is behind,
and whoever serves the group next makes them follow (see `Flusher.follow`). docs/decisions/0020 says why.

New files are named with the epoch of the owner that they were planned with (see `lake.names`). Another owner refuses
them: one that was fenced and does not know it may take them for garbage, and remove them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing
from itertools import islice

import msgspec

from headwater.engine.checkpoint import write_out
from headwater.engine.flush import Flusher, writer_of
from headwater.engine.group import Group
from headwater.engine.outcome_future import OutcomeFuture
from headwater.errors import Overloaded, ShuttingDown, SwapRefused
from headwater.model import events
from headwater.model.extents import packed
from headwater.ports import FilesSwapped, Lake, Relocated, Relocation, SwapFiles, breathe

PART_EXTENTS = 5_000
"""Extents in one event: 0.4 MB of the log. Each part is durable before the next is logged: appends wait for one of them
at most."""


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

        The same swap again changes nothing and succeeds. Raises SwapRefused and OwnerChanged, and then nothing has
        changed; after BlobsUnavailable, Overloaded, GroupMoved or LogUnavailable it may be done: repeat it.
        """
        async with self._locks.swapping:
            self._check()
            # What the catalog does not know yet may be these very files, or this very swap.
            async with self._locks.checkpointing:
                await self._checkpoint()
            await self._flusher.follow()
            done = await asyncio.to_thread(self._done, remove, add)
            if done is not None:
                return done
            swapped = await self._swap(remove, add)
            self.swaps_count += 1
            return swapped

    def _check(self) -> None:
        if self._stopping.is_set():
            raise ShuttingDown
        if self._group.closed:
            raise self._group.unavailable()

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
            writer = writer_of(self._group)
            relocation = await asyncio.to_thread(self._lake.relocation, remove, add, writer, self._check)
            async with self._locks.relocating:
                async with self._locks.checkpointing:
                    self._check()
                    await self._checkpoint()
                    found, parts = await asyncio.to_thread(self._match, relocation, remove)
                    await self._log(remove, add, parts)
                    await self._checkpoint()
                await self._tell_table(remove, found)
            return Swapped(found.live_rows, found.live_rows, found.dropped_rows)

    async def _checkpoint(self) -> None:
        """Afterwards everything that was logged of files is in the catalog, and nothing of it is on its way there."""
        try:
            await write_out(self._group)
        except Exception as error:
            self._check()
            raise Overloaded(f"the checkpoint failed ({error})") from error

    def _match(self, relocation: Relocation, remove: list[str]) -> tuple[Relocated, list[bytes]]:
        """What was found, and its extents as the log takes them, in parts."""
        with closing(self._lake_files()) as lake_files:
            found = relocation.match({name: lake_files.live_in(name) for name in remove})
        extents = found.extents()
        parts = []
        while some := list(islice(extents, PART_EXTENTS)):
            parts.append(packed(some))
            breathe()
        return found, parts

    async def _log(self, remove: list[str], add: list[str], parts: list[bytes]) -> None:
        """On return the swap is done, whatever happens to this node: it is in the log, and will be in the catalog."""
        group = self._group
        began = group.log.tail
        for part in parts[:-1]:
            await self._add(events.SwapPart(began, part)).success()
        last = parts[-1] if parts else packed([])
        event = events.Swapped(began, remove, add, max(0, len(parts) - 1), last, group.clock.now_ms())
        durable = self._add(event)
        group.loaded.new_files += add
        group.loaded.new_swaps.append(FilesSwapped(remove, add, parts, event.at_ms))
        await durable.success()

    def _add(self, event: events.SwapPart | events.Swapped) -> OutcomeFuture:
        """Succeeds when the event is durable. Raises what `_check` raises, and then it is not logged."""
        self._check()
        self._group.log.add(event, True)
        durable = OutcomeFuture()
        self._group.barrier(durable)
        return durable

    async def _tell_table(self, remove: list[str], found: Relocated) -> None:
        catalog = self._group.catalog
        await asyncio.to_thread(self._lake.relocate, remove, found, writer_of(self._group))
        await asyncio.to_thread(catalog.table_followed)
