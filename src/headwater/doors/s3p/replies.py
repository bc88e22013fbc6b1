"""Owns what an S3P client is told, as bytes: the reply encoders and the table of error codes.
Never decides what to tell it, and never lets client bytes break out of an error line."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

ERROR_CHARS_MAX: Final = 256
QUOTED_CHARS_MAX: Final = 64


class Code(StrEnum):
    """Every first word an error reply can have."""

    BAD_FORMAT = "ERR_BAD_FORMAT"
    LIMITS = "ERR_LIMITS"
    STREAM_EXISTS = "ERR_STREAM_EXISTS"
    UNKNOWN_STREAM = "ERR_UNKNOWN_STREAM"
    NON_MONOTONIC_ID = "ERR_NON_MONOTONIC_ID"
    # Three codes of the house, for conditions the spec does not know. The command was understood in all, so
    # they are recoverable in the sense of section 4.
    #   UNAVAILABLE: the node takes no writes now (stopping, overloaded, its log failed); try again later.
    #   CONFLICT: the stream as it stands refuses this (closed, other content type); trying again is no use.
    UNAVAILABLE = "ERR_UNAVAILABLE"
    #   INTERNAL: a fault of this server; its log has the trace under the id in the message.
    CONFLICT = "ERR_CONFLICT"
    INTERNAL = "ERR_INTERNAL"
    # Two more where authentication is on: no credential that holds, and one that does not allow this.
    UNAUTHENTICATED = "ERR_UNAUTHENTICATED"
    FORBIDDEN = "ERR_FORBIDDEN"

    @property
    def closes_connection(self) -> bool:
        return _CLOSES_CONNECTION[self]


# Section 9. After a code that closes, its reply is the last thing the server sends.
_CLOSES_CONNECTION: Final = {
    Code.BAD_FORMAT: True,
    Code.LIMITS: True,
    Code.STREAM_EXISTS: False,
    Code.UNKNOWN_STREAM: False,
    Code.NON_MONOTONIC_ID: False,
    Code.UNAVAILABLE: False,
    Code.CONFLICT: False,
    Code.INTERNAL: False,
    Code.UNAUTHENTICATED: False,
    Code.FORBIDDEN: False,
}


class Failure(msgspec.Struct, frozen=True):
    """An error reply before it is bytes."""

    code: Code
    message: str


def printable(raw: bytes, chars_max: int = QUOTED_CHARS_MAX) -> str:
    """Client bytes made fit for quoting: printable ASCII, `?` for every other byte, cut to `chars_max`."""
    text = "".join(chr(byte) if 0x20 <= byte <= 0x7E else "?" for byte in raw[: chars_max + 1])
    return text if len(text) <= chars_max else text[: chars_max - 3] + "..."


def ok() -> bytes:
    return b"+OK\r\n"


def error(code: Code, message: str) -> bytes:
    """One line of printable ASCII, at most ERROR_CHARS_MAX long, whatever the message was made from."""
    line = printable(f"{code} {message}".encode("ascii", "replace"), ERROR_CHARS_MAX)
    return b"-%b\r\n" % line.encode("ascii")


def bulk(value: bytes) -> bytes:
    """Raises ValueError for an empty value: section 3 has no zero-length bulk string in either direction."""
    if not value:
        raise ValueError("S3P cannot carry a zero-length bulk string")
    return b"$%d\r\n%b\r\n" % (len(value), value)


def records(entries: Iterable[tuple[int, int, bytes]]) -> bytes:
    """The flat array `[id, record, ...]` that answers READ, in the order given.

    Raises ValueError for an empty payload.
    """
    items = [bulk(b"%d-%d" % (ms, n)) + bulk(payload) for ms, n, payload in entries]
    return b"*%d\r\n%b" % (2 * len(items), b"".join(items))
