"""JSON streams: one body becomes messages, messages become one array.

Owns the splitting and the content-type rules. Never decodes a message: their bytes pass through unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headwater.errors import BadBody

JSON = "application/json"

_split = msgspec.json.Decoder(list[msgspec.Raw]).decode
_one = msgspec.json.Decoder(msgspec.Raw).decode
_SPACE = b" \t\r\n"


def normalise(content_type: str) -> str:
    """Lower case, without parameters: what two content types are compared by."""
    semicolon = content_type.find(";")
    if semicolon >= 0:
        content_type = content_type[:semicolon]
    return content_type.strip().lower()


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
        raise BadBody(f"not valid JSON ({error})") from None


def array(payloads: Sequence[bytes | memoryview]) -> bytes:
    return b"[" + b",".join(payloads) + b"]"
