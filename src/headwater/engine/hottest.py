"""The streams of this process that grow most: found when somebody asks, from what checkpoints need anyway.

Owns what was seen at the last look, for a minute. Never costs an append anything: a group keeps the streams that
changed since its last checkpoint, and two looks tell by how much each has grown between them.

Bounds: LOOKED_MAX streams of all groups at a look, those that changed first since the checkpoint, among which busy ones
are; with more the rest is not seen. Nothing is kept KEPT_S after the last look.
"""

from __future__ import annotations

from heapq import nlargest
from itertools import islice
from typing import NamedTuple

from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.loaded_stream import LoadedStream

LOOKED_MAX = 10_000
WINDOW_S_MIN = 0.25
"""Whoever asks sooner is told what the one before was told."""
KEPT_S = 60.0
TOLD_MAX = 100


class Hot(NamedTuple):
    stream: str
    records_per_s: float
    bytes_per_s: float


class Look(NamedTuple):
    window_s: float
    """Between this look and the one before; 0: it is the first one for long, and tells nothing yet."""
    streams: list[Hot]


class _Seen(NamedTuple):
    key: str
    records_count: int
    tail: int


class Hottest:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._clock = engine.clock
        self._seen: dict[int, _Seen] = {}
        self._at_s: float | None = None
        self._last = Look(0.0, [])

    def look(self) -> Look:
        now_s = self._clock.monotonic_s()
        since_s = None if self._at_s is None else now_s - self._at_s
        if since_s is not None and since_s < WINDOW_S_MIN:
            return self._last
        before = self._seen if since_s is not None and since_s < KEPT_S else {}
        seen: dict[int, _Seen] = {}
        found: list[Hot] = []
        share = LOOKED_MAX // max(1, len(self._engine.owned))
        for owned in self._engine.owned.values():
            for stream in _changed(owned.group, before, share):
                seen[stream.sid] = _Seen(stream.key, stream.count, stream.tail)
                last = before.get(stream.sid)
                if last is not None and since_s and stream.count > last.records_count:
                    grown = stream.count - last.records_count, stream.tail - last.tail
                    found.append(Hot(stream.key, grown[0] / since_s, grown[1] / since_s))
        self._at_s, self._seen = now_s, seen
        self._clock.call_later(KEPT_S, self._forget)
        self._last = Look(since_s if before and since_s else 0.0, nlargest(TOLD_MAX, found, key=lambda one: one[1:]))
        return self._last

    def _forget(self) -> None:
        if self._at_s is not None and self._clock.monotonic_s() - self._at_s >= KEPT_S:
            self._seen, self._at_s, self._last = {}, None, Look(0.0, [])


def _changed(group: Group, before: dict[int, _Seen], count_max: int) -> list[LoadedStream]:
    """Streams that have changed since the last checkpoint, and those that had at the last look."""
    loaded = group.loaded
    found = dict(islice(loaded.dirty.items(), count_max))
    for sid, last in before.items():
        if len(found) >= count_max:
            break
        stream = loaded.by_key.get(last.key)
        if stream is not None and stream.sid == sid:
            found.setdefault(sid, stream)
    return list(found.values())
