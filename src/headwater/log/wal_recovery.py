"""Reading a log back after any end, clean or not: what is whole, what is torn, what is damaged.

Owns the verdict on a log file that does not end where it should. Never drops a byte that was promised: it raises
LogCorrupt instead, and a torn end that it cuts off is kept beside the log in `torn-<position>.bin`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from headwater.log import frames
from headwater.log.frames import Frame

TORN_KEPT_BYTES_MAX = 64 << 20
TORN = "torn-"


class LogCorrupt(Exception):
    """Acknowledged data in the log is damaged. The operator has to choose what happens; nothing was changed."""

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(
            f"log file {path.name} is damaged at position {position} ({reason}). Acknowledged records are affected, "
            f"so the node does not start. Restore {path} from a backup or a healthy copy of the disk; the file has "
            f"been left as it is."
        )
        self.position = position


class LogFile:
    """One log file, read. `end` is the position after its last intact frame, `complete` says an END closed it."""

    def __init__(self, path: Path, base: int, later: list[Path], promised: int) -> None:
        self._path = path
        self._base = base
        self._later = later
        self._promised = promised
        self._vouched = base
        self.end = base
        self.complete = False

    def frames(self) -> Iterator[Frame]:
        """Entry frames in order; afterwards the end is judged, and a torn one is cut off."""
        data = memoryview(self._path.read_bytes())
        for frame in frames.scan(data, self._base):
            self.end = frame.end
            if frame.kind == frames.KIND_END:
                self.complete = True
                break
            if frame.kind == frames.KIND_MARK:
                self._vouched = frames.synced_by(frame)
            else:
                yield frame
        if not self.complete:
            self._judge_end(data)
        if not self._later:
            self._promise_again(data)

    def _judge_end(self, data: memoryview) -> None:
        if self._later:
            # A file is opened only after the one before it was ended and synced.
            raise LogCorrupt(self._path, self.end, f"{self._later[0].name} continues behind the damage")
        if self.end < self._promised:
            raise LogCorrupt(self._path, self.end, f"the catalog vouches for the log up to {self._promised}")
        witness = frames.vouched_beyond(data, self._base, self.end)
        if witness is not None:
            raise LogCorrupt(self._path, self.end, f"the batch at {witness} was written after this place was synced")
        rest = bytes(data[self.end - self._base :]).rstrip(b"\0")
        if rest:
            self._cut(rest)

    def _cut(self, rest: bytes) -> None:
        keep = self._path.with_name(f"{TORN}{self.end:020d}.bin")
        try:
            with keep.open("wb") as out:
                out.write(rest[:TORN_KEPT_BYTES_MAX])
                os.fsync(out.fileno())
        except OSError:
            # Nobody was promised these bytes: without room for a copy of them a node starts all the same.
            keep.unlink(missing_ok=True)
        with self._path.open("r+b") as file:
            # What stands behind the cut must not be found again: a later frame could end exactly in front of it.
            file.truncate(self.end - self._base)
            os.fsync(file.fileno())

    def _promise_again(self, data: memoryview) -> None:
        """Syncs what was found. What no mark vouches for is written once more before: the last process may have died
        without a sync, or of one that failed, and after that the system takes pages for written that are not."""
        start = max(self._vouched - self._base, 0)
        with self._path.open("r+b") as file:
            file.seek(start)
            file.write(data[start : self.end - self._base])
            file.flush()
            os.fsync(file.fileno())


def list_files(directory: Path) -> list[tuple[int, Path]]:
    return sorted((int(path.stem), path) for path in directory.glob("*.wal") if path.stem.isdigit())


def read_file(path: Path, base: int, expected: int, later: list[Path], promised: int) -> LogFile:
    if base != expected:
        raise LogCorrupt(path, base, f"the log file that ends at {base} is missing; the log was read up to {expected}")
    return LogFile(path, base, later, promised)
