"""Every failure a client can see: one class per failure carrying facts, one table of what each means.

Owns statuses and codes; the classes stand beside it by what they are about. Never knows about sockets: doors turn a
failure's facts into headers and bytes.
"""

from __future__ import annotations

from headwater.errors.access import *
from headwater.errors.base import Failure as Failure
from headwater.errors.base import Row as Row
from headwater.errors.limits import *
from headwater.errors.node import *
from headwater.errors.requests import *
from headwater.errors.streams import *
from headwater.errors.subscriptions import *
from headwater.errors.topics import *

TABLE: dict[type[Failure], Row] = {
    #                        status  code                     S3P                     retryable  no_effect
    BadName: Row(400, "bad_name", "ERR_BAD_FORMAT", False, True),
    NoSuchRoute: Row(404, "no_such_route", "ERR_BAD_FORMAT", False, True),
    MethodNotAllowed: Row(405, "method_not_allowed", "ERR_BAD_FORMAT", False, True),
    UpgradeRequired: Row(426, "upgrade_required", "ERR_BAD_FORMAT", False, True),
    OriginNotAllowed: Row(403, "origin_not_allowed", "ERR_BAD_FORMAT", False, True),
    BadRequest: Row(400, "bad_request", "ERR_BAD_FORMAT", False, True),
    BadHeader: Row(400, "bad_header", "ERR_BAD_FORMAT", False, True),
    BadContentType: Row(400, "bad_content_type", "ERR_BAD_FORMAT", False, True),
    BadQuery: Row(400, "bad_query", "ERR_BAD_FORMAT", False, True),
    BadBody: Row(400, "bad_body", "ERR_BAD_FORMAT", False, True),
    BodyTooLarge: Row(413, "body_too_large", "ERR_LIMITS", False, True),
    TooManyRecords: Row(413, "too_many_records", "ERR_LIMITS", False, True),
    HeadTooLarge: Row(431, "head_too_large", "ERR_LIMITS", False, True),
    TooManyHeaders: Row(431, "too_many_headers", "ERR_LIMITS", False, True),
    EncodedBody: Row(415, "encoded_body", "ERR_BAD_FORMAT", False, True),
    TransferCodingUnknown: Row(501, "transfer_coding_unknown", "ERR_BAD_FORMAT", False, True),
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
    TopicFull: Row(422, "topic_full", "ERR_LIMITS", False, True),
    TooManyHoles: Row(422, "too_many_holes", "ERR_LIMITS", False, True),
    EpochChanged: Row(409, "epoch_changed", "ERR_CONFLICT", False, True),
    QuorumNeedsCluster: Row(422, "quorum_needs_cluster", "ERR_BAD_FORMAT", False, True),
    NotAQueue: Row(409, "not_a_queue", "ERR_CONFLICT", False, True),
    RouterNotFound: Row(404, "router_not_found", "ERR_UNKNOWN_STREAM", False, True),
    RouterConflict: Row(409, "topic_exists_incompatible", "ERR_STREAM_EXISTS", False, True),
    RouterCycle: Row(409, "router_cycle", "ERR_CONFLICT", False, True),
    TooManyRouters: Row(422, "too_many_routers", "ERR_LIMITS", False, True),
    Throttled: Row(429, "throttled", "ERR_LIMITS", True, True),
    TooManyProducers: Row(429, "too_many_producers", "ERR_LIMITS", True, True),
    StreamSeqConflict: Row(409, "stream_seq_conflict", "ERR_CONFLICT", False, True),
    NonMonotonicId: Row(409, "non_monotonic_id", "ERR_NON_MONOTONIC_ID", False, True),
    PreconditionFailed: Row(412, "precondition_failed", "ERR_CONFLICT", False, True),
    OffsetGone: Row(410, "offset_gone", "ERR_CONFLICT", False, True),
    StreamReplaced: Row(410, "stream_replaced", "ERR_CONFLICT", False, True),
    TokenGone: Row(410, "token_gone", "ERR_CONFLICT", False, True),
    OffsetBeyondTail: Row(400, "offset_beyond_tail", "ERR_CONFLICT", False, True),
    SourceNotFound: Row(404, "fork_source_not_found", "ERR_UNKNOWN_STREAM", False, True),
    SourceDeleted: Row(409, "fork_source_deleted", "ERR_CONFLICT", False, True),
    NameTaken: Row(409, "name_taken", "ERR_STREAM_EXISTS", False, True),
    BadSnapshotOffset: Row(400, "bad_snapshot_offset", "ERR_CONFLICT", False, True),
    SnapshotNotFound: Row(404, "snapshot_not_found", "ERR_CONFLICT", False, True),
    BootstrapIncomplete: Row(410, "bootstrap_incomplete", "ERR_CONFLICT", False, True),
    SnapshotInUse: Row(409, "snapshot_in_use", "ERR_CONFLICT", False, True),
    SnapshotBeyondTail: Row(409, "snapshot_beyond_tail", "ERR_CONFLICT", False, True),
    BucketNotFound: Row(404, "bucket_not_found", "ERR_UNKNOWN_STREAM", False, True),
    BucketExists: Row(409, "bucket_exists", "ERR_STREAM_EXISTS", False, True),
    BucketNotEmpty: Row(409, "bucket_not_empty", "ERR_CONFLICT", False, True),
    SchemaNotFound: Row(404, "schema_not_found", "ERR_CONFLICT", False, True),
    BadBucketSchema: Row(400, "bad_schema", "ERR_BAD_FORMAT", False, True),
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
    NoSuchGroup: Row(404, "no_such_group", "ERR_BAD_FORMAT", False, True),
    NoSuchNode: Row(404, "no_such_node", "ERR_BAD_FORMAT", False, True),
    NodeIsAlive: Row(409, "node_is_alive", "ERR_BAD_FORMAT", False, True),
    NotACluster: Row(404, "not_a_cluster", "ERR_BAD_FORMAT", False, True),
    AnotherLog: Row(409, "another_log", "ERR_CONFLICT", False, True),
    LogSetBack: Row(409, "log_set_back", "ERR_CONFLICT", False, True),
    OwnerChanged: Row(409, "owner_changed", "ERR_CONFLICT", False, True),
    SwapRefused: Row(409, "swap_refused", "ERR_CONFLICT", False, True),
    # A log that fails after the write was gathered leaves its effect unknown: it may be found after a restart.
    LogUnavailable: Row(503, "log_unavailable", "ERR_UNAVAILABLE", True, False),
    NotServedHere: Row(503, "not_served_here", "ERR_UNAVAILABLE", True, True),
    GroupMoved: Row(503, "group_moved", "ERR_UNAVAILABLE", True, True),
    MemberUnavailable: Row(503, "member_unavailable", "ERR_UNAVAILABLE", True, True),
    NoOwner: Row(503, "no_owner", "ERR_UNAVAILABLE", True, True),
    OutcomeUnknown: Row(503, "outcome_unknown", "ERR_UNAVAILABLE", True, False),
    InternalError: Row(500, "internal_error", "ERR_INTERNAL", False, False),
    Overloaded: Row(503, "overloaded", "ERR_UNAVAILABLE", True, True),
    ShuttingDown: Row(503, "shutting_down", "ERR_UNAVAILABLE", True, True),
    NotAuthenticated: Row(401, "not_authenticated", "ERR_UNAUTHENTICATED", False, True),
    CredentialRefused: Row(401, "credential_refused", "ERR_UNAUTHENTICATED", False, True),
    Forbidden: Row(403, "forbidden", "ERR_FORBIDDEN", False, True),
    AccessUnknown: Row(503, "access_unknown", "ERR_UNAVAILABLE", True, True),
    KeyNotFound: Row(404, "key_not_found", "ERR_CONFLICT", False, True),
    TooManyKeys: Row(422, "too_many_keys", "ERR_LIMITS", False, True),
    BadAccess: Row(400, "bad_access", "ERR_BAD_FORMAT", False, True),
    RateLimited: Row(429, "rate_limited", "ERR_LIMITS", True, True),
    TooManyConnections: Row(429, "too_many_connections", "ERR_LIMITS", True, True),
    TooManyFollowers: Row(429, "too_many_followers", "ERR_LIMITS", True, True),
    BucketFull: Row(507, "bucket_full", "ERR_LIMITS", False, True),
}


def row(failure: Failure) -> Row:
    return TABLE[type(failure)]
