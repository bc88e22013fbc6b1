"""Every failure a client can see: one class per failure carrying facts, one table of what each means.

Owns statuses, codes and messages. Never knows about sockets: doors turn a failure's facts into headers and bytes.
"""

from __future__ import annotations

from typing import NamedTuple


class Failure(Exception):
    """A refusal that is the client's to see. Subclasses carry facts as attributes; `TABLE` says what they mean."""

    def message(self) -> str:
        raise NotImplementedError

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Facts that clients read by machine, as response header pairs."""
        return ()

    def __str__(self) -> str:
        return self.message()


class Row(NamedTuple):
    """What one failure means at every door."""

    status: int
    code: str
    s3p: str
    retryable: bool
    no_effect: bool
    """True when the request certainly changed nothing."""


# ---- names and routes -------------------------------------------------------------------------------------------


class BadName(Failure):
    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"invalid name: {self.reason}"


class NoSuchRoute(Failure):
    def message(self) -> str:
        return "no such resource; streams live at /v1/stream/{path}, buckets at /{bucket}"


class MethodNotAllowed(Failure):
    def __init__(self, allowed: str) -> None:
        self.allowed = allowed

    def message(self) -> str:
        return f"method not allowed here; allowed: {self.allowed}"

    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("Allow", self.allowed),)


# ---- the request itself -----------------------------------------------------------------------------------------


class BadRequest(Failure):
    """The bytes are not an HTTP request this server accepts; the connection ends after the answer."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"malformed request: {self.reason}"


class BadHeader(Failure):
    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason

    def message(self) -> str:
        return f"bad header {self.name}: {self.reason}"


class BadQuery(Failure):
    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason

    def message(self) -> str:
        return f"bad query parameter {self.name}: {self.reason}"


class BadBody(Failure):
    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"bad body: {self.reason}"


class BodyTooLarge(Failure):
    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes

    def message(self) -> str:
        return f"the body is larger than this server takes ({self.limit_bytes} bytes); split the append"


class HeadTooLarge(Failure):
    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes

    def message(self) -> str:
        return f"the request line and headers are larger than this server takes ({self.limit_bytes} bytes)"


class RequestTimeout(Failure):
    def message(self) -> str:
        return "the request did not arrive in time; send it again on a new connection"


class ExpectationFailed(Failure):
    def message(self) -> str:
        return "only 'Expect: 100-continue' is understood"


class VersionNotSupported(Failure):
    def message(self) -> str:
        return "HTTP/1.0 and HTTP/1.1 are spoken here"


# ---- streams ----------------------------------------------------------------------------------------------------


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

    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("Stream-Closed", "true"), ("Stream-Next-Offset", f"{self.next_offset:020d}"))


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

    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("Producer-Epoch", str(self.current)),)


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

    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("Producer-Expected-Seq", str(self.expected)), ("Producer-Received-Seq", str(self.received)))


class TooManyProducers(Failure):
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def message(self) -> str:
        return f"the stream already tracks {self.limit} active producers; reuse producer ids"


class StreamSeqConflict(Failure):
    def __init__(self, last: str, received: str) -> None:
        self.last = last
        self.received = received

    def message(self) -> str:
        return f"Stream-Seq must grow: last accepted {self.last!r}, received {self.received!r}"


class NonMonotonicId(Failure):
    def __init__(self, last_ms: int, received_ms: int) -> None:
        self.last_ms = last_ms
        self.received_ms = received_ms

    def message(self) -> str:
        return (
            f"provided timestamp ID {self.received_ms} is not greater than last appended ID {self.last_ms}"
        )


class PreconditionFailed(Failure):
    def __init__(self, etag: str) -> None:
        self.etag = etag

    def message(self) -> str:
        return f"If-Match does not name the stream's present state, which is {self.etag}"

    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("ETag", self.etag),)


class OffsetGone(Failure):
    def __init__(self, earliest: int) -> None:
        self.earliest = earliest

    def message(self) -> str:
        return f"data before offset {self.earliest:020d} is no longer kept; start there or from /bootstrap"

    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("Stream-Earliest-Offset", f"{self.earliest:020d}"),)


