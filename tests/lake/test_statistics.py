"""What the table says of each file's rows: it is true, readers that are not ours skip files by it, and tables of older
versions come to have it. A file that a reader should have skipped is taken away first: opening it would fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.lake.keys import described
from headwater.lake.layout import PRUNED_BY, NewFile, info_of
from headwater.lake.local import LocalStore
from headwater.lake.sorted_writer import write_sorted
from headwater.lake.store import MemoryStore
from headwater.lake.table import LakeTable
from headwater.lake.writer import Built, build
from headwater.model.extents import Run
from headwater.model.labels import Labels
from tests.lake.rows import LABELS, run

NOW_MS = 1_794_700_000_000
OLDER = "bucket,stream,incarnation,group,position"
SKIPPING = "delta.dataSkippingStatsColumns"


def part(number: int, tag: str | None = None) -> Run:
    """Ninety records of one stream, and which ones of it."""
    count = 90
    labels: list[Labels | None] | None = None if tag is None else [Labels(tag)] * count
    payloads = [b"x" * 10] * count
    first = number * count
    return run("lake/one", 1, payloads, start=first * 10, seq=first, position=1_000 + first * 40, labels=labels)


def rows_in(built: Built) -> pa.Table:
    return pq.read_table(pa.BufferReader(b"".join(built.data)))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(LABELS, min_size=1, max_size=6), min_size=1, max_size=4))
def test_every_writer_and_the_footer_tell_the_same_and_it_is_true(labels: list[list[Labels | None]]) -> None:
    runs = [
        run(f"b{number % 2}/s{number}", number, [b"payload"] * len(some), seq=number * 5, labels=list(some))
        for number, some in enumerate(labels)
    ]
    built = build(runs, 0, "token", rows_per_group=4)
    rows = rows_in(built)
    wide = built.file.wide
    written = write_sorted(rows.to_batches(), 0, "other", rows_per_group=4, wide=wide)
    assert written is not None
    store = MemoryStore()
    store.put(built.file.path, built.data)
    told = json.loads(built.file.statistics)
    assert described(store, built.file.path) == built.file
    assert json.loads(written.file.statistics) == told
    assert told["numRecords"] == len(rows)
    for name in PRUNED_BY:
        found = pc.min_max(rows[name]).as_py()
        assert (told["minValues"].get(name), told["maxValues"].get(name)) == (found["min"], found["max"]), name
        assert told["nullCount"][name] == rows[name].null_count


def test_a_long_tag_bounds_nothing_and_what_has_none_is_still_counted() -> None:
    labels: list[Labels | None] = [None, Labels("z" * 300)]
    built = build([run("lake/one", 1, [b"a", b"b"], labels=labels)], 0, "token")
    told = json.loads(built.file.statistics)
    assert "tag" not in told["minValues"] and "tag" not in told["maxValues"] and told["nullCount"]["tag"] == 1


def test_what_an_older_version_did_not_tell_is_not_known() -> None:
    only = '{"bucket":"b","stream":"s","incarnation":1,"group":0,"position":7}'
    file = NewFile(
        "data/0/x.parquet", 1, 1, f'{{"numRecords":1,"minValues":{only},"maxValues":{only},"nullCount":{{}}}}'
    )
    info = info_of(file, 5)
    assert (info.position_max, info.ms_min, info.ms_max) == (7, None, None)


# ---- readers that are not ours --------------------------------------------------------------------------------------

FILTERS: dict[str, tuple[str, Any, Any]] = {
    "ts_ms": ("ts_ms", NOW_MS + 90, NOW_MS + 119),
    "seq": ("seq", 270, 359),
    "offset": ("offset", 2_700, 3_590),
    "tag": ("tag", "t3", "t3"),
}
"""A column, and between which values the rows of the file number three lie."""


def by_deltalake(place: Path, name: str, low: Any, high: Any) -> int:
    field = ds.field(name)
    return DeltaTable(place).to_pyarrow_dataset().to_table(filter=(field >= low) & (field <= high)).num_rows


def by_polars(place: Path, name: str, low: Any, high: Any) -> int:
    return len(pl.scan_delta(str(place)).filter(pl.col(name).is_between(pl.lit(low), pl.lit(high))).collect())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A lake of five files, of which only the fourth is still there."""
    store = LocalStore(tmp_path / "lake")
    table = LakeTable(store)
    for number in range(5):
        built = build([part(number, f"t{number}")], 0, f"token{number}")
        store.put(built.file.path, built.data)
        table.commit([built.file], [], NOW_MS)
        if number != 3:
            store.delete(built.file.path)
    return tmp_path / "lake"


@pytest.mark.parametrize("reader", [by_deltalake, by_polars], ids=lambda reader: reader.__name__.removeprefix("by_"))
@pytest.mark.parametrize("column", FILTERS)
def test_a_reader_does_not_open_files_that_hold_nothing_it_asked_for(
    place: Path, reader: Callable[[Path, str, Any, Any], int], column: str
) -> None:
    assert reader(place, *FILTERS[column]) == 90


def test_row_groups_can_be_skipped_by_the_same_columns() -> None:
    built = build([part(0), part(1)], 0, "token", rows_per_group=60)
    footer = pq.read_metadata(pa.BufferReader(b"".join(built.data)))
    for name in ("seq", "offset", "ts_ms"):
        index = footer.schema.names.index(name)
        spans = [footer.row_group(number).column(index).statistics for number in range(footer.num_row_groups)]
        assert all(one.max < two.min for one, two in pairwise(spans)), name


# ---- tables of older versions ---------------------------------------------------------------------------------------


def test_a_table_of_an_older_version_lets_readers_skip_by_all_columns_from_the_next_file_on(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "lake")
    LakeTable(store)
    DeltaTable(tmp_path / "lake").alter.set_table_properties({SKIPPING: OLDER})
    table = LakeTable(store)
    old = build([part(0)], 0, "old").file
    known = json.loads(old.statistics)
    for side in ("minValues", "maxValues", "nullCount"):
        known[side] = {name: value for name, value in known[side].items() if name in OLDER.split(",")}
    older = NewFile(old.path, old.size_bytes, old.row_count, json.dumps(known))
    version = table.commit([older], [], NOW_MS)
    assert DeltaTable(tmp_path / "lake").metadata().configuration[SKIPPING] == ",".join(PRUNED_BY)
    assert version == DeltaTable(tmp_path / "lake").version()
    table.commit([build([part(1)], 0, "new").file], [], NOW_MS)
    assert table.version == version + 1, "the properties are told once"
    found = {path: (info.ms_min, info.ms_max) for path, info in table.files().items()}
    assert sorted(found.values(), key=str) == [(NOW_MS + 30, NOW_MS + 59), (None, None)]
