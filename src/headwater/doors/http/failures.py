"""Failures as HTTP tells them: headers and body of a response, or one entry of a bulk answer.

Owns the names and spellings that facts have there. Never knows a particular failure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from headwater.errors import BELOW_TOPICS, Failure, row
from headwater.model import offsets

TOPICS = b"/v0/"
"""What begins with this is about topics."""


def _word(value: object) -> str:
    return str(value).lower()


class Told(NamedTuple):
    header: str
    field: str
    """Its name in an entry of a bulk answer."""
    show: Callable[[Any], str] = str


TOLD = {
    "retry_after_s": Told("Retry-After", "retry_after"),
    "request_id": Told("Headwater-Request-Id", "headwater_request_id"),
    "allowed_methods": Told("Allow", "allow"),
    "connection": Told("Connection", "connection"),
    "upgrade": Told("Upgrade", "upgrade"),
    "websocket_version": Told("Sec-WebSocket-Version", "sec_websocket_version"),
    "accepted_encoding": Told("Accept-Encoding", "accept_encoding"),
    "authentication": Told("WWW-Authenticate", "www_authenticate"),
    "etag": Told("ETag", "etag"),
    "stream_closed": Told("Stream-Closed", "stream_closed", _word),
    "stream_next_offset": Told("Stream-Next-Offset", "stream_next_offset", offsets.show),
    "stream_earliest_offset": Told("Stream-Earliest-Offset", "stream_earliest_offset", offsets.show),
    "stream_snapshot_offset": Told("Stream-Snapshot-Offset", "stream_snapshot_offset", offsets.show),
    "producer_epoch": Told("Producer-Epoch", "producer_epoch"),
    "producer_expected_seq": Told("Producer-Expected-Seq", "producer_expected_seq"),
    "producer_received_seq": Told("Producer-Received-Seq", "producer_received_seq"),
}
"""Every fact of a failure, by name."""


def headers(failure: Failure) -> list[tuple[str, str]]:
    found = []
    for name, value in failure.facts().items():
        told = TOLD[name]
        found.append((told.header, told.show(value)))
    return found


def error(failure: Failure) -> dict[str, object]:
    """What every failure says in a body."""
    meaning = row(failure)
    return {"code": meaning.code, "message": failure.message(), "retryable": meaning.retryable}


def body(failure: Failure, target: bytes, request_id: str = "") -> dict[str, object]:
    """The body of a response, as clients of that route expect it. With `request_id`, it is told."""
    if target.startswith(TOPICS):
        told = topic_error(failure)
        if request_id:
            told["detail"] = {**cast("dict[str, object]", told["detail"]), "request_id": request_id}
        return {"error": told}
    return {"error": {**error(failure), **failure.details(), **({"request_id": request_id} if request_id else {})}}


def topic_error(failure: Failure) -> dict[str, object]:
    """The same where topics are served: all that clients read by machine is in `detail`."""
    meaning = row(failure)
    detail: dict[str, object] = {"retryable": meaning.retryable, **failure.details()}
    for name, value in failure.facts().items():
        if name == "retry_after_s":
            detail.setdefault("retry_after_ms", int(value) * 1000)
        else:
            detail[TOLD[name].field] = TOLD[name].show(value)
    return {"code": BELOW_TOPICS.get(meaning.code, meaning.code), "message": failure.message(), "detail": detail}


def entry(failure: Failure) -> dict[str, object]:
    """The failure of one entry of a bulk request."""
    fields = {TOLD[name].field: TOLD[name].show(value) for name, value in failure.facts().items()}
    return {"status": row(failure).status, "error": error(failure), **fields}
