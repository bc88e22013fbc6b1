"""The table's statistics, summed up from what commits said: against the rows themselves, with files of older versions
among them. And how deep spans lie over one another, against a model that tries every place."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from headwater.lake.layout import PRUNED_BY, NewFile
from headwater.lake.local import LocalStore
from headwater.lake.overlap import deepest
from headwater.lake.table import LakeTable
from headwater.lake.table_statistics import summed_up
from headwater.lake.writer import build
from headwater.model.labels import Labels
from tests.lake.rows import run

NOW_MS = 1_794_700_000_000


def test_a_lake_without_a_table_has_no_files(tmp_path: Path) -> None:
    found = summed_up(LocalStore(tmp_path))
    assert (found["table_version"], found["files"], found["file_bytes_max"]) == (None, 0, None)


def test_the_sums_are_those_of_the_rows(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    table = LakeTable(store)
    tags = [Labels("red"), None, Labels("blue")]
    every = []
    for number, names in enumerate((["a/x"], ["a/y", "b/z"], ["b/z"], ["a/x"])):
        runs = [
            run(name, 1, [b"one", b"three", b"two"], seq=9 * number, labels=None if number else list(tags))
            for name in names
        ]
        built = build(runs, 0, f"t{number}")
        store.put(built.file.path, built.data)
        table.commit([built.file], [], NOW_MS)
        every.append(pq.read_table(pa.BufferReader(b"".join(built.data))))
    rows = pa.concat_tables(every)
    found = summed_up(store)
    assert (found["files"], found["rows"], found["file_rows_max"], found["file_rows_median"]) == (4, 15, 6, 3)
    assert found["bytes"] == sum(info.size_bytes for info in table.files().values())
    times = pc.min_max(rows["ts_ms"]).as_py()
    assert (found["earliest_ms"], found["latest_ms"]) == (times["min"], times["max"])
    told = {one["column"]: one for one in found["columns"]}
    for name in PRUNED_BY:
        span = pc.min_max(rows[name]).as_py()
        assert (told[name]["least"], told[name]["greatest"]) == (span["min"], span["max"])
        assert (told[name]["files"], told[name]["nulls"]) == (4, rows[name].null_count)
    by_bucket = {one["bucket"]: (one["files"], one["rows"]) for one in found["buckets"]}
    assert by_bucket == {"a": (2, 6), None: (1, 6), "b": (1, 3)}
    assert found["files_at_one_time"] == 0, "each file here is of one millisecond"


def test_what_older_versions_did_not_tell_is_not_made_up(tmp_path: Path) -> None:
    only = {"bucket": "b", "stream": "s", "incarnation": 1, "group": 0, "position": 7}
    known = json.dumps({"numRecords": 3, "minValues": only, "maxValues": only, "nullCount": {}})
    LakeTable(LocalStore(tmp_path)).commit([NewFile("data/0/x.parquet", 10, 3, known)], [], NOW_MS)
    found = summed_up(LocalStore(tmp_path))
    assert (found["earliest_ms"], found["files_at_one_time"], found["rows"]) == (None, 0, 3)
    told = {one["column"]: one["files"] for one in found["columns"]}
    assert (told["bucket"], told["ts_ms"], told["tag"]) == (1, 0, 0)


@given(st.lists(st.none() | st.tuples(st.integers(0, 8), st.integers(1, 5)), max_size=8))
def test_the_deepest_place_is_one_that_no_more_spans_hold_than_are_named(drawn: list[tuple[int, int] | None]) -> None:
    spans = [None if one is None else (one[0], one[0] + one[1]) for one in drawn]
    held = [{n for n, one in enumerate(spans) if one is not None and one[0] <= at < one[1]} for at in range(14)]
    found = set(deepest(spans))
    assert len(found) == max(map(len, held)) and (found in held)
