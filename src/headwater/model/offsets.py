"""Offsets on the wire: 20-digit zero-padded decimals, and the two reserved words.

Owns their syntax. Never knows whether an offset exists in a stream.
"""

from __future__ import annotations

from headwater.errors import BadQuery

WIDTH = 20
START = -1
"""From the very beginning; an offset of 0 says the same."""
NOW = -2
"""From the present tail."""

_MAX = (1 << 64) - 1


def show(offset: int) -> str:
    return f"{offset:020d}"


def parse(text: str, name: str = "offset") -> int:
    """The offset named by a client's token. Raises BadQuery when it is not one this server could have handed out."""
    if len(text) == WIDTH and text.isascii() and text.isdigit():
        value = int(text)
        if value <= _MAX:
            return value
    elif text == "-1":
        return START
    elif text == "now":
        return NOW
    elif text == "0":
        # Some clients write the beginning as a bare zero; it can mean nothing else.
        return 0
    raise BadQuery(name, "expected -1, now, or an offset returned by this server")
