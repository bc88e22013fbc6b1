"""The log of a group as a Protocol, and what its failures and copies say.

Owns the contract that every log passes (`tests/log/contract.py`). Never encodes an event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from headwater.histogram import Histogram
from headwater.model.events import Event


class LogCopy(Protocol):
    """A part of a log, copied into one file while the log goes on."""

    @property
    def at(self) -> int:
        """Everything before this position is copied, or was not asked for."""
        ...

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """(position of its first byte, size in bytes) of the log files that the copy is made of, in order. A log
        starts from these as it starts from its own; there is at least one, which may be empty."""
        ...

    def advance(self, upto: int) -> list[Event]:
        """Copies on, up to a synced position. Returns the events it met after `known` that are no appends.

        Blocks, for longer the more there is to copy. Raises OSError, also for a log that is damaged.
        """
        ...


BROKEN, FENCED, UNKNOWN = "broken", "fenced", "unknown"


class LogFailure(msgspec.Struct, frozen=True):
    """Why a log acknowledges nothing any more."""

    kind: str
    """BROKEN: it could not be written. FENCED: another owner took it. UNKNOWN: what became of the last write is not
    known."""
    reason: str
    """In words, with what to do."""

    def __str__(self) -> str:
        return self.reason


class Log(Protocol):
    """One group's ordered log. Single caller: everything but the callbacks' origin runs on the event loop's thread.

    Positions grow strictly with every event. `written` and `synced` are watermarks: all events below them are
    with the operating system, or on stable storage. They only grow, and stop growing for ever once `failure` is set.
    """

    @property
    def head(self) -> int:
        """Position of the oldest event it still holds, or of the first one it will; known once `replay` began."""
        ...

    @property
    def tail(self) -> int: ...

    @property
    def written(self) -> int: ...

    @property
    def synced(self) -> int: ...

    @property
    def failure(self) -> LogFailure | None:
        """Why this log acknowledges nothing any more; None while healthy."""
        ...

    @property
    def sync_times(self) -> Histogram:
        """How long syncs took; of a log at a quorum, entries from when they were sent until they were acknowledged."""
        ...

    def add(self, event: Event, sync: bool) -> int:
        """Gathers the event and returns the position after it. Nothing is handed on before `commit`."""
        ...

    def commit(self) -> None:
        """Hands everything gathered to the writer. Returns at once; `on_progress` fires when watermarks move."""
        ...

    def replay(self, promised: int = 0) -> Iterator[tuple[int, Event]]:
        """Every retained event with the position after it, oldest first. Called once, before `start`.

        The log is known to have been synced up to `promised`: less than that is damage, not a torn end.
        """
        ...

    def start(self, on_progress: Callable[[], None]) -> None:
        """Opens the log for writing. `on_progress` is called on the caller's event loop."""
        ...

    def trim(self, below: int) -> None:
        """Allows the log to forget events that end at or below the position."""
        ...

    def close(self) -> None:
        """Writes and syncs what was gathered, then stops. Idempotent."""
        ...


class SharedLog(Log, Protocol):
    """A log that several processes read, and one of them writes."""

    @property
    def identity(self) -> str:
        """By what the log is told from every other one; "" while nobody has written to it."""
        ...

    def incarnations(self) -> list[tuple[str, int]]:
        """(id, position) of those that began in what was read since the last call, in order."""
        ...

    async def more(self) -> list[tuple[int, Event]]:
        """What follows in the log, with positions; [] at its end for now."""
        ...

    def give_up(self, reason: str) -> None:
        """Whoever uses this object cannot go on: it fails, unless it has failed already. Others are not concerned."""
        ...


class CopiedLog(Log, Protocol):
    """A log that backups take from."""

    def hold(self, after: int | None) -> None:
        """Until it is told None, the log forgets nothing that ends after the position, whatever `trim` allows."""
        ...

    async def begin_copy(self, after: int, known: int, to: Path) -> LogCopy:
        """Begins a copy of every event that ends after `after`, into the file `to`. The log must be held meanwhile, and
        the copy ends with that. Raises OSError, also for a log that cannot be read."""
        ...


class FileLog(CopiedLog, Protocol):
    """A log in files of this machine, and what only files can do."""

    def seal(self) -> None:
        """Leaves a witness after the last batch when the log is idle, so that later damage to it is recognised."""
        ...

    def begin_part(self) -> int:
        """Hands everything gathered to the writer, and begins a new file after it. Returns where that begins: what
        ends at or below it shares no file with what comes later."""
        ...

    async def forget(self, below: int) -> None:
        """On return the files that `trim` allowed to go so far are off the disk: nothing that ends at or below the
        position is left. Raises OSError."""
        ...
