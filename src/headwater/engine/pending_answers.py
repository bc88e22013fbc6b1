"""Answers that wait for the log: in the order of their positions, each until its watermark passes it.

Owns the two queues and up to where the newest event of each class reaches. Never makes an event visible: the group
does, when it takes an entry that is ready.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from headwater.engine.loaded_stream import LoadedStream
from headwater.errors import Failure, GroupMoved, LogUnavailable
from headwater.model.events import Event
from headwater.model.stream import CreatedAndAppended, Unchanged
from headwater.ports import Log

Outcome = Event | CreatedAndAppended | Unchanged | Failure


class Waiter(Protocol):
    """Where an outcome goes. Called exactly once, on the event loop, when the outcome is final."""

    def resolve(self, outcome: Outcome) -> None: ...


Entry = tuple[int, Waiter | None, Outcome, LoadedStream | None]
"""Position to wait for, who is told, what, and the stream that the outcome makes a change of visible."""


class PendingAnswers:
    __slots__ = ("_log", "disk", "disk_target", "released_count", "sync", "sync_target")

    def __init__(self, log: Log) -> None:
        self._log = log
        self.sync: deque[Entry] = deque()
        """Wait for `synced`."""
        self.disk: deque[Entry] = deque()
        """Wait for `written`."""
        self.sync_target = 0
        """Position after the newest event that has to be synced."""
        self.disk_target = 0
        """Position after the newest event that has to be written."""
        self.released_count = 0
        """Answers that waited, and left because what they waited for came."""

    def answer(self, waiter: Waiter, outcome: Unchanged | Failure, stream: LoadedStream | None) -> None:
        """An outcome that changed nothing still waits for the writes it was judged by, as far as their class goes."""
        log = self._log
        disk_target = self.disk_target if stream is not None and stream.durability == 1 else 0
        if self.sync_target <= log.synced and disk_target <= log.written:
            waiter.resolve(outcome)
        elif log.failure is not None:
            moved = type(outcome) is GroupMoved  # says nothing of what came before it
            waiter.resolve(outcome if moved else LogUnavailable(log.failure.reason))
        elif self.sync_target <= log.synced:
            self.disk.append((disk_target, waiter, outcome, None))
        else:
            self.sync.append((max(self.sync_target, disk_target), waiter, outcome, None))

    def sync_from(self, position: int, waiter: Waiter, outcome: Event, stream: LoadedStream) -> None:
        """The same for an event that rests on an older one: it leaves behind whatever waits already."""
        self.sync_target = max(self.sync_target, position)
        self.sync.append((self.sync_target, waiter, outcome, stream))

    def after(self, position: int, waiter: Waiter) -> None:
        """Resolves `waiter` once the log is synced up to the position, with LogUnavailable when it never is."""
        log = self._log
        if log.synced >= position or log.failure is not None:
            waiter.resolve(Unchanged(0, False) if log.failure is None else LogUnavailable(log.failure.reason))
        else:
            self.sync.append((position, waiter, Unchanged(0, False), None))

    @property
    def count(self) -> int:
        return len(self.sync) + len(self.disk)

    def told(self, synced: int) -> int:
        """The greatest position up to `synced` below which nothing waits any more."""
        for queue in (self.sync, self.disk):
            if queue and queue[0][0] <= synced:
                synced = queue[0][0] - 1
        return synced

    def fail(self, failure: Failure) -> None:
        """Nothing that waits can be promised any more."""
        for queue in (self.sync, self.disk):
            while queue:
                _, waiter, _, _ = queue.popleft()
                if waiter is not None:
                    waiter.resolve(failure)
