"""A catalog without its log: streams end where the lake does, and say who lost what."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from headwater.catalog.set_back import SetBack, set_back
from headwater.catalog.sqlite import SqliteCatalog
from headwater.model.commands import Retention
from headwater.model.events import Forked
from headwater.model.extents import Extent
from headwater.model.row import StreamRow
from tests.catalog import change, stream_row

FILE = "data/0/x.parquet"


def extent(sid: int, start: int, end: int, seq_start: int, row_count: int) -> Extent:
    return Extent(sid, start, end, seq_start, 1, 0, FILE, 0, 0, row_count)


def after(tmp_path: Path, rows: list[StreamRow], extents: list[Extent]) -> tuple[list[SetBack], dict[str, StreamRow]]:
    path = tmp_path / "0.db"
    with closing(SqliteCatalog(path)) as catalog:
        catalog.write(change(rows=rows, extents=extents, files=[FILE], position=900, log_floor=500))
    found = set_back(path)
    assert set_back(path) == []  # there is nothing more to lose
    with closing(SqliteCatalog(path)) as catalog:
        assert (catalog.position, catalog.log_floor) == (900, 900)
        left = {row.key: row for row in catalog.page("", "~", 100)}
        for row in left.values():
            assert all(one.end <= row.tail for one in catalog.extents(row.sid, 0, 100))
        return found, left


def test_a_stream_ends_after_its_newest_record_in_the_lake_and_forgets_what_came_later(tmp_path: Path) -> None:
    written = stream_row(
        key="a/s",
        sid=1,
        tail=100,
        count=10,
        cold_end=60,
        closed=True,
        closed_by=("p", 1, 2),
        producers=[("p", 1, 2, 3)],
        stream_seq="7",
        last_ms=50,
    )
    found, left = after(tmp_path, [written], [extent(1, 0, 40, 0, 4), extent(1, 40, 60, 4, 2)])
    assert found == [SetBack("a/s", 60, 100, 4)]
    row = left["a/s"]
    assert (row.tail, row.count, row.closed, row.closed_by) == (60, 6, False, None)
    assert (row.producers, row.stream_seq) == ([], None)
    assert row.last_ms == 50  # ids that were given are not given again


def test_what_is_in_the_lake_or_was_let_go_is_not_lost(tmp_path: Path) -> None:
    settled = stream_row(key="a/settled", sid=1, tail=60, count=6, cold_end=60, closed=True)
    empty = stream_row(key="a/empty", sid=2, tail=0, count=0)
    trimmed = stream_row(key="a/trimmed", sid=3, tail=80, count=8, earliest=80, first_seq=8, cold_end=20)
    found, left = after(tmp_path, [settled, empty, trimmed], [extent(1, 0, 60, 0, 6)])
    assert found == []
    assert left == {"a/settled": settled, "a/empty": empty, "a/trimmed": trimmed}


def test_a_stream_without_records_in_the_lake_is_empty_from_its_earliest_offset_on(tmp_path: Path) -> None:
    fresh = stream_row(key="a/fresh", sid=1, tail=30, count=3)
    policy = Retention(age_ms=5)
    trimmed = stream_row(
        key="a/trimmed", sid=2, tail=80, count=8, earliest=50, first_seq=5, cold_end=20, retention=policy
    )
    found, left = after(tmp_path, [fresh, trimmed], [])
    assert found == [SetBack("a/fresh", 0, 30, 3), SetBack("a/trimmed", 50, 80, 3)]
    assert [(row.tail, row.count) for row in left.values()] == [(0, 0), (50, 5)]


def test_a_fork_keeps_what_its_source_keeps(tmp_path: Path) -> None:
    source = stream_row(key="a/source", sid=1, tail=100, count=10, cold_end=60, children=5)

    def fork(sid: int, at: int, tail: int, cold_end: int, **more: object) -> StreamRow:
        forked = Forked(1, at, at // 10, 0, 0, None, 0)
        more = {"key": f"a/{sid}", "sid": sid, "tail": tail, "count": tail // 10, "cold_end": cold_end} | more
        return stream_row(**more, forked=forked)

    before = fork(2, 50, 70, 70)
    after_it = fork(3, 80, 90, 90)
    own_hot = fork(4, 60, 70, 60)
    apart = fork(5, 80, 90, 90, earliest=80, first_seq=8)
    between = fork(6, 80, 90, 90, earliest=70, first_seq=7)
    of_a_fork = stream_row(
        key="a/7", sid=7, tail=90, count=9, cold_end=90, forked=Forked(3, 85, 8, 0, 0, None, 0), children=0
    )
    extents = [extent(1, 0, 60, 0, 6), extent(2, 50, 70, 5, 2), *(extent(sid, 80, 90, 8, 1) for sid in (3, 5, 6))]
    found, left = after(tmp_path, [source, before, after_it, own_hot, apart, between, of_a_fork], extents)
    assert found == [
        SetBack("a/source", 60, 100, 4),
        SetBack("a/3", 60, 90, 3),
        SetBack("a/4", 60, 70, 1),
        SetBack("a/6", 70, 90, 2),
        SetBack("a/7", 60, 90, 3),
    ]
    forks = {key: (row.tail, row.count, row.forked and row.forked.at, row.cold_end) for key, row in left.items()}
    assert forks["a/2"] == (70, 7, 50, 70)
    assert forks["a/3"] == forks["a/4"] == forks["a/7"] == (60, 6, 60, 60)
    assert forks["a/5"] == (90, 9, 80, 90)
    assert forks["a/6"] == (70, 7, 70, 70)
