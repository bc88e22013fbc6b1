"""Numbers of ephemeral streams: given out without a word in the log, and not given out again after a crash.

Owns how far ahead numbers are reserved in the log, and what an append has to wait for. Never keeps a record.

    append -> within what is reserved and synced: told at once
           -> beyond: reserved further; told when that is synced

Half of what is reserved is there when more is asked for, so in the run of things only a stream's first append waits.
After a crash the stream goes on behind what was reserved, and readers are told of the gap. A checkpoint's row says the
head as it is: what was reserved before it does not count beside it, so whoever is in use reserves again at each
checkpoint, before the catalog has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headwater.engine.loaded_stream import LoadedStream
from headwater.model.events import Reserved
from headwater.ports import Clock, Log

AHEAD_COUNT = 10_000
AHEAD_BYTES = 64 << 20


class _Bound(NamedTuple):
    seq: int
    offset: int
    position: int
    """In the log, of the entry that says so."""

    def covers(self, stream: LoadedStream, part: int = 1) -> bool:
        return stream.count <= self.seq - AHEAD_COUNT // 2 * (part - 1) and (
            stream.tail <= self.offset - AHEAD_BYTES // 2 * (part - 1)
        )


class _Head:
    __slots__ = ("bound", "next", "renewed_count", "stream")

    def __init__(self, stream: LoadedStream, bound: _Bound) -> None:
        self.stream = stream
        self.bound = bound
        self.next: _Bound | None = None
        self.renewed_count = 0
        """How many records there were at the last checkpoint."""


class UnloggedHeads:
    def __init__(self, log: Log, clock: Clock, is_there: Callable[[LoadedStream], bool]) -> None:
        self._log = log
        self._clock = clock
        self._is_there = is_there
        self._heads: dict[int, _Head] = {}
        """Of streams that were appended to since the last checkpoint but one, by sid."""

    @property
    def in_use(self) -> bool:
        """Some streams were appended to since the last checkpoint but one."""
        return bool(self._heads)

    def appended(self, stream: LoadedStream) -> int:
        """The log position that has to be synced before the stream's newest records may be told of."""
        head = self._heads.get(stream.sid)
        if head is None or head.stream is not stream:
            head = self._heads[stream.sid] = _Head(stream, self._reserve(stream))
        following = head.next
        if following is not None and (following.position <= self._log.synced or not head.bound.covers(stream)):
            head.bound, head.next = following, None
        if not head.bound.covers(stream):
            head.bound = self._reserve(stream)
        elif head.next is None and not head.bound.covers(stream, 2):
            head.next = self._reserve(stream)
        stream.position = self._log.tail
        return head.bound.position

    def captured(self) -> None:
        """Rows are captured. Called before the catalog has them, which has to wait until the log is synced."""
        for sid, head in list(self._heads.items()):
            if head.stream.count == head.renewed_count or not self._is_there(head.stream):
                del self._heads[sid]
            else:
                head.renewed_count = head.stream.count
                head.next = self._reserve(head.stream)

    def _reserve(self, stream: LoadedStream) -> _Bound:
        seq, offset = stream.count + AHEAD_COUNT, stream.tail + AHEAD_BYTES
        return _Bound(seq, offset, self._log.add(Reserved(stream.sid, seq, offset, self._clock.now_ms()), True))
