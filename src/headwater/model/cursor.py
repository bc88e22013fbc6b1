"""Stream cursors: the number that lets a cache collapse live requests, and that tells a stream from its successor.

Owns their layout and arithmetic. Never reads the clock or draws the jitter: both are arguments.

    interval * MARKS + incarnation % MARKS      digits only, and greater with every interval: clients may count on both

All readers of a stream have the same cursor in the same interval. Of a stream that was deleted and created again it has
another mark.
"""

from __future__ import annotations

EPOCH_MS = 1_728_432_000_000
"""2024-10-09T00:00:00Z, the protocol's zero."""
INTERVAL_MS = 20_000
JITTER_INTERVALS_MAX = 180
"""The protocol's jitter of at most an hour, in intervals."""
MARKS = 10_000_000
"""So that a cursor is a whole number that JavaScript holds exactly, for the next five hundred years."""
_OURS_MIN = 100_000 * MARKS
"""Smaller ones are bare intervals, such as other servers of the protocol hand out."""


def interval(now_ms: int) -> int:
    return (now_ms - EPOCH_MS) // INTERVAL_MS


def stamp(now_ms: int, incarnation: int) -> int:
    """The cursor of the present interval."""
    return interval(now_ms) * MARKS + incarnation % MARKS


def answer(client: str | None, now_ms: int, jitter: int, incarnation: int) -> int:
    """The cursor to answer with: of the present interval, or past the client's own so that it never repeats.

    `jitter` is a random number of intervals in [1, JITTER_INTERVALS_MAX], used only on collision.
    """
    present = stamp(now_ms, incarnation)
    theirs = _ours(client)
    if theirs is not None and theirs >= present:
        return (theirs // MARKS + jitter) * MARKS + incarnation % MARKS
    return present


def is_another(client: str, incarnation: int) -> bool:
    """True when the cursor is of a stream that had the name before. A cursor that is none of ours says nothing."""
    theirs = _ours(client)
    return theirs is not None and theirs % MARKS != incarnation % MARKS


def _ours(client: str | None) -> int | None:
    if client and client.isascii() and client.isdigit() and len(client) <= 18 and int(client) >= _OURS_MIN:
        return int(client)
    return None
