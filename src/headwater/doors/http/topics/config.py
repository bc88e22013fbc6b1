"""A topic's configuration as JSON, and as the commands and the stream's state have it.

Owns the fields, their limits and their defaults. Never looks a topic up and never changes one.

    content_type, durability      the stream's own, for good
    ttl_ms, cap_records, cap_bytes  -> Retention
    discard, priority, auto_priority, queue  -> TopicConfig
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from headwater.doors.http.topics.paths import topic_key, topic_name
from headwater.errors import BadBody, BadContentType, BadName, QuorumNeedsCluster, StreamExists
from headwater.model import content_types, json_mode
from headwater.model.commands import Configure, Create, Durability, Retention
from headwater.model.stream_state import Stream
from headwater.model.topics import PRIORITY_MAX, PRIORITY_MIN, QueueConfig, TopicConfig

NUMBER_MAX = (1 << 53) - 1
"""What every JSON reader keeps exactly."""
LEASE_MS_MIN, LEASE_MS_MAX = 100, 24 * 3600 * 1000
JITTER_MS_MAX = 60_000
BACKOFF_MS_MAX = 30 * 24 * 3600 * 1000
DELIVERIES_MAX = 1_000_000
TOLD_MAX = 300
"""Characters of a parser's complaint that are told: it may hold a name out of the body."""

CLASSES = {
    "ephemeral": Durability.EPHEMERAL,
    "memory": Durability.MEMORY,
    "disk": Durability.DISK,
    "fsync": Durability.FSYNC,
    "quorum": Durability.FSYNC,
}
"""In a cluster a log that is synced is synced by a quorum of its nodes."""
_NAMES = {Durability.EPHEMERAL: "ephemeral", Durability.MEMORY: "memory", Durability.DISK: "disk"}


class _Queue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lease_ms: int | UnsetType = UNSET
    claim_jitter_ms: int | UnsetType = UNSET
    max_deliveries: int | UnsetType = UNSET
    dead_letter: str | UnsetType | None = UNSET
    leases_durable: bool | UnsetType = UNSET
    backoff_ms: int | UnsetType = UNSET
    backoff_ms_max: int | UnsetType = UNSET


