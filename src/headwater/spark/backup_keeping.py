"""Which backups are kept: so many of the newest, and the newest of each of so many days and weeks. Pure.

Never looks at the time of day: what is kept depends on the backups that are there, not on when it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple


class Keep(NamedTuple):
    """What any of them keeps is kept. Days and weeks are those of UTC, and only those that have a backup count."""

    last: int = 0
    daily: int = 0
    weekly: int = 0

    @property
    def asks(self) -> bool:
        return any(self)


KEEP_ALL = Keep()


def kept(made_ms: Mapping[str, int], keep: Keep) -> dict[str, list[str]]:
    """Ids that are kept, oldest first, and why; of a rule that asks for one at least, the newest is always among them.

    `made_ms` is when each backup was made. Ids of one moment are in the order of their names.
    """
    if not keep.asks:
        raise ValueError("no rule says what is kept")
    newest = sorted(made_ms, key=lambda name: (made_ms[name], name), reverse=True)
    why: dict[str, list[str]] = {}
    rules: tuple[tuple[str, int, Callable[[str], str]], ...] = (
        ("last", keep.last, lambda name: name),
        ("daily", keep.daily, lambda name: f"{_day(made_ms[name]):%Y-%m-%d}"),
        ("weekly", keep.weekly, lambda name: f"{_day(made_ms[name]):%G-W%V}"),
    )
    for rule, count, span in rules:
        seen: set[str] = set()
        for name in newest:
            if len(seen) == count:
                break
            if span(name) not in seen:
                seen.add(span(name))
                why.setdefault(name, []).append(rule)
    return {name: why[name] for name in reversed(newest) if name in why}


def _day(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, UTC)
