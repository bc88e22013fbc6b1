"""A part of a quorum log, copied into a file by its owner: what a backup takes of it.

Owns that the copy is what a log in files starts from: the frames of every entry that counts, without a gap. Never reads
the log: the log hands it entries, those from before in one go, then each one as it is acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from pathlib import Path

from headwater.log.quorum_entries import HEAD_BYTES, LogDamaged, Reader
from headwater.model.events import Appended, Event


class QuorumCopy:
    """See `ports.LogCopy`."""

    def __init__(self, end: int, known: int, to: Path) -> None:
        """`end` is where the log stood: nothing that is not fetched lies before it."""
        self._known = known
        self._to = to
        self._reader: Reader | None = None
        self._start = end
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._met: list[Event] = []
        self.at = end

    @property
    def pieces(self) -> list[tuple[int, int]]:
        return [(self._start, self.at - self._start)]

    def fetched(self, entries: Iterable[tuple[int, bytes]]) -> None:
        """Entries that were acknowledged before the copy began, in order. The first one holds an event. Blocks; raises
        LogDamaged, OSError."""
        self._write(entries)

    def acknowledged(self, number: int, data: bytes) -> None:
        self._waiting.append((number, data))

    def advance(self, upto: int) -> list[Event]:
        waiting = self._waiting
        try:
            while self.at < upto and waiting:
                self._write([waiting.popleft()])
        except LogDamaged as error:
            raise OSError(str(error)) from error
        if self.at != upto:
            raise OSError(f"the log has no entry that ends at position {upto}: the copy ends at {self.at}")
        self._to.touch()
        met, self._met = self._met, []
        return met

    def _write(self, entries: Iterable[tuple[int, bytes]]) -> None:
        with self._to.open("ab") as out:
            for number, data in entries:
                if self._reader is None:
                    self._reader = Reader()
                    self._reader.begin(number, data)
                    self._start = self.at = self._reader.cursor.position
                events = self._reader.take(number, data)
                if self._reader.cursor.position > self.at:  # else it is a claim, a barrier, or void
                    out.write(memoryview(data)[HEAD_BYTES:])
                    self.at = self._reader.cursor.position
                self._met += [event for end, event in events if end > self._known and not isinstance(event, Appended)]
