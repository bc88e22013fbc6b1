"""What happened to a stream, as values: the only thing the log holds and the only thing that changes state.

Never carries a wish or a rule; replaying events needs no clock and no settings.
"""

from __future__ import annotations

from typing import final

import msgspec

from headwater.model.commands import Durability, Producer


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


@final
class Deleted(msgspec.Struct, frozen=True, tag="deleted"):
    sid: int
    at_ms: int
    expired: bool = False


@final
class Touched(msgspec.Struct, frozen=True, tag="touched"):
    """A read moved a sliding expiry. Logged coarsely: a crash may shorten a window by a sixteenth, never more."""

    sid: int
    at_ms: int


ColdEvent = Created | Deleted | Touched
Event = Created | Appended | Deleted | Touched
