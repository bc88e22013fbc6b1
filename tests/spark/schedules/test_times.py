"""When jobs are due, held against a clock that is looked at minute by minute."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.spark.schedules.times import MINUTE_MS, BadTime, Cron, Every, cron, duration_ms, every, zone

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "America/St_Johns")
WINDOW = 2 * 1440


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000


def told(moment: int) -> str:
    return datetime.fromtimestamp(moment / 1_000, UTC).strftime("%Y-%m-%d %H:%M")


def model(found: Cron, start: int, count: int) -> list[int]:
    """Each of so many minutes after `start` is asked what the clock on the wall showed, and shows now."""

    def wall(moment: int) -> datetime:
        return datetime.fromtimestamp(moment / 1_000, UTC).astimezone(found.zone)

    def naive(moment: int) -> int:
        return int(wall(moment).replace(tzinfo=UTC, fold=0).timestamp()) * 1_000

    def fits(shown: int) -> bool:
        at = datetime.fromtimestamp(shown / 1_000, UTC)
        return at.minute in found.minutes and at.hour in found.hours and found.has_day(at.date())

    due = []
    for number in range(1, count + 1):
        moment = start + number * MINUTE_MS
        here, before = naive(moment), naive(moment - MINUTE_MS)
        if found.any_hour:
            is_due = fits(here)
        else:
            is_due = fits(here) and not wall(moment).fold
            is_due |= any(fits(shown) for shown in range(before + MINUTE_MS, here, MINUTE_MS))  # left out
        if is_due:
            due.append(moment)
    return due


def listed(found: Cron, start: int, end: int) -> list[int]:
    due, moment = [], start
    while (moment := found.after(moment)) <= end:
        due.append(moment)
    return due


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    spans = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    stepped = st.tuples(st.just("*") | spans, st.integers(1, high)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    return st.just("*") | st.lists(number.map(str) | spans | stepped, min_size=1, max_size=3).map(",".join)


texts = st.tuples(numbers(0, 59), numbers(0, 23), numbers(1, 28), numbers(1, 12), numbers(0, 7)).map(" ".join)
changes = st.sampled_from(
    [
        *("2026-03-28 12:00", "2026-10-24 12:00", "2026-04-04 03:00", "2026-10-03 03:00", "2026-03-07 12:00"),
        *("2026-10-31 12:00", "2010-03-13 12:00", "2010-11-06 12:00", "2024-02-28 00:00"),
    ]
)
starts = st.integers(ms("2026-01-01"), ms("2028-01-01")).map(lambda moment: moment // MINUTE_MS * MINUTE_MS)


@settings(max_examples=40)
@given(texts, st.sampled_from(ZONES), starts | changes.map(ms))
@example("30 2 * * *", "Europe/Berlin", ms("2026-03-28 12:00"))
@example("30 2 * * *", "Europe/Berlin", ms("2026-10-24 12:00"))
@example("*/7 * * * *", "Australia/Lord_Howe", ms("2026-04-04 03:00"))
@example("0,1,30 0,23 * * *", "America/St_Johns", ms("2010-11-06 12:00"))
@example("0-40/8 0 * * *", "America/St_Johns", ms("2010-03-13 12:00"))
def test_moments_are_those_that_a_clock_finds_which_is_looked_at_every_minute(text: str, name: str, start: int) -> None:
    found = cron(text, ZoneInfo(name))
    end = start + WINDOW * MINUTE_MS
    due = model(found, start, WINDOW)
    assert [told(moment) for moment in listed(found, start, end)] == [told(moment) for moment in due]
    for moment in due[:3] + due[-3:]:
        assert found.before(moment) == moment
        assert found.before(moment + MINUTE_MS - 1) == moment
        assert found.after(moment - 1) == moment
    if due:
        assert found.before(end) == due[-1]


@pytest.mark.parametrize(
    ("text", "zone_name", "start", "due"),
    [
        ("*/15 * * * *", "UTC", "2026-01-01 00:07", "2026-01-01 00:15"),
        ("0 0 29 2 *", "UTC", "2096-03-01 00:00", "2104-02-29 00:00"),
        ("0 9 * * mon-fri", "Europe/Berlin", "2026-06-05 12:00", "2026-06-08 07:00"),
        ("0 9 13 * fri", "UTC", "2026-06-05 12:00", "2026-06-12 09:00"),  # either of the two days
        ("0 9 13 * *", "UTC", "2026-06-05 12:00", "2026-06-13 09:00"),
        ("5 4 * * sun", "UTC", "2026-06-05 12:00", "2026-06-07 04:05"),
        ("5 4 * * 7", "UTC", "2026-06-05 12:00", "2026-06-07 04:05"),
        ("30 2 * * *", "Europe/Berlin", "2026-03-28 12:00", "2026-03-29 01:00"),  # left out: when the clock is set
        ("30 2 * * *", "Europe/Berlin", "2026-10-24 12:00", "2026-10-25 00:30"),  # twice: the first
        ("0 12 30 12 *", "Pacific/Apia", "2011-12-20 00:00", "2011-12-30 10:00"),  # a day that was left out
    ],
)
def test_a_moment_follows(text: str, zone_name: str, start: str, due: str) -> None:
    assert told(cron(text, zone(zone_name)).after(ms(start))) == due


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("* * * *", "has 4 fields"),
        ("60 * * * *", "minute: '60' is not 0 to 59"),
        ("* 5-3 * * *", "hour: '5-3' ends before it begins"),
        ("*/0 * * * *", "a step is at least 1"),
        ("5/2 * * * *", "stands behind \\* or a range"),
        ("* * 0 * *", "day of month: '0'"),
        ("* * * foo *", "month: 'foo' is not 1 to 12 or jan to dec"),
        ("* * * * mon,", "day of week: ''"),
        ("0 0 30 2 *", "never comes"),
        ("@daily", "has 1 fields"),
        ("½ * * * *", "minute"),
    ],
)
def test_what_says_no_times_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadTime, match=why):
        cron(text, ZoneInfo("UTC"))


def test_an_interval_counts_from_1970() -> None:
    assert every("90m") == Every(5_400_000)
    assert told(every("1d").after(ms("2026-06-05 12:00"))) == "2026-06-06 00:00"
    assert every("15m").before(ms("2026-06-05 12:14")) == ms("2026-06-05 12:00")
    assert every("15m").before(ms("2026-06-05 12:15")) == ms("2026-06-05 12:15")
    assert duration_ms("30s") == 30_000
    for text in ("90s", "0m", "m", "-1m", "367d", "1.5h"):
        with pytest.raises(BadTime):
            every(text)
    for name in ("Nowhere/Land", "", "../etc/passwd"):
        with pytest.raises(BadTime):
            zone(name)
