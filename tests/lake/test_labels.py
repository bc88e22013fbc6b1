"""Labels in the lake: what a record carried comes back with it, and who does not ask for it pays nothing.
Tables and files of versions without these columns are tables and files of the lake as before."""

from __future__ import annotations

from pathlib import Path

import msgspec
import polars
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.lake.cache import MemoryCache
from headwater.lake.labels import columns, labels_of
from headwater.lake.layout import SCHEMA, SERVED, WIDE, widened
from headwater.lake.local import LocalStore
from headwater.lake.reader import Reader
from headwater.lake.sorted_writer import write_sorted
from headwater.lake.store import MemoryStore, ObjectStore
from headwater.lake.swap import Swap, read_swap
from headwater.lake.table import LakeTable
from headwater.lake.writer import Built, build
from headwater.model.extents import Extent, Run
from headwater.model.labels import Labels
from headwater.ports import Writer
from tests.lake.rows import LABELS, in_order, rows_of, run, some_runs

FULL = Labels("red", "n1", b'{"a":1}', "k", 12)


def put(store: ObjectStore, built: Built) -> str:
    store.put(built.file.path, built.data)
    return built.file.path


def labelled(count: int, key: str = "bucket/l", sid: int = 90, position: int = 9_000) -> Run:
    """Every third record has labels."""
    labels = [FULL if number % 3 == 0 else None for number in range(count)]
    return run(key, sid, [b"%d" % number for number in range(count)], position=position, labels=labels)


@given(st.lists(LABELS, max_size=20), st.booleans())
def test_labels_are_read_as_they_were_written(labels: list[Labels | None], narrow: bool) -> None:
    if narrow:
        labels = [one and Labels(one.tag, one.node) for one in labels]
    made = pa.table(columns(labels, len(labels), wide=not narrow))
    expected = [None if one == Labels() else one for one in labels]
    assert labels_of(made) == (expected if any(one is not None for one in expected) else None)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.binary(max_size=5), LABELS), min_size=1, max_size=30), st.integers(1, 9), st.data())
def test_a_part_of_an_extent_has_its_labels(
    records: list[tuple[bytes, Labels | None]], rows_per_group: int, data: st.DataObject
) -> None:
    payloads, labels = [one for one, _ in records], [one for _, one in records]
    store = MemoryStore()
    built = build([run("bucket/s", 50, payloads, labels=labels), *some_runs(1, 4)], 0, "t", rows_per_group)
    put(store, built)
    reader = Reader(store, MemoryCache(1 << 20))
    for extent in built.extents:
        high = data.draw(st.integers(extent.start, extent.end))
        found = reader.records(extent, extent.start, high, labels=True)
        plain = reader.records(extent, extent.start, high)
        assert msgspec.structs.replace(found, labels=None) == plain
        assert plain.labels is None
        first = extent.seq_start + found.index
        carried = labels[first : first + len(found.payloads)] if extent.sid == 50 else []
        expected = [None if one == Labels() else one for one in carried]
        assert found.labels == (expected if any(one is not None for one in expected) else None)


def test_who_does_not_ask_for_labels_decodes_none() -> None:
    asked: list[tuple[str, ...]] = []

    class Noting(Reader):
        def _decode(self, file: str, number: int, names: tuple[str, ...]) -> pa.Table:
            asked.append(names)
            return super()._decode(file, number, names)

    store = MemoryStore()
    built = build([labelled(20)], 0, "t")
    put(store, built)
    reader, extent = Noting(store, MemoryCache(1 << 20)), built.extents[0]
    reader.records(extent, 0, extent.end)
    reader.stretch(extent, 0, extent.end, commas=False)
    reader.stretch(extent, 0, extent.end, commas=True)
    assert asked == [SERVED, ("offset", "payload")]
    assert reader.records(extent, 0, extent.end, labels=True).labels == labelled(20).labels
    assert len(asked) == 3


