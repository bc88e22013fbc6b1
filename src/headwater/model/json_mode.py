"""JSON streams: one body becomes messages, messages become one array.

Owns the splitting, and the words for what is no JSON. Never decodes a message: their bytes pass through unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from headwater.errors import BadBody

JSON = "application/json"

_split = msgspec.json.Decoder(list[msgspec.Raw]).decode
_one = msgspec.json.Decoder(msgspec.Raw).decode
_SPACE = b" \t\r\n"
_HALF_PAIR = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
"""An escape for the first half of a surrogate pair without the second."""


def messages(body: bytes, allow_empty: bool = False) -> list[bytes]:
    """The messages of one JSON body: an array's elements (one level), or the single value.

    Raises BadBody when it is not JSON, or an empty array where `allow_empty` is False.
    """
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
            if not parts and not allow_empty:
                raise BadBody("an empty JSON array appends nothing")
            return parts
        return [bytes(_one(stripped)).rstrip(_SPACE)]
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadBody(f"not valid JSON ({fault(error, body)})") from None


def fault(error: Exception, body: bytes) -> str:
    """What msgspec's `error` about `body` means, for people."""
    if isinstance(error, UnicodeDecodeError):
        return "not valid UTF-8"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    told = str(error)
    # msgspec looks for the second half of a pair behind the first, and may call the end of the body truncated.
    if "surrogate" in told or ("truncated" in told and _HALF_PAIR.search(body) is not None):
        return "an escape such as \\ud800 is half of a surrogate pair, which is no character"
    return told


def array(payloads: Sequence[bytes | memoryview]) -> bytes:
    return b"[" + b",".join(payloads) + b"]"
