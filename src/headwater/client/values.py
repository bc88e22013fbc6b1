"""What the client takes and gives: heads and chunks of streams, records, states of topics and queues, options.

Plain values and how they are read from the wire; nothing here sends or decides.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

import msgspec

from headwater.client.failures import not_understood

# --- streams --------------------------------------------------------------------------------------------------

Durability = Literal["ephemeral", "memory", "disk", "fsync", "quorum"]


@dataclass(frozen=True, slots=True)
class StreamHead:
    """What a stream is at this moment."""

    content_type: str
    next_offset: str
    earliest_offset: str
    closed: bool
    durability: str
    ttl_s: int | None
    expires_at: datetime | None
    etag: str


@dataclass(frozen=True, slots=True)
class Appended:
    """`next_offset` is the offset behind the data. `repeated`: an earlier attempt had stored it already."""

    next_offset: str
    repeated: bool
    closed: bool


@dataclass(frozen=True, slots=True)
class Chunk:
    """Data of a stream that came in one answer. Iterating gives the messages of a JSON stream, else the bytes."""

    data: bytes
    """As it came; on a JSON stream an array of messages."""
    messages: list[Any] | None
    """The decoded messages of a JSON stream; None on any other."""
    next_offset: str
    """Go on here next time."""
    up_to_date: bool
    closed: bool

    def __iter__(self) -> Iterator[Any]:
        if self.messages is not None:
            return iter(self.messages)
        return iter((self.data,) if self.data else ())


# --- topics ---------------------------------------------------------------------------------------------------


class QueueOptions(TypedDict, total=False):
    """What a queue may be told at its creation. Times are milliseconds, as on the wire."""

    lease_ms: int
    claim_jitter_ms: int
    max_deliveries: int
    dead_letter: str | None
    leases_durable: bool
    backoff_ms: int
    backoff_ms_max: int


class TopicOptions(TypedDict, total=False):
    """What a topic may be told at its creation; all but content type and durability can change later."""

    content_type: str
    ttl_ms: int | None
    cap_records: int | None
    cap_bytes: int | None
    discard: Literal["old", "reject"]
    durability: Durability
    durable: bool
    priority: int
    auto_priority: bool
    queue: QueueOptions | None


class QueueConfig(msgspec.Struct, frozen=True):
    """How a queue gives out its jobs."""

    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    """0: no bound."""
    dead_letter: str | None = None
    leases_durable: bool = False
    backoff_ms: int = 0
    backoff_ms_max: int = 600_000


class TopicConfig(msgspec.Struct, frozen=True):
    """The configuration in force."""

    content_type: str = "application/json"
    ttl_ms: int | None = None
    cap_records: int | None = None
    cap_bytes: int | None = None
    discard: str = "old"
    durability: str = "fsync"
    priority: int = 0
    auto_priority: bool = False
    queue: QueueConfig | None = None


class QueueCounts(msgspec.Struct, frozen=True):
    """How many jobs are in which state."""

    ready: int = 0
    leased: int = 0
    delayed: int = 0
    dead_lettered: int = 0


class TopicState(msgspec.Struct, frozen=True):
    """How far a topic has come. `epoch` changes when it is deleted and created again."""

    head_seq: int
    earliest_seq: int
    evict_floor: int = 1
    count: int = 0
    bytes: int = 0
    epoch: int | str = 0
    queue: QueueCounts | None = None


class TopicInfo(msgspec.Struct, frozen=True):
    """A topic's configuration and state. `created`: this very call made it."""

    topic: str
    config: TopicConfig
    state: TopicState
    created: bool = False


class TopicSummary(msgspec.Struct, frozen=True):
    """One topic of a listing."""

    topic: str
    state: TopicState


class TopicsPage(msgspec.Struct, frozen=True):
    topics: list[TopicSummary]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a topic. `seq` counts from 1; a reader that keeps the last one it saw goes on behind it."""

    seq: int
    ts_ms: int
    data: Any
    """A JSON value; on a topic of another type text, or bytes where they are no text."""
    tag: str | None = None
    node: str | None = None
    meta: dict[str, Any] | None = None
    key: str | None = None
    deliver_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Records that the topic's bounds took before this reader came to them: from `gap_from` to `gap_to`, both lost."""

    gap_from: int
    gap_to: int


@dataclass(frozen=True, slots=True)
class Diff:
    """What came behind a cursor. `next_seq` is the cursor to go on with."""

    records: list[Record]
    next_seq: int
    head_seq: int
    earliest_seq: int
    evict_floor: int
    epoch: int | str
    up_to_date: bool
    tombstone: Tombstone | None


