"""Policies over settled records: whole extents go once all of them is beyond a bound, and never one too many."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.catalog.lake_files import LakeFiles
from headwater.catalog.sqlite import SqliteCatalog
from headwater.engine.loaded_stream import LoadedStream
from headwater.model.commands import Append, Create, Delete, Fork, Retention
from headwater.model.extents import Extent
from tests.catalog import change
from tests.engine import KEY, Bench

RECORD = b"0123456789"
STEP_MS = 1_000


def filled(count: int, policy: Retention | None, catalog: SqliteCatalog | None = None) -> tuple[Bench, LoadedStream]:
    """A stream of records of ten bytes, a second apart."""
    bench = Bench(catalog=catalog)
    bench.submit(Create(KEY, "text/plain", [], retention=policy))
    bench.sync()
    grow(bench, count)
    return bench, bench.group.find(KEY, touch=False)


def grow(bench: Bench, count: int) -> None:
    for _ in range(count):
        bench.post(RECORD)
        bench.sync()
        bench.clock.ms += STEP_MS


def settle(bench: Bench, stream: LoadedStream, counts: list[int]) -> list[Extent]:
    """The oldest records in memory go to the lake, as extents of so many records each."""
    timeline, extents, index = stream.timeline, [], 0
    for number, count in enumerate(counts):
        begin, end = timeline.begin_of(index), timeline.ends[index + count - 1]
        ms, n, seq = timeline.ms[index], timeline.n[index], timeline.seq + index
        extents.append(Extent(stream.sid, begin, end, seq, ms, n, f"data/0/{begin}", number, 0, count))
        index += count
    bench.group.settle("data/0/file", extents, {stream.sid: stream})
    bench.sync()
    return extents


def kept(bench: Bench, stream: LoadedStream) -> tuple[int, int]:
    """The earliest offset and its seq, after the policy was applied as often as it finds something."""
    bench.group.check_retention(stream)
    for _ in range(20):
        bench.group.apply_retention()
        bench.sync()
    return stream.earliest, stream.first_seq


def test_a_bound_on_records_cuts_at_the_end_of_an_extent() -> None:
    bench, stream = filled(20, None)
    settle(bench, stream, [5, 5, 5])
    stream.retention = Retention(records=12)
    # Eight are too many: the first extent is, the second only in part.
    assert kept(bench, stream) == (50, 5)
    grow(bench, 2)
    assert kept(bench, stream) == (100, 10)


def test_a_bound_on_bytes_cuts_at_the_end_of_an_extent() -> None:
    bench, stream = filled(20, None)
    settle(bench, stream, [5, 5, 5])
    stream.retention = Retention(bytes=101)
    assert kept(bench, stream) == (50, 5)
    stream.retention = Retention(bytes=100)
    assert kept(bench, stream) == (100, 10)


def test_a_bound_on_age_waits_until_every_record_of_an_extent_is_too_old() -> None:
    bench, stream = filled(20, None)
    settle(bench, stream, [5, 5, 10])
    began_ms = bench.clock.ms - 20 * STEP_MS
    stream.retention = Retention(age_ms=10_000)
    # The first extent's last record is from 4 s after the beginning; known of it is only that the next one's is later.
    bench.clock.ms = began_ms + 10_000 + 5 * STEP_MS
    assert kept(bench, stream) == (0, 0)
    bench.clock.ms += 1
    assert kept(bench, stream) == (50, 5)
    bench.clock.ms = began_ms + 10_000 + 10 * STEP_MS + 1
    assert kept(bench, stream) == (100, 10)
    bench.clock.ms = began_ms + 10_000 + 19 * STEP_MS
    assert kept(bench, stream) == (100, 10)
    bench.clock.ms += 1
    assert kept(bench, stream) == (200, 20)


@pytest.mark.parametrize(
    "policy", [Retention(records=1_000), Retention(bytes=1_000_000), Retention(age_ms=1_000_000_000), Retention()]
)
def test_a_stream_within_its_policy_keeps_all_that_settled(policy: Retention) -> None:
    bench, stream = filled(20, policy)
    settle(bench, stream, [5, 10])
    assert kept(bench, stream) == (0, 0)


def test_a_bound_inside_memory_takes_everything_settled_with_it() -> None:
    bench, stream = filled(20, None)
    settle(bench, stream, [5, 5])
    stream.retention = Retention(records=3)
    assert kept(bench, stream) == (170, 17)


def test_more_extents_than_one_look_goes_through_go_in_several() -> None:
    bench, stream = filled(200, None)
    settle(bench, stream, [1] * 190)
    stream.retention = Retention(records=15)
    assert kept(bench, stream) == (1_850, 185)


def test_a_stream_that_grows_all_the_time_is_not_looked_up_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, stream = filled(20, None)
    settle(bench, stream, [10])
    stream.retention = Retention(records=1_000, age_ms=1_000_000_000)
    looks = []
    real = bench.group.loaded.extents
    monkeypatch.setattr(bench.group.loaded, "extents", lambda *asked: looks.append(asked) or real(*asked))
    for _ in range(10):
        grow(bench, 1)
        bench.group.apply_retention()
    assert len(looks) == 1


def test_a_policy_of_a_fork_cuts_what_it_shares_and_its_source_keeps_it() -> None:
    bench, source = filled(20, None)
    settle(bench, source, [5, 5, 5, 5])
    fork = "_default/fork"
    bench.submit(Create(fork, "text/plain", [], fork=Fork(KEY), retention=Retention(records=12)), fork)
    bench.sync()
    child = bench.group.find(fork, touch=False)
    assert kept(bench, child) == (50, 5)
    assert source.earliest == 0 and source.sid not in bench.group.loaded.cuts
    bench.submit(Append([RECORD] * 30, None, None), fork)
    bench.sync()
    assert kept(bench, child)[1] == 50 - 12


def test_what_a_source_let_go_of_is_dropped_when_its_last_fork_goes() -> None:
    bench, source = filled(20, Retention(records=10))
    settle(bench, source, [5, 5, 5, 5])
    fork = "_default/fork"
    bench.submit(Create(fork, "text/plain", [], fork=Fork(KEY)), fork)
    bench.sync()
    assert kept(bench, source) == (100, 10)
    assert bench.group.loaded.cuts == {}
    bench.submit(Delete(), fork)
    bench.sync()
    assert bench.group.loaded.cuts == {source.sid: 100}


def test_streams_whose_settled_records_grew_too_old_are_found_in_the_catalog(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    bench, stream = filled(20, Retention(age_ms=10_000), catalog)
    extents = settle(bench, stream, [5, 15])
    catalog.write(change(rows=[stream.row()], extents=extents, files=["data/0/file"]))
    lake_files = LakeFiles(tmp_path / "catalog.db")
    began_ms = bench.clock.ms - 20 * STEP_MS
    assert list(lake_files.aged(began_ms + 10_000 + 5 * STEP_MS)) == []
    assert list(lake_files.aged(began_ms + 10_000 + 5 * STEP_MS + 1)) == [KEY]
    stream.earliest = stream.tail
    catalog.write(change(rows=[stream.row()], cuts=[(stream.sid, stream.tail)]))
    assert list(lake_files.aged(1 << 60)) == []
