"""A group with everything that works for it: reads, upkeep, flushes, gc, swaps and backups.

Owns their order of start and stop. Never decides what they do; each has its own module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from headwater.engine.access_records import AccessRecords
from headwater.engine.aged_records import AgedRecords
from headwater.engine.backup import Backups
from headwater.engine.checkpoint import checkpoint
from headwater.engine.erasure import ErasedLog, Eraser
from headwater.engine.erasure_marks import ErasureMarks
from headwater.engine.flush import Flusher
from headwater.engine.group import Group
from headwater.engine.lake_gc import LakeGc
from headwater.engine.marks import Marks
from headwater.engine.placements import Placements
from headwater.engine.queue_leases import QueueLeases
from headwater.engine.reads import Reads
from headwater.engine.reads_by_id import ReadsById
from headwater.engine.record_reads import RecordReads
from headwater.engine.recovery import begin_incarnation, recover
from headwater.engine.router_definitions import RouterDefinitions
from headwater.engine.schema_records import SchemaRecords
from headwater.engine.swap import Swapper
from headwater.engine.topic_deletes import TopicDeletes
from headwater.engine.upkeep import Upkeep
from headwater.ports import Blobs, CatalogCopy, CopiedLog, FileLog, Lake, Rng

_READS_LOOK_S = 0.02
INCARNATIONS_TOLD = 8
"""The newest ones: enough for whoever comes back to find where two copies of a log part."""


class GroupOptions(msgspec.Struct, frozen=True):
    """Settings, as far as they concern one group: what is a limit of the node is this group's share."""

    checkpoint_interval_ms: int
    streams_loaded_max: int
    flush_bytes: int
    flush_interval_ms: int
    lake_file_bytes: int
    lake_gc_interval_ms: int
    lake_grace_ms: int


class CatalogFiles(Protocol):
    """The group's catalog as worker threads use it: each opens it for itself."""

    held_directory: Path
    """For copies that backups take from."""

    def open(self) -> Any:
        """A `GcFiles` and `SwapFiles`."""
        ...

    def open_to_read(self) -> Any:
        """The same, which changes nothing."""
        ...

    def copy(self, to: Path) -> CatalogCopy: ...

    def scrub(self, name: str | None) -> bool:
        """Removes a name's traces from the catalog's file, or those of all names (see `catalog.scrub`)."""
        ...


class SharedCopies(msgspec.Struct, frozen=True):
    """The group's log, as far as it is shared with other nodes: what backups copy, and how erasures cut it."""

    log: CopiedLog
    erased: ErasedLog