class _Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a body says; what it leaves out is UNSET."""

    content_type: str | UnsetType = UNSET
    ttl_ms: int | UnsetType | None = UNSET
    cap_records: int | UnsetType | None = UNSET
    cap_bytes: int | UnsetType | None = UNSET
    discard: str | UnsetType = UNSET
    durability: str | UnsetType = UNSET
    durable: bool | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    auto_priority: bool | UnsetType = UNSET
    queue: _Queue | UnsetType | None = UNSET


_decode = msgspec.json.Decoder(_Config).decode


def decoded(decode: Any, body: bytes) -> Any:
    """What `decode` makes of a JSON body. Raises BadBody, which names the field that is wrong."""
    if not body.isascii():
        # msgspec lets invalid UTF-8 inside strings through; a reader could not.
        try:
            body.decode()
        except UnicodeDecodeError:
            raise BadBody("the JSON is not valid UTF-8") from None
    try:
        return decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        told = json_mode.fault(error, body)
        raise BadBody(told if len(told) <= TOLD_MAX else told[:TOLD_MAX] + "…") from None


class Configs:
    def __init__(self, in_cluster: bool, content_type_bytes_max: int, name_bytes_max: int) -> None:
        self._in_cluster = in_cluster
        self._content_type_bytes_max = content_type_bytes_max
        self._name_bytes_max = name_bytes_max

    def create(self, key: str, body: bytes) -> Create:
        """Raises BadBody, QuorumNeedsCluster."""
        given = self._given(body)
        content_type = json_mode.JSON if given.content_type is UNSET else given.content_type
        retention, topic = self._merged(key, given, Retention(), TopicConfig())
        return Create(
            key=key,
            content_type=content_type,
            records=[],
            durability=self._durability(given),
            retention=None if retention == Retention() else retention,
            topic=topic,
        )

    def change(self, stream: Stream, body: bytes) -> Configure:
        """What makes the stream's configuration that of the body, where the body says anything.

        Raises BadBody, QuorumNeedsCluster, StreamExists.
        """
        given = self._given(body)
        if given.content_type is not UNSET and content_types.normalise(given.content_type) != stream.media:
            raise StreamExists(f"content type ({stream.content_type}), which cannot be changed")
        durability = self._durability(given)
        if durability is not None and durability != stream.durability:
            raise StreamExists(f"durability ({self.durability_name(stream)}), which cannot be changed")
        present = stream.retention or Retention(), stream.topic or TopicConfig()
        retention, topic = self._merged(stream.key, given, *present)
        return Configure(None if retention == Retention() else retention, topic)

    def writes_to(self, body: bytes) -> str | None:
        """The key of another topic that one with this configuration writes to: its dead letters. Raises BadBody."""
        queue = self._given(body).queue
        name = None if queue is UNSET or queue is None else queue.dead_letter
        if name is UNSET or name is None:
            return None
        try:
            return topic_key(name, self._name_bytes_max)
        except (BadName, UnicodeEncodeError) as bad:
            raise BadBody(f"queue.dead_letter: {getattr(bad, 'reason', 'not a name')}") from None

    def shown(self, stream: Stream) -> dict[str, object]:
        retention, topic = stream.retention or Retention(), stream.topic or TopicConfig()
        queue = topic.queue
        return {
            "content_type": stream.content_type,
            "ttl_ms": retention.age_ms,
            "cap_records": retention.records,
            "cap_bytes": retention.bytes,
            "discard": "reject" if topic.reject_when_full else "old",
            "durability": self.durability_name(stream),
            "priority": topic.priority,
            "auto_priority": topic.auto_priority,
            "queue": None if queue is None else {name: getattr(queue, name) for name in queue.__struct_fields__},
        }

    def durability_name(self, stream: Stream) -> str:
        return _NAMES.get(stream.durability, "quorum" if self._in_cluster else "fsync")

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _given(self, body: bytes) -> _Config:
        given: _Config = decoded(_decode, body) if body else _Config()
        if given.content_type is not UNSET:
            try:
                content_types.check(given.content_type, self._content_type_bytes_max)
            except BadContentType as bad:
                raise BadBody(f"content_type: {bad.reason}") from None
        if given.discard is not UNSET and given.discard not in ("old", "reject"):
            raise BadBody("discard: expected old or reject")
        return given

    def _durability(self, given: _Config) -> Durability | None:
        """None: the node's default."""
        found = None
        if given.durability is not UNSET:
            found = CLASSES.get(given.durability)
            if found is None:
                raise BadBody(f"durability: expected one of {', '.join(CLASSES)}")
            if given.durability == "quorum" and not self._in_cluster:
                raise QuorumNeedsCluster
        if given.durable is not UNSET:
            alias = Durability.FSYNC if given.durable else Durability.DISK
            if found is not None and found != alias:
                raise BadBody("durable: it contradicts durability; give one of the two")
            found = alias
        return found

    def _merged(
        self, key: str, given: _Config, retention: Retention, topic: TopicConfig
    ) -> tuple[Retention, TopicConfig]:
        age_ms = _cap("ttl_ms", given.ttl_ms, retention.age_ms)
        records = _cap("cap_records", given.cap_records, retention.records)
        size = _cap("cap_bytes", given.cap_bytes, retention.bytes)
        priority = topic.priority if given.priority is UNSET else given.priority
        _within("priority", priority, PRIORITY_MIN, PRIORITY_MAX)
        reject = topic.reject_when_full if given.discard is UNSET else given.discard == "reject"
        auto = topic.auto_priority if given.auto_priority is UNSET else given.auto_priority
        queue = topic.queue if given.queue is UNSET else self._queue(key, given.queue, topic.queue or QueueConfig())
        return Retention(age_ms, size, records), TopicConfig(reject, priority, auto, queue)

    def _queue(self, key: str, given: _Queue | None, present: QueueConfig) -> QueueConfig | None:
        """What the body leaves out stays as it is."""
        if given is None:
            return None
        named = {name: value for name in given.__struct_fields__ if (value := getattr(given, name)) is not UNSET}
        dead_letter = named.get("dead_letter")
        if dead_letter is not None:
            try:
                dead_key = topic_key(dead_letter, self._name_bytes_max)
            except (BadName, UnicodeEncodeError) as bad:
                raise BadBody(f"queue.dead_letter: {getattr(bad, 'reason', 'not a name')}") from None
            if dead_key == key:
                raise BadBody("queue.dead_letter: expected another topic than the queue itself")
            named["dead_letter"] = topic_name(dead_key)
        queue = msgspec.structs.replace(present, **named)
        _within("queue.lease_ms", queue.lease_ms, 1, LEASE_MS_MAX)
        _within("queue.claim_jitter_ms", queue.claim_jitter_ms, 0, JITTER_MS_MAX)
        _within("queue.max_deliveries", queue.max_deliveries, 0, DELIVERIES_MAX)
        _within("queue.backoff_ms", queue.backoff_ms, 0, BACKOFF_MS_MAX)
        _within("queue.backoff_ms_max", queue.backoff_ms_max, 0, BACKOFF_MS_MAX)
        return queue


def _cap(name: str, given: int | UnsetType | None, present: int | None) -> int | None:
    if given is UNSET:
        return present
    if given is not None:
        _within(name, given, 1, NUMBER_MAX)
    return given


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise BadBody(f"{name}: expected a whole number from {low} to {high}")
