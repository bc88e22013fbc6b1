"""Offsets on the wire: 20-digit zero-padded decimals, and the two reserved words.

Owns their syntax. Never knows whether an offset exists in a stream.
"""

from __future__ import annotations

from headwater.errors import BadQuery, BadSnapshotOffset

WIDTH = 20
START = -1
"""From the very beginning; an offset of 0 says the same."""
NOW = -2
"""From the present tail."""

_MAX = (1 << 64) - 1
_ZEROS = ("0", "0000000000000000_0000000000000000")
"""Other servers' spellings of the beginning, which can mean nothing else."""


def show(offset: int) -> str:
    return f"{offset:020d}"


def parse(text: str) -> int:
    """The offset named by a client's token. Raises BadQuery when it is not one this server could have handed out."""
    if len(text) == WIDTH and text.isascii() and text.isdigit():
        value = int(text)
        if value <= _MAX:
            return value
    elif text == "-1":
        return START
    elif text == "now":
        return NOW
    elif text in _ZEROS:
        return 0
    raise BadQuery("offset", "expected -1, now, or an offset returned by this server")


def parse_snapshot(segment: str) -> int:
    """The offset that a path names a snapshot by; -1 is the beginning. Raises BadSnapshotOffset."""
    try:
        offset = parse(segment)
    except BadQuery:
        offset = NOW
    if offset == NOW:
        raise BadSnapshotOffset("the path ends in an offset returned by this server, such as 00000000000000000042")
    return max(offset, 0)
