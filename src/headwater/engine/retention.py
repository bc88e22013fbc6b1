"""Retention policies over all of a stream: by records in memory, by whole extents in the lake.

Owns which streams have to be looked at, and what it remembers of the lake, so that a stream that grows all the time is
not looked up each time. Never trims: it names the place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.loaded_streams import LoadedStreams
from headwater.model import forks, retention
from headwater.model.extents import Extent
from headwater.model.retention import Ages, Oldest

EXTENTS_MAX = 64
"""Extents one look goes through; more are for the next one."""
AGES_MAX = 256
"""Extents whose records' ages are known. Overflow: the first of them is looked into again when that is needed."""


class RetentionRules:
    def __init__(self, loaded: LoadedStreams) -> None:
        self._loaded = loaded
        self._oldest: dict[int, Oldest] = {}
        """By sid, as last seen. Without it every look costs 20 µs in the catalog."""
        self.ages: OrderedDict[int, Ages] = OrderedDict()
        """By sid, of the extents that their streams begin in, where these are too old in part."""
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

        In the lake that is the end of an extent: one goes when all of it is beyond a bound, never earlier. Where the
        ages of its records are known it is the first record that is not too old.
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
            return self._aged(stream, now_ms)
        found: tuple[int, int, int] | None = None
        held_by = forks.holder(stream, stream.earliest)
        extents = self._loaded.extents(held_by.sid, stream.earliest, EXTENTS_MAX)
        for oldest in retention.settled(stream, held_by, extents):
            if not retention.beyond(oldest, stream, stream.visible, now_ms):
                if found is None:
                    self._oldest[stream.sid] = oldest
                    return self._aged(stream, now_ms)
                break
            found = oldest.end, oldest.seq_end, oldest.position
        return found

    def unknown_ages(self, stream: LoadedStream, now_ms: int) -> Extent | None:
        """The stream's oldest extent, when some of it is too old and nobody knows which records. Called after `cut`."""
        policy = stream.retention
        if policy is None or policy.age_ms is None or stream.earliest >= stream.timeline.start:
            return None
        oldest, ages = self._oldest.get(stream.sid), self.ages.get(stream.sid)
        if oldest is not None and oldest.earliest == stream.earliest and oldest.first_ms >= now_ms - policy.age_ms:
            return None
        if ages is not None and ages.start <= stream.earliest < ages.end:
            return None
        held_by = forks.holder(stream, stream.earliest)
        found = self._loaded.extents(held_by.sid, stream.earliest, 1)
        return found[0] if found and found[0].ms < now_ms - policy.age_ms else None

    def know_ages(self, stream: LoadedStream, ages: Ages) -> None:
        self.ages.pop(stream.sid, None)
        self.ages[stream.sid] = ages
        if len(self.ages) > AGES_MAX:
            del self.ages[next(iter(self.ages))]

    def _aged(self, stream: LoadedStream, now_ms: int) -> tuple[int, int, int] | None:
        ages = self.ages.get(stream.sid)
        return None if ages is None else retention.aged(stream, ages, now_ms)
