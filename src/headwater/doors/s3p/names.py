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

_SPELLED: Final = re.compile(r"~+((?:[0-9a-f]{2})+)")
# Below it HTTP has subscriptions, not streams.
_RESERVED: Final = "__ds/"
# The door has its own limit of a name's length, and a spelled one is longer than what it spells.
_NO_LIMIT: Final = 1 << 62


def key_of(name: bytes) -> str:
    """The key of the stream that `name` means; any name of at least one byte means one."""
    return flat_key(path_of(name), _NO_LIMIT)


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
