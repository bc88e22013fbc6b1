"""Settled records that are too old, found one by one: an extent goes as a whole, but what is too old in it is not read.

Owns the look into the lake that this takes, and who waits for it. Never trims: retention does, by what was found.

An extent is looked into once, when its first record is too old and its last one is not. From then on memory holds the
times and places of its records, until others need the room.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.engine.group import Group
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.reads import Reads
from headwater.errors import Failure
from headwater.model.extents import Extent
from headwater.model.retention import Ages

Then = Callable[[Failure | None], None]


class AgedRecords:
    def __init__(self, group: Group, reads: Reads) -> None:
        self._group = group
        self._reads = reads
        self._looking: dict[int, list[Then]] = {}
        """By sid: who waits for a look under way."""

    def apply(self, stream: LoadedStream, then: Then) -> bool:
        """Lets go of what the stream's policy does not keep. False: that takes a look into the lake, after which `then`
        is called, with why it failed if it did. True: it is done, and `then` will not be called."""
        self._group.apply_retention(stream)
        waiting = self._looking.get(stream.sid)
        if waiting is not None:
            waiting.append(then)
            return False
        extent = self._group.retention.unknown_ages(stream, self._group.clock.now_ms())
        if extent is None:
            return True
        self._looking[stream.sid] = [then]
        self._look(stream, extent)
        return False

    def _look(self, stream: LoadedStream, extent: Extent) -> None:
        def look() -> Ages:
            found = lake.read(extent, extent.start, extent.end)
            return Ages(extent.start, extent.end, found.seq_start, found.ms, found.ends, found.positions)

        def finish(found: Ages | Failure) -> None:
            if isinstance(found, Ages):
                self._group.retention.know_ages(stream, found)
                self._group.apply_retention(stream)
            for then in self._looking.pop(stream.sid, ()):
                then(found if isinstance(found, Failure) else None)

        try:
            lake = self._reads.lake()
        except Failure as failure:
            finish(failure)
            return
        self._reads.reads_count += 1
        self._reads.run(look, finish)
