"""A part of the local log, copied while the log is being written: what a backup takes of it.

Owns where such a copy begins, and that every frame in it is whole. Never changes the log, and never reads beyond what
the caller knows to be synced.

The copy is one file: the bytes of one or more log files without a gap, the first one from the first frame that is asked
for. Positions are byte places, so a log file may begin at any frame, under the name of that frame's position.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from headwater.log import entries, frames
from headwater.model.events import Event

READ_BYTES = 8 << 20
_WITHOUT_END = 1 << 63


class WalCopy:
    """See `world.LogCopy`."""

    def __init__(self, directory: Path, bases: Callable[[], list[int]], after: int, known: int, to: Path) -> None:
        self._directory = directory
        self._bases = bases
        self._after = after
        self._known = known
        self._to = to
        self.at = after
        self.pieces: list[tuple[int, int]] = []

    def advance(self, upto: int) -> list[Event]:
        met: list[Event] = []
        with self._to.open("ab", buffering=0) as out:
            for base, end in pairwise([*self._bases(), _WITHOUT_END]):
                if base < upto and end > self.at:
                    self._take(base, min(end, upto), out.fileno(), met)
        if self.at != upto:
            raise OSError(f"the log has nothing from position {self.at} to {upto}: a file is missing")
        if not self.pieces:
            self.pieces.append((upto, 0))  # nothing to tell; but a log that starts from it has to start there
        return met

    def _take(self, base: int, upto: int, out: int, met: list[Event]) -> None:
        fd = os.open(self._directory / f"{base:020d}.wal", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not self.pieces:
                self.at = self._start(fd, base, upto)
            if self.at == upto:
                return  # a file whose last frame is the last one that is not asked for
            if self.at == base or not self.pieces:
                self.pieces.append((self.at, 0))
            size = READ_BYTES
            while self.at < upto:
                data = os.pread(fd, min(size, upto - self.at), self.at - base)
                whole = self._hear(data, met)
                if not whole and len(data) < size:
                    raise OSError(f"the log is damaged at position {self.at}: no intact frame is there")
                size = READ_BYTES if whole else size * 2  # one frame may be longer than what was read
                _write(out, memoryview(data)[:whole])
                self.at += whole
                first, copied = self.pieces.pop()
                self.pieces.append((first, copied + whole))
        finally:
            os.close(fd)

    def _start(self, fd: int, base: int, upto: int) -> int:
        """Where the first frame begins that ends after what is asked for. By lengths alone: the rest is not copied."""
        at = base
        with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as data:
            while at < upto:
                size = frames.HEADER.unpack_from(data, at - base)[0]
                if size < frames.OVERHEAD:
                    raise OSError(f"the log is damaged at position {at}: no frame begins there")
                if at + size > self._after:
                    break
                at += size
        return at

    def _hear(self, data: bytes, met: list[Event]) -> int:
        """How many bytes of `data` are whole frames. Adds to `met`."""
        end = self.at
        for frame in frames.scan(memoryview(data), self.at):
            end = frame.end
            if frame.kind == frames.KIND_COLD and end > self._known:
                met.append(entries.decode(frame))
        return end - self.at


def _write(out: int, data: memoryview) -> None:
    while data:
        data = data[os.write(out, data) :]
