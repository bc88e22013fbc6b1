"""Files: what the writer puts in comes out of the reader, record for record, for any runs and any part of them.
A slow model builds the expected rows."""

from __future__ import annotations

from array import array
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.lake.cache import DiskCache, MemoryCache
from headwater.lake.layout import SCHEMA, SERVED, WIDE
from headwater.lake.names import data_key
from headwater.lake.reader import Reader
from headwater.lake.store import LakeDamaged, MemoryStore, ObjectStore
from headwater.lake.writer import Built, build
from headwater.model.extents import Extent, Run
from tests.lake.rows import LABELS, random_runs, rows_of, run, some_runs

payloads = st.lists(st.binary(min_size=0, max_size=40), min_size=1, max_size=30)
names = st.text("ab/-é\U0001f40e", min_size=1, max_size=6).map(lambda text: f"bucket-{text[0].encode().hex()}/{text}")


@st.composite
def many_runs(draw: st.DrawFn) -> list[Run]:
    """Runs of several streams; some streams have two, as after a delete and a new start, or two flushes at once."""
    made = []
    for sid, (key, some) in enumerate(draw(st.lists(st.tuples(names, payloads), min_size=1, max_size=8)), 1):
        start, seq = draw(st.integers(0, 1 << 40)), draw(st.integers(0, 1 << 30))
        cut = draw(st.integers(0, len(some)))
        labels = draw(st.lists(LABELS, min_size=len(some), max_size=len(some)))
        one, other = (part if draw(st.booleans()) else None for part in (labels[:cut], labels[cut:]))
        first = run(key, sid, some[:cut], start=start, seq=seq, position=sid * 10_000, labels=one)
        middle = start + sum(map(len, some[:cut]))
        rest = run(key, sid, some[cut:], start=middle, seq=seq + cut, position=sid * 10_000 + 5_000, labels=other)
        made += [first, rest]
    return draw(st.permutations(made))


def put(store: ObjectStore, built: Built) -> Built:
    store.put(built.file.path, built.data)
    return built


def reading(built: Built, bytes_max: int = 1 << 30) -> Reader:
    store = MemoryStore()
    put(store, built)
    return Reader(store, MemoryCache(bytes_max))


def records_of(runs: list[Run], extent: Extent) -> list[tuple[int, bytes, int, int, int]]:
    """(end, payload, ms, n, position) of the extent's records, the slow way."""
    found = []
    for one in runs:
        if one.sid == extent.sid:
            for index, payload in enumerate(one.payloads):
                if extent.seq_start <= one.seq_start + index < extent.seq_start + extent.row_count:
                    found.append((one.ends[index], payload, one.ms[index], one.n[index], one.positions[index]))
    return sorted(found, key=lambda record: (record[0], record[4]))


# ---- round trips ------------------------------------------------------------------------------------------------


@given(many_runs(), st.integers(1, 12), st.integers(1, 200), st.data())
@settings(max_examples=100)
def test_any_part_of_any_extent_is_read_as_it_was_written(
    runs: list[Run], rows_per_group: int, bytes_per_group: int, data: st.DataObject
) -> None:
    built = build(runs, 5, "t", rows_per_group, bytes_per_group)
    reader = reading(built)
    for extent in built.extents:
        expected = records_of(runs, extent)
        whole = reader.records(extent, extent.start, extent.end)
        assert list(zip(whole.ends, whole.payloads, whole.ms, whole.n, whole.positions, strict=True)) == expected
        assert (whole.start, whole.index) == (extent.start, 0)
        assert (extent.ms, extent.n) == expected[0][2:4]

        low, high = sorted(data.draw(st.tuples(*[st.integers(extent.start, extent.end)] * 2)))
        part = reader.records(extent, low, high)
        inside = [
            record
            for record in expected
            if low <= record[0] - len(record[1])
            and record[0] <= high
            and (record[0] - len(record[1]) < high or high == extent.end)
        ]
        assert part.payloads == [record[1] for record in inside]
        assert not inside or part.index == expected.index(inside[0])
        assert list(part.ends) == [record[0] for record in inside]


@given(many_runs(), st.integers(1, 12), st.integers(1, 200), st.booleans(), st.data())
@settings(max_examples=100)
def test_a_stretch_holds_the_records_from_an_offset_up_to_a_limit_and_one_at_least(
    runs: list[Run], rows_per_group: int, bytes_per_group: int, commas: bool, data: st.DataObject
) -> None:
    built = build(runs, 5, "t", rows_per_group, bytes_per_group)
    reader = reading(built)
    for extent in built.extents:
        expected = records_of(runs, extent)
        begins = [record[0] - len(record[1]) for record in expected]
        first = begins.index(data.draw(st.sampled_from(begins)))
        limit = data.draw(st.integers(begins[first], extent.end))
        # As `records`: without bytes a record belongs to the range that begins where it lies.
        fitting = [
            record
            for record, begin in zip(expected[first:], begins[first:], strict=True)
            if record[0] <= limit and (begin < limit or limit == extent.end)
        ] or expected[first : first + 1]
        for _ in range(2):
            found = reader.stretch(extent, begins[first], limit, commas)
            assert found is not None
            assert bytes(found.data) == (b"," if commas else b"").join(record[1] for record in fitting)
            assert (found.start, found.end, found.count) == (begins[first], fitting[-1][0], len(fitting))
        assert reader.stretch(extent, begins[first], limit, commas, wait=False) == found


