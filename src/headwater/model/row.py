"""One stream's metadata as the catalog keeps it: everything but the records.

Owns the persisted shape (msgpack array: fields are only ever added at the end). Never holds payloads.
"""

from __future__ import annotations

import msgspec


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