def test_a_file_without_the_columns_that_were_added_has_the_labels_that_it_has() -> None:
    store = MemoryStore()
    built = build([run("bucket/s", 1, [b"a", b"b"], labels=[Labels(tag="x"), None])], 0, "t")
    put(store, built)
    assert not built.file.wide and pq.read_schema(pa.BufferReader(b"".join(built.data))).names == SCHEMA.names
    extent = built.extents[0]
    found = Reader(store, MemoryCache(1 << 20)).records(extent, 0, 2, labels=True)
    assert found.labels == [Labels(tag="x"), None]


# ---- the table --------------------------------------------------------------------------------------------------


def test_a_table_gets_the_columns_with_the_first_file_that_has_them(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    table = LakeTable(store)
    plain, wide = some_runs(3, 5), [labelled(7)]
    first = build(plain, 0, "a")
    put(store, first)
    table.commit([first.file], [], 1)
    assert [field.name for field in DeltaTable(tmp_path).schema().fields] == SCHEMA.names

    second = build(wide, 0, "b")
    put(store, second)
    table.commit([second.file], [], 2)
    assert [field.name for field in DeltaTable(tmp_path).schema().fields] == WIDE.names
    # Once: what follows changes the schema no more, wide or not.
    version = table.version
    third, fourth = build(some_runs(1, 2, 70_000, first=50), 0, "c"), build([labelled(3, "bucket/m", 91)], 0, "d")
    for built in (third, fourth):
        put(store, built)
        table.commit([built.file], [], 3)
    assert table.version == version + 2
    assert set(LakeTable(store).files()) == {one.file.path for one in (first, second, third, fourth)}

    expected = [
        {"meta": None, "job": None} | row
        for row in rows_of([*plain, *wide, *some_runs(1, 2, 70_000, first=50), labelled(3, "bucket/m", 91)], 0)
    ]
    assert in_order(polars.scan_delta(str(tmp_path)).collect().to_dicts()) == in_order(expected)


def test_two_processes_may_bring_the_columns_at_once(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    one, other = LakeTable(store), LakeTable(store)
    for number, table in enumerate((one, other, one)):
        built = build([labelled(3, f"bucket/{number}", number)], 0, str(number))
        put(store, built)
        table.commit([built.file], [], number)
    assert len(one.files()) == 3
    assert [field.name for field in DeltaTable(tmp_path).schema().fields] == WIDE.names


# ---- rewriting --------------------------------------------------------------------------------------------------


def live(builts: list[Built]) -> dict[str, list[Extent]]:
    return {built.file.path: built.extents for built in builts}


def test_files_with_and_without_the_columns_become_one() -> None:
    store = MemoryStore()
    plain, wide = some_runs(3, 5), [labelled(7)]
    old = [build(plain, 0, "a"), build(wide, 0, "b")]
    for built in old:
        put(store, built)
    tables = [
        widened(pq.read_table(pa.BufferReader(store.get(built.file.path))), WIDE.names).cast(WIDE) for built in old
    ]
    rows = pa.concat_tables(tables).sort_by(
        [(name, "ascending") for name in ("bucket", "stream", "incarnation", "seq")]
    )
    written = write_sorted(rows.to_batches(), 0, "c", wide=True)
    assert written is not None and written.file.wide
    store.put(written.file.path, written.data)
    swap: Swap = read_swap(store, [one.file.path for one in old], [written.file.path], Writer(0), lambda: None)
    matched = swap.match(live(old))
    assert matched.files == [written.file]
    reader = Reader(store, MemoryCache(1 << 20))
    found = next(one for one in matched.extents() if one.sid == 90)
    assert reader.records(found, found.start, found.end, labels=True).labels == labelled(7).labels
    assert pq.read_table(pa.BufferReader(b"".join(written.data))).to_pylist() == [
        {"meta": None, "job": None} | row for row in rows_of([*plain, *wide], 0)
    ]