class OwnedGroup:
    """`log`, `lake` and `files` are None for a node that keeps nothing: it has none of what works on them.

    `log` is the group's own, as far as it is a log in files, `shared` as far as it is one of a cluster. A group on
    another one has no backups and erasures.
    """

    def __init__(
        self,
        group: Group,
        log: FileLog | None,
        blobs: Blobs,
        lake: Lake | None,
        files: CatalogFiles | None,
        options: GroupOptions,
        rng: Rng,
        report: Callable[[str, str], None],
        shared: SharedCopies | None = None,
    ) -> None:
        """`report` is told what went wrong with what."""
        self.group = group
        self.placements = Placements(group.catalog)
        group.domains[Placements.name] = self.placements
        self.erasure_marks = ErasureMarks()
        group.domains[ErasureMarks.name] = self.erasure_marks
        group.domains[RouterDefinitions.name] = RouterDefinitions()
        group.domains[AccessRecords.name] = AccessRecords()
        group.domains[SchemaRecords.name] = SchemaRecords()
        group.domains[QueueLeases.name] = QueueLeases()
        self._clearing: asyncio.Task[None] | None = None
        self.log = log
        self.files = files
        self._rng = rng
        self._report = report
        self.reads = Reads(group, lake)
        self.by_id = ReadsById(group, self.reads)
        self.by_number = RecordReads(group, self.reads)
        self.aged = AgedRecords(group, self.reads)
        self.marks = Marks(group)
        self.deletes = TopicDeletes(group, self.marks, self.by_number)
        group.resolve_cold = self.reads.resolve

        def told(what: str) -> Callable[[str], None]:
            return lambda why: report(what, why)

        self.upkeep = Upkeep(
            group,
            blobs,
            options.checkpoint_interval_ms,
            options.streams_loaded_max,
            told("upkeep"),
            self._checkpointed,
        )
        self.flusher: Flusher | None = None
        self.lake_gc: LakeGc | None = None
        self.swapper: Swapper | None = None
        self.backups: Backups | None = None
        self.eraser: Eraser | None = None
        self._lake_files: Any = None
        self.on_log_failed: Callable[[], None] = lambda: None
        """Called once, when the log has failed and everybody who waited was told."""
        if lake is None or files is None:
            return
        self._lake_files = files.open()
        self.flusher = Flusher(
            group, lake, options.flush_bytes, options.flush_interval_ms, options.lake_file_bytes, told("flush")
        )
        self.lake_gc = LakeGc(
            group,
            lake,
            self._lake_files,
            self.flusher,
            options.lake_gc_interval_ms,
            options.lake_grace_ms,
            told("gc"),
        )
        self.swapper = Swapper(group, lake, self.flusher, files.open)
        copied = log if shared is None else shared.log
        erased, marks = (log, None) if shared is None else (shared.erased, self.erasure_marks)
        if copied is None or erased is None:
            return
        self.backups = Backups(group, copied, self.flusher, files.copy, files.held_directory, rng)
        self.eraser = Eraser(group, erased, marks, self.flusher, lake, self.backups, files.open, files.scrub)
        self.lake_gc.held = self.upkeep.held = self.backups.held

    @property
    def number(self) -> int:
        return self.group.number

    def recover(self) -> int:
        """Folds the log over the catalog and opens it for writing; returns how many events that were."""
        count = recover(self.group)
        begin_incarnation(self.group, self._rng)
        self.open()
        return count

    def open(self) -> None:
        """Opens the log for writing. Everything it holds is in the group."""
        self.group.log.start(self._progress)

    def _checkpointed(self) -> None:
        self.marks.tidy()
        if self.log is not None:
            self.log.seal()

    def _progress(self) -> None:
        failed_before = self.group.failed
        self.group.progress()
        if self.group.failed and not failed_before:
            self._report("log", f"it acknowledges nothing any more: {self.group.log.failure}")
            self.on_log_failed()

    def start(self) -> None:
        """Starts what works beside the log."""
        self.upkeep.start()
        if self.flusher is not None:
            self.flusher.start()
        if self.lake_gc is not None:
            self.lake_gc.start()
        if self.erasure_marks.due:
            self._clearing = asyncio.get_running_loop().create_task(self._clear_or_tell())

    async def _clear_or_tell(self) -> None:
        try:
            await checkpoint(self.group)
            await self.clear_traces()
        except OSError as error:
            self._report("upkeep", str(error))

    async def clear_traces(self) -> None:
        """Something was erased while another node owned the group: what deleted rows left in the catalog's file goes,
        if a checkpoint has deleted them. Raises OSError; then it stays due."""
        marks, files = self.erasure_marks, self.files
        if marks.due and files is not None and marks.position <= self.group.catalog.position:
            async with self.group.locks.checkpointing:
                await asyncio.to_thread(files.scrub, None)
            marks.cleared()

    async def rest(self) -> None:
        """Ends what works for the lake, and waits for what of it is under way. Requests are served as before."""
        if self.swapper is not None:
            await self.swapper.stop()
        if self.lake_gc is not None:
            await self.lake_gc.stop()
        if self.flusher is not None:
            await self.flusher.stop()

    async def stop(self) -> None:
        """Ends everything, takes a last checkpoint and closes log and catalog. May be called after a failed start."""
        await self.rest()
        if self._clearing is not None:
            await asyncio.gather(self._clearing, return_exceptions=True)
        if self._lake_files is not None:
            self._lake_files.close()
        await self.upkeep.stop()
        while self.group.left and self.reads.pending:
            await self.group.clock.sleep(_READS_LOOK_S)  # the process goes on, and somebody waits for them
        self.reads.close()
        self.group.log.close()
        self.group.catalog.close()

    def failures(self) -> dict[str, str | None]:
        """What is wrong with what; None where nothing is."""
        return {
            "log": None if self.group.log.failure is None else self.group.log.failure.reason,
            "checkpoint": self.upkeep.failure,
            "lake": None if self.flusher is None else self.flusher.failure,
        }

    def state(self) -> dict[str, Any]:
        """For people and for the pipeline."""
        group = self.group
        return {
            "group": self.number,
            "log": group.lineage.log,
            "incarnations": group.lineage.incarnations[-INCARNATIONS_TOLD:],
            "position": group.log.synced,
            "lake_position": group.lake_position(),
            "hot_bytes": group.loaded.hot_bytes,
            "streams_loaded": len(group.loaded.by_key),
        }
