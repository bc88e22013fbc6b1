"""What changed since the last checkpoint: marked as it happens, taken as one set, then committed or given back.

Owns the marks and what becomes of them. Never writes the catalog: `checkpoint` does.

    marked -> take_changes -> (the catalog writes) -> commit        the catalog has it
                                                   -> give_back     it is marked again, unless something newer is

Marks are plain dicts and lists that whoever makes an event true changes directly: an append sets one item of `dirty`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headwater.engine.loaded_stream import Domain, LoadedStream
from headwater.engine.usage import ReadUsage
from headwater.model.buckets import Bucket
from headwater.model.extents import Extent
from headwater.model.marks import LabelledRun
from headwater.model.row import BucketRow, StreamRow
from headwater.ports import Change, FilesSwapped, ReadCount


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Everything that one checkpoint writes, true for the moment it was taken."""

    streams: Mapping[int, LoadedStream]
    """Those whose rows are below, and those that were deleted since their row was captured."""
    rows: Sequence[StreamRow]
    buckets: Mapping[str, Bucket]
    bucket_rows: Sequence[BucketRow]
    removed: Mapping[int, str]
    created: Mapping[str, LoadedStream]
    extents: Mapping[int, Sequence[Extent]]
    marks: Mapping[int, Sequence[LabelledRun]]
    files: Sequence[str]
    cuts: Mapping[int, int]
    lost: Mapping[int, LoadedStream]
    things: Mapping[str, dict[str, bytes | None]]
    """By domain, then by name."""
    reads: Sequence[ReadCount]
    swaps: Sequence[FilesSwapped]

    @property
    def count(self) -> int:
        """Rows of the catalog that say what exists: those of streams, buckets and domains."""
        return len(self.rows) + len(self.removed) + len(self.bucket_rows) + sum(map(len, self.things.values()))

    @property
    def empty(self) -> bool:
        return not (self.count or self.extents or self.files or self.cuts or self.reads or self.swaps)

    def at(self, position: int, log_floor: int, next_sid: int) -> Change:
        """The same as the catalog takes it, true for a log position."""
        return Change(
            rows=list(self.rows),
            buckets=list(self.bucket_rows),
            gone=[(key, sid) for sid, key in self.removed.items()],
            extents=[extent for found in self.extents.values() for extent in found],
            files=list(self.files),
            cuts=list(self.cuts.items()),
            things=[(domain, name, row) for domain, found in self.things.items() for name, row in found.items()],
            position=position,
            log_floor=log_floor,
            next_sid=next_sid,
            reads=list(self.reads),
            swaps=list(self.swaps),
            marks=[run for found in self.marks.values() for run in found],
        )


