"""Start-up: the catalog says what was true at a position, the log says what happened since.

Owns the fold of a log over a catalog, and the mark that each start leaves. Never decides again: events are facts and
only `evolve` is run on them.

A catalog row may be newer than the catalog's position (checkpoints are taken while writes go on), so each row carries
its own. An event at or below its stream's row position changes nothing there, but its payload, which only the log
holds, is put back into memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from headwater.engine.group import Group
from headwater.engine.loaded_stream import LoadedStream
from headwater.model.events import (
    Appended,
    BucketCreated,
    BucketDeleted,
    Created,
    Deleted,
    Event,
    Noted,
    RecordsDeleted,
    Settled,
    SnapshotPublished,
    StreamEvent,
    SwapPart,
    Swapped,
    Trimmed,
)
from headwater.model.labels import Labels
from headwater.model.lineage import DOMAIN, IDENTITY
from headwater.model.stream_state import evolve, initial_id
from headwater.ports import Catalog, FilesSwapped, Rng

INCARNATION_BYTES = 8
_FORGOTTEN_MAX = 10_000


class LogContradiction(Exception):
    """Catalog and log cannot both be true. The node does not start on a guess."""


def log_of(catalog: Catalog) -> str:
    """The identity of the quorum log that a catalog is of; empty when it is of none yet."""
    kept = catalog.thing(DOMAIN, IDENTITY)
    if kept is not None:
        return kept.decode()
    incarnations = catalog.incarnations()
    return incarnations[0][0] if incarnations else ""


def recover(group: Group) -> int:
    """Folds the whole retained log into `group`; returns how many events it held. Linear in the retained log."""
    fold = Fold(group)
    count = fold.feed(group.log.replay(fold.checkpoint))
    fold.finish()
    return count


def begin_incarnation(group: Group, rng: Rng) -> None:
    """Whatever this start makes of the log is told from what others make of a copy of it. Nothing is served before."""
    group.lineage = group.lineage.begun(rng.token(INCARNATION_BYTES).hex(), group.log.tail)
    group.catalog.keep_incarnations(group.lineage.incarnations)


class Fold:
    """Makes the events of a log true in a group, in their order, all at once or as they come.

    Checkpoints may be taken and streams unloaded between two calls of `feed`.
    """

    def __init__(self, group: Group) -> None:
        """The domains of the group are those that its events speak of: they are given their state here."""
        self._group = group
        self._loaded = group.loaded
        self.checkpoint = group.catalog.position
        """What the catalog was true for when the fold began."""
        self._floor = group.catalog.log_floor
        self._live: dict[int, LoadedStream] = {}
        self._orphans: set[int] = set()
        """Streams that some later event must delete: they appear in the log, but not in the catalog."""
        self._swap = -1
        self._parts: list[bytes] = []
        """Of the swap that was begun last, while its end was not met."""
        for name, domain in group.domains.items():
            if domain.in_memory:
                domain.restore(group.catalog.load_things(name))

    def feed(self, events: Iterable[tuple[int, Event]]) -> int:
        """The next events of the log, each with the position after it; returns how many that were."""
        group, checkpoint, floor = self._group, self.checkpoint, self._floor
        count = 0
        for position, event in events:
            if position <= floor:
                pass  # the log need not even hold it any more: the catalog and the lake have all of it
            elif isinstance(event, Noted):
                if position > checkpoint:
                    group.domains[event.domain].apply(event.body, event.at_ms, position)
            elif isinstance(event, Settled):
                if position > checkpoint:
                    self._settle(event, position)
            elif isinstance(event, SwapPart | Swapped):
                if position > checkpoint:
                    self._swap_files(event)
            elif isinstance(event, BucketCreated | BucketDeleted):
                bucket = self._loaded.bucket(event.name)
                if position > (checkpoint if bucket is None else bucket.position):
                    self._loaded.change_bucket(event, position)
            else:
                self._apply(position, event)
            count += 1
        return count

    def check(self) -> None:
        """What was fed is all that the log holds for now. Raises LogContradiction unless it fits the catalog."""
        log, floor = self._group.log, self._floor
        if log.head > floor and log.head > self._group.catalog.log_floor:
            raise LogContradiction(
                f"the log begins at position {log.head}, but the catalog counts on it from "
                f"{floor} on: log files are missing; restore them"
            )
        if log.tail < self.checkpoint:
            raise LogContradiction(
                f"the catalog is true for log position {self.checkpoint}, but the log ends at {log.tail}: "
                f"log files are missing; restore them"
            )
        if self._orphans:
            raise LogContradiction(f"the log speaks of streams {sorted(self._orphans)[:5]} that were never created")

    def finish(self) -> None:
        """The group is going to be served. Raises LogContradiction."""
        self.check()
        for stream in self._loaded.by_key.values():
            if stream.retention is not None:
                self._group.check_retention(stream)  # it may hold what grew too old meanwhile

    def tidy(self) -> None:
        """Forgets streams that were unloaded or deleted, when these are most of what is remembered."""
        by_key = self._loaded.by_key
        if len(self._live) > 2 * len(by_key) + _FORGOTTEN_MAX:
            self._live = {sid: stream for sid, stream in self._live.items() if by_key.get(stream.key) is stream}

    def _apply(self, position: int, event: StreamEvent) -> None:
        sid = event.sid
        stream = self._find(sid)
        fresh = position > self.checkpoint
        if type(event) is Created:
            self._group.give_out_after(sid)
            if stream is not None:
                if fresh:
                    self._loaded.count(stream.key, 1, event.at_ms, position)
                self._put_back(stream, event.records, stream.fork_at, position, *initial_id(event))
            elif fresh and sid not in self._loaded.removed:
                parent = None if event.forked is None else self._find(event.forked.sid)
                self._live[sid] = stream = self._loaded.create(event, position, parent)
                _show(stream)
        elif stream is None:
            if type(event) is Deleted:
                self._orphans.discard(sid)
            elif fresh:
                self._orphans.add(sid)
        elif position <= stream.position:
            if type(event) is Appended:
                self._put_back(stream, event.records, event.start, position, event.ms, event.n, event.labels)
            elif type(event) is Deleted and fresh:
                self._loaded.count(stream.key, -1, event.at_ms, position)
        elif type(event) is Deleted:
            self._loaded.delete(stream, event, position)
            _show(stream)
        else:
            self._go_on(stream, event, position)

    def _go_on(self, stream: LoadedStream, event: StreamEvent, position: int) -> None:
        held = stream.timeline.held_bytes
        if type(event) is Appended and event.start != stream.tail:
            raise LogContradiction(f"stream {stream.key} ends at {stream.tail}, the log continues it at {event.start}")
        evolve(stream, event, position)
        _show(stream)
        self._loaded.dirty[stream.sid] = stream
        if isinstance(event, Trimmed | SnapshotPublished | RecordsDeleted):
            self._loaded.cut(stream)
        grown = stream.timeline.held_bytes - held
        if grown >= 0:
            self._loaded.hold(stream, grown, position)
        else:
            self._loaded.released(stream, -grown)

    def _settle(self, event: Settled, position: int) -> None:
        self._loaded.new_files.append(event.file)
        for extent in event.extents:
            stream = self._find(extent.sid)
            if stream is not None:
                self._loaded.settle(stream, extent, position)

    def ends_amid_swap(self, after: int) -> bool:
        """True when the end of a swap of files may still come that began at that position or after it. No checkpoint
        is taken then: whoever starts from it would need the parts, and the log need not hold them any more."""
        return bool(self._parts) and self._swap >= after

    def _swap_files(self, event: SwapPart | Swapped) -> None:
        if event.swap != self._swap:
            # Whoever began the one before ended in the middle of it: nothing has changed.
            self._swap, self._parts = event.swap, []
        self._parts.append(event.extents)
        if isinstance(event, SwapPart):
            return
        extents, self._parts = self._parts, []
        if len(extents) != event.parts_count + 1:
            raise LogContradiction(
                f"the swap of files that began at log position {event.swap} has {event.parts_count} parts, and "
                f"{len(extents) - 1} of them are in the log"
            )
        self._loaded.new_files += event.added
        self._loaded.new_swaps.append(FilesSwapped(event.removed, event.added, extents, event.at_ms))

    def _find(self, sid: int) -> LoadedStream | None:
        stream = self._live.get(sid)
        if stream is not None and self._loaded.by_key.get(stream.key) is not stream:
            stream = None  # unloaded since, or deleted
        if stream is None and sid not in self._loaded.removed:
            row = self._group.catalog.load_sid(sid)
            if row is not None:
                stream = self._loaded.find(row.key)
                if stream is not None:
                    self._live[sid] = stream
        if stream is not None and sid in self._loaded.removed:
            return None
        return stream

    def _put_back(
        self,
        stream: LoadedStream,
        records: list[bytes],
        start: int,
        position: int,
        ms: int,
        n: int,
        labels: list[Labels | None] | None = None,
    ) -> None:
        """Payload of an event that the catalog's row already tells of: only the log still holds it."""
        end = start + sum(map(len, records))
        keep_all = stream.children > 0  # forks read what their source itself has let go
        if not records or end <= stream.cold_end or (end <= stream.earliest and not keep_all):
            return
        timeline = stream.timeline
        held = timeline.held_bytes
        if not timeline.payloads:
            timeline.start = start
        timeline.extend(records, start, ms, n, position, labels)
        # The row counts these records already: the first one held is that many before its count.
        timeline.seq -= len(records)
        if start < stream.earliest and not keep_all:
            timeline.drop_before(timeline.index_until(stream.earliest))
        self._loaded.hold(stream, timeline.held_bytes - held, position)


def _show(stream: LoadedStream) -> None:
    """What the log holds is durable: readers may see it."""
    stream.visible = stream.tail
    stream.closed_visible = stream.closed
