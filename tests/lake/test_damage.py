"""Damage to a file of the lake is noticed and said, and served to nobody; what only looks different is read.
It makes the damage by hand, byte by byte or in what an extent says."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.lake.cache import MemoryCache
from headwater.lake.layout import SCHEMA
from headwater.lake.local import LocalStore
from headwater.lake.reader import Reader
from headwater.lake.store import LakeDamaged, MemoryStore, ObjectMissing, ObjectStore
from headwater.lake.writer import build
from tests.lake.rows import random_runs, rows_of, some_runs


def test_a_flipped_bit_anywhere_in_what_is_read_is_noticed(either_store: ObjectStore) -> None:
    runs = random_runs(count=2, records=50)
    built = build(runs, 0, "t")
    content = b"".join(built.data)
    extent = built.extents[0]
    noticed = total = 0
    for at in range(0, len(content), 211):
        either_store.put(built.file.path, content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        reader = Reader(either_store, MemoryCache(0))
        total += 1
        try:
            assert reader.records(extent, extent.start, extent.end).payloads == runs[0].payloads
        except LakeDamaged:
            noticed += 1
    assert noticed > total * 0.9, "most of the file is payload: most flips must have been met"


@pytest.mark.parametrize("keep", [0, 3, 11, 500, -1, -9])
def test_a_truncated_file_is_damage(keep: int, either_store: ObjectStore) -> None:
    built = build(random_runs(count=2), 0, "t")
    either_store.put(built.file.path, b"".join(built.data)[:keep])
    extent = built.extents[0]
    with pytest.raises(LakeDamaged):
        Reader(either_store, MemoryCache(1 << 20)).stretch(extent, extent.start, extent.end, False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": 1},
        {"end": 5},
        {"row_group": 7},
        {"row_group": -1},
        {"row_start": 1},
        {"row_count": 2_000},
        {"row_count": 0},
    ],
    ids=str,
)
def test_an_extent_that_does_not_describe_the_file_is_damage(wrong: dict[str, int]) -> None:
    built = build(random_runs(count=2), 0, "t")
    extent = msgspec.structs.replace(built.extents[0], **wrong)
    store = MemoryStore()
    store.put(built.file.path, built.data)
    with pytest.raises(LakeDamaged):
        Reader(store, MemoryCache(1 << 30)).records(extent, extent.start, extent.end)


def test_a_file_that_shrinks_or_goes_between_two_reads_is_damaged_or_missing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    built = build(random_runs(count=4), 0, "t", rows_per_group=100)
    store.put(built.file.path, built.data)
    reader = Reader(store, MemoryCache(1 << 20))
    first, second, third = built.extents[:3]
    assert reader.records(first, first.start, first.end).payloads
    os.truncate(tmp_path / built.file.path, 1_000)
    with pytest.raises(LakeDamaged):
        reader.records(second, second.start, second.end)
    store.delete(built.file.path)
    with pytest.raises(ObjectMissing):
        reader.records(third, third.start, third.end)


def test_a_missing_file_is_missing_not_damaged(either_store: ObjectStore) -> None:
    extent = build(some_runs(), 0, "t").extents[0]
    with pytest.raises(ObjectMissing):
        Reader(either_store, MemoryCache(1 << 20)).stretch(extent, extent.start, extent.end, False)


def test_a_file_that_spark_rewrote_is_read_all_the_same() -> None:
    """Other column order, optional columns, a dictionary, another codec, no checksums."""
    runs = some_runs(streams=3, records=30)
    rows = rows_of(runs, 1)
    names = [field.name for field in SCHEMA]
    other = pa.Table.from_pylist(rows, pa.schema([pa.field(name, SCHEMA.field(name).type) for name in reversed(names)]))
    sink = pa.BufferOutputStream()
    pq.write_table(other, sink, compression="zstd", use_dictionary=True, row_group_size=1_000)
    store = MemoryStore()
    store.put("data/1/x.parquet", sink.getvalue().to_pybytes())
    reader = Reader(store, MemoryCache(1 << 20))
    extents = reader.extents("data/1/x.parquet")
    in_file = sorted(runs, key=lambda one: one.key)
    assert [(extent.sid, extent.row_count) for extent in extents] == [(one.sid, 30) for one in in_file]
    by_sid = {one.sid: one for one in runs}
    for extent in extents:
        found = reader.records(extent, extent.start, extent.end)
        assert (found.payloads, found.ends) == (by_sid[extent.sid].payloads, by_sid[extent.sid].ends)