class UnsavedChanges:
    """One set is taken at a time: it is committed or given back before the next."""

    def __init__(self, domains: Mapping[str, Domain], usage: ReadUsage) -> None:
        self.dirty: dict[int, LoadedStream] = {}
        """Changed since the last checkpoint, by sid."""
        self.capturing: dict[int, LoadedStream] = {}
        """What a checkpoint under way writes: no longer dirty, not yet in the catalog."""
        self.dirty_buckets: dict[str, Bucket] = {}
        self.removed: dict[int, str] = {}
        """Deleted since the last checkpoint: sid and key. The catalog may still have their rows."""
        self.unlisted: dict[str, LoadedStream] = {}
        """Created since the last checkpoint: the catalog's listing does not show them yet."""
        self.new_extents: dict[int, list[Extent]] = {}
        """Logged since the last checkpoint, by sid: the catalog does not know them yet."""
        self.new_marks: dict[int, list[LabelledRun]] = {}
        """The same for labels of records that settled. They take memory until the checkpoint."""
        self.new_files: list[str] = []
        """Files of the lake that were logged since the last checkpoint."""
        self.new_swaps: list[FilesSwapped] = []
        """Swaps of files that were logged since the last checkpoint. Reads still go to the old files: these are kept
        until a catalog has had the swap for a while."""
        self.lost: dict[int, LoadedStream] = {}
        """Streams that let go of records since the last checkpoint, by sid."""
        self.losing: dict[int, LoadedStream] = {}
        """Those of them that a checkpoint under way is writing."""
        self.cuts: dict[int, int] = {}
        """Streams trimmed since the last checkpoint: sid and earliest offset."""
        self.masks_count = 0
        """Grows whenever rows of the lake's files cease to count otherwise than by a trim."""
        self.holes_changed = False
        """Records were deleted since the last checkpoint: the catalog may count some that are in the lake."""
        self._domains = domains
        self._usage = usage
        self._rows: dict[int, StreamRow] = {}
        """Captured, and not taken yet. The row of a stream that is dirty again is captured again."""
        self._waiting: list[LoadedStream] = []
        """To be captured, the last first."""
        self._taken: ChangeSet | None = None

    @property
    def lake_changed(self) -> bool:
        """What the catalog says of the lake's files is not true yet. Of changes that a checkpoint under way has taken
        only some count: ask between two."""
        return bool(
            self.new_extents or self.new_files or self.new_swaps or self.cuts or self.removed or self.holes_changed
        )

    def new_marks_count(self) -> int:
        """Records among `new_marks`. Linear in the streams there, and in the flushes since the last checkpoint."""
        return sum(len(run.labels) for runs in self.new_marks.values() for run in runs)

    def begin_capture(self) -> None:
        """What is dirty now is captured next, by `capture`. It may change meanwhile, and is dirty again then."""
        self.capturing.update(self.dirty)
        self._waiting.extend(self.dirty.values())
        self.dirty = {}

    def capture(self, count_max: int) -> bool:
        """Captures the next rows, `count_max` at most; False when there was none left. A checkpoint that ends before
        it has captured or taken everything loses nothing: the next one goes on from there."""
        streams = self._waiting[-count_max:]
        for stream in streams:
            self.recount(stream, stream.own_bytes)
            self._rows[stream.sid] = stream.row()
        del self._waiting[-count_max:]
        return bool(streams)

    def take_changes(self) -> ChangeSet:
        """Everything that is marked, and the marks are gone. What readers look up stays until `commit`: deletions,
        creations, extents, files and swaps."""
        if self._taken is not None:
            raise RuntimeError("a checkpoint began while another was under way")
        self.begin_capture()
        self.capture(len(self._waiting) or 1)
        rows, self._rows = self._rows, {}
        buckets, self.dirty_buckets = self.dirty_buckets, {}
        cuts, self.cuts = self.cuts, {}
        self.holes_changed = False
        self.losing, self.lost = self.lost, {}
        self._taken = ChangeSet(
            streams=self.capturing,
            rows=tuple(row for sid, row in rows.items() if sid not in self.removed),
            buckets=buckets,
            bucket_rows=tuple(bucket.row() for bucket in buckets.values()),
            removed=dict(self.removed),
            created=dict(self.unlisted),
            extents={sid: tuple(found) for sid, found in self.new_extents.items()},
            marks={sid: tuple(found) for sid, found in self.new_marks.items()},
            files=tuple(self.new_files),
            cuts=cuts,
            lost=dict(self.losing),
            things={name: domain.changes() for name, domain in self._domains.items()},
            reads=self._usage.take(),
            swaps=tuple(self.new_swaps),
        )
        return self._taken

    def commit(self, changes: ChangeSet) -> None:
        """The catalog has taken them."""
        self._finish(changes)
        for sid in changes.removed:
            self.removed.pop(sid, None)
        del self.new_files[: len(changes.files)]
        del self.new_swaps[: len(changes.swaps)]
        _written(self.new_extents, changes.extents)
        _written(self.new_marks, changes.marks)
        for key, stream in changes.created.items():
            if self.unlisted.get(key) is stream:
                del self.unlisted[key]

    def give_back(self, changes: ChangeSet) -> None:
        """The catalog has none of them: all are marked again, except those of streams that were deleted meanwhile."""
        self._finish(changes)
        self.holes_changed = True
        removed = self.removed
        for sid, stream in changes.streams.items():
            if sid not in removed:
                self.dirty.setdefault(sid, stream)
        for name, bucket in changes.buckets.items():
            self.dirty_buckets.setdefault(name, bucket)
        for sid, earliest in changes.cuts.items():
            if sid not in removed:
                self.cuts.setdefault(sid, earliest)
        for sid, stream in changes.lost.items():
            if sid not in removed:
                self.lost.setdefault(sid, stream)
        self._usage.give_back(list(changes.reads))
        for name, things in changes.things.items():
            self._domains[name].retry(things)

    def _finish(self, changes: ChangeSet) -> None:
        if changes is not self._taken:
            raise RuntimeError("these changes are not the ones that were taken last")
        self._taken = None
        self.capturing, self.losing = {}, {}

    def recount(self, stream: LoadedStream, size: int) -> None:
        """The stream's bucket counts so many bytes of it from now on: both rows are written by the same checkpoint.

        Nothing here: `loaded_streams` knows the buckets."""

    def forget(self, stream: LoadedStream) -> None:
        """The stream is deleted for good: of its marks only that one is left."""
        self.masks_count += 1
        self.recount(stream, 0)
        sid = stream.sid
        self.dirty.pop(sid, None)
        self.unlisted.pop(stream.key, None)
        self.new_extents.pop(sid, None)
        self.new_marks.pop(sid, None)
        self.lost.pop(sid, None)
        self.losing.pop(sid, None)
        self.removed[sid] = stream.key


T = TypeVar("T")


def _written(waiting: dict[int, list[T]], written: Mapping[int, Sequence[T]]) -> None:
    """What was written waits no more. What came since does, and so does nothing of a stream that was deleted."""
    for sid, some in written.items():
        left = waiting.get(sid)
        if left is not None:
            del left[: len(some)]
            if not left:
                del waiting[sid]
