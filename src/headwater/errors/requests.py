"""Failures of a request itself: its names, route, method, head and body.

Owns their facts and messages. Never says what they mean at a door: the table does.
"""

from __future__ import annotations

from headwater.errors.base import Failure

__all__ = [
    "BadBody",
    "BadContentType",
    "BadHeader",
    "BadName",
    "BadQuery",
    "BadRequest",
    "BodyTooLarge",
    "ExpectationFailed",
    "HeadTooLarge",
    "MethodNotAllowed",
    "NoSuchRoute",
    "RequestTimeout",
    "TooManyRecords",
    "VersionNotSupported",
]


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


class BadContentType(Failure):
    """Of a stream or a snapshot, wherever the request names it: a header or a field of its body."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"bad content type: {self.reason}"


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


class TooManyRecords(Failure):
    def __init__(self, count_max: int, times: int = 1) -> None:
        self.count_max = count_max
        self.times = times
        """How many appends' worth of records that is: more than 1 for a request of many appends."""

    def message(self) -> str:
        if self.times == 1:
            return f"more than {self.count_max} records in one append (append_records_max); split it"
        return f"more than {self.count_max} records in one request ({self.times} x append_records_max); split it"


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
