"""Every failure that the client raises, and how an answer or a lost connection becomes one.

Pure: it sees answers, never a connection. It says whether the outcome of a request is unknown and whether the same
request may succeed later; `plans` decides what to do about it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headwater.client.connection import Answer, CannotBeSent, Failed, Lost, NotConnected, NotHttp, NoTls

FACTS = (
    "stream-earliest-offset",
    "stream-next-offset",
    "producer-epoch",
    "producer-expected-seq",
    "producer-received-seq",
    "etag",
)
"""Response headers that stand in `detail` of an error of the streams door, as `earliest_offset`, `producer_epoch`, …"""
EFFECT_UNKNOWN = ("log_unavailable", "outcome_unknown", "internal_error")


class HeadwaterError(Exception):
    """What every failure of the client is.

    `code` is stable and meant for programs, `message` for people. `detail` holds the facts that the server gave.
    `status` is that of the answer, 0 when there was none. `outcome_unknown`: the server may have done what was asked.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int = 0,
        detail: Mapping[str, Any] | None = None,
        outcome_unknown: bool = False,
        passing: bool = False,
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(f"{message} ({code})" if code else message)
        self.code, self.message, self.status = code, message, status
        self.detail: dict[str, Any] = dict(detail or {})
        self.outcome_unknown = outcome_unknown
        self.passing = passing
        """Whether the same request may succeed later without being changed."""
        self.retry_after_s = retry_after_s


class BadRequest(HeadwaterError):
    """The server does not take the request as it is: 400, 412, 415 and the like; the message says why."""


class Unauthorized(HeadwaterError):
    """401: there is no token, or not a valid one."""


class Forbidden(HeadwaterError):
    """403: what was asked is not allowed."""


class Fenced(Forbidden):
    """403 `stale_epoch`: another process took over the producer; stop writing with it."""


class NotFound(HeadwaterError):
    """404: no such stream, topic, router or job."""


class Conflict(HeadwaterError):
    """409: what is there does not go with what was asked; `code` says what."""


class Closed(Conflict):
    """409 `stream_closed`: it takes no more data. `detail["next_offset"]` is its end."""


class SequenceConflict(Conflict):
    """409 `producer_seq_conflict`: an append of the producer is missing; `detail["producer_expected_seq"]`."""


class EpochChanged(Conflict):
    """409 `epoch_changed`: the topic was deleted and created again since the first page was read."""


class NotAQueue(Conflict):
    """409 `not_a_queue`: the topic has no queue in its configuration."""


class LeaseLost(Conflict):
    """The lease of the job is over; somebody else may have the job now."""


class Gone(HeadwaterError):
    """410: deleted, or no longer kept. `detail["earliest_offset"]` is where the data of a stream begins now."""


class TooLarge(HeadwaterError):
    """413: split it."""


class Full(HeadwaterError):
    """422 `topic_full`: the topic is at its cap and discards nothing. 507 `bucket_full`: the bucket holds as much as it
    may. Nothing was written."""


class Throttled(HeadwaterError):
    """429 after all attempts: slow down. `retry_after_s` is what the server asked for."""


class Unavailable(HeadwaterError):
    """No server, or one that cannot answer now (502, 503, 504), after all attempts."""


class ServerError(HeadwaterError):
    """500: a mistake of the server; its log says more."""


class BadAnswer(HeadwaterError):
    """What came is not an answer of Headwater: is the URL right?"""


BY_CODE: dict[str, type[HeadwaterError]] = {
    "stream_closed": Closed,
    "stale_epoch": Fenced,
    "producer_seq_conflict": SequenceConflict,
    "epoch_changed": EpochChanged,
    "not_a_queue": NotAQueue,
    "lease_lost": LeaseLost,
    "topic_full": Full,
}
BY_STATUS: dict[int, type[HeadwaterError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: TooLarge,
    422: Full,
    429: Throttled,
    500: ServerError,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
    507: Full,
}
PASSING = (408, 429, 502, 503, 504)


def refusal(answer: Answer) -> HeadwaterError:
    """What an answer of 300 and above means."""
    code, message = answer.error()
    if answer.status < 400:
        elsewhere = answer.headers.get("location", "another address")
        message = f"the server answered {answer.status} and points to {elsewhere}"
        return BadAnswer("bad_answer", message, status=answer.status)
    detail = _detail(answer)
    kind = BY_CODE.get(code) or BY_STATUS.get(answer.status) or (BadRequest if answer.status < 500 else ServerError)
    # A proxy says nothing about what the server behind it did; its 503 has no code.
    unknown = answer.status >= 500 and (code in EFFECT_UNKNOWN or not code)
    return kind(
        code,
        message,
        status=answer.status,
        detail=detail,
        outcome_unknown=unknown,
        passing=answer.status in PASSING,
        retry_after_s=_retry_after_s(answer, detail),
    )


def no_answer(why: Failed) -> HeadwaterError:
    """What it means that there is no complete answer."""
    match why:
        case CannotBeSent():
            return BadRequest("cannot_be_sent", str(why))
        case NoTls():
            return Unavailable("no_tls", f"no TLS with the server: {why}")
        case NotConnected():
            return Unavailable("unreachable", f"the server cannot be reached: {why}", passing=True)
        case NotHttp():
            return BadAnswer("bad_answer", str(why), outcome_unknown=True)
        case Lost():
            message = f"the connection was lost: {why}"
            return Unavailable("connection_lost", message, outcome_unknown=True, passing=True)
    return Unavailable("unreachable", str(why), outcome_unknown=True)


def not_understood(what: str) -> BadAnswer:
    return BadAnswer("bad_answer", f"the server's answer makes no sense: {what}", outcome_unknown=True)


def _detail(answer: Answer) -> dict[str, Any]:
    facts: dict[str, Any] = {
        name.removeprefix("stream-").replace("-", "_"): answer.headers[name] for name in FACTS if name in answer.headers
    }
    try:
        error = json.loads(answer.body)["error"]
        told = error.get("detail") or {}
        return {**facts, **told}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return facts


def _retry_after_s(answer: Answer, detail: Mapping[str, Any]) -> float:
    asked_ms = detail.get("retry_after_ms")
    if isinstance(asked_ms, int | float) and asked_ms >= 0:
        return asked_ms / 1_000
    text = answer.headers.get("retry-after", "").strip()
    return float(text) if text.isascii() and text.isdecimal() else 0.0
