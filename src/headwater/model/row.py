"""One stream's metadata as the catalog keeps it: everything but the records.

Owns the persisted shape (msgpack array: fields are only ever added at the end). Never holds payloads.
"""

from __future__ import annotations

import msgspec

from headwater.model.commands import Retention
from headwater.model.events import Forked
from headwater.model.topics import TopicConfig


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The visible snapshot of a stream; its bytes are in the object store under `blob`."""

    offset: int
    content_type: str
    blob: str
    size: int


class BucketRow(msgspec.Struct, frozen=True, array_like=True):
    name: str
    position: int
    """The log position up to which this row is true."""
    explicit: bool
    """Created by name, not merely by a stream in it."""
    created_ms: int
    count: int
    """Streams in it, deleted ones that forks still hold not counted."""
    stored: int = 0
    """Payload that its streams keep: the sum of their rows' `counted`."""


class StreamRow(msgspec.Struct, frozen=True, array_like=True):
    key: str
    sid: int
    position: int
    """The log position up to which this row is true for its stream."""
    content_type: str
    created_ms: int
    durability: int
    ttl_ms: int | None
    expires_ms: int | None
    touched_ms: int
    closed: bool
    closed_by: tuple[str, int, int] | None
    producers: list[tuple[str, int, int, int]]
    """(id, epoch, last seq, last seen ms)"""
    stream_seq: str | None
    tail: int
    count: int
    earliest: int
    last_ms: int
    last_n: int
    last_write_ms: int
    first_seq: int = 0
    """seq of the first retained record."""
    snapshot: Snapshot | None = None
    retention: Retention | None = None
    forked: Forked | None = None
    children: int = 0
    """Forks that share this stream's data."""
    soft_deleted: bool = False
    cold_end: int = 0
    """Offset up to which the stream's own records are in the lake."""
    cold_position: int = 0
    """Log position after the newest of them."""
    lost_position: int = 0
    """Log position of the newest record of its own that a trim, a snapshot or its policy let go of; 0: of none."""
    lost_at: int = 0
    """Log position of the event by which it did. 0 in rows of earlier versions: somewhere up to `position`."""
    topic: TopicConfig | None = None
    holes: bytes = b""
    """Packed, see `model.holes`."""
    evict_floor: int = 1
    """The first record, counted from 1, that the stream's policy has not taken away."""
    deleted_seq: int = 0
    """How many records lie before the end of what was last deleted, or trimmed, on purpose at the stream's front. What
    a snapshot stands for and what a policy took is not deleted: settled rows of it go with their files."""
    deleted_offset: int = 0
    """And where that end is."""
    counted: int = 0
    """What of it its bucket's row counts as stored. 0 in rows of earlier versions, until they are written again."""

    @property
    def deadline_ms(self) -> int | None:
        if self.soft_deleted:
            return None
        return self.expires_ms if self.ttl_ms is None else self.touched_ms + self.ttl_ms

    @property
    def aging(self) -> bool:
        """True when its policy may have to let go of settled records while nobody looks at the stream."""
        return self.retention is not None and self.retention.age_ms is not None and self.cold_end > self.earliest