def test_a_stretch_that_begins_inside_a_record_says_where_the_next_one_begins() -> None:
    built = build([run("bucket/s", 1, [b"abc", b"defg"])], 0, "t")
    reader, extent = reading(built), built.extents[0]
    inside = reader.stretch(extent, 1, 7, False)
    assert inside is not None and (inside.start, inside.end, inside.count) == (3, 7, 1)
    behind = reader.stretch(extent, 5, 7, False)
    assert behind is not None and (behind.start, behind.end, behind.count) == (5, 5, 0)


def test_stretches_of_one_row_group_share_its_memory() -> None:
    built = build(some_runs(), 0, "t")
    reader, extent = reading(built), built.extents[0]
    first, second = (reader.stretch(extent, extent.start, extent.end, False) for _ in range(2))
    assert first is not None and second is not None
    assert first.data.obj is second.data.obj and len(first.data) == extent.end - extent.start


def test_a_stretch_that_nobody_waits_for_fetches_nothing() -> None:
    store = Counting()
    built = put(store, build(random_runs(count=4), 0, "t", rows_per_group=100))
    reader, extent = Reader(store, MemoryCache(1 << 20)), built.extents[0]
    assert reader.stretch(extent, extent.start, extent.end, False, wait=False) is None
    assert not store.fetched
    waited = reader.stretch(extent, extent.start, extent.end, False)
    assert reader.stretch(extent, extent.start, extent.end, False, wait=False) == waited
    assert reader.stretch(extent, extent.start, extent.end, True, wait=False) is None


@given(many_runs(), st.integers(1, 12), st.integers(1, 200))
@settings(max_examples=60)
def test_neighbouring_ranges_hold_every_record_once(runs: list[Run], rows_per_group: int, bytes_per_group: int) -> None:
    built = build(runs, 5, "t", rows_per_group, bytes_per_group)
    reader = reading(built)
    for extent in built.extents:
        whole = reader.records(extent, extent.start, extent.end)
        walked, offset = [], extent.start
        while offset < extent.end:
            edge = next(end for end in whole.ends if end > offset)
            walked += reader.records(extent, offset, edge).payloads
            offset = edge
        if extent.start < extent.end:
            assert walked == whole.payloads


@given(many_runs(), st.integers(1, 12), st.integers(1, 200))
@settings(max_examples=100)
def test_the_file_holds_every_row_in_order_for_plain_readers(
    runs: list[Run], rows_per_group: int, bytes_per_group: int
) -> None:
    built = build(runs, 5, "t", rows_per_group, bytes_per_group)
    table = pq.read_table(pa.BufferReader(b"".join(built.data)))
    expected = rows_of(runs, 5)
    assert built.file.wide == ("meta" in expected[0])
    assert table.schema.remove_metadata() == (WIDE if built.file.wide else SCHEMA)
    assert table.to_pylist() == expected
    assert built.file.row_count == len(table)
    assert built.file.size_bytes == sum(map(len, built.data))


@given(many_runs(), st.integers(1, 12), st.integers(1, 200))
@settings(max_examples=100)
def test_extents_cover_every_record_once_and_each_lies_in_one_row_group(
    runs: list[Run], rows_per_group: int, bytes_per_group: int
) -> None:
    built = build(runs, 5, "t", rows_per_group, bytes_per_group)
    footer = pq.read_metadata(pa.BufferReader(b"".join(built.data)))
    rows: dict[int, int] = {}
    for extent in built.extents:
        assert extent.row_start == rows.get(extent.row_group, 0), "rows of a row group belong to no extent, or to two"
        rows[extent.row_group] = extent.row_start + extent.row_count
    assert rows == {number: footer.row_group(number).num_rows for number in range(footer.num_row_groups)}
    held = [(extent.sid, extent.seq_start + row) for extent in built.extents for row in range(extent.row_count)]
    written = [(one.sid, one.seq_start + index) for one in runs for index in range(len(one.payloads))]
    assert sorted(held) == sorted(written)


