"""Start-up from a catalog and a log that a test wrote down: what is folded, what is put back, what is refused.
The fold of whole histories is held against the live group elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headwater.catalog.sqlite import SqliteCatalog
from headwater.engine.checkpoint import checkpoint
from headwater.engine.recovery import LogContradiction, recover
from headwater.model.commands import Create, Delete, Durability, Fork, PublishSnapshot, Retention, Trim
from headwater.model.events import Appended, BucketCreated, Created, Deleted, Event, Touched
from headwater.model.row import BucketRow, Snapshot
from headwater.model.timeline import RECORD_BYTES
from tests.catalog import change, stream_row
from tests.engine import KEY, Bench, HandLog

Logged = list[tuple[int, Event]]


def recovered(log: Logged, catalog: SqliteCatalog | None = None, head: int = 0, tail: int = 0) -> Bench:
    hand = HandLog(log)
    hand.head = head
    hand.tail = hand.written = hand.synced = max(hand.tail, tail)
    bench = Bench(hand, catalog)
    assert recover(bench.group) == len(log)
    return bench


def catalog_of(
    *rows: Any, position: int = 100, log_floor: int = 0, next_sid: int = 2, buckets: Any = ()
) -> SqliteCatalog:
    catalog = SqliteCatalog(None)
    catalog.write(
        change(rows=list(rows), buckets=list(buckets), position=position, log_floor=log_floor, next_sid=next_sid)
    )
    return catalog


def created(sid: int = 1, key: str = KEY, records: list[bytes] | None = None, **more: Any) -> Created:
    return Created(key, sid, "text/plain", 1_000, Durability.FSYNC, records or [], **more)


def appended(payload: bytes, start: int, sid: int = 1, **more: Any) -> Appended:
    fields: dict[str, Any] = {"closed": False, "producer": None, "stream_seq": None} | more
    return Appended(sid, start, start + len(payload), 2_000, 2_000, 0, [payload], **fields)


def test_an_empty_start_is_an_empty_group() -> None:
    bench = recovered([])
    assert bench.group.loaded.by_key == {} and bench.group.next_sid == 1


def test_a_log_without_a_catalog_is_folded_from_its_beginning() -> None:
    bench = recovered([(10, created(records=[b"one"])), (20, appended(b"two", 3)), (30, Touched(1, 5_000))])
    assert bench.read() == b"onetwo"
    assert bench.group.next_sid == 2 and bench.group.loaded.hot_bytes == 6 + 2 * RECORD_BYTES
    assert list(bench.group.loaded.dirty) == [1]
    bench.post(b"three")
    bench.sync()
    assert bench.read() == b"onetwothree"


def test_events_that_the_row_tells_of_already_only_bring_their_payload_back() -> None:
    row = stream_row(position=40, tail=9, count=3, producers=[("p", 0, 1, 2_000)], closed=True)
    catalog = catalog_of(row, position=40)
    log: Logged = [(10, created(records=[b"one"])), (20, appended(b"two", 3)), (40, appended(b"xyz", 6))]
    bench = recovered(log, catalog)
    stream = bench.group.find(KEY, touch=False)
    assert stream.row() == row
    assert bench.read() == b"onetwoxyz" and stream.closed_visible
    assert bench.group.loaded.dirty == {} and bench.group.loaded.hot_bytes == 9 + 3 * RECORD_BYTES
    assert list(stream.timeline.positions) == [10, 20, 40]


def test_a_row_that_is_newer_than_the_catalogs_position_is_not_changed_again() -> None:
    row = stream_row(position=30, tail=6, count=2)
    bench = recovered(
        [(10, created()), (20, appended(b"one", 0)), (30, appended(b"two", 3)), (40, appended(b"xyz", 6))],
        catalog_of(row, position=15),
    )
    assert bench.read() == b"onetwoxyz"
    assert bench.group.find(KEY, touch=False).count == 3


def test_a_stream_deleted_before_the_checkpoint_does_not_come_back() -> None:
    log: Logged = [(10, created()), (20, appended(b"x", 0)), (30, Deleted(1, KEY, 2_000))]
    bench = recovered(log, catalog_of(position=30))
    assert bench.group.loaded.by_key == {} and bench.group.next_sid == 2


def test_a_stream_deleted_after_the_checkpoint_is_gone_and_its_row_waits_to_go() -> None:
    catalog = catalog_of(stream_row(position=10), position=10, buckets=[BucketRow("_default", 10, False, 1, 1)])
    bench = recovered([(10, created()), (20, appended(b"x", 0)), (30, Deleted(1, KEY, 2_000))], catalog)
    assert bench.group.loaded.find(KEY) is None
    assert bench.group.loaded.removed == {1: KEY} and bench.group.loaded.hot_bytes == 0
    bucket = bench.group.loaded.bucket("_default")
    assert bucket is not None and bucket.count == 0


def test_a_name_that_changed_hands_behind_the_checkpoint_belongs_to_the_last() -> None:
    log: Logged = [
        (10, created(1, records=[b"old"])),
        (20, Deleted(1, KEY, 2_000)),
        (30, created(2, records=[b"new"])),
    ]
    bench = recovered(log, catalog_of(stream_row(position=10, tail=3, count=1), position=10))
    assert bench.read() == b"new" and bench.group.next_sid == 3


def test_sids_are_never_used_again_even_when_log_and_catalog_forgot_their_streams() -> None:
    bench = recovered([], catalog_of(position=100, log_floor=100, next_sid=7), head=90, tail=100)
    bench.create()
    assert bench.group.find(KEY, touch=False).sid == 7


def test_buckets_come_back_from_row_and_log() -> None:
    catalog = catalog_of(position=15, buckets=[BucketRow("alpha", 12, True, 1, 2)])
    bench = recovered([(12, BucketCreated("alpha", 1)), (20, BucketCreated("beta", 2))], catalog)
    alpha, beta = bench.group.loaded.bucket("alpha"), bench.group.loaded.bucket("beta")
    assert alpha is not None and (alpha.explicit, alpha.count) == (True, 2)
    assert beta is not None and beta.exists


def test_a_stream_that_grew_too_old_while_the_node_was_down_is_trimmed_without_another_append() -> None:
    bench = recovered([(10, created(records=[b"old"], retention=Retention(age_ms=1_000)))])
    assert bench.read() == b"old"
    bench.group.apply_retention()
    bench.sync()
    assert bench.group.find(KEY, touch=False).earliest == 3


def test_a_fork_reads_what_its_source_let_go_also_after_a_restart() -> None:
    async def body() -> None:
        live = Bench()
        live.create()
        for payload in (b"one", b"two", b"three"):
            live.post(payload)
        live.submit(Create("_default/fork", None, [b"own"], fork=Fork(KEY, 6)), "_default/fork")
        live.submit(Trim(11))
        live.sync()
        await checkpoint(live.group)
        assert live.read("_default/fork") == b"onetwoown"
        assert isinstance(live.group.catalog, SqliteCatalog)
        kept = [(position, event) for position, event in live.log.events if position > live.log.trims[-1]]
        again = recovered(kept, live.group.catalog)
        assert again.read("_default/fork") == b"onetwoown"
        assert again.group.find(KEY, touch=False).earliest == 11
        again.submit(Delete(), "_default/fork")
        again.submit(Delete())
        again.sync()
        assert again.group.loaded.by_key == {} and again.group.loaded.hot_bytes == 0

    asyncio.run(body())


def test_a_trim_keeps_the_snapshot_it_passes_and_its_blob_is_discarded_once_a_newer_one_comes() -> None:
    async def body() -> None:
        live = Bench()
        live.create()
        for payload in (b"one", b"two", b"three"):
            live.post(payload)
        live.submit(PublishSnapshot(3, "text/plain", "snapshots/1/a", 1))
        live.submit(Trim(6))
        live.sync()
        again = recovered(list(live.log.events))
        for bench in (live, again):
            stream = bench.group.find(KEY, touch=False)
            assert (stream.earliest, stream.snapshot) == (6, Snapshot(3, "text/plain", "snapshots/1/a", 1))
            assert list(bench.group.loaded.blobs_discarded) == []
            bench.submit(PublishSnapshot(11, "text/plain", "snapshots/1/b", 1))
            bench.submit(Delete())
            bench.sync()
            assert [blob for _, blob in bench.group.loaded.blobs_discarded] == ["snapshots/1/a", "snapshots/1/b"]

    asyncio.run(body())


# ---- what cannot both be true --------------------------------------------------------------------------------------


def contradiction(log: Logged, catalog: SqliteCatalog, head: int = 0, tail: int = 0) -> str:
    with pytest.raises(LogContradiction) as caught:
        recovered(log, catalog, head, tail)
    return str(caught.value)


def test_a_log_that_ends_before_the_catalogs_position_is_refused() -> None:
    said = contradiction([(10, created())], catalog_of(position=100))
    assert "100" in said and "10" in said and "missing" in said


def test_a_log_that_begins_behind_what_the_catalog_counts_on_is_refused() -> None:
    said = contradiction([], catalog_of(position=100, log_floor=50), head=60, tail=100)
    assert "60" in said and "50" in said and "missing" in said


def test_an_append_that_does_not_continue_its_stream_is_refused() -> None:
    catalog = catalog_of(stream_row(position=10, tail=5, count=1), position=10)
    said = contradiction([(20, appended(b"x", 7))], catalog)
    assert KEY in said and "5" in said and "7" in said


def test_events_of_a_stream_that_nobody_created_are_refused() -> None:
    said = contradiction([(20, appended(b"x", 0, sid=9))], catalog_of(position=10))
    assert "9" in said and "never created" in said


def test_events_of_an_unknown_stream_that_is_deleted_later_are_passed_over() -> None:
    log: Logged = [(20, appended(b"x", 0, sid=9)), (30, Deleted(9, "_default/gone", 3_000))]
    assert recovered(log, catalog_of(position=10)).group.loaded.by_key == {}
