"""Files of the lake as jobs read them: all rows in order, those that are live among them, and every damage noticed.
No Spark and no node: extents come from the writer that made the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.lake.layout import SCHEMA
from headwater.lake.listing import encode_extents
from headwater.lake.local import LocalStore
from headwater.lake.store import LakeDamaged, MemoryStore, ObjectMissing
from headwater.lake.writer import Built, build
from headwater.model.deletions import Part
from headwater.model.extents import Extent
from headwater.spark import lake_file
from headwater.spark.lake_file import LakeFile, extents_of, live_mask, spans
from headwater.spark.node import Node
from tests.lake.rows import rows_of, some_runs


class Answers(Node):
    """A node that knows these extents, and what it was asked for."""

    def __init__(self, extents: list[Extent]) -> None:
        super().__init__("http://127.0.0.1:9")
        self.known = extents
        self.asked: list[list[str]] = []

    def lake_extents(self, group: int, files: list[str]) -> bytes:
        self.asked.append(files)
        found = [extent for extent in self.known if extent.file in files]
        found.sort(key=lambda one: (one.file, one.row_group, one.row_start))
        return encode_extents(Part(extent, False) for extent in found)


def stored(rows_per_group: int = 7) -> tuple[MemoryStore, Built]:
    store, built = MemoryStore(), build(some_runs(streams=6, records=20), 3, "t", rows_per_group)
    store.put(built.file.path, built.data)
    return store, built


def table_of(extents: list[Extent]) -> pa.Table:
    return pa.ipc.open_stream(encode_extents(Part(extent, False) for extent in extents)).read_all()


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=8), st.integers(0, 50), st.integers(1, 40))
@settings(max_examples=200)
def test_live_rows_are_those_in_a_span(pairs: list[tuple[int, int]], at: int, count: int) -> None:
    starts = np.array([start for start, _ in pairs], np.int64)
    ends = np.array([start + length for start, length in pairs], np.int64)
    naive = [any(start <= row < start + length for start, length in pairs) for row in range(at, at + count)]
    mask = live_mask(starts, ends, at, count)
    assert (mask is None) == all(naive)
    assert mask is None or mask.tolist() == naive


def test_all_rows_come_in_order_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    store, built = stored()
    for piece_bytes in (1, 3_000, 1 << 30):
        monkeypatch.setattr(lake_file, "PIECE_BYTES", piece_bytes)
        pieces = list(LakeFile(store, built.file.path).rows(SCHEMA.names))
        assert [at for at, _ in pieces] == np.cumsum([0, *(len(rows) for _, rows in pieces[:-1])]).tolist()
        assert pa.concat_tables([rows for _, rows in pieces]).to_pylist() == rows_of(some_runs(6, 20), 3)


def test_spans_are_the_rows_of_extents() -> None:
    store, built = stored()
    file = LakeFile(store, built.file.path)
    every = pa.concat_tables([rows for _, rows in file.rows(["incarnation", "seq"])]).to_pylist()
    for extent, start, end in zip(built.extents, *spans(file, table_of(built.extents)), strict=True):
        expected = [(extent.sid, extent.seq_start + number) for number in range(extent.row_count)]
        assert [(row["incarnation"], row["seq"]) for row in every[start:end]] == expected


@pytest.mark.parametrize("place", [(99, 0, 1), (-1, 0, 1), (0, 5, 9), (0, -1, 2), (0, 0, 0)])
def test_extents_of_rows_that_are_not_there_are_damage(place: tuple[int, int, int]) -> None:
    store, built = stored()
    extent = Extent(1, 0, 5, 0, 0, 0, built.file.path, *place)
    with pytest.raises(LakeDamaged, match="does not have"):
        spans(LakeFile(store, built.file.path), table_of([extent]))


def test_few_calls_tell_the_extents_of_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    extents = [Extent(number, 0, 5, 0, 0, 0, f"data/0/{number:03d}", 0, 0, 1) for number in range(30) if number % 3]
    node = Answers(extents)
    monkeypatch.setattr(lake_file, "FILES_PER_CALL", 12)
    found = dict(extents_of(node, [(f"data/0/{number:03d}", 10) for number in range(30)]))
    assert {path: table["incarnation"].to_pylist() for path, table in found.items()} == {
        f"data/0/{number:03d}": [number] if number % 3 else [] for number in range(30)
    }
    assert [len(asked) for asked in node.asked] == [12, 12, 6]
    monkeypatch.setattr(lake_file, "EXTENTS_PER_CALL", 25)
    assert len(list(extents_of(node, [("data/0/001", 100), ("data/0/002", 10), ("data/0/004", 10)]))) == 3
    assert [len(asked) for asked in node.asked[3:]] == [1, 2]


def test_damage_is_noticed(tmp_path: Path) -> None:
    _, built = stored()
    content = b"".join(built.data)
    store = LocalStore(tmp_path)
    with pytest.raises(ObjectMissing):
        LakeFile(store, "data/3/none.parquet")
    for wrong in (b"", b"PAR1", content[:-1], content[len(content) // 2 :]):
        store.put("data/3/wrong.parquet", wrong)
        with pytest.raises(LakeDamaged):
            list(LakeFile(store, "data/3/wrong.parquet").rows(SCHEMA.names))
    payload = LakeFile(*stored()[:1], built.file.path).footer.row_group(1).column(SCHEMA.get_field_index("payload"))
    flipped = bytearray(content)
    flipped[payload.data_page_offset + payload.total_compressed_size - 3] ^= 1
    store.put("data/3/flipped.parquet", bytes(flipped))
    file = LakeFile(store, "data/3/flipped.parquet")
    assert sum(len(rows) for _, rows in file.rows(["seq"])) == 120
    with pytest.raises(LakeDamaged, match=r"flipped\.parquet"):
        list(file.rows(["payload"]))


def test_a_file_of_other_columns_is_no_file_of_the_lake() -> None:
    import pyarrow.parquet as pq

    store, sink = MemoryStore(), pa.BufferOutputStream()
    pq.write_table(pa.table({"bucket": ["a"], "payload": ["text"]}), sink)
    store.put("data/0/other.parquet", sink.getvalue().to_pybytes())
    with pytest.raises(LakeDamaged, match="another type"):
        LakeFile(store, "data/0/other.parquet")