@given(many_runs(), st.integers(1, 12), st.integers(1, 200))
@settings(max_examples=60)
def test_extents_can_be_found_again_from_the_file_alone(
    runs: list[Run], rows_per_group: int, bytes_per_group: int
) -> None:
    built = build(runs, 5, "t", rows_per_group, bytes_per_group)
    merged: list[Extent] = []
    for extent in built.extents:  # two runs that met in one row group are one extent for whoever sees the rows alone
        last = merged[-1] if merged else None
        if (
            last is not None
            and (last.sid, last.row_group, last.end) == (extent.sid, extent.row_group, extent.start)
            and last.seq_start + last.row_count == extent.seq_start
        ):
            count, position = last.row_count + extent.row_count, extent.position
            merged[-1] = msgspec.structs.replace(last, end=extent.end, row_count=count, position=position)
        else:
            merged.append(extent)
    assert reading(built).extents(built.file.path) == merged


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(2, 16))
@settings(max_examples=100)
def test_a_run_that_fits_into_a_row_group_is_never_split(counts: list[int], rows_per_group: int) -> None:
    runs = [run(f"bucket/{number:03d}", number, [b"x"] * count) for number, count in enumerate(counts)]
    built = build(runs, 0, "t", rows_per_group)
    for number, count in enumerate(counts):
        extents = [extent for extent in built.extents if extent.sid == number]
        if count <= rows_per_group:
            assert len(extents) == 1
        else:
            assert len(extents) <= -(-count // rows_per_group) + 1
    footer = pq.read_metadata(pa.BufferReader(b"".join(built.data)))
    sizes = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    assert max(sizes) <= rows_per_group * 3 // 2
    assert all(size * 2 >= rows_per_group for size in sizes[:-1])


def test_records_larger_than_a_row_group_get_one_each() -> None:
    runs = [run("bucket/large", 1, [bytes([number]) * 5_000 for number in range(4)])]
    built = build(runs, 0, "t", bytes_per_group=1_000)
    assert [(extent.row_group, extent.row_count) for extent in built.extents] == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_rows_are_sorted_as_spark_sorts_names() -> None:
    """By the bytes of UTF-8; `a/b` after `a-b` because of the part before the slash, which is the bucket."""
    keys = ["bbbb/z", "aaaa/é", "aaaa/z", "aaaa-b/a", "aaaa/\U0001f40e", "aaaa/￿"]
    built = build([run(key, number, [b"x"]) for number, key in enumerate(keys)], 0, "t")
    rows = pq.read_table(pa.BufferReader(b"".join(built.data))).to_pylist()
    found = [(row["bucket"].encode(), row["stream"].encode()) for row in rows]
    assert found == sorted(found)
    assert found[-1] == (b"bbbb", b"z")


def test_many_small_runs_become_one_sorted_file() -> None:
    runs = some_runs(streams=3_000, records=1)
    built = build(list(reversed(runs)), 2, "t", rows_per_group=512)
    assert pq.read_table(pa.BufferReader(b"".join(built.data))).to_pylist() == rows_of(runs, 2)
    assert len(built.extents) == 3_000


# ---- what the file says of itself -------------------------------------------------------------------------------


def test_the_name_holds_group_position_and_token() -> None:
    built = build(some_runs(position=70), 12, "token")
    newest = 70 + 4 + 40 * 19
    assert built.file.path == f"data/12/{newest:020d}-token.parquet" == data_key(12, newest, "token")


def test_statistics_bound_what_others_prune_by() -> None:
    runs = some_runs(streams=4, records=6)
    built = build(runs, 9, "t", rows_per_group=6)
    known = msgspec.json.decode(built.file.statistics)
    rows = rows_of(runs, 9)
    assert known["numRecords"] == len(rows)
    for name in ("bucket", "stream", "incarnation", "group", "position"):
        assert known["minValues"][name] == min(row[name] for row in rows)
        assert known["maxValues"][name] == max(row[name] for row in rows)
        assert known["nullCount"][name] == 0
    footer = pq.read_metadata(pa.BufferReader(b"".join(built.data)))
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        columns = {group.column(index).path_in_schema: group.column(index) for index in range(group.num_columns)}
        assert columns["stream"].statistics.min == rows[6 * number]["stream"]
        assert columns["stream"].statistics.max == rows[6 * number + 5]["stream"]
        assert columns["position"].statistics.min == min(row["position"] for row in rows[6 * number : 6 * number + 6])
        assert columns["payload"].statistics is None
        assert not columns["payload"].has_dictionary_page


def test_a_long_name_is_left_out_of_the_statistics_rather_than_bounded_wrongly() -> None:
    built = build([run("bucket/" + "x" * 1_000, 1, [b"1"])], 0, "t")
    known = msgspec.json.decode(built.file.statistics)
    assert "stream" not in known["minValues"] and "stream" not in known["maxValues"]
    assert known["minValues"]["bucket"] == "bucket"


def test_a_file_without_records_is_refused() -> None:
    for runs in ([], [run("bucket/s", 1, [])]):
        with pytest.raises(ValueError, match="without records"):
            build(runs, 0, "t")


@pytest.mark.parametrize("column", ["ends", "ms", "n", "positions"])
def test_a_run_whose_columns_disagree_is_refused(column: str) -> None:
    good = run("bucket/s", 1, [b"abc", b"de"])
    bad = {"ends": array("Q", [3, 6])}.get(column, getattr(good, column)[:1])
    with pytest.raises(ValueError, match="disagree"):
        build([msgspec.structs.replace(good, **{column: bad})], 0, "t")


# ---- what is fetched --------------------------------------------------------------------------------------------


class Counting(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[int] = []

    def get(self, key: str) -> bytes:
        raise AssertionError("a whole file was fetched")

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        self.fetched.append(length)
        return memoryview(MemoryStore.get(self, key))[start : start + length]

    def get_tail(self, key: str, length: int) -> tuple[memoryview, int]:
        data = MemoryStore.get(self, key)
        self.fetched.append(min(length, len(data)))
        return memoryview(data)[-length:], len(data)


def test_a_read_fetches_a_footer_once_and_one_range_per_row_group(tmp_path: Path) -> None:
    store = Counting()
    built = put(store, build(random_runs(), 0, "t", rows_per_group=100))
    reader = Reader(store, MemoryCache(1 << 30))
    footer = pq.read_metadata(pa.BufferReader(b"".join(built.data)))
    for extent in built.extents[:3]:
        reader.records(extent, extent.start, extent.end)
        reader.stretch(extent, extent.start, extent.end, False)
    assert len(store.fetched) == 4
    for number, length in enumerate(store.fetched[1:]):
        group = footer.row_group(number)
        needed = sum(
            group.column(index).total_compressed_size
            for index in range(group.num_columns)
            if group.column(index).path_in_schema in SERVED
        )
        assert needed <= length <= needed * 1.02 + 500


def test_a_footer_larger_than_the_first_guess_is_fetched_with_a_second_request() -> None:
    store = Counting()
    built = put(store, build(random_runs(records=20), 0, "t", rows_per_group=10))
    footer = pq.read_metadata(pa.BufferReader(b"".join(built.data)))
    assert footer.serialized_size > 64 << 10, "the example is too small to need it"
    reader = Reader(store, MemoryCache(1 << 30))
    extent = built.extents[-1]
    assert len(reader.records(extent, extent.start, extent.end).payloads) == extent.row_count
    assert store.fetched[:2] == [64 << 10, footer.serialized_size + 8]


def test_a_cache_too_small_for_anything_still_reads_right() -> None:
    runs = random_runs(count=5)
    built = build(runs, 0, "t", rows_per_group=100)
    reader = reading(built, bytes_max=0)
    for extent in built.extents:
        assert reader.records(extent, extent.start, extent.end).payloads == runs[extent.sid].payloads


def test_ranges_come_from_the_disk_cache_when_they_are_there(tmp_path: Path) -> None:
    store = Counting()
    built = put(store, build(random_runs(count=4), 0, "t", rows_per_group=100))
    extent = built.extents[2]
    for turn in range(2):
        reader = Reader(store, MemoryCache(1 << 20), DiskCache(tmp_path, 1 << 20))
        assert reader.records(extent, extent.start, extent.end).payloads == random_runs(count=4)[2].payloads
        assert len(store.fetched) == 2, f"footer and row group, once, in turn {turn}"


@pytest.mark.parametrize("part", ["footer", "row group"])
def test_what_was_damaged_on_its_way_to_the_disk_cache_is_fetched_again(tmp_path: Path, part: str) -> None:
    store = MemoryStore()
    built = put(store, build(random_runs(count=4), 0, "t", rows_per_group=100))
    content, extent = store.get(built.file.path), built.extents[2]
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    at = footer if part == "footer" else len(content) // 2
    store.put(built.file.path, content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :])
    torn = Reader(store, MemoryCache(1 << 20), DiskCache(tmp_path, 1 << 20))
    with pytest.raises(LakeDamaged):
        torn.records(extent, extent.start, extent.end)
    store.put(built.file.path, content)
    disk = DiskCache(tmp_path, 1 << 20)
    for _ in range(2):
        reader = Reader(store, MemoryCache(1 << 20), disk)
        assert reader.records(extent, extent.start, extent.end).payloads == random_runs(count=4)[2].payloads


def test_a_forgotten_file_is_fetched_again() -> None:
    store = Counting()
    built = put(store, build(random_runs(count=4), 0, "t", rows_per_group=100))
    reader = Reader(store, MemoryCache(1 << 20))
    extent = built.extents[0]
    reader.stretch(extent, extent.start, extent.end, False)
    reader.forget(extent.file)
    reader.stretch(extent, extent.start, extent.end, False)
    assert len(store.fetched) == 4
