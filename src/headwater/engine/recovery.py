"""Start-up: the catalog says what was true at a position, the log says what happened since.

Owns the fold of a log over a catalog. Never decides again: events are facts and only `evolve` is run on them.

A catalog row may be newer than the catalog's position (checkpoints are taken while writes go on), so each row carries
its own. An event at or below its stream's row position changes nothing there, but its payload, which only the log
holds, is put back into memory.
"""

from __future__ import annotations

from headwater.engine.group import Group
from headwater.engine.live import LiveStream
from headwater.model.events import Appended, Created, Deleted, Event
from headwater.model.stream import born, evolve


class LogContradiction(Exception):
    """Catalog and log cannot both be true. The node does not start on a guess."""


def recover(group: Group) -> int:
    """Folds the whole retained log into `group`; returns how many events it held. Linear in the retained log."""
    return _Fold(group).run()


class _Fold:
    def __init__(self, group: Group) -> None:
        self._group = group
        self._checkpoint = group.catalog.position
        self._live: dict[int, LiveStream] = {}
        self._dead: set[int] = set()
        """Streams that some later event must delete: they appear in the log, but not in the catalog."""

    def run(self) -> int:
        group = self._group
        count = 0
        for position, event in group.log.replay():
            self._apply(position, event)
            count += 1
        if group.log.tail < self._checkpoint:
            raise LogContradiction(
                f"the catalog is true for log position {self._checkpoint}, but the log ends at {group.log.tail}: "
                f"log files are missing; restore them"
            )
        if self._dead:
            raise LogContradiction(f"the log speaks of streams {sorted(self._dead)[:5]} that were never created")
        for stream in self._live.values():
            group.restore(stream)
        return count

    def _apply(self, position: int, event: Event) -> None:
        group = self._group
        sid = event.sid
        stream = self._find(sid)
        if type(event) is Created:
            group.next_sid = max(group.next_sid, sid + 1)
            if stream is None:
                if position <= self._checkpoint:
                    return  # deleted again before the checkpoint
                stream = self._live[sid] = LiveStream(born(event, position))
                evolve(stream, event, position)
                group.dirty[sid] = stream
            elif event.records:
                self._put_back(stream, event.records, 0, event.at_ms, 0, position)
        elif type(event) is Deleted:
            self._dead.discard(sid)
            if stream is not None and position > stream.position:
                del self._live[sid]
                group.dirty.pop(sid, None)
                group.removed[sid] = stream.key
        elif stream is None:
            if position > self._checkpoint:
                self._dead.add(sid)
        elif position > stream.position:
            if type(event) is Appended and event.start != stream.tail:
                raise LogContradiction(
                    f"stream {stream.key} ends at {stream.tail}, the log continues it at {event.start}"
                )
            evolve(stream, event, position)
            group.dirty[sid] = stream
        elif type(event) is Appended and event.records:
            self._put_back(stream, event.records, event.start, event.ms, event.n, position)

    def _find(self, sid: int) -> LiveStream | None:
        stream = self._live.get(sid)
        if stream is None and sid not in self._group.removed:
            row = self._group.catalog.load_sid(sid)
            if row is not None:
                stream = self._live[sid] = LiveStream(row)
        return stream

    @staticmethod
    def _put_back(
        stream: LiveStream, records: list[bytes], start: int, ms: int, n: int, position: int
    ) -> None:
        timeline = stream.timeline
        if start < stream.earliest:
            return
        if not timeline.payloads:
            timeline.start = start
        timeline.extend(records, start, ms, n, position)
