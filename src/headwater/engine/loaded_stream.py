"""A stream that is loaded: its decided state plus what readers may see of it.

Owns visibility and followers. Never lets a reader see an event that is not as durable as its stream promises.
"""

from __future__ import annotations

from typing import Any, Protocol

from headwater.model.commands import Durability
from headwater.model.row import StreamRow
from headwater.model.stream_state import Stream

UNBORN = -1
"""`visible` of a stream whose creation is not durable yet."""


class Follower(Protocol):
    """Someone who waits for a stream to grow. All calls come from the group, on the event loop."""

    def wake(self, stream: LoadedStream) -> None:
        """More is visible, or the stream was closed."""
        ...

    def gone(self, stream: LoadedStream) -> None:
        """The stream was deleted or has expired; the follower is already off its list."""
        ...

    def left(self, stream: LoadedStream) -> None:
        """Another process serves the stream from now on; the follower is already off its list."""
        ...


class Observer(Protocol):
    """Someone who hears of every change that became visible. Called on the event loop; must be quick."""

    def grown(self, stream: LoadedStream, start: int) -> None:
        """Records from offset `start` on became visible (also on creation with content)."""
        ...

    def deleted(self, stream: LoadedStream) -> None: ...

    def pass_ended(self) -> None:
        """The log's watermarks moved, and every change they made visible has been told."""
        ...

    def left(self) -> None:
        """The group that was observed is served by another process from now on."""
        ...


class Domain(Protocol):
    """State beside the streams that lives in the same log and catalog. See `Group.note`."""

    name: str
    in_memory: bool
    """Whether the last checkpoint's state is loaded when the group recovers. Otherwise the domain looks things up."""

    def apply(self, body: bytes, at_ms: int, position: int) -> None:
        """Makes an event true. Called when it is decided, and again for each event since the checkpoint on recovery."""
        ...

    def restore(self, things: dict[str, bytes]) -> None:
        """The state of the last checkpoint. Called once, before any `apply`."""
        ...

    def changes(self) -> dict[str, bytes | None]:
        """What changed since the last call, by name; None: it is gone. A failed checkpoint hands it back by `retry`."""
        ...

    def retry(self, changes: dict[str, bytes | None]) -> None: ...


class LoadedStream(Stream):
    __slots__ = ("closed_visible", "encoded", "floor", "followers", "touch_logged_ms", "used", "visible")

    def __init__(self, row: StreamRow) -> None:
        super().__init__(row)
        self.visible = row.tail
        """Readers see records up to this offset."""
        self.closed_visible = row.closed
        self.followers: set[Follower] | None = None
        self.encoded: dict[object, Any] | None = None
        """What followers were sent for the present tail, so that an event is encoded once (doors fill it)."""
        self.floor = 0
        """Log position after the oldest event whose payload is only in memory and log; 0 when there is none."""
        self.touch_logged_ms = row.touched_ms
        self.used = True
        """Looked up since the eviction clock came by."""
        if self.durability == Durability.EPHEMERAL and row.tail > row.earliest:
            self.lose_records()

    @property
    def holding(self) -> bool:
        """It has records that are nowhere else but, at most, in the log."""
        return self.floor > 0 or (self.durability == Durability.EPHEMERAL and bool(self.timeline.payloads))

    @property
    def busy(self) -> bool:
        """Something holds on to this very object: followers, or forks that read through it."""
        return bool(self.followers) or self.children > 0
