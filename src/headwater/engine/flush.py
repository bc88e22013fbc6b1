"""Settling: the oldest records leave memory and log for the lake.

Owns when and how much. Never lets go of a record before the lake's table holds it and the log says where; a crash
between any two steps loses nothing, and start-up takes back what the log does not know of.

    collect runs -> lake.settle (object, then table) -> log Settled -> memory released -> checkpoint -> log trimmed
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from heapq import nsmallest

from headwater import spans
from headwater.engine.checkpoint import checkpoint
from headwater.engine.group import Group
from headwater.engine.loaded_stream import LoadedStream
from headwater.histogram import Histogram
from headwater.model.extents import Run
from headwater.ports import BlobsUnavailable, Lake, Writer

LOOK_S = 0.2
COLLECT_SLICE = 500
RUNS_MAX = 10_000
"""Streams in one file. Where they came to lie is one event, made true in one step: 3 µs of the event loop and 73 bytes
of the log for each (Group.settle with 100,000 one-record streams: 284 ms, 7.3 MB)."""
RETRY_S_MAX = 30.0


class Flusher:
    """`failure` says why the last flush did not succeed; None while they do."""

    def __init__(
        self,
        group: Group,
        lake: Lake,
        flush_bytes: int,
        flush_interval_ms: int,
        file_bytes_max: int,
        report: Callable[[str], None],
    ) -> None:
        self._group = group
        self._lake = lake
        self._flush_bytes = flush_bytes
        self._interval_s = flush_interval_ms / 1000
        self._file_bytes_max = file_bytes_max
        self._report = report
        self._task: asyncio.Task[None] | None = None
        self._retry_s = 0.0
        self._doubt = True
        """The table may hold a file that the log does not know."""
        self._complete = False
        """The last flush took everything that was synced when it began."""
        self._last_s = self._group.clock.monotonic_s()
        self.failure: str | None = None
        self.flushes_count = 0
        self.flushed_bytes = 0
        self.times = Histogram()
        """Of flushes that settled a file, from the choice of its records until the log says where they are."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """A flush under way ends first: what the table has taken is logged, and no thread outlives the node's lock."""
        if self._task is not None:
            async with self._group.locks.flushing:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self.follow()
                await self._flush_if_due()
            except BlobsUnavailable as error:
                self._failed(str(error))
            except Exception as error:
                # Not foreseen, so trying again may not help. But without it memory would fill and nobody would be told.
                self._failed(repr(error))
            await self._group.clock.sleep(self._retry_s or LOOK_S)

    async def _flush_if_due(self) -> None:
        loaded = self._group.loaded
        aged = loaded.holding and self._group.clock.monotonic_s() - self._last_s >= self._interval_s
        if loaded.hot_bytes < self._flush_bytes and not aged and self.failure is None:
            return
        while await self.flush() and (loaded.hot_bytes >= self._flush_bytes or (aged and not self._complete)):
            pass

    def _failed(self, why: str) -> None:
        """Nothing is lost: everything is still in memory and log. Appends are refused above the ceiling."""
        if self.failure is None:
            self._report(why)
        self.failure = f"the lake takes nothing: {why}"
        self._retry_s = min(RETRY_S_MAX, max(0.5, self._retry_s * 2))

    def lag_s(self) -> float:
        """How long ago memory held nothing that the lake does not."""
        return self._group.clock.monotonic_s() - self._last_s if self._group.loaded.holding else 0.0

    async def flush(self, only: LoadedStream | None = None) -> int:
        """Settles the oldest records, one file at most; returns how many bytes that were. Raises BlobsUnavailable.

        Of all streams, or of `only` one.
        """
        async with self._group.locks.flushing:
            group = self._group
            if group.log.failure is not None:
                return 0
            begun_s = group.clock.monotonic_s()
            runs, streams, size = await self._collect(only)
            if not runs and only is not None:
                return 0
            if not runs:
                self._last_s = self._group.clock.monotonic_s()
                self.failure, self._retry_s = None, 0.0
                return 0
            # A crash, or a store that did not answer, may have come between the table's commit and the log's word of
            # it: those records settle again now, so a file that the log does not know has to leave the table first.
            doubt, self._doubt = self._doubt, True
            with spans.around("flush", **{"headwater.group": group.number, "headwater.bytes": size}):
                if doubt:
                    await self._reconcile()
                file, extents = await asyncio.to_thread(self._lake.settle, runs, writer_of(group))
                group.settle(file, extents, streams)
                if doubt:
                    # A commit that was still on its way has either come before ours or found its version taken.
                    await self._reconcile()
            self._doubt = False
            self.failure, self._retry_s = None, 0.0
            self.flushes_count += 1
            self.flushed_bytes += size
            self.times.add(group.clock.monotonic_s() - begun_s)
            if self._complete:
                self._last_s = self._group.clock.monotonic_s()
            return size

    async def finished(self) -> None:
        """Returns when no flush that was under way at the call is any more: what it stored is logged, or an orphan."""
        async with self._group.locks.flushing:
            pass

    async def follow(self) -> None:
        """On return catalog and table have the last swap of files. Costs nothing when they do.

        Raises BlobsUnavailable."""
        if self._group.catalog.table_behind or self._group.loaded.new_swaps:
            async with self._group.locks.flushing:
                await self._reconcile(only_if_behind=True)

    async def _reconcile(self, only_if_behind: bool = False) -> None:
        group, catalog = self._group, self._group.catalog
        if group.log.failure is not None:
            return
        async with group.locks.relocating:
            if group.loaded.new_swaps:
                # Logged by an owner before: its table may show it, and the catalog must not undo that.
                await self._checkpoint()
            if only_if_behind and not catalog.table_behind:
                return
            # In this order: what a checkpoint moves from one to the other is seen in at least one of them.
            fresh = set(group.loaded.new_files)
            alive = await asyncio.to_thread(catalog.alive)
            await asyncio.to_thread(self._lake.reconcile, alive, fresh, writer_of(group))
            if catalog.table_behind:
                await asyncio.to_thread(catalog.table_followed)

    async def _checkpoint(self) -> None:
        try:
            await checkpoint(self._group)
        except Exception as error:
            raise BlobsUnavailable(f"the catalog does not take the last swap of files ({error})") from error

    async def flush_all(self) -> int:
        """Settles everything that is synced when it is called; returns how many bytes that were."""
        target = self._group.log.synced
        total = 0
        while self._group.lake_position() < target and (size := await self.flush()):
            total += size
        return total

    async def flush_stream(self, stream: LoadedStream) -> int:
        """Settles what of the stream's own records is synced when it is called; returns how many bytes that were.

        Others stay where they are, and are not waited for: the stream gets a file of its own.
        """
        target = self._group.log.synced
        total = 0
        while 0 < stream.floor <= target and (size := await self.flush(stream)):
            total += size
        return total

    async def _collect(self, only: LoadedStream | None = None) -> tuple[list[Run], dict[int, LoadedStream], int]:
        """Runs of the oldest records, up to a file's size. Walks the streams that hold something, in slices."""
        limit = self._group.log.synced
        holding = self._group.loaded.holding
        if only is None:
            held = list(holding.values())
            self._complete = len(held) <= RUNS_MAX
        else:
            held = [only] if holding.get(only.sid) is only else []
            self._complete = False
        if len(held) <= RUNS_MAX:
            held.sort(key=_floor)
        else:
            held = await asyncio.to_thread(nsmallest, RUNS_MAX, held, key=_floor)
        runs: list[Run] = []
        streams: dict[int, LoadedStream] = {}
        size = 0
        for index, stream in enumerate(held):
            if size >= self._file_bytes_max:
                break
            run = cut(stream, limit, self._file_bytes_max - size)
            if run is not None:
                runs.append(run)
                streams[stream.sid] = stream
                size += run.ends[-1] - run.start
                if size >= self._file_bytes_max:
                    self._complete = False
            if index % COLLECT_SLICE == COLLECT_SLICE - 1:
                await asyncio.sleep(0)
        return runs, streams, size


def writer_of(group: Group) -> Writer:
    """The group's owner, as the lake knows it."""
    return Writer(group.number, group.epoch, group.identity)


def _floor(stream: LoadedStream) -> int:
    return stream.floor


def cut(stream: LoadedStream, limit: int, bytes_max: int) -> Run | None:
    """The stream's oldest records that are synced, at most about `bytes_max`, whole appends only."""
    timeline = stream.timeline
    count = bisect_right(timeline.positions, limit)
    if not count:
        return None
    if timeline.ends[count - 1] - timeline.start > bytes_max:
        count = max(1, timeline.index_until(timeline.start + bytes_max))
        # All records of one event have one position: none of them stays behind.
        count = bisect_right(timeline.positions, timeline.positions[count - 1], count - 1)
    return Run(
        stream.key,
        stream.sid,
        stream.content_type,
        timeline.seq,
        timeline.start,
        timeline.payloads[:count],
        timeline.ends[:count],
        timeline.ms[:count],
        timeline.n[:count],
        timeline.positions[:count],
        None if timeline.labels is None else timeline.labels[:count],
    )
