"""What a door may ask of a stream, as values. Doors build them, `decide` judges them.

Never says how a command arrived; never reaches the log (events do).
"""

from __future__ import annotations

from enum import IntEnum
from typing import final

import msgspec


class Durability(IntEnum):
    """When an append is acknowledged. Numbers are persisted: never reuse one."""

    FSYNC = 0
    DISK = 1
    MEMORY = 2


@final
class Producer(msgspec.Struct, frozen=True):
    """The tuple that makes a retried append recognisable."""

    id: str
    epoch: int
    seq: int


@final
class Create(msgspec.Struct, frozen=True):
    key: str
    content_type: str | None
    """Normalised; None when the client named none."""
    records: list[bytes]
    ttl_ms: int | None = None
    expires_ms: int | None = None
    closed: bool = False
    durability: Durability | None = None
    exclusive: bool = False
    """True refuses any existing stream, whatever its configuration (S3P's CREATE)."""


@final
class Append(msgspec.Struct, frozen=True):
    records: list[bytes]
    """Empty only together with `close`."""
    content_type: str | None = None
    """Normalised. None skips the check: close-only requests, and doors that carry no content type."""
    producer: Producer | None = None
    stream_seq: str | None = None
    close: bool = False
    if_match: str | None = None
    ms: int | None = None
    """A client-chosen timestamp for the records' ids (S3P's ID option)."""


@final
class Delete(msgspec.Struct, frozen=True):
    pass


Command = Create | Append | Delete
