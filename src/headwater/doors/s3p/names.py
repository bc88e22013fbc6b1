"""Which stream an S3P name means: any bytes become a path below /v1/stream/, and each such path has one name.
Owns the spelling of names that are no path. Never looks a stream up.

    orders    bucket/orders    größe        UTF-8 that is a path: that path
    a/    ..    __ds/x    bytes ff fe       anything else: ~ and its bytes in hexadecimal, ~612f for a/
    ~612f                                   a path that reads as one of those: one more ~ in front of it
"""

import re
from typing import Final

from headwater.errors import BadName
from headwater.model.names import flat_key

_FIRST: Final = re.compile(rb"\*[34]\r\n\$[1-9]\r\n[A-Za-z]{4,6}\r\n\$([1-9][0-9]{0,4})\r\n")
_SPELLED: Final = re.compile(r"~+((?:[0-9a-f]{2})+)")
# Below it HTTP has subscriptions, not streams.
_RESERVED: Final = "__ds/"
# The door has its own limit of a name's length, and a spelled one is longer than what it spells.
_NO_LIMIT: Final = 1 << 62


def key_of(name: bytes) -> str:
    """The key of the stream that `name` means; any name of at least one byte means one."""
    return flat_key(path_of(name), _NO_LIMIT)


def first_owner(first_bytes: bytes) -> str | None:
    """The key of the stream that the first command of a connection is about; None when its first bytes do not tell."""
    head = _FIRST.match(first_bytes)
    if head is None:
        return None
    end = head.end() + int(head[1])
    if first_bytes[end : end + 2] != b"\r\n":
        return None
    return key_of(first_bytes[head.end() : end])


def path_of(name: bytes) -> str:
    """The flat path that `name` means: one to one, and onto all of them."""
    path = _as_path(name)
    if path is None:
        return "~" + name.hex()
    if (spelled := _SPELLED.fullmatch(path)) and _as_path(bytes.fromhex(spelled[1])) is None:
        return "~" + path
    return path


def _as_path(name: bytes) -> str | None:
    """The name as a path of its own; None when it is none."""
    try:
        path = name.decode()
        flat_key(path, _NO_LIMIT)
    except (UnicodeDecodeError, BadName):
        return None
    return None if path.startswith(_RESERVED) else path
