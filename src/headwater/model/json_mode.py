"""JSON streams: one body becomes messages, messages become one array.

Owns the splitting, and the words for what is no JSON. Never decodes a message: their bytes pass through unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headwater.errors import BadBody, TooManyRecords
from headwater.model import json_slices
from headwater.model.json_faults import fault as fault

JSON = "application/json"
COUNT_MAX = 1 << 62
"""For text that was counted before."""
AT_ONCE_MAX = 5_000
AT_ONCE_BYTES_MAX = 256 * 1024
"""A body with fewer elements and bytes than these is split in one go. 5,000 of [1,1,…] take 1.3 ms, 256 KiB of objects
of 130 bytes 1.4 ms (msgspec 0.22)."""
SHORT_BYTES_MAX = 2 * AT_ONCE_MAX
"""A body up to this is certainly not long: an element takes two bytes at least."""

_split = msgspec.json.Decoder(list[msgspec.Raw]).decode
_one = msgspec.json.Decoder(msgspec.Raw).decode
_SPACE = b" \t\r\n"


def messages(body: bytes, allow_empty: bool = False, count_max: int = COUNT_MAX) -> list[bytes]:
    """The messages of one JSON body: an array's elements (one level), or the single value.

    Raises BadBody when it is not JSON, or an empty array where `allow_empty` is False; TooManyRecords.
    """
    if len(body) <= SHORT_BYTES_MAX or not is_long(body):
        return at_once(body, allow_empty, count_max)
    walk = messages_in_slices(body, allow_empty, count_max)
    while True:
        try:
            next(walk)
        except StopIteration as done:
            found: list[bytes] = done.value
            return found


def is_long(body: bytes) -> bool:
    """True when `body` has to be split in slices: at once it would hold up others for more than about 2 ms."""
    size = len(body)
    # Commas are counted, at 1 ms a MiB, before an object is made for each element.
    return size > SHORT_BYTES_MAX and (size > AT_ONCE_BYTES_MAX or body.count(b",") >= AT_ONCE_MAX)


def messages_in_slices(body: bytes, allow_empty: bool, count_max: int) -> json_slices.Slices:
    """As `messages`, with others' turns in between. What it refuses for its count it has not made objects of."""
    at = len(body) - len(body.lstrip(_SPACE))
    if body[at : at + 1] == b"[":
        found = yield from json_slices.elements(body, at, count_max)
        if not found and not allow_empty:
            raise BadBody("an empty JSON array appends nothing")
        return found
    # Read as the only element of an array, it is walked like any other.
    stripped = body.strip(_SPACE)
    try:
        found = yield from json_slices.elements(b"[" + stripped + b"]", 0, 1)
    except TooManyRecords:
        raise BadBody("not valid JSON (trailing characters)") from None
    if not found:
        raise BadBody("not valid JSON (Input data was truncated)")
    return found


def at_once(body: bytes, allow_empty: bool, count_max: int) -> list[bytes]:
    """As `messages`, for a body that is not long."""
    if not body.isascii():
        # msgspec lets invalid UTF-8 inside strings through; a reader of the stream could not.
        try:
            body.decode()
        except UnicodeDecodeError:
            raise BadBody("the JSON is not valid UTF-8") from None
    stripped = body.lstrip(_SPACE)
    try:
        if stripped[:1] == b"[":
            parts = [bytes(raw) for raw in _split(stripped)]
            if len(parts) > count_max:
                raise TooManyRecords(count_max)
            if not parts and not allow_empty:
                raise BadBody("an empty JSON array appends nothing")
            return parts
        return [bytes(_one(stripped)).rstrip(_SPACE)]
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadBody(f"not valid JSON ({fault(error, body)})") from None


def are_values(records: list[bytes]) -> bool:
    """True when each record is one JSON value."""
    try:
        # One parse for all: a record that is a value only together with its neighbours does not come out as it went in.
        parts = messages(array(records))
    except BadBody:
        return False
    return parts == [record.strip(_SPACE) for record in records]


def array(payloads: Sequence[bytes | memoryview]) -> bytes:
    return b"[" + b",".join(payloads) + b"]"
