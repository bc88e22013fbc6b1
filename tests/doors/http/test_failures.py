"""Facts of failures as HTTP spells them: headers of a response, fields of a bulk answer's entry."""

from __future__ import annotations

import pytest

from headwater.doors.http.failures import body, entry, headers
from headwater.errors import (
    BadBody,
    BadName,
    BadQuery,
    BootstrapIncomplete,
    EpochChanged,
    Failure,
    LogUnavailable,
    MethodNotAllowed,
    NameTaken,
    PreconditionFailed,
    SequenceGap,
    StreamClosed,
    StreamExists,
    StreamNotFound,
    StreamSoftDeleted,
    TokenMissing,
)

AS_HEADERS: list[tuple[Failure, list[tuple[str, str]]]] = [
    (StreamNotFound(), []),
    (StreamClosed(7), [("Stream-Closed", "true"), ("Stream-Next-Offset", "00000000000000000007")]),
    (SequenceGap(4, 9), [("Producer-Expected-Seq", "4"), ("Producer-Received-Seq", "9")]),
    (PreconditionFailed('"x"'), [("ETag", '"x"')]),
    (LogUnavailable("full"), [("Retry-After", "5")]),
    (MethodNotAllowed("GET, PUT"), [("Allow", "GET, PUT")]),
    (TokenMissing(), [("WWW-Authenticate", "Bearer")]),
    (
        BootstrapIncomplete(1, 2),
        [("Stream-Earliest-Offset", "00000000000000000002"), ("Stream-Snapshot-Offset", "00000000000000000001")],
    ),
]


@pytest.mark.parametrize(("failure", "expected"), AS_HEADERS, ids=lambda one: type(one).__name__)
def test_facts_are_headers_of_a_response(failure: Failure, expected: list[tuple[str, str]]) -> None:
    assert headers(failure) == expected


@pytest.mark.parametrize(("failure", "expected"), AS_HEADERS, ids=lambda one: type(one).__name__)
def test_facts_are_fields_of_an_entry_under_the_headers_names(
    failure: Failure, expected: list[tuple[str, str]]
) -> None:
    told = entry(failure)
    assert told.pop("status") and told.pop("error")
    assert told == {name.lower().replace("-", "_"): value for name, value in expected}


@pytest.mark.parametrize(
    ("failure", "code", "detail"),
    [
        (StreamNotFound(), "topic_not_found", {}),
        (StreamSoftDeleted(), "stream_deleted", {}),
        (StreamExists("retention"), "topic_exists_incompatible", {}),
        (NameTaken(), "topic_exists_incompatible", {}),
        (BadBody("x"), "bad_request", {}),
        (BadQuery("x", "y"), "bad_request", {}),
        (BadName("x"), "bad_request", {}),
        (EpochChanged(3, 9), "epoch_changed", {"epoch": 3, "head_seq": 9}),
        (MethodNotAllowed("GET, PUT"), "method_not_allowed", {"allow": "GET, PUT"}),
        (LogUnavailable("full"), "log_unavailable", {"retryable": True, "retry_after_ms": 5_000}),
        (SequenceGap(4, 9), "producer_seq_conflict", {"producer_expected_seq": "4", "producer_received_seq": "9"}),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_failure_has_the_body_of_its_route(failure: Failure, code: str, detail: dict[str, object]) -> None:
    told = {"code": code, "message": failure.message(), "detail": {"retryable": False, **detail}}
    for target in (b"/v0/topics/a", b"/v0/", b"/v0/sse?topics=a"):
        assert body(failure, target) == {"error": told}
    for target in (b"/v1/stream/v0/a", b"/v0", b"", b"/__headwater/v0/"):
        assert set(body(failure, target)["error"]) >= {"code", "message", "retryable"}  # type: ignore[call-overload]