@dataclass(frozen=True, slots=True)
class Draft:
    """A record to write with `write_many`, or a job for `put_many`, where data alone is not enough."""

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: dict[str, Any] | None = None
    key: str | None = None
    deliver_at: datetime | int | None = None
    """A moment with its time zone, or milliseconds since 1970."""
    delay: float | timedelta | None = None
    """Seconds, or a timedelta, from when the server takes it."""


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a write.

    `duplicates` are the places (from 0) of jobs whose key a live job has: these were not written again, and their seq
    is that job's. `repeated`: an earlier attempt whose answer was lost had stored it, and the server does not tell its
    seqs again, so that `seqs` lacks them.
    """

    seqs: list[int]
    head_seq: int
    duplicates: list[int]
    repeated: bool = False

    @property
    def seq(self) -> int | None:
        """Of the only record, or the last one; None when it is not known."""
        return self.seqs[-1] if self.seqs else None


class Deleted(msgspec.Struct, frozen=True):
    """How many records were deleted, and what is left."""

    deleted: int
    earliest_seq: int = 0
    head_seq: int = 0


Match = tuple[str, str, str]


class RouterInfo(msgspec.Struct, frozen=True):
    """A router: what it copies where, and how far it has come."""

    name: str
    source: str
    dest: str
    filter: Match | None = None
    preserve_tag: bool = True
    preserve_node: bool = True
    preserve_meta: bool = True
    allow_cycle: bool = False
    cursor: int = 0
    source_head: int = 0
    lag: int = 0


# --- queues ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job as the server gives it out."""

    seq: int
    lease_id: int | str
    deadline_ms: int
    deliveries: int
    """How often it was given out, this time included: 1 the first time."""
    ts_ms: int
    data: Any
    tag: str | None = None
    node: str | None = None
    meta: dict[str, Any] | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class PeekedJob:
    """A job that is looked at and not taken."""

    seq: int
    ts_ms: int
    state: str
    data: Any
    deliveries: int
    tag: str | None = None
    node: str | None = None
    """Who holds it, of a leased one."""
    meta: dict[str, Any] | None = None
    key: str | None = None
    deadline_ms: int | None = None


class QueueStats(msgspec.Struct, frozen=True):
    """How a queue is doing."""

    ready: int
    leased: int
    delayed: int
    dead_lettered: int
    head_seq: int = 0
    oldest_ready_ms: int | None = None
    claims_count: int = 0
    acks_count: int = 0


class FailedJob(msgspec.Struct, frozen=True):
    seq: int
    code: str


class Acked(msgspec.Struct, frozen=True):
    """Which jobs are done, and which were not this client's any more."""

    acked: list[int]
    failed: list[FailedJob] = []


class Nacked(msgspec.Struct, frozen=True):
    """Which jobs are back in the queue, which went to the dead letters, which were not this client's any more."""

    released: list[int]
    dead_lettered: list[int] = []
    failed: list[FailedJob] = []


class ExtendedJob(msgspec.Struct, frozen=True):
    seq: int
    deadline_ms: int


class Extended(msgspec.Struct, frozen=True):
    """New deadlines, and the jobs whose leases are lost."""

    extended: list[ExtendedJob]
    failed: list[FailedJob] = []


# --- the wire -------------------------------------------------------------------------------------------------


class _Carried(msgspec.Struct):
    """What records and jobs have in common on the wire."""

    seq: int
    ts: int = 0
    data: Any = None
    data_base64: str | None = None
    tag: str | None = None
    node: str | None = None
    meta: dict[str, Any] | None = None
    key: str | None = None

    def payload(self) -> Any:
        """Raises BadAnswer."""
        if self.data_base64 is None:
            return self.data
        try:
            return base64.b64decode(self.data_base64, validate=True)
        except (binascii.Error, ValueError):
            raise not_understood("data_base64 is not base64") from None


class _WireRecord(_Carried):
    deliver_at: int | None = None


class _WireJob(_Carried):
    lease_id: int | str = 0
    deadline_ms: int | None = None
    deliveries: int = 0
    state: str = ""


class _Gap(msgspec.Struct):
    gap_from: int
    gap_to: int


class WireDiff(msgspec.Struct):
    records: list[_WireRecord]
    next_seq: int
    head_seq: int
    earliest_seq: int = 1
    evict_floor: int = 1
    epoch: int | str = 0
    up_to_date: bool = False
    tombstone: _Gap | None = None


class WireWritten(msgspec.Struct):
    seqs: list[int] = []
    head_seq: int = 0
    duplicates: list[int] = []
    duplicate: bool = False


class WireJobs(msgspec.Struct):
    jobs: list[_WireJob]


class WireRouters(msgspec.Struct):
    routers: list[dict[str, Any]]


def diff_of(wire: WireDiff) -> Diff:
    gap = wire.tombstone
    return Diff(
        [Record(r.seq, r.ts, r.payload(), r.tag, r.node, r.meta, r.key, r.deliver_at) for r in wire.records],
        wire.next_seq,
        wire.head_seq,
        wire.earliest_seq,
        wire.evict_floor,
        wire.epoch,
        wire.up_to_date,
        None if gap is None else Tombstone(gap.gap_from, gap.gap_to),
    )


def jobs_of(wire: WireJobs) -> list[JobFacts]:
    return [
        JobFacts(j.seq, j.lease_id, j.deadline_ms or 0, j.deliveries, j.ts, j.payload(), j.tag, j.node, j.meta, j.key)
        for j in wire.jobs
    ]


def peeked_of(wire: WireJobs) -> list[PeekedJob]:
    return [
        PeekedJob(j.seq, j.ts, j.state, j.payload(), j.deliveries, j.tag, j.node, j.meta, j.key, j.deadline_ms)
        for j in wire.jobs
    ]


def router_of(name: str, told: dict[str, Any]) -> RouterInfo:
    """Configuration and state may stand side by side, or below `config` and `state`. Raises BadAnswer."""
    facts = {"name": told.get("router") or name, **told}
    for part in ("config", "state"):
        facts.update(told.get(part) or {})
    try:
        return msgspec.convert(facts, RouterInfo)
    except msgspec.MsgspecError as why:
        raise not_understood(str(why)) from None


def milliseconds(span: float | timedelta) -> int:
    """Of seconds or a timedelta. Raises ValueError for a negative or endless one."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else float(span)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"not a length of time: {span!r}")
    return round(seconds * 1_000)


def moment_ms(moment: datetime | int) -> int:
    """Milliseconds since 1970. Raises ValueError for a moment without a time zone."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ValueError("deliver_at needs a time zone: datetime.now(UTC) + …")
        return round(moment.timestamp() * 1_000)
    return moment
