"""Counts of reads between two checkpoints: by bucket and day, handed over once, and again when that failed."""

from __future__ import annotations

import asyncio

import pytest

from headwater.engine.usage import DAY_MS, ReadUsage
from headwater.ports import ReadCount
from tests.engine import Bench, HandClock
from tests.engine.test_checkpoint import SlowCatalog, take


def test_counts_are_kept_by_bucket_and_day_and_handed_over_once() -> None:
    clock = HandClock(5 * DAY_MS - 1)
    usage = ReadUsage(clock)
    usage.add("a/s", 10)
    usage.add("a/deep/er", 5)
    usage.add("b/s", 0)
    clock.ms += 1
    usage.add("a/s", 7)
    assert usage.take() == [ReadCount(4, "a", 2, 15), ReadCount(4, "b", 1, 0), ReadCount(5, "a", 1, 7)]
    assert usage.take() == []


def test_what_is_given_back_joins_what_came_meanwhile() -> None:
    usage = ReadUsage(HandClock(0))
    usage.add("a/s", 1)
    taken = usage.take()
    usage.add("a/s", 2)
    usage.add("b/s", 3)
    usage.give_back(taken)
    assert sorted(usage.take(), key=lambda count: count.bucket) == [ReadCount(0, "a", 2, 3), ReadCount(0, "b", 1, 3)]


def test_a_checkpoint_writes_reads_alone_and_adds_them_up() -> None:
    async def body() -> None:
        catalog = SlowCatalog()
        bench = Bench(catalog=catalog)
        bench.create()
        await take(bench)
        bench.group.usage.add("a/s", 4)
        await take(bench)
        bench.group.usage.add("a/s", 5)
        await take(bench)
        written = len(catalog.changes)
        await take(bench)
        assert len(catalog.changes) == written == 3
        assert [(count.bucket, count.reads, count.bytes) for count in catalog.reads(-1, "", 10)] == [("a", 2, 9)]

    asyncio.run(body())


def test_a_failed_checkpoint_loses_no_count() -> None:
    def fail() -> None:
        raise OSError("full")

    async def body() -> None:
        catalog = SlowCatalog(fail)
        bench = Bench(catalog=catalog)
        bench.group.usage.add("a/s", 4)
        with pytest.raises(OSError, match="full"):
            await take(bench)
        catalog.before = lambda: None
        bench.group.usage.add("a/s", 1)
        await take(bench)
        assert [(count.reads, count.bytes) for count in catalog.reads(-1, "", 10)] == [(2, 5)]

    asyncio.run(body())
