"""Stream cursors: the interval number that lets a cache collapse live requests.

Owns the arithmetic. Never reads the clock or draws the jitter: both are arguments.
"""

from __future__ import annotations

EPOCH_MS = 1_728_432_000_000
"""2024-10-09T00:00:00Z, the protocol's zero."""
INTERVAL_MS = 20_000
JITTER_INTERVALS_MAX = 180
"""The protocol's jitter of at most an hour, in intervals."""


def interval(now_ms: int) -> int:
    return (now_ms - EPOCH_MS) // INTERVAL_MS


def answer(client: str | None, now_ms: int, jitter: int) -> int:
    """The cursor to answer with: the present interval, or past the client's own so that it never repeats.

    `jitter` is a random number of intervals in [1, JITTER_INTERVALS_MAX], used only on collision.
    """
    present = interval(now_ms)
    if client and client.isascii() and client.isdigit() and len(client) <= 18:
        theirs = int(client)
        if theirs >= present:
            return theirs + jitter
    return present