class TokenGone(Failure):
    """Records behind a position of the log have left it: following by position would skip them."""

    def __init__(self, stream: str) -> None:
        self.stream = stream

    def message(self) -> str:
        return (
            f"records of {self.stream} behind this id have settled into the lake; read the streams from their own "
            f"offsets, then follow from now"
        )


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


class SnapshotNotFound(Failure):
    def message(self) -> str:
        return "no such snapshot; GET .../snapshot leads to the latest one, if there is one"


class SnapshotInUse(Failure):
    def message(self) -> str:
        return "the latest snapshot cannot be deleted: /bootstrap would be incomplete without it"


class SnapshotBeyondTail(Failure):
    def __init__(self, tail: int) -> None:
        self.tail = tail

    def message(self) -> str:
        return f"a snapshot cannot lie beyond the tail {self.tail:020d}"

    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("Stream-Next-Offset", f"{self.tail:020d}"),)


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


# ---- subscriptions ----------------------------------------------------------------------------------------------


class BadSubscription(Failure):
    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"bad subscription request: {self.reason}"


class SubscriptionNotFound(Failure):
    def message(self) -> str:
        return "no such subscription; create it with PUT first"


class SubscriptionExists(Failure):
    def message(self) -> str:
        return "the subscription exists with another configuration; delete it first, or choose another id"


class TooManySubscriptions(Failure):
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def message(self) -> str:
        return f"this server keeps {self.limit} subscriptions at most; delete some first"


class WebhookRefused(Failure):
    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"this server does not call that webhook.url: {self.reason}"


class TokenMissing(Failure):
    def message(self) -> str:
        return "send the token of the wake as Authorization: Bearer"

    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("WWW-Authenticate", "Bearer"),)


class Fenced(Failure):
    def message(self) -> str:
        return "this wake is over or another one took its place; no cursor moved"


class AlreadyClaimed(Failure):
    def __init__(self, holder: str, generation: int) -> None:
        self.holder = holder
        self.generation = generation

    def message(self) -> str:
        return "another worker holds the lease; wait for the next wake"


class NoPendingWork(Failure):
    def message(self) -> str:
        return "nothing waits behind the cursors; wait for the next wake"


class BadAck(Failure):
    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"nothing was acknowledged: {self.reason}"


# ---- the node ---------------------------------------------------------------------------------------------------

RETRY_AFTER_S = 1


