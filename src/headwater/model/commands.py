"""What a door may ask of a stream, as values. Doors build them, `decide` judges them.

Never says how a command arrived; never reaches the log (events do).
"""

from __future__ import annotations

from enum import IntEnum
from typing import final

import msgspec

from headwater.model.holes import Run
from headwater.model.labels import Labels
from headwater.model.topics import TopicConfig


class Durability(IntEnum):
    """When an append is acknowledged. Numbers are persisted: never reuse one."""

    FSYNC = 0
    DISK = 1
    MEMORY = 2
    EPHEMERAL = 3


@final
class Producer(msgspec.Struct, frozen=True):
    """The tuple that makes a retried append recognisable."""

    id: str
    epoch: int
    seq: int


class Retention(msgspec.Struct, frozen=True, array_like=True):
    """How much of a stream is kept. Each bound counts by itself; None leaves it open."""

    age_ms: int | None = None
    bytes: int | None = None
    records: int | None = None


class ForkPoint(msgspec.Struct, frozen=True):
    """A fork point that was looked up in the lake, because memory does not hold it."""

    at: int
    seq: int
    prefix: list[bytes]


class Fork(msgspec.Struct, frozen=True):
    """A wish to share another stream's past."""

    source: str
    """Key of the source stream."""
    offset: int | None = None
    """None: the source's tail."""
    sub: int = 0
    """Messages (JSON) or bytes (otherwise) beyond the offset."""
    point: ForkPoint | None = None


class Create(msgspec.Struct, frozen=True):
    key: str
    content_type: str | None
    """As the client gave it; None when it gave none."""
    records: list[bytes]
    ttl_ms: int | None = None
    expires_ms: int | None = None
    closed: bool = False
    durability: Durability | None = None
    retention: Retention | None = None
    fork: Fork | None = None
    exclusive: bool = False
    """True refuses any existing stream, whatever its configuration (S3P's CREATE)."""
    topic: TopicConfig | None = None


@final
class Append(msgspec.Struct, frozen=True):
    records: list[bytes]
    """Empty only together with `close`."""
    content_type: str | None = None
    """Normalised. None when nothing names one: a JSON stream then takes only records that are JSON values."""
    producer: Producer | None = None
    stream_seq: str | None = None
    close: bool = False
    if_match: str | None = None
    ms: int | None = None
    """A client-chosen timestamp for the records' ids (S3P's ID option)."""
    create: Create | None = None
    """How a stream that is missing is made first; None: then there is nothing to append to."""
    labels: list[Labels | None] | None = None
    """One for each record; None: no record has any."""


@final
class Delete(msgspec.Struct, frozen=True):
    pass


class Trim(msgspec.Struct, frozen=True):
    """Forget what lies before a record boundary."""

    offset: int
    seq: int | None = None
    """How many records lie before the offset, when that had to be looked up in the lake."""
    position: int = 0
    """Log position of the last of those that is the stream's own, when `seq` is given; 0: there is none."""


class PublishSnapshot(msgspec.Struct, frozen=True):
    """Make a stored blob the stream's snapshot at `offset`; what lies before it is forgotten."""

    offset: int
    content_type: str
    blob: str
    size: int
    seq: int | None = None
    position: int = 0
    """Both as for Trim."""


class DeleteRecords(msgspec.Struct, frozen=True):
    """Delete these records, wherever in the stream they are. Runs ascend; what is deleted already is passed over."""

    runs: list[Run]


class Configure(msgspec.Struct, frozen=True):
    """Change what a stream keeps, and what it is as a topic."""

    retention: Retention | None
    topic: TopicConfig | None


class CreateBucket(msgspec.Struct, frozen=True):
    name: str


class DeleteBucket(msgspec.Struct, frozen=True):
    name: str
    elsewhere_count: int = 0
    """Streams of the bucket in other groups."""


Command = Create | Append | Delete | Trim | PublishSnapshot | DeleteRecords | Configure
BucketCommand = CreateBucket | DeleteBucket
