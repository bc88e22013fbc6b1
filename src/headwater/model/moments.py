"""Moments in time as clients read and write them: RFC 3339, in UTC, from 1970 to the end of the year 9999.

Owns their syntax and bounds. Never looks at a clock.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

LATEST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: no later one can be written down."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")


def parse(text: str) -> int | None:
    """Milliseconds since 1970; None for what is no moment, or one that `show` could not write."""
    if not text.isascii() or _RFC3339.fullmatch(text) is None:
        return None
    try:
        at_ms = (datetime.fromisoformat(text.upper()) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        return None
    return at_ms if 0 <= at_ms <= LATEST_MS else None


def show(at_ms: int) -> str:
    """Whatever the number is: earlier versions stored moments beyond the bounds, which are shown as the nearest."""
    moment = _EPOCH + timedelta(milliseconds=min(max(at_ms, 0), LATEST_MS))
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