class LogUnavailable(Failure):
    """The log failed: nothing is acknowledged until the node is restarted on a healthy disk."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"this node does not accept writes: {self.reason}"

    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("Retry-After", "5"),)


class Overloaded(Failure):
    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"over capacity: {self.reason}; retry later"

    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("Retry-After", str(RETRY_AFTER_S)),)


class ShuttingDown(Failure):
    def message(self) -> str:
        return "the node is shutting down; retry"

    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("Retry-After", str(RETRY_AFTER_S)),)


TABLE: dict[type[Failure], Row] = {
    #                        status  code                     S3P                     retryable  no_effect
    BadName: Row(400, "bad_name", "ERR_BAD_FORMAT", False, True),
    NoSuchRoute: Row(404, "no_such_route", "ERR_BAD_FORMAT", False, True),
    MethodNotAllowed: Row(405, "method_not_allowed", "ERR_BAD_FORMAT", False, True),
    BadRequest: Row(400, "bad_request", "ERR_BAD_FORMAT", False, True),
    BadHeader: Row(400, "bad_header", "ERR_BAD_FORMAT", False, True),
    BadQuery: Row(400, "bad_query", "ERR_BAD_FORMAT", False, True),
    BadBody: Row(400, "bad_body", "ERR_BAD_FORMAT", False, True),
    BodyTooLarge: Row(413, "body_too_large", "ERR_LIMITS", False, True),
    HeadTooLarge: Row(431, "head_too_large", "ERR_LIMITS", False, True),
    RequestTimeout: Row(408, "request_timeout", "ERR_LIMITS", True, True),
    ExpectationFailed: Row(417, "expectation_failed", "ERR_BAD_FORMAT", False, True),
    VersionNotSupported: Row(505, "version_not_supported", "ERR_BAD_FORMAT", False, True),
    StreamNotFound: Row(404, "stream_not_found", "ERR_UNKNOWN_STREAM", False, True),
    StreamSoftDeleted: Row(410, "stream_deleted", "ERR_UNKNOWN_STREAM", False, True),
    StreamExists: Row(409, "stream_exists_incompatible", "ERR_STREAM_EXISTS", False, True),
    StreamClosed: Row(409, "stream_closed", "ERR_CONFLICT", False, True),
    ContentTypeMismatch: Row(409, "content_type_mismatch", "ERR_CONFLICT", False, True),
    StaleEpoch: Row(403, "stale_epoch", "ERR_CONFLICT", False, True),
    EpochStartsAtZero: Row(400, "epoch_starts_at_zero", "ERR_CONFLICT", False, True),
    SequenceGap: Row(409, "producer_seq_conflict", "ERR_CONFLICT", False, True),
    TooManyProducers: Row(429, "too_many_producers", "ERR_LIMITS", True, True),
    StreamSeqConflict: Row(409, "stream_seq_conflict", "ERR_CONFLICT", False, True),
    NonMonotonicId: Row(409, "non_monotonic_id", "ERR_NON_MONOTONIC_ID", False, True),
    PreconditionFailed: Row(412, "precondition_failed", "ERR_CONFLICT", False, True),
    OffsetGone: Row(410, "offset_gone", "ERR_CONFLICT", False, True),
    TokenGone: Row(410, "token_gone", "ERR_CONFLICT", False, True),
    OffsetBeyondTail: Row(400, "offset_beyond_tail", "ERR_CONFLICT", False, True),
    SourceNotFound: Row(404, "fork_source_not_found", "ERR_UNKNOWN_STREAM", False, True),
    SourceDeleted: Row(409, "fork_source_deleted", "ERR_CONFLICT", False, True),
    NameTaken: Row(409, "name_taken", "ERR_STREAM_EXISTS", False, True),
    SnapshotNotFound: Row(404, "snapshot_not_found", "ERR_CONFLICT", False, True),
    SnapshotInUse: Row(409, "snapshot_in_use", "ERR_CONFLICT", False, True),
    SnapshotBeyondTail: Row(409, "snapshot_beyond_tail", "ERR_CONFLICT", False, True),
    BucketNotFound: Row(404, "bucket_not_found", "ERR_UNKNOWN_STREAM", False, True),
    BucketExists: Row(409, "bucket_exists", "ERR_STREAM_EXISTS", False, True),
    BucketNotEmpty: Row(409, "bucket_not_empty", "ERR_CONFLICT", False, True),
    # The codes of subscriptions are spelt as the protocol spells them.
    BadSubscription: Row(400, "INVALID_REQUEST", "ERR_BAD_FORMAT", False, True),
    SubscriptionNotFound: Row(404, "SUBSCRIPTION_NOT_FOUND", "ERR_UNKNOWN_STREAM", False, True),
    SubscriptionExists: Row(409, "SUBSCRIPTION_ALREADY_EXISTS", "ERR_CONFLICT", False, True),
    TooManySubscriptions: Row(429, "TOO_MANY_SUBSCRIPTIONS", "ERR_LIMITS", True, True),
    WebhookRefused: Row(400, "WEBHOOK_URL_REJECTED", "ERR_BAD_FORMAT", False, True),
    TokenMissing: Row(401, "TOKEN_INVALID", "ERR_BAD_FORMAT", False, True),
    Fenced: Row(409, "FENCED", "ERR_CONFLICT", False, True),
    AlreadyClaimed: Row(409, "ALREADY_CLAIMED", "ERR_CONFLICT", True, True),
    NoPendingWork: Row(409, "NO_PENDING_WORK", "ERR_CONFLICT", True, True),
    BadAck: Row(409, "INVALID_OFFSET", "ERR_CONFLICT", False, True),
    # A log that fails after the write was gathered leaves its effect unknown: it may be found after a restart.
    LogUnavailable: Row(503, "log_unavailable", "ERR_UNAVAILABLE", True, False),
    Overloaded: Row(503, "overloaded", "ERR_UNAVAILABLE", True, True),
    ShuttingDown: Row(503, "shutting_down", "ERR_UNAVAILABLE", True, True),
}


def row(failure: Failure) -> Row:
    return TABLE[type(failure)]
