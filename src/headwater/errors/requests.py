"""Failures of a request itself: its names, route, method, head and body.

Owns their facts and messages. Never says what they mean at a door: the table does.
"""

from __future__ import annotations

from headwater.errors.base import Facts, Failure

__all__ = [
    "BadBody",
    "BadContentType",
    "BadHeader",
    "BadName",
    "BadQuery",
    "BadRequest",
    "BodyTooLarge",
    "EncodedBody",
    "ExpectationFailed",
    "HeadTooLarge",
    "MethodNotAllowed",
    "NoSuchRoute",
    "OriginNotAllowed",
    "RequestTimeout",
    "TooManyHeaders",
    "TooManyRecords",
    "TransferCodingUnknown",
    "UpgradeRequired",
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

    def facts(self) -> Facts:
        return {"allowed_methods": self.allowed}


class UpgradeRequired(Failure):
    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return (
            f"a WebSocket is served here, and {self.reason}; send GET over HTTP/1.1 with 'Connection: Upgrade', "
            "'Upgrade: websocket', 'Sec-WebSocket-Version: 13' and a Sec-WebSocket-Key"
        )

    def facts(self) -> Facts:
        return {"connection": "Upgrade", "upgrade": "websocket", "websocket_version": 13}


class OriginNotAllowed(Failure):
    def message(self) -> str:
        return "pages of this origin may not open a WebSocket here; the setting cors_origin names the origin that may"


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
    def __init__(self, limit_bytes: int, setting: str = "") -> None:
        self.limit_bytes = limit_bytes
        self.setting = setting
        """The one that sets the limit, where one does."""

    def message(self) -> str:
        limit = f"{self.setting}: {self.limit_bytes}" if self.setting else f"{self.limit_bytes}"
        what_to_do = "make it smaller" if self.setting == "snapshot_bytes_max" else "split the append"
        return f"the body is larger than this server takes ({limit} bytes); {what_to_do}"


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
    def __init__(self, limit_bytes: int, part: str = "request line and headers") -> None:
        self.limit_bytes = limit_bytes
        self.part = part

    def message(self) -> str:
        return f"the {self.part} are larger than this server takes (head_bytes_max: {self.limit_bytes} bytes)"


class TooManyHeaders(Failure):
    def __init__(self, limit_count: int, part: str = "headers") -> None:
        self.limit_count = limit_count
        self.part = part

    def message(self) -> str:
        return f"the request has more {self.part} than this server takes (header_count_max: {self.limit_count})"


class EncodedBody(Failure):
    def message(self) -> str:
        return "a body is stored as it comes: send it as it is, without Content-Encoding"

    def facts(self) -> Facts:
        return {"accepted_encoding": "identity"}


class TransferCodingUnknown(Failure):
    def message(self) -> str:
        return "the only Transfer-Encoding that is understood is chunked"


class RequestTimeout(Failure):
    def message(self) -> str:
        return "the request did not arrive in time; send it again on a new connection"


class ExpectationFailed(Failure):
    def message(self) -> str:
        return "only 'Expect: 100-continue' is understood"


class VersionNotSupported(Failure):
    def message(self) -> str:
        return "HTTP/1.0 and HTTP/1.1 are spoken here"
