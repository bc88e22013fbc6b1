"""Failures that streams, buckets and snapshots answer with.

Owns their facts and messages. Never says what they mean at a door: the table does.
"""

from __future__ import annotations

from headwater.errors.base import Facts, Failure

__all__ = [
    "BadBucketSchema",
    "BadSnapshotOffset",
    "BootstrapIncomplete",
    "BucketExists",
    "BucketNotEmpty",
    "BucketNotFound",
    "ContentTypeMismatch",
    "EpochStartsAtZero",
    "NameTaken",
    "NonMonotonicId",
    "OffsetBeyondTail",
    "OffsetGone",
    "PreconditionFailed",
    "SchemaNotFound",
    "SequenceGap",
    "SnapshotBeyondTail",
    "SnapshotInUse",
    "SnapshotNotFound",
    "SourceDeleted",
    "SourceNotFound",
    "StaleEpoch",
    "StreamClosed",
    "StreamExists",
    "StreamNotFound",
    "StreamReplaced",
    "StreamSeqConflict",
    "StreamSoftDeleted",
    "TokenGone",
    "TooManyProducers",
]


RETRY_AFTER_S = 60
"""Producers grow idle over days: asking more often brings nothing."""


class StreamNotFound(Failure):
    def message(self) -> str:
        return "no such stream; create it with PUT first"


class StreamSoftDeleted(Failure):
    """Deleted, but kept for the forks that still share its data."""

    def message(self) -> str:
        return "the stream was deleted; its data is kept only for its forks"


class StreamExists(Failure):
    def __init__(self, what: str) -> None:
        self.what = what

    def message(self) -> str:
        return f"the stream exists with another {self.what}"


class StreamClosed(Failure):
    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset

    def message(self) -> str:
        return "the stream is closed and takes no more data"

    def facts(self) -> Facts:
        return {"stream_closed": True, "stream_next_offset": self.next_offset}


class ContentTypeMismatch(Failure):
    def __init__(self, expected: str, received: str) -> None:
        self.expected = expected
        self.received = received

    def message(self) -> str:
        return f"the stream holds {self.expected}, the request brings {self.received}"


class StaleEpoch(Failure):
    def __init__(self, current: int) -> None:
        self.current = current

    def message(self) -> str:
        return f"a newer producer took over with epoch {self.current}"

    def facts(self) -> Facts:
        return {"producer_epoch": self.current}


class EpochStartsAtZero(Failure):
    def __init__(self, received: int) -> None:
        self.received = received

    def message(self) -> str:
        return f"a new epoch starts with Producer-Seq 0, not {self.received}"


class SequenceGap(Failure):
    def __init__(self, expected: int, received: int) -> None:
        self.expected = expected
        self.received = received

    def message(self) -> str:
        return f"expected Producer-Seq {self.expected}, received {self.received}"

    def facts(self) -> Facts:
        return {"producer_expected_seq": self.expected, "producer_received_seq": self.received}


class TooManyProducers(Failure):
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def message(self) -> str:
        return f"the stream already tracks {self.limit} active producers; reuse producer ids"

    def facts(self) -> Facts:
        return {"retry_after_s": RETRY_AFTER_S}


class StreamSeqConflict(Failure):
    def __init__(self, last: str, received: str) -> None:
        self.last = last
        self.received = received

    def message(self) -> str:
        return f"Stream-Seq must grow (sequence conflict): last accepted {self.last!r}, received {self.received!r}"


class NonMonotonicId(Failure):
    def __init__(self, last_ms: int, received_ms: int) -> None:
        self.last_ms = last_ms
        self.received_ms = received_ms

    def message(self) -> str:
        return f"provided timestamp ID {self.received_ms} is not greater than last appended ID {self.last_ms}"


class PreconditionFailed(Failure):
    def __init__(self, etag: str) -> None:
        self.etag = etag

    def message(self) -> str:
        return f"If-Match does not name the present state, which is {self.etag}"

    def facts(self) -> Facts:
        return {"etag": self.etag}


class OffsetGone(Failure):
    def __init__(self, earliest: int) -> None:
        self.earliest = earliest

    def message(self) -> str:
        return f"data before offset {self.earliest:020d} is no longer kept; start there or from /bootstrap"

    def facts(self) -> Facts:
        return {"stream_earliest_offset": self.earliest}


class TokenGone(Failure):
    """Records after a position of the log have left it: following by position would skip them."""

    def __init__(self, stream: str) -> None:
        self.stream = stream

    def message(self) -> str:
        return (
            f"records of {self.stream} behind this id have settled into the lake; read the streams from their own "
            f"offsets, then follow from now"
        )


class StreamReplaced(Failure):
    """The cursor is of a stream that was deleted: the one that has its name now is another."""

    def __init__(self, earliest: int) -> None:
        self.earliest = earliest

    def message(self) -> str:
        return "this cursor is of a stream that was deleted; another has its name now: read that from its beginning"

    def facts(self) -> Facts:
        return {"stream_earliest_offset": self.earliest}


class OffsetBeyondTail(Failure):
    def __init__(self, tail: int) -> None:
        self.tail = tail

    def message(self) -> str:
        return f"the offset lies beyond the stream's tail {self.tail:020d}"


class SourceNotFound(Failure):
    def message(self) -> str:
        return "the stream named by Stream-Forked-From does not exist"


class SourceDeleted(Failure):
    def message(self) -> str:
        return "the stream named by Stream-Forked-From was deleted and cannot be forked any more"


class NameTaken(Failure):
    """A deleted stream still holds the name, for the sake of its forks."""

    def message(self) -> str:
        return "a deleted stream keeps this name until its last fork is gone"


class BadSnapshotOffset(Failure):
    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"bad snapshot offset: {self.reason}"


class SnapshotNotFound(Failure):
    def message(self) -> str:
        return "no such snapshot; GET .../snapshot leads to the latest one, if there is one"


class BootstrapIncomplete(Failure):
    """Retention took records after the latest snapshot: nothing stands for them any more."""

    def __init__(self, snapshot_offset: int, earliest: int) -> None:
        self.snapshot_offset = snapshot_offset
        self.earliest = earliest

    def message(self) -> str:
        return (
            f"the latest snapshot ends at offset {self.snapshot_offset:020d} and data before {self.earliest:020d} is "
            f"no longer kept: what lies between is lost to /bootstrap until a newer snapshot is published"
        )

    def facts(self) -> Facts:
        return {"stream_earliest_offset": self.earliest, "stream_snapshot_offset": self.snapshot_offset}


class SnapshotInUse(Failure):
    def message(self) -> str:
        return "the latest snapshot cannot be deleted: /bootstrap would be incomplete without it"


class SnapshotBeyondTail(Failure):
    def __init__(self, tail: int) -> None:
        self.tail = tail

    def message(self) -> str:
        return f"a snapshot cannot lie beyond the tail {self.tail:020d}"

    def facts(self) -> Facts:
        return {"stream_next_offset": self.tail}


class BucketNotFound(Failure):
    def message(self) -> str:
        return "no such bucket; create it with PUT first"


class BucketExists(Failure):
    def message(self) -> str:
        return "the bucket exists already"


class BucketNotEmpty(Failure):
    def __init__(self, count: int) -> None:
        self.count = count

    def message(self) -> str:
        return f"the bucket still holds {self.count} streams; delete them first"


class SchemaNotFound(Failure):
    def message(self) -> str:
        return "the bucket has no schema; PUT one to /__headwater/buckets/{bucket}/schema"


class BadBucketSchema(Failure):
    """A schema that no columns can be made of, or for which there is no room."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return self.reason
