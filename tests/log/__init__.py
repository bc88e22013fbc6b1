"""The tests of the log, and the few ways they share to run one: open it, wait for its watermarks, read it back.
Nothing here judges a log; what should be found is for the tests to say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from headwater.log import frames
from headwater.log.frames import Frame
from headwater.log.wal import Wal
from headwater.model.commands import Durability, Producer
from headwater.model.events import Appended, Created, Event

FILE_BYTES = 1 << 20
WAIT_S_MAX = 60
"""So that a log that never gets there ends the test instead of the run."""


class Opened:
    """A log that runs. `replayed` is what it held before."""

    def __init__(self, wal: Wal, replayed: list[tuple[int, Event]]) -> None:
        self.wal = wal
        self.replayed = replayed
        self.progress = asyncio.Event()
        self.passes_count = 0

    def on_progress(self) -> None:
        self.passes_count += 1
        self.progress.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns once `holds` is true; looks again whenever the log reports progress."""
        async with asyncio.timeout(WAIT_S_MAX):
            while not holds():
                self.progress.clear()
                await self.progress.wait()

    async def put(self, *events: Event, sync: bool = True) -> int:
        """Logs events as one batch and waits until they are synced (or only written); returns the position after."""
        wal = self.wal
        position = 0
        for event in events:
            position = wal.add(event, sync)
        wal.commit()
        await self.until(lambda: (wal.synced if sync else wal.written) >= position or wal.failure is not None)
        return position


@asynccontextmanager
async def opened(directory: Path, file_bytes: int = FILE_BYTES, sync_tick_ms: int = 5) -> AsyncIterator[Opened]:
    wal = Wal(directory, file_bytes, sync_tick_ms)
    log = Opened(wal, list(wal.replay()))
    wal.start(log.on_progress)
    try:
        yield log
    finally:
        wal.close()


def read_back(directory: Path) -> list[Event]:
    """What a new start finds. Cuts a torn end, like every start."""
    return [event for _, event in Wal(directory, FILE_BYTES, 5).replay()]


def appended(payload: bytes, start: int = 0, *, sid: int = 1, producer: Producer | None = None) -> Appended:
    return Appended(sid, start, start + len(payload), 1_000, 1_000, 0, [payload], False, producer, None)


def numbered(count: int, size: int = 20) -> list[Event]:
    """Events that tell themselves apart: a creation, then appends that say their number."""
    created = Created("_default/s", 1, "text/plain", 1_000, Durability.FSYNC, [])
    return [created, *(appended(b"%0*d" % (size, n), n * size) for n in range(1, count))]


def log_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.wal"))


def frames_in(data: bytes, base: int) -> list[Frame]:
    return list(frames.scan(memoryview(data), base))
