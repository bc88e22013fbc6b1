"""Facts of failures as HTTP spells them: headers of a response, fields of a bulk answer's entry."""

from __future__ import annotations

import pytest

from headwater.doors.http.failures import entry, headers
from headwater.errors import (
    BootstrapIncomplete,
    Failure,
    LogUnavailable,
    MethodNotAllowed,
    PreconditionFailed,
    SequenceGap,
    StreamClosed,
    StreamNotFound,
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
