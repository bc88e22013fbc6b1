"""Ephemeral streams: resident only. Topics, durability table: appends and deletes skip the log, records are queryable
while the process runs and lost on restart. The log is only told how far numbers may have been given out, and a
checkpoint keeps the head, so that no number is given out twice."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from headwater.catalog.sqlite import SqliteCatalog
from headwater.engine import unlogged_heads
from headwater.engine.checkpoint import checkpoint
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.read_plan import Slice, plan, shown_count
from headwater.engine.recovery import recover
from headwater.errors import BadHeader, BadSnapshotOffset, Overloaded, StreamNotFound
from headwater.model.commands import (
    Create,
    Delete,
    DeleteRecords,
    Durability,
    Fork,
    PublishSnapshot,
    Retention,
)
from headwater.model.events import Appended, Created, Event, RecordsDeleted
from headwater.model.holes import Run
from tests.engine import KEY, Bench, HandLog, group_on


def ephemeral(retention: Retention | None = None, **more: int) -> Bench:
    bench = Bench(**more)  # type: ignore[arg-type]
    bench.submit(Create(KEY, "text/plain", [], durability=Durability.EPHEMERAL, retention=retention))
    bench.sync()
    return bench


def in_use(retention: Retention | None = None, **more: int) -> Bench:
    """Its first append is through, which had to wait for the log; its record is deleted."""
    bench = ephemeral(retention, **more)
    bench.post(b"-")
    bench.sync()
    bench.submit(DeleteRecords([Run(0, 1, 0, 1)]))
    return bench


def take_checkpoint(bench: Bench) -> None:
    async def work() -> None:
        writing = asyncio.ensure_future(checkpoint(bench.group, always=True))
        while not writing.done():
            await asyncio.sleep(0)
            bench.sync()
        await writing

    asyncio.run(work())


def body(bench: Bench) -> bytes:
    stream = bench.group.find(KEY, touch=False)
    part = plan(stream, stream.earliest, 1 << 20)
    assert isinstance(part, Slice)
    return b"".join(part.payloads)


def test_an_append_is_answered_and_read_at_once_and_never_logged() -> None:
    bench = in_use()
    logged = len(bench.log.events)
    answered = bench.post(b"now")
    assert isinstance(answered.outcome, Appended)
    assert body(bench) == b"now"
    assert len(bench.log.events) == logged
    assert bench.group.loaded.hot_bytes == 0 and not bench.group.loaded.holding
    assert bench.group.lake_position() == bench.log.synced


def test_a_deletion_and_a_policy_take_away_without_a_word_in_the_log() -> None:
    bench = in_use(Retention(records=2))
    logged = len(bench.log.events)
    for payload in (b"a", b"b", b"c", b"d"):
        bench.post(payload)
    bench.group.apply_retention()
    assert body(bench) == b"cd"
    deleted = bench.submit(DeleteRecords([Run(3, 4, 3, 4)]))
    assert isinstance(deleted.outcome, RecordsDeleted)
    assert body(bench) == b"d"
    stream = bench.group.find(KEY, touch=False)
    assert (stream.evict_floor, stream.earliest_seq, stream.live_count) == (4, 5, 1)
    assert len(bench.log.events) == logged
    assert bench.group.loaded.unlogged_bytes == stream.timeline.held_bytes > 0


def test_what_ephemeral_streams_hold_is_bounded_and_does_not_bound_others() -> None:
    bench = in_use(hot_bytes_max=10_000)
    assert isinstance(bench.post(b"x" * 4_000).outcome, Appended)
    assert isinstance(bench.post(b"x" * 2_000).outcome, Overloaded)
    bench.create("_default/kept")
    answered = bench.post(b"x" * 6_000, key="_default/kept")
    bench.sync()
    assert isinstance(answered.outcome, Appended)
    bench.submit(DeleteRecords([Run(1, 2, 1, 4_001)]))
    assert isinstance(bench.post(b"x" * 2_000).outcome, Appended)


def test_a_restart_loses_the_records_says_so_and_gives_no_number_out_twice(tmp_path: Path) -> None:
    bench = Bench(catalog=SqliteCatalog(tmp_path / "catalog.db"))
    bench.submit(Create(KEY, "text/plain", [], durability=Durability.EPHEMERAL))
    bench.sync()
    for payload in (b"a", b"b", b"c"):
        bench.post(payload)
    bench.sync()
    take_checkpoint(bench)
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
    bench.sync()
    snapshot = bench.submit(PublishSnapshot(3, "text/plain", "blob", 5))
    assert isinstance(snapshot.outcome, BadSnapshotOffset)
    fork = bench.submit(Create("_default/f", None, [], fork=Fork(KEY)), "_default/f")
    assert isinstance(fork.outcome, BadHeader)


def test_one_with_records_is_not_unloaded() -> None:
    bench = ephemeral()
    bench.post(b"abc")
    bench.sync()
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


# ---- a crash -------------------------------------------------------------------------------------------------------


class Crashing:
    """An ephemeral stream whose process is killed, with what was synced by then, and begins again."""

    def __init__(self, path: Path) -> None:
        self._path = path / "catalog.db"
        self.bench = Bench(catalog=SqliteCatalog(self._path))
        self.kept: list[tuple[int, Event]] = []
        self.bench.submit(Create(KEY, "text/plain", [], durability=Durability.EPHEMERAL))
        self.bench.sync()

    @property
    def stream(self) -> LoadedStream:
        return self.bench.group.find(KEY, touch=False)

    def post(self, count: int = 1) -> None:
        for _ in range(count):
            self.bench.post(b"x" * 10)
        self.bench.sync()

    def checkpoint(self) -> None:
        """The catalog has it, and the log lets go of everything before."""
        take_checkpoint(self.bench)
        self.kept = []
        self.bench.log.events = [one for one in self.bench.log.events if one[0] > self.bench.log.trims[-1]]

    def crash(self) -> None:
        bench = self.bench
        self.kept += [one for one in bench.log.events if one[0] <= bench.log.synced]
        bench.group.catalog.close()
        log = HandLog(list(self.kept))
        log.head = bench.log.trims[-1] if bench.log.trims else 0
        log.tail = log.written = log.synced = max(log.tail, bench.log.synced)
        self.bench = Bench(log, SqliteCatalog(self._path))
        recover(self.bench.group)

    def close(self) -> None:
        self.bench.group.catalog.close()


@pytest.mark.parametrize("seed", range(8))
def test_no_number_is_given_out_twice_whenever_it_crashes(tmp_path: Path, seed: int) -> None:
    """Nor an offset: a reader with a cursor gets a tombstone, and then everything that was written since."""
    rng = random.Random(seed)
    crashing = Crashing(tmp_path)
    told = told_offset = 0
    for _ in range(40):
        match rng.randrange(6):
            case 0:
                crashing.checkpoint()
            case 1:
                crashing.crash()
                stream = crashing.stream
                assert stream.count >= told and stream.tail >= told_offset
                assert stream.live_count == 0 and stream.earliest == stream.tail
                assert stream.evict_floor == stream.count + 1 or not told
            case 2:
                for _ in range(rng.randrange(3)):
                    crashing.bench.post(b"not synced")
            case _:
                first = crashing.stream.count
                crashing.post(rng.choice([1, 3, 200]))
                assert crashing.stream.visible == crashing.stream.tail
                assert first >= told
        stream = crashing.stream
        told_offset = max(told_offset, stream.visible)
        told = max(told, shown_count(stream))
    crashing.close()


def test_a_stream_that_nobody_writes_to_keeps_its_head_exactly(tmp_path: Path) -> None:
    crashing = Crashing(tmp_path)
    crashing.post(3)
    for _ in range(3):
        crashing.checkpoint()
    for _ in range(2):
        crashing.crash()
        assert (crashing.stream.count, crashing.stream.tail) == (3, 30)
    crashing.close()


def test_in_the_run_of_things_no_append_but_the_first_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unlogged_heads, "AHEAD_COUNT", 100)
    crashing = Crashing(tmp_path)
    assert crashing.bench.post(b"x").waits
    crashing.bench.sync()
    waiting = 0
    for number in range(1, 1_000):
        waiting += crashing.bench.post(b"x").waits
        if number % 20 == 0:
            crashing.bench.sync()
        if number % 150 == 0:
            crashing.checkpoint()
    assert waiting == 0
    crashing.close()


def test_appends_beyond_what_is_reserved_wait_and_are_told_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unlogged_heads, "AHEAD_COUNT", 4)
    crashing = Crashing(tmp_path)
    bench = crashing.bench
    inboxes = [bench.post(b"x") for _ in range(20)]
    assert all(one.waits for one in inboxes) and body(bench) == b""
    bench.sync()
    assert bench.told[-20:] == inboxes and body(bench) == b"x" * 20
    crashing.crash()
    assert crashing.stream.count >= 20
    crashing.close()


def test_a_deleted_stream_reserves_nothing_that_a_start_would_stumble_on(tmp_path: Path) -> None:
    crashing = Crashing(tmp_path)
    crashing.post(3)
    crashing.bench.submit(Delete())
    crashing.checkpoint()
    crashing.checkpoint()
    crashing.crash()
    with pytest.raises(StreamNotFound):
        _ = crashing.stream
    crashing.close()


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
