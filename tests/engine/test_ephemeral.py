"""Ephemeral streams: resident only. Topics, durability table: appends and deletes skip the log, records are queryable
while the process runs and lost on restart, a checkpoint keeps the head so that no number is given out twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headwater.catalog.sqlite import SqliteCatalog
from headwater.engine.checkpoint import checkpoint
from headwater.engine.read_plan import Slice, plan
from headwater.engine.recovery import recover
from headwater.errors import BadHeader, BadSnapshotOffset, Overloaded
from headwater.model.commands import (
    Create,
    DeleteRecords,
    Durability,
    Fork,
    PublishSnapshot,
    Retention,
)
from headwater.model.events import Appended, Created, RecordsDeleted
from headwater.model.holes import Run
from tests.engine import KEY, Bench, HandLog, group_on


def ephemeral(retention: Retention | None = None, **more: int) -> Bench:
    bench = Bench(**more)  # type: ignore[arg-type]
    bench.submit(Create(KEY, "text/plain", [], durability=Durability.EPHEMERAL, retention=retention))
    bench.sync()
    return bench


def body(bench: Bench) -> bytes:
    stream = bench.group.find(KEY, touch=False)
    part = plan(stream, stream.earliest, 1 << 20)
    assert isinstance(part, Slice)
    return b"".join(part.payloads)


def test_an_append_is_answered_and_read_at_once_and_never_logged() -> None:
    bench = ephemeral()
    logged = len(bench.log.events)
    answered = bench.post(b"now")
    assert isinstance(answered.outcome, Appended)
    assert body(bench) == b"now"
    assert len(bench.log.events) == logged
    assert bench.group.loaded.hot_bytes == 0 and not bench.group.loaded.holding
    assert bench.group.lake_position() == bench.log.synced


def test_a_deletion_and_a_policy_take_away_without_a_word_in_the_log() -> None:
    bench = ephemeral(Retention(records=2))
    logged = len(bench.log.events)
    for payload in (b"a", b"b", b"c", b"d"):
        bench.post(payload)
    bench.group.apply_retention()
    assert body(bench) == b"cd"
    deleted = bench.submit(DeleteRecords([Run(2, 3, 2, 3)]))
    assert isinstance(deleted.outcome, RecordsDeleted)
    assert body(bench) == b"d"
    stream = bench.group.find(KEY, touch=False)
    assert (stream.evict_floor, stream.earliest_seq, stream.live_count) == (3, 4, 1)
    assert len(bench.log.events) == logged
    assert bench.group.loaded.unlogged_bytes == stream.timeline.held_bytes > 0


def test_what_ephemeral_streams_hold_is_bounded_and_does_not_bound_others() -> None:
    bench = ephemeral(hot_bytes_max=10_000)
    assert isinstance(bench.post(b"x" * 4_000).outcome, Appended)
    assert isinstance(bench.post(b"x" * 2_000).outcome, Overloaded)
    bench.create("_default/kept")
    answered = bench.post(b"x" * 6_000, key="_default/kept")
    bench.sync()
    assert isinstance(answered.outcome, Appended)
    bench.submit(DeleteRecords([Run(0, 1, 0, 4_000)]))
    assert isinstance(bench.post(b"x" * 2_000).outcome, Appended)


def test_a_restart_loses_the_records_says_so_and_gives_no_number_out_twice(tmp_path: Path) -> None:
    bench = Bench(catalog=SqliteCatalog(tmp_path / "catalog.db"))
    bench.submit(Create(KEY, "text/plain", [], durability=Durability.EPHEMERAL))
    bench.sync()
    for payload in (b"a", b"b", b"c"):
        bench.post(payload)
    asyncio.run(checkpoint(bench.group))
    bench.group.catalog.close()

    again = group_on(HandLog(), SqliteCatalog(tmp_path / "catalog.db"), bench.clock, bench.scheduled.append)
    again.log.tail = again.log.written = again.log.synced = bench.log.tail  # type: ignore[misc]
    recover(again)
    stream = again.find(KEY, touch=False)
    assert (stream.count, stream.live_count, stream.earliest) == (3, 0, 3)
    assert stream.earliest_seq == stream.evict_floor == 4
    again.catalog.close()


def test_nothing_that_outlives_the_process_can_hang_on_one() -> None:
    bench = ephemeral()
    bench.post(b"abc")
    snapshot = bench.submit(PublishSnapshot(3, "text/plain", "blob", 5))
    assert isinstance(snapshot.outcome, BadSnapshotOffset)
    fork = bench.submit(Create("_default/f", None, [], fork=Fork(KEY)), "_default/f")
    assert isinstance(fork.outcome, BadHeader)


def test_one_with_records_is_not_unloaded() -> None:
    bench = ephemeral()
    bench.post(b"abc")
    loaded = bench.group.loaded
    loaded.dirty.clear()
    for _ in range(3):
        loaded.evict(0, 10)
    assert KEY in loaded.by_key
    stream = loaded.by_key[KEY]
    bench.submit(DeleteRecords([Run(0, 1, 0, 3)]))
    loaded.dirty.clear()
    assert not stream.holding
    for _ in range(3):
        loaded.evict(0, 10)
    assert KEY not in loaded.by_key


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.DISK, Durability.MEMORY])
def test_a_deletion_waits_for_as_much_as_an_append_does(durability: Durability) -> None:
    bench = Bench()
    created = bench.submit(Create(KEY, "text/plain", [b"a", b"b"], durability=durability))
    bench.sync()
    assert isinstance(created.outcome, Created)
    answered = bench.submit(DeleteRecords([Run(0, 1, 0, 1)]))
    assert body(bench) == b"b", "readers know at once"
    assert answered.waits == (durability != Durability.MEMORY)
    bench.write()
    assert answered.waits == (durability == Durability.FSYNC)
    bench.sync()
    assert isinstance(answered.outcome, RecordsDeleted)
