"""What happened to a stream, as values: the only thing the log holds and the only thing that changes state.

Never carries a wish or a rule; replaying events needs no clock and no settings.
"""

from __future__ import annotations

from typing import final

import msgspec

from headwater.model.commands import Durability, Producer, Retention
from headwater.model.extents import Extent
from headwater.model.holes import Run
from headwater.model.labels import Labels
from headwater.model.topics import TopicConfig


class Forked(msgspec.Struct, frozen=True, array_like=True):
    """Where a fork left its source. `ms-n` and `seq` are those of the last record it shares."""

    sid: int
    at: int
    seq: int
    ms: int
    n: int
    offset: int | None
    """The offset and sub-offset that were asked for, to recognise the same request again."""
    sub: int


@final
class Created(msgspec.Struct, frozen=True, tag="created"):
    key: str
    sid: int
    content_type: str
    at_ms: int
    durability: Durability
    records: list[bytes]
    """Initial content, in the same event so that creation with content is one atomic fact."""
    ttl_ms: int | None = None
    expires_ms: int | None = None
    closed: bool = False
    retention: Retention | None = None
    forked: Forked | None = None
    topic: TopicConfig | None = None


@final
class Appended(msgspec.Struct, frozen=True):
    """Records joined a stream, or it was closed, or both. Logged in a layout of its own (see log/entries.py)."""

    sid: int
    start: int
    end: int
    at_ms: int
    ms: int
    n: int
    """Id of the first record is `ms-n`; the others count up in n."""
    records: list[bytes]
    closed: bool
    producer: Producer | None
    stream_seq: str | None
    forget_before_ms: int = 0
    """Producers silent since before this are dropped, to make room for this one."""
    durability: int = 0
    """The stream's class, for the answer; not logged."""
    labels: list[Labels | None] | None = None
    """One for each record; None: no record has any."""
    seq: int = 0
    """How many records the stream had before, for the answer; not logged."""


@final
class Deleted(msgspec.Struct, frozen=True, tag="deleted"):
    sid: int
    key: str
    at_ms: int
    expired: bool = False
    soft: bool = False
    """Forks still share its data: the name stays taken and the data stays until the last of them goes."""


@final
class Touched(msgspec.Struct, frozen=True, tag="touched"):
    """A read moved a sliding expiry. Logged coarsely: a crash may shorten a window by a sixteenth, never more."""

    sid: int
    at_ms: int


class Trimmed(msgspec.Struct, frozen=True, tag="trimmed"):
    sid: int
    earliest: int
    first_seq: int
    at_ms: int
    position: int = 0
    """Log position of the newest record of its own that the stream let go of; 0: of none."""
    evicted: bool = False
    """The stream's policy did it: whoever had not read those records is told that they are lost."""


class RecordsDeleted(msgspec.Struct, frozen=True, tag="records-gone"):
    """Records were deleted on purpose, wherever in the stream they were."""

    sid: int
    runs: list[Run]
    """Ascending; nothing in them was deleted before."""
    at_ms: int
    durability: int = 0
    """As for Appended; but logged."""


class Configured(msgspec.Struct, frozen=True, tag="configured"):
    sid: int
    retention: Retention | None
    topic: TopicConfig | None
    at_ms: int


class Reserved(msgspec.Struct, frozen=True, tag="reserved"):
    """Of an ephemeral stream: numbers and offsets up to these may have been given out, to records that are gone for
    whoever reads this. The process that logs it goes on as if nothing had happened."""

    sid: int
    seq: int
    offset: int
    at_ms: int


class SnapshotPublished(msgspec.Struct, frozen=True, tag="snapshot"):
    sid: int
    offset: int
    first_seq: int
    content_type: str
    blob: str
    size: int
    at_ms: int
    position: int = 0
    """As for Trimmed."""


class BucketCreated(msgspec.Struct, frozen=True, tag="bucket"):
    name: str
    at_ms: int


class BucketDeleted(msgspec.Struct, frozen=True, tag="bucket-gone"):
    name: str
    at_ms: int


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """Records moved to the lake: they are read from `extents` from now on, and memory and log may let them go."""

    file: str
    extents: list[Extent]
    at_ms: int


class SwapPart(msgspec.Struct, frozen=True, tag="swap-part"):
    """Some of the places that a swap of files leads to; nothing has changed before its `Swapped`."""

    swap: int
    """Log position at which the swap began. Another one may have been begun before it and never ended."""
    extents: bytes
    """Packed (see `model.extents`): nobody looks into them before the catalog does."""


class Swapped(msgspec.Struct, frozen=True, tag="swapped"):
    """Files of the lake took the place of others, and hold the same live records: no stream has changed."""

    swap: int
    removed: list[str]
    added: list[str]
    parts_count: int
    """How many SwapParts came before. No other event of theirs comes later than this one."""
    extents: bytes
    """Those that are in no part."""
    at_ms: int


class Noted(msgspec.Struct, frozen=True, tag="noted"):
    """Something that happened in a domain beside the streams (such as subscriptions); only it reads `body`."""

    domain: str
    body: bytes
    at_ms: int


BucketEvent = BucketCreated | BucketDeleted
LakeEvent = Settled | SwapPart | Swapped
StreamEvent = (
    Created | Appended | Deleted | Touched | Trimmed | Reserved | SnapshotPublished | RecordsDeleted | Configured
)
ColdEvent = (
    Created
    | Deleted
    | Touched
    | Trimmed
    | Reserved
    | SnapshotPublished
    | RecordsDeleted
    | Configured
    | BucketEvent
    | Noted
    | LakeEvent
)
Event = StreamEvent | BucketEvent | Noted | LakeEvent
