"""Files of rows that are sorted already: the same rows, cut as a flush cuts them, whatever batches they come in.
The files of `build` are the model: what it writes, `write_sorted` writes too."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.lake.cache import MemoryCache
from headwater.lake.layout import SCHEMA
from headwater.lake.reader import Reader
from headwater.lake.sorted_writer import Written, write_sorted
from headwater.lake.store import MemoryStore
from headwater.lake.writer import LZ4, ZSTD, build
from headwater.model.extents import Run
from tests.lake.rows import rows_of, run, some_runs


def batches_of(runs: list[Run], cuts: list[int], group: int = 3) -> list[pa.RecordBatch]:
    table = pa.Table.from_pylist(rows_of(runs, group), schema=SCHEMA).combine_chunks()
    edges = sorted({0, len(table), *(cut % (len(table) + 1) for cut in cuts)})
    return [batch for low, high in pairwise(edges) for batch in table.slice(low, high - low).to_batches()]


def shape(data: list[bytes | memoryview]) -> list[int]:
    footer = pq.read_metadata(pa.BufferReader(b"".join(data)))
    return [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]


def wrote(batches: list[pa.RecordBatch], rows_per_group: int = 4_096, bytes_per_group: int = 2 << 20) -> Written:
    written = write_sorted(batches, 3, "t", LZ4, rows_per_group, bytes_per_group)
    assert written is not None
    return written


runs_of_streams = st.lists(
    st.lists(st.binary(min_size=0, max_size=40), min_size=1, max_size=60), min_size=1, max_size=12
).map(lambda many: [run(f"bucket/{sid:02d}", sid, some, position=sid * 10_000) for sid, some in enumerate(many)])


@given(runs_of_streams, st.lists(st.integers(0, 700), max_size=8), st.integers(1, 8), st.integers(1, 120))
@settings(max_examples=200)
def test_rows_are_cut_and_described_as_a_flush_of_them_would_be(
    runs: list[Run], cuts: list[int], rows_per_group: int, bytes_per_group: int
) -> None:
    built = build(runs, 3, "t", rows_per_group, bytes_per_group)
    written = wrote(batches_of(runs, cuts), rows_per_group, bytes_per_group)
    table = pq.read_table(pa.BufferReader(b"".join(written.data)))
    assert table.schema.remove_metadata() == SCHEMA
    assert table.to_pylist() == rows_of(runs, 3)
    assert shape(written.data) == shape(built.data)
    assert (written.file.path, written.file.row_count) == (built.file.path, built.file.row_count)
    assert written.file.size_bytes == sum(map(len, written.data))
    assert msgspec.json.decode(written.file.statistics) == msgspec.json.decode(built.file.statistics)


def test_extents_of_the_file_read_back_as_every_record() -> None:
    runs = some_runs(streams=50, records=30)
    written = wrote(batches_of(runs, [1, 77, 400, 1_203]), rows_per_group=100)
    store = MemoryStore()
    store.put(written.file.path, written.data)
    reader = Reader(store, MemoryCache(1 << 30))
    extents = reader.extents(written.file.path)
    assert sum(extent.row_count for extent in extents) == 1_500
    by_sid = {one.sid: one for one in runs}
    for extent in extents:
        found = reader.records(extent, extent.start, extent.end)
        low = extent.seq_start
        assert found.payloads == by_sid[extent.sid].payloads[low : low + extent.row_count]


def test_rows_that_were_left_out_end_a_run() -> None:
    """A hole is no reason to refuse: rows in it were dead."""
    one = run("bucket/a", 1, [b"x"] * 10)
    table = pa.Table.from_batches(batches_of([one], []))
    kept = pa.concat_tables([table.slice(0, 3), table.slice(6)])
    written = wrote(kept.to_batches())
    store = MemoryStore()
    store.put(written.file.path, written.data)
    found = Reader(store, MemoryCache(1 << 30)).extents(written.file.path)
    assert [(extent.seq_start, extent.row_count, extent.start) for extent in found] == [(0, 3, 0), (6, 4, 6)]


def test_only_a_window_of_rows_is_held_at_a_time() -> None:
    """Whatever comes in is written before much more is asked for."""
    rng = random.Random(3)
    row_bytes, asked = 1_000, []

    def batches() -> list[pa.RecordBatch]:
        for number in range(200):
            asked.append(pa.total_allocated_bytes())
            yield from batches_of([run(f"bucket/{number:03d}", number + 1, [rng.randbytes(row_bytes)] * 50)], [])

    before = pa.total_allocated_bytes()
    written = write_sorted(batches(), 3, "t", rows_per_group=50, bytes_per_group=50 * row_bytes)
    assert written is not None and written.file.row_count == 10_000
    assert max(asked) - before < 60 * 50 * row_bytes < 200 * 50 * row_bytes


def test_either_codec_gives_the_same_rows() -> None:
    runs = some_runs(streams=3)
    for codec in (LZ4, ZSTD):
        written = write_sorted(batches_of(runs, []), 3, "t", codec)
        assert written is not None
        file = pq.ParquetFile(pa.BufferReader(b"".join(written.data)))
        assert file.metadata.row_group(0).column(0).compression.lower() == codec
        assert file.read().to_pylist() == rows_of(runs, 3)


def test_nothing_makes_no_file() -> None:
    assert write_sorted([], 0, "t") is None
    assert write_sorted([pa.RecordBatch.from_pylist([], schema=SCHEMA)], 0, "t") is None


def test_rows_out_of_order_or_doubled_or_of_another_group_are_refused() -> None:
    first, second = (batches_of([run(f"bucket/{name}", sid, [b"1", b"2"])], []) for sid, name in enumerate("ab", 1))
    assert wrote([*first, *second]).file.row_count == 4
    for wrong in ([*second, *first], [*first, *first], [*first, first[0].slice(1)]):
        with pytest.raises(ValueError, match="order"):
            write_sorted(wrong, 3, "t")
    with pytest.raises(ValueError, match="another group"):
        write_sorted(first, 4, "t")


def test_types_that_spark_may_choose_become_the_lakes() -> None:
    wide = pa.schema(
        [
            pa.field(
                field.name, {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(field.type, field.type)
            )
            for field in SCHEMA
        ]
    )
    runs = some_runs(streams=3)
    batches = [batch.cast(wide) for batch in batches_of(runs, [])]
    table = pq.read_table(pa.BufferReader(b"".join(wrote(batches).data)))
    assert table.to_pylist() == rows_of(runs, 3)
