"""When a job is due: five fields of cron in a time zone, or an interval. Pure: the moment at hand is an argument.

Owns which moments those are. Moments are milliseconds since 1970; all of them are whole minutes.

    minute  hour  day of month  month  day of week        *  5  1-5  */15  1-31/2  mon-fri  1,15,30

Where clocks are changed: fields whose hour is `*` follow the time that passes. Others mean what a clock on the wall
shows: a time that comes twice counts the first time, one that is left out at the moment the clock is set forward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple, Protocol
from zoneinfo import ZoneInfo

MINUTE_MS = 60_000
YEARS_MAX = 9
"""29 February is eight years away from the one before where a century leaves it out."""
DAYS_KEPT = 600
"""Days whose moments are kept at hand: each look at a job takes up to five, and a schedule has up to 100 jobs."""
INTERVAL_MS_MAX = 366 * 86_400_000
_UNITS = {"s": 1_000, "m": MINUTE_MS, "h": 3_600_000, "d": 86_400_000}
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_PART = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/(\d+))?")


class BadTime(Exception):
    """The text says no times; the message says what is wrong with it."""


class Moments(Protocol):
    def after(self, ms: int) -> int:
        """The first moment later than `ms`."""
        ...

    def before(self, ms: int) -> int:
        """The last moment at or before `ms`."""
        ...


class Every(NamedTuple):
    """Multiples of an interval since 1970: no start moves them, and no run that took long."""

    interval_ms: int

    def after(self, ms: int) -> int:
        return (ms // self.interval_ms + 1) * self.interval_ms

    def before(self, ms: int) -> int:
        return ms // self.interval_ms * self.interval_ms


class Cron(NamedTuple):
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    any_hour: bool
    either_day: bool
    """Both kinds of day are restricted: one that is either of them counts."""
    zone: ZoneInfo

    def after(self, ms: int) -> int:
        start = _local(ms, self.zone).date() - timedelta(days=1)
        return min(self._near(start, 1, lambda moment: moment > ms))

    def before(self, ms: int) -> int:
        start = _local(ms, self.zone).date() + timedelta(days=1)
        return max(self._near(start, -1, lambda moment: moment <= ms))

    def _near(self, start: date, step: int, wanted: Callable[[int], bool]) -> list[int]:
        """Moments of the first days from `start` on that have a wanted one. Days overlap where midnight comes twice."""
        found: list[int] = []
        left = 366 * YEARS_MAX
        day = start
        while left:
            if self.has_day(day):
                found += [moment for moment in _moments(self, day) if wanted(moment)]
                if found:
                    left = min(left, 3)
            day += timedelta(days=step)
            left -= 1
        if not found:
            raise BadTime("no day is like that within nine years")
        return found

    def has_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return of_month or of_week if self.either_day else of_month and of_week


def every(text: str) -> Every:
    """`90m`, `2h`, `1d`: whole minutes. Raises BadTime."""
    ms = duration_ms(text)
    if ms % MINUTE_MS or not MINUTE_MS <= ms <= INTERVAL_MS_MAX:
        raise BadTime(f"{text!r} is not a number of minutes, hours or days such as 15m, 2h or 1d, up to 366d")
    return Every(ms)


def duration_ms(text: str) -> int:
    """`30s`, `15m`, `2h`, `1d`. Raises BadTime."""
    found = re.fullmatch(r"(\d{1,9})([smhd])", text.strip())
    if found is None:
        raise BadTime(f"{text!r} is not a time such as 30s, 15m, 2h or 1d")
    return int(found[1]) * _UNITS[found[2]]


def cron(text: str, zone: ZoneInfo) -> Cron:
    """Raises BadTime."""
    fields = text.lower().split()
    if len(fields) != 5:
        raise BadTime(f"{text!r} has {len(fields)} fields, not five: minute, hour, day of month, month, day of week")
    minute, hour, day, month, weekday = fields
    found = Cron(
        _field("minute", minute, 0, 59),
        _field("hour", hour, 0, 23),
        _field("day of month", day, 1, 31),
        _field("month", month, 1, 12, _MONTHS),
        frozenset(number % 7 for number in _field("day of week", weekday, 0, 7, _DAYS)),
        hour == "*",
        not day.startswith("*") and not weekday.startswith("*"),
        zone,
    )
    if not any(found.has_day(date(2000, 1, 1) + timedelta(days=number)) for number in range(366 * YEARS_MAX)):
        raise BadTime(f"{text!r} never comes: no month has such a day")
    return found


def zone(name: str) -> ZoneInfo:
    """Raises BadTime."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # ZoneInfoNotFoundError is a KeyError
        raise BadTime(f"{name!r} is no time zone that is known here, such as UTC or Europe/Berlin") from None


def _field(what: str, text: str, low: int, high: int, names: tuple[str, ...] = ()) -> frozenset[int]:
    def number(word: str) -> int:
        if word in names:
            return names.index(word) + low
        if not word.isascii() or not word.isdigit() or not low <= int(word) <= high:
            known = f" or {names[0]} to {names[-1]}" if names else ""
            raise BadTime(f"{what}: {word!r} is not {low} to {high}{known}")
        return int(word)

    found: set[int] = set()
    for part in text.split(","):
        shape = _PART.fullmatch(part)
        if shape is None:
            raise BadTime(f"{what}: {part!r} is none of *, 5, 1-5, */15 and 1-31/2")
        first, last, step = shape.groups()
        if step is not None and (int(step) < 1 or (first is not None and last is None)):
            raise BadTime(f"{what}: {part!r}: a step is at least 1, and stands behind * or a range")
        begin = low if first is None else number(first)
        end = high if first is None else begin if last is None else number(last)
        if begin > end:
            raise BadTime(f"{what}: {part!r} ends before it begins")
        found.update(range(begin, end + 1, int(step or 1)))
    return frozenset(found)


# ---- the clock on the wall ---------------------------------------------------------------------------------------


def _local(ms: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(ms // 1_000, UTC).astimezone(zone)


@lru_cache(DAYS_KEPT)
def _moments(cron: Cron, day: date) -> tuple[int, ...]:
    """Of a day, as its clocks on the wall show it."""
    found: set[int] = set()
    for hour in cron.hours:
        for minute in cron.minutes:
            found.update(_instants(datetime(day.year, day.month, day.day, hour, minute), cron))
    return tuple(sorted(found))


def _instants(wall: datetime, cron: Cron) -> Iterator[int]:
    early, late = (_ms(wall.replace(tzinfo=cron.zone, fold=fold)) for fold in (0, 1))
    if early <= late:  # the usual case, or a time that comes twice
        yield early
        if cron.any_hour:
            yield late
    elif not cron.any_hour:
        # Left out: `early` counts with the clock as it was before, `late` as it is afterwards.
        offset = _local(early, cron.zone).utcoffset()
        while late < early and _local(late, cron.zone).utcoffset() != offset:
            late += MINUTE_MS
        yield late


def _ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000
