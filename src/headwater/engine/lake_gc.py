"""The slow upkeep of the lake: what nothing refers to is removed, and age policies reach streams nobody looks at.

Owns its pace and what it asks of the event loop in between: a set of names, gathered in a few milliseconds. Never does
the work on the loop: listing, planning and deleting happen in one worker thread, at the lake's own pace.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from headwater.engine.flush import Flusher, writer_of
from headwater.engine.group import Group
from headwater.ports import BlobsUnavailable, GcFiles, Lake, LakeGcResult, Pending

POLICE_SLICE = 200
DIRTY_SLICE = 5_000
POSITION_MAX = 1 << 62


class _Stopping(Exception):
    """The node stops: what is not done yet is the next start's."""


class _Held(Exception):
    """A backup counts on everything that is there: what is not done yet is a later run's."""


class LakeGc:
    """`failure` says why the last run did not succeed; None while they do. The node serves all the same."""

    def __init__(
        self,
        group: Group,
        lake: Lake,
        lake_files: GcFiles,
        flusher: Flusher,
        interval_ms: int,
        grace_ms: int,
        report: Callable[[str], None],
    ) -> None:
        self._group = group
        self._lake = lake
        self._lake_files = lake_files
        self._flusher = flusher
        self._interval_s = interval_ms / 1000
        self._grace_ms = grace_ms
        self._report = report
        self._task: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[LakeGcResult] | None = None
        self._stopping = threading.Event()
        self.held: Callable[[], bool] = lambda: False
        """True while a backup counts on every object that is there."""
        self.covered: Callable[[], int] = lambda: POSITION_MAX
        """Up to which log position a catalog is kept elsewhere, which may have to be gone on from."""
        self._swaps_marks: list[tuple[int, int]] = []
        """(log position, number of the newest swap): a catalog that is true for that position has that swap."""
        self._swaps_covered = 0
        self.failure: str | None = None
        self.runs_count = 0
        self.files_deleted_count = 0
        self.bytes_deleted = 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Ends the run under way at its next step and waits for its thread."""
        self._stopping.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._sweeping is not None:
            await asyncio.gather(self._sweeping, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._group.clock.sleep(self._interval_s)
            try:
                # Shielded: the thread goes on whatever becomes of this task, and `stop` waits for it.
                self._sweeping = asyncio.get_running_loop().create_task(self.sweep())
                await asyncio.shield(self._sweeping)
                self.failure = None
            except _Stopping:
                return
            except BlobsUnavailable as error:
                self.failure = str(error)
                self._report(f"gc of the lake ends early: {error}")
            except Exception as error:
                self.failure = str(error)
                self._report(f"gc of the lake failed: {error}")

    async def sweep(self) -> LakeGcResult:
        """One run. Raises BlobsUnavailable; what was not reached is the next run's."""
        async with self._group.locks.sweeping:
            loop = asyncio.get_running_loop()

            def pending() -> Pending:
                return asyncio.run_coroutine_threadsafe(self._pending(), loop).result()

            await self._check_retention()
            # Otherwise a swapped file could leave the table before the one that took its place is in it.
            await self._flusher.follow()
            await self._cover_swaps()
            try:
                self._check_hold()
                swept = await asyncio.to_thread(
                    self._lake.sweep,
                    writer_of(self._group),
                    self._lake_files,
                    pending,
                    self._grace_ms,
                    self._check_hold,
                )
            except _Held:
                return LakeGcResult(0, 0, 0, 0, 0, 0)
            self.runs_count += 1
            self.files_deleted_count += swept.files_deleted + swept.orphans_deleted
            self.bytes_deleted += swept.bytes_deleted
            return swept

    def _check(self) -> None:
        if self._stopping.is_set():
            raise _Stopping

    def _check_hold(self) -> None:
        self._check()
        if self.held():
            raise _Held

    async def _pending(self) -> Pending:
        await self._flusher.finished()
        loaded = self._group.loaded
        # Copies, taken together: a checkpoint may move streams from one to the other, then to the catalog.
        streams = [*loaded.dirty.values(), *loaded.capturing.values()]
        files = set(loaded.new_files)
        blobs: set[str] = set()
        for at in range(0, len(streams), DIRTY_SLICE):
            some = streams[at : at + DIRTY_SLICE]
            blobs.update(stream.snapshot.blob for stream in some if stream.snapshot is not None)
            await asyncio.sleep(0)
        return Pending(files, blobs, self._swaps_covered)

    async def _cover_swaps(self) -> None:
        count = await asyncio.to_thread(self._lake_files.swaps_count)
        marks = self._swaps_marks
        if not marks or marks[-1][1] < count:
            marks.append((self._group.catalog.position, count))
        covered = self.covered()
        while marks and marks[0][0] <= covered:
            self._swaps_covered = marks.pop(0)[1]

    async def _check_retention(self) -> None:
        """Has the policies of streams looked at whose settled records grew too old while they were idle."""
        now_ms = self._group.clock.now_ms()
        keys = await asyncio.to_thread(lambda: list(self._lake_files.aged(now_ms)))
        for at in range(0, len(keys), POLICE_SLICE):
            self._check()
            for key in keys[at : at + POLICE_SLICE]:
                stream = self._group.loaded.find(key)
                if stream is not None and not stream.soft_deleted:
                    self._group.check_retention(stream)
            self._group.apply_retention()
            await asyncio.sleep(0)
