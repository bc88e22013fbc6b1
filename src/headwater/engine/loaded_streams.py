"""The streams and buckets a group has loaded.

Owns loading, names, counts, fork references and the two heaps (deadlines, log floors); marks what changed (see
`change_set`). Never logs: the group does, and calls here to make an event true for more than its own stream. Recovery
makes the same calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count as _count

from headwater.engine.change_set import UnsavedChanges
from headwater.engine.loaded_stream import UNBORN, Domain, LoadedStream
from headwater.engine.usage import ReadUsage
from headwater.model import buckets as bucket_rules
from headwater.model.buckets import Bucket
from headwater.model.commands import Durability
from headwater.model.events import BucketEvent, Created, Deleted
from headwater.model.extents import Extent
from headwater.model.marks import LabelledRun
from headwater.model.names import bucket_of
from headwater.model.row import BucketRow, Snapshot
from headwater.model.stream_state import NEVER_MS, born, evolve, settle
from headwater.ports import Catalog

_STALE_MAX = 10_000


class LoadedStreams(UnsavedChanges):
    def __init__(self, catalog: Catalog, domains: Mapping[str, Domain], usage: ReadUsage) -> None:
        super().__init__(domains, usage)
        self.catalog = catalog
        self.by_key: dict[str, LoadedStream] = {}
        self.buckets: dict[str, Bucket] = {}
        self.hot_bytes = 0
        """Memory that the records of all streams take: the sum of their timelines' `held_bytes`."""
        self.unlogged_bytes = 0
        """The same of ephemeral streams, which are not counted there."""
        self.lessened_count = 0
        """Grows whenever memory shows less than before: records settled, or were deleted or trimmed."""
        self.holding: dict[int, LoadedStream] = {}
        """Streams with records that are only in memory and log."""
        self.holding_by_bucket: dict[str, dict[int, LoadedStream]] = {}
        """The same, so that a reader of one bucket does not look at the others."""
        self.blobs_discarded: deque[tuple[int, str]] = deque()
        """Blobs that nothing refers to any more, each with the log position that has to be synced before it goes."""
        self._hand: list[str] = []
        self._ties = _count()
        """Orders equal entries of the heaps: streams themselves have no order."""
        self._deadlines: list[tuple[int, int, LoadedStream]] = []
        self._floors: list[tuple[int, int, LoadedStream]] = []

    # ---- finding ------------------------------------------------------------------------------------------------

    def find(self, key: str) -> LoadedStream | None:
        """The stream of that name, loaded if need be; soft-deleted ones too."""
        stream = self.by_key.get(key)
        if stream is None:
            row = self.catalog.load(key)
            if row is None or row.sid in self.removed:
                return None
            stream = LoadedStream(row)
            self.adopt(stream)
        stream.used = True
        return stream

    def has(self, stream: LoadedStream) -> bool:
        """True for the very object that stands for a stream here."""
        return self.by_key.get(stream.key) is stream

    def adopt(self, stream: LoadedStream) -> None:
        self.by_key[stream.key] = stream
        if stream.forked is not None:
            stream.parent = self._parent(stream.forked.sid)
        if stream.deadline_ms != NEVER_MS and not stream.soft_deleted:
            heappush(self._deadlines, (stream.deadline_ms, next(self._ties), stream))

    def _parent(self, sid: int) -> LoadedStream:
        row = self.catalog.load_sid(sid)
        parent = None if row is None else self.find(row.key)
        if parent is None or parent.sid != sid:
            raise RuntimeError(f"the source of a fork, stream {sid}, is missing from the catalog")
        return parent

    def bucket(self, name: str) -> Bucket | None:
        """The bucket of that name, existing or remembered; None when there never was one."""
        found = self.buckets.get(name)
        if found is None:
            row = self.catalog.load_bucket(name)
            if row is not None:
                found = self.buckets[name] = Bucket(row)
        return found

    # ---- events that touch more than one thing --------------------------------------------------------------------

    def create(self, event: Created, position: int, parent: LoadedStream | None) -> LoadedStream:
        stream = LoadedStream(born(event, position, parent))
        stream.parent = parent
        evolve(stream, event, position)
        self.by_key[stream.key] = stream
        if stream.deadline_ms != NEVER_MS:
            heappush(self._deadlines, (stream.deadline_ms, next(self._ties), stream))
        self.dirty[stream.sid] = stream
        self.unlisted[stream.key] = stream
        if stream.durability == Durability.EPHEMERAL:
            self.unlogged_bytes += stream.timeline.held_bytes
        else:
            self.hold(stream, stream.timeline.held_bytes, position)
        if parent is not None and position > parent.position:
            parent.children += 1
            self._changed(parent, position)
        self.count(stream.key, 1, event.at_ms, position)
        return stream

    def delete(self, stream: LoadedStream, event: Deleted, position: int) -> None:
        """Takes the stream away, or leaves it soft-deleted for its forks; ancestors that only waited for it go too."""
        was_soft = stream.soft_deleted
        evolve(stream, event, position)
        if not was_soft:
            self.count(stream.key, -1, event.at_ms, position)
        self.unlisted.pop(stream.key, None)
        if event.soft:
            stream.deadline_ms = NEVER_MS
            self._changed(stream, position)
            return
        self._discard(stream)
        parent = stream.parent
        while isinstance(parent, LoadedStream):
            if position > parent.position:
                parent.children -= 1
                self._changed(parent, position)
                self._let_go(parent)
            if parent.children or not parent.soft_deleted:
                break
            self._discard(parent)
            parent = parent.parent

    def _let_go(self, stream: LoadedStream) -> None:
        """What the stream let go of while a fork needed it goes now, when that was the last one."""
        self.cut(stream)
        timeline = stream.timeline
        if not stream.children and stream.earliest > timeline.start:
            freed = timeline.drop_before(timeline.index_until(stream.earliest))
            if freed:
                self.released(stream, freed)

    def _discard(self, stream: LoadedStream) -> None:
        if stream.snapshot is not None:
            self.discard_snapshot(stream, stream.snapshot, stream.position)
        self.by_key.pop(stream.key, None)
        self.forget(stream)
        self.released(stream, stream.timeline.held_bytes)
        self._holds_nothing(stream)
        stream.floor = 0

    def _changed(self, stream: LoadedStream, position: int) -> None:
        stream.position = position
        self.dirty[stream.sid] = stream

    def change_bucket(self, event: BucketEvent, position: int) -> None:
        bucket = self._bucket_or_new(event.name, event.at_ms)
        bucket_rules.evolve(bucket, event, position)
        self.dirty_buckets[bucket.name] = bucket

    def count(self, key: str, by: int, at_ms: int, position: int) -> None:
        """A stream came or went. An event that the bucket's row already counts changes nothing."""
        bucket = self._bucket_or_new(bucket_of(key), at_ms)
        if position > bucket.position:
            bucket_rules.count(bucket, by, at_ms, position)
            self.dirty_buckets[bucket.name] = bucket

    def recount(self, stream: LoadedStream, size: int) -> None:
        if size != stream.counted:
            bucket = self._bucket_or_new(bucket_of(stream.key), stream.created_ms)
            bucket.stored += size - stream.counted
            stream.counted = size
            self.dirty_buckets[bucket.name] = bucket

    def _bucket_or_new(self, name: str, at_ms: int) -> Bucket:
        bucket = self.bucket(name)
        if bucket is None:
            bucket = self.buckets[name] = Bucket(BucketRow(name, 0, False, at_ms, 0))
        return bucket

    def discard_snapshot(self, stream: LoadedStream, snapshot: Snapshot, position: int) -> None:
        """The stream has no more use for a snapshot. One that forks may share is left to the lake's gc."""
        if not stream.children and stream.forked is None:
            self.discard_blob(snapshot.blob, position)

    def discard_blob(self, blob: str, position: int) -> None:
        self.blobs_discarded.append((position, blob))

    # ---- what is held in memory and log ---------------------------------------------------------------------------

    def hold(self, stream: LoadedStream, size: int, position: int) -> None:
        """Records that take `size` bytes are only in memory and log; the oldest came with the event at `position`."""
        if stream.durability == Durability.EPHEMERAL:
            self.unlogged_bytes += size
            return
        self.hot_bytes += size
        if not stream.floor and size:
            stream.floor = position
            self.holding[stream.sid] = stream
            self.holding_by_bucket.setdefault(bucket_of(stream.key), {})[stream.sid] = stream
            heappush(self._floors, (position, next(self._ties), stream))

    def released(self, stream: LoadedStream, freed: int) -> None:
        """The stream let go of its oldest records, which took `freed` bytes."""
        self.lessened_count += 1
        if stream.durability == Durability.EPHEMERAL:
            self.unlogged_bytes -= freed
            return
        self.hot_bytes -= freed
        stream.floor = stream.timeline.positions[0] if stream.timeline.payloads else 0
        if stream.floor:
            heappush(self._floors, (stream.floor, next(self._ties), stream))
        else:
            self._holds_nothing(stream)

    def _holds_nothing(self, stream: LoadedStream) -> None:
        if self.holding.pop(stream.sid, None) is not None:
            bucket = bucket_of(stream.key)
            held = self.holding_by_bucket[bucket]
            del held[stream.sid]
            if not held:
                del self.holding_by_bucket[bucket]

    def settle(self, stream: LoadedStream, extent: Extent, position: int) -> None:
        """An extent of the stream is durable in the lake."""
        self.new_extents.setdefault(stream.sid, []).append(extent)
        # One flush may bring several extents of a stream at the same position; settling twice changes nothing.
        if position >= stream.position:
            if stream.timeline.labels is not None:
                self._keep_marks(stream, extent.end)
            freed = settle(stream, extent.end, position)
            self.dirty[stream.sid] = stream
            if freed:
                self.released(stream, freed)
        if extent.start < stream.earliest:
            self.cut(stream)  # trimmed while it was on its way, or while a fork needed it

    def _keep_marks(self, stream: LoadedStream, end: int) -> None:
        """Memory is about to let go of records that labels may be found by."""
        timeline = stream.timeline
        index = timeline.index_until(end)
        labels = (timeline.labels or [])[:index]
        if labels.count(None) < len(labels):
            run = LabelledRun(stream.sid, timeline.seq, timeline.start, timeline.ends[:index], labels)
            self.new_marks.setdefault(stream.sid, []).append(run)

    def holed(self, stream: LoadedStream) -> None:
        """Some of the stream's records were deleted, wherever they are."""
        self.lessened_count += 1
        self.masks_count += 1
        self.holes_changed = True
        stream.encoded = None
        self.dirty[stream.sid] = stream

    def cut(self, stream: LoadedStream) -> None:
        """The stream's earliest offset moved; extents before it go with the next checkpoint, unless forks need them."""
        self.lessened_count += 1
        self.dirty[stream.sid] = stream
        stream.encoded = None
        if stream.lost_position:
            self.lost[stream.sid] = stream
        if not stream.children:
            self.cuts[stream.sid] = stream.earliest

    def extents(self, sid: int, offset: int, count_max: int) -> list[Extent]:
        """Extents that end after `offset`, in order: the catalog's, then those it does not know yet."""
        found = self.catalog.extents(sid, offset, count_max)
        known = found[-1].end if found else offset
        fresh = [extent for extent in self.new_extents.get(sid, ()) if extent.end > known]
        return (found + fresh)[:count_max] if len(found) < count_max else found

    # ---- room -----------------------------------------------------------------------------------------------------

    def evict(self, loaded_max: int, count_max: int) -> int:
        """Unloads idle streams while more than `loaded_max` are loaded; looks at `count_max` of them at most.

        A clock: one that was used since the hand came by gets another round. What is not only in the catalog stays.
        """
        evicted = 0
        surplus = len(self.by_key) - loaded_max
        for _ in range(count_max):
            if evicted >= surplus:
                break
            if not self._hand:
                self._hand = list(self.by_key)
            stream = self.by_key.get(self._hand.pop())
            if stream is None:
                continue
            unsaved = stream.sid in self.dirty or stream.sid in self.capturing
            if stream.used or stream.busy or unsaved or stream.holding or stream.visible == UNBORN:
                stream.used = False
            else:
                del self.by_key[stream.key]
                evicted += 1
        return evicted

    def log_floor(self, tail: int) -> int:
        """The log may forget what ends at or below this: everything older is deleted or kept elsewhere."""
        heap = self._floors
        while heap:
            position, _, stream = heap[0]
            if stream.floor != position:
                heappop(heap)
            else:
                return position - 1
        return tail

    def tidy(self) -> None:
        """Forgets what only an owner works off: deadlines of streams that are gone, and blobs to be deleted."""
        self.blobs_discarded.clear()
        if len(self._deadlines) > 2 * len(self.by_key) + _STALE_MAX:
            self._deadlines = [entry for entry in self._deadlines if self.has(entry[2])]
            heapify(self._deadlines)

    def due(self, now_ms: int, count_max: int) -> list[LoadedStream]:
        """Streams whose deadline has passed, `count_max` at most. Cost: logarithmic in those that have one."""
        heap = self._deadlines
        found: list[LoadedStream] = []
        while heap and heap[0][0] <= now_ms and len(found) < count_max:
            _, _, stream = heap[0]
            if self.by_key.get(stream.key) is not stream or stream.soft_deleted:
                heappop(heap)
            elif stream.deadline_ms > now_ms:
                heapreplace(heap, (stream.deadline_ms, next(self._ties), stream))
            else:
                heappop(heap)
                found.append(stream)
        return found
