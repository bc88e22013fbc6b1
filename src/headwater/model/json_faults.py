"""What the JSON parser complains of, in words for people.

Owns the words. Never judges: whoever calls it has been refused something.
"""

from __future__ import annotations

import re

_HALF_PAIR = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
"""An escape for the first half of a surrogate pair without the second."""
_SEARCHED_BYTES_MAX = 256 * 1024
"""The search takes up to 50 ns a byte, and only the words depend on it."""


def fault(error: Exception, body: bytes) -> str:
    """What msgspec's `error` about `body` means, for people."""
    if isinstance(error, UnicodeDecodeError):
        return "not valid UTF-8"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if not body:
        return "it is empty; send a JSON value"
    told = str(error)
    # msgspec looks for the second half of a pair after the first, and may call it what it finds there instead.
    missed = "truncated" in told or "hex escape" in told
    if "surrogate" in told or (missed and _HALF_PAIR.search(body, 0, _SEARCHED_BYTES_MAX) is not None):
        return "an escape such as \\ud800 is half of a surrogate pair, which is no character"
    return told
