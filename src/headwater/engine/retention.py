"""Retention policies over all of a stream: by records in memory, by whole extents in the lake.

Owns which streams have to be looked at, and what it remembers of the lake, so that a stream that grows all the time is
not looked up each time. Never trims: it names the place.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.loaded_streams import LoadedStreams
from headwater.model import forks, retention
from headwater.model.retention import Oldest

EXTENTS_MAX = 64
"""Extents one look goes through; more are for the next one."""


class RetentionRules:
    def __init__(self, loaded: LoadedStreams) -> None:
        self._loaded = loaded
        self._oldest: dict[int, Oldest] = {}
        """By sid, as last seen. Without it every look costs 20 µs in the catalog."""
        self.due: dict[int, LoadedStream] = {}
        """Streams with a policy that grew since it was last applied, by sid."""

    def cuts(
        self, now_ms: int, only: LoadedStream | None = None
    ) -> Iterator[tuple[LoadedStream, tuple[int, int, int]]]:
        """Streams that are due (or `only` that one) and hold more than their policy keeps, with what `cut` says of it.

        One that is cut stays due: there may be more. So does one that holds records which grow too old.
        """
        for sid, stream in list(self.due.items()) if only is None else [(only.sid, only)]:
            found = self.cut(stream, now_ms) if self._loaded.by_key.get(stream.key) is stream else None
            policy = stream.retention
            if found is not None:
                yield stream, found
            elif policy is None or policy.age_ms is None or not stream.timeline.payloads:
                self.due.pop(sid, None)
                self._oldest.pop(sid, None)

    def cut(self, stream: LoadedStream, now_ms: int) -> tuple[int, int, int] | None:
        """The offset before which the policy keeps nothing, its seq, and the log position of the last record that goes.

        None when all stays.

        In the lake that is the end of an extent: one goes when all of it is beyond a bound, never earlier.
        """
        timeline = stream.timeline
        offset = retention.cut(stream, stream.visible, now_ms)
        if offset is not None:
            count = timeline.index_until(offset)
            return offset, timeline.seq + count, timeline.positions[count - 1]
        if stream.retention is None or stream.earliest >= timeline.start:
            return None
        known = self._oldest.get(stream.sid)
        seen = known is not None and known.earliest == stream.earliest
        if known is not None and seen and not retention.beyond(known, stream, stream.visible, now_ms):
            return None
        found: tuple[int, int, int] | None = None
        held_by = forks.holder(stream, stream.earliest)
        extents = self._loaded.extents(held_by.sid, stream.earliest, EXTENTS_MAX)
        for oldest in retention.settled(stream, held_by, extents):
            if not retention.beyond(oldest, stream, stream.visible, now_ms):
                if found is None:
                    self._oldest[stream.sid] = oldest
                break
            found = oldest.end, oldest.seq_end, oldest.position
        return found
