"""Swaps judged without a node: whatever files rows were in, and whatever files they are in now, the extents that are
found lead to the very same records; and a file that is no file of the lake is told apart."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import OwnerChanged, SwapRefused
from headwater.lake import swap as judge
from headwater.lake.cache import MemoryCache
from headwater.lake.keys import NotLake, described, read_keys
from headwater.lake.layout import SCHEMA, statistics
from headwater.lake.reader import Reader
from headwater.lake.sorted_writer import write_sorted
from headwater.lake.store import MemoryStore
from headwater.lake.swap import read_swap
from headwater.lake.writer import SORTED_BY, Built, build
from headwater.model.extents import Extent, Run
from headwater.ports import Writer
from tests.lake.rows import run, some_runs

names = st.text("ab/-é\U0001f40e", min_size=1, max_size=4).map(lambda text: f"bucket/{text}")
streams = st.lists(st.tuples(names, st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=12)), max_size=6)


def nothing() -> None:
    """There is no reason to end early."""


def part(whole: Run, low: int, high: int) -> Run:
    start = whole.ends[low - 1] if low else whole.start
    columns = (whole.ends[low:high], whole.ms[low:high], whole.n[low:high], whole.positions[low:high])
    place = (whole.seq_start + low, start)
    return Run(whole.key, whole.sid, whole.content_type, *place, whole.payloads[low:high], *columns)


def stored(store: MemoryStore, built: Built) -> str:
    store.put(built.file.path, built.data)
    return built.file.path


def rows_in(store: MemoryStore, files: list[str]) -> pa.Table:
    tables = [pq.read_table(pa.BufferReader(store.get(file))).cast(SCHEMA) for file in files]
    return pa.concat_tables(tables).sort_by([(name, "ascending") for name in SORTED_BY])


def rewritten(store: MemoryStore, rows: pa.Table, token: str, rows_per_group: int = 4_096) -> str:
    written = write_sorted(rows.to_batches(), 0, token, rows_per_group=rows_per_group)
    assert written is not None
    store.put(written.file.path, written.data)
    return written.file.path


@settings(max_examples=150)
@given(streams, st.data())
def test_extents_of_the_new_files_lead_to_the_same_records(
    made: list[tuple[str, list[bytes]]], data: st.DataObject
) -> None:
    store = MemoryStore()
    whole = {sid: run(key, sid, some, start=sid * 7, seq=sid * 3) for sid, (key, some) in enumerate(made, 1)}
    pieces: dict[int, list[Run]] = {0: [], 1: [], 2: []}
    for one in whole.values():
        edges = sorted({0, len(one.payloads), *data.draw(st.lists(st.integers(0, len(one.payloads)), max_size=2))})
        for low, high in pairwise(edges):
            pieces[data.draw(st.integers(0, 2))].append(part(one, low, high))
    old, live = [], {}
    for number, runs in pieces.items():
        if runs:
            built = build(runs, 0, f"old{number}", rows_per_group=data.draw(st.integers(2, 9)))
            old.append(stored(store, built))
            live[old[-1]] = built.extents
    if not old:
        return
    rows = rows_in(store, old)
    cuts = sorted({0, len(rows), *data.draw(st.lists(st.integers(0, len(rows)), max_size=2))})
    new = [
        rewritten(store, rows.slice(low, high - low), f"new{low}", data.draw(st.integers(2, 9)))
        for low, high in pairwise(cuts)
    ]
    read = read_swap(store, old, new, Writer(0), nothing)
    # Streams that were deleted, or trimmed, since the new files were written.
    gone = data.draw(st.dictionaries(st.sampled_from(sorted(whole)), st.integers(0, 200), max_size=3))
    live = {name: [one for one in some if one.end > gone.get(one.sid, -1)] for name, some in live.items()}
    found = read.match(live)
    kept = [one for some in live.values() for one in some]
    expected = {(one.sid, one.seq_start + index) for one in kept for index in range(one.row_count)}
    reader = Reader(store, MemoryCache(1 << 20))
    seen: list[tuple[int, int]] = []
    extents = list(found.extents())
    assert extents == sorted(extents, key=lambda one: (one.sid, one.start))
    for extent in extents:
        original = whole[extent.sid]
        low = extent.seq_start - original.seq_start
        columns = reader.records(extent, extent.start, extent.end)
        assert columns.payloads == original.payloads[low : low + extent.row_count]
        assert extent.end == original.ends[low + extent.row_count - 1]
        assert (extent.ms, extent.n) == (original.ms[low], original.n[low])
        assert extent.position == original.positions[low + extent.row_count - 1]
        seen += [(extent.sid, extent.seq_start + index) for index in range(extent.row_count)]
    assert sorted(seen) == sorted(expected) and len(seen) == found.live_rows
    assert found.dropped_rows == len(rows) - len(expected)
    assert {file.path for file in found.files} | set(found.unused) == set(new)
    assert {extent.file for extent in extents} == {file.path for file in found.files}


def test_a_run_that_is_split_by_the_end_of_a_row_group_is_two_extents() -> None:
    store = MemoryStore()
    built = build([run("bucket/a", 1, [b"x"] * 10)], 0, "old")
    old = stored(store, built)
    new = rewritten(store, rows_in(store, [old]), "new", rows_per_group=4)
    found = list(read_swap(store, [old], [new], Writer(0), nothing).match({old: built.extents}).extents())
    assert [(one.row_group, one.row_start, one.row_count) for one in found] == [(0, 0, 4), (1, 0, 6)]
    assert [(one.start, one.end) for one in found] == [(0, 4), (4, 10)]


def test_too_many_rows_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    old = stored(store, build(some_runs(), 0, "old"))
    monkeypatch.setattr(judge, "ROWS_MAX", 99)
    with pytest.raises(SwapRefused, match="more than 99 in one swap"):
        read_swap(store, [old], [], Writer(0), nothing)


def test_extents_that_the_old_file_does_not_hold_are_told_of() -> None:
    store = MemoryStore()
    built = build(some_runs(), 0, "old")
    old = stored(store, built)
    new = rewritten(store, rows_in(store, [old]), "new")
    read = read_swap(store, [old], [new], Writer(0), nothing)
    first = built.extents[0]
    for wrong in (
        Extent(first.sid, first.start, first.end, 7, first.ms, first.n, old, 0, 0, 1),
        Extent(first.sid, first.start, first.end, 0, first.ms, first.n, old, 9, 0, 1),
        Extent(first.sid, first.start, first.end, 0, first.ms, first.n, old, 0, 90, 20),
    ):
        with pytest.raises(SwapRefused, match="headwater lake verify"):
            read.match({old: [wrong]})


def test_a_files_footer_tells_what_its_writer_told() -> None:
    store = MemoryStore()
    built = build(some_runs(7, 50), 0, "token", rows_per_group=16)
    path = stored(store, built)
    assert described(store, path) == built.file == read_keys(store, path, 0, nothing).file


def test_what_a_footer_does_not_tell_is_left_out_of_the_statistics() -> None:
    low: dict[str, str | int | None] = {"bucket": None, "stream": "a", "incarnation": 1, "group": 0, "position": 5}
    high: dict[str, str | int | None] = {**low, "bucket": "b"}
    assert '"bucket"' not in statistics(3, low, high).partition("nullCount")[0]


WRONG = {
    "nullable": SCHEMA.set(3, pa.field("seq", pa.int64())),
    "another type": SCHEMA.set(3, pa.field("seq", pa.int32(), nullable=False)),
    "a column missing": SCHEMA.remove(9),
}


@pytest.mark.parametrize("what", WRONG)
def test_another_schema_is_no_file_of_the_lake(what: str) -> None:
    store = MemoryStore()
    rows = rows_in(store, [stored(store, build(some_runs(), 0, "old"))])
    schema = WRONG[what]
    sink = pa.BufferOutputStream()
    pq.write_table(rows.select(schema.names).cast(schema), sink)
    store.put("data/0/wrong.parquet", sink.getvalue().to_pybytes())
    with pytest.raises(NotLake, match="column"):
        read_keys(store, "data/0/wrong.parquet", 0, nothing)


def test_another_group_row_groups_too_large_and_no_rows_at_all_are_no_file_of_the_lake() -> None:
    store = MemoryStore()
    path = stored(store, build(some_runs(), 0, "old"))
    with pytest.raises(NotLake, match="not 1 throughout"):
        read_keys(store, path, 1, nothing)
    many = build([run("bucket/a", 1, [b"x"] * 70_000)], 0, "many", rows_per_group=70_000)
    with pytest.raises(NotLake, match="70000 rows"):
        read_keys(store, stored(store, many), 0, nothing)
    sink = pa.BufferOutputStream()
    pq.write_table(SCHEMA.empty_table(), sink)
    store.put("data/0/empty.parquet", sink.getvalue().to_pybytes())
    with pytest.raises(NotLake, match="no rows"):
        read_keys(store, "data/0/empty.parquet", 0, nothing)


def test_a_check_ends_the_reading_where_it_stands() -> None:
    store = MemoryStore()
    path = stored(store, build([run("bucket/a", 1, [b"x"] * 300_000, position=1)], 0, "old"))
    looks = array("q")

    def check() -> None:
        looks.append(1)
        if len(looks) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_keys(store, path, 0, check)


def test_files_that_were_written_for_another_owner_are_refused() -> None:
    store = MemoryStore()
    for name, epoch in (("e1-t", 2), ("t", 1), ("e2-t", 1), ("e1-t", 0)):
        with pytest.raises(OwnerChanged) as refused:
            read_swap(store, [], [f"data/0/00000000000000000001-{name}.parquet"], Writer(0, epoch, "log"), nothing)
        assert refused.value.current == epoch
