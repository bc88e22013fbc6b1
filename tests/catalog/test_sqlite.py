"""The catalog on disk: what a checkpoint wrote is found by name and by number, all of it or none.
Also what it must refuse: a file of another format."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.catalog.lake_files import LakeFiles
from headwater.catalog.sqlite import FORMAT, READS_DAYS, CatalogMismatch, SqliteCatalog
from headwater.model.extents import Extent
from headwater.model.row import BucketRow, StreamRow
from headwater.ports import ReadCount
from tests.catalog import change, stream_row

texts = st.text(st.characters(codec="utf-8"), max_size=10)
u64 = st.integers(0, (1 << 64) - 1)
times_ms = st.integers(0, 1 << 52)
rows = st.builds(
    stream_row,
    key=st.builds("{}/{}".format, texts, texts),
    sid=st.integers(1, 1 << 62),
    position=st.integers(0, 1 << 62),
    content_type=texts,
    durability=st.integers(0, 2),
    ttl_ms=st.none() | times_ms,
    expires_ms=st.none() | times_ms,
    closed=st.booleans(),
    closed_by=st.none() | st.tuples(texts, times_ms, times_ms),
    producers=st.lists(st.tuples(texts, times_ms, times_ms, times_ms), max_size=3),
    stream_seq=st.none() | texts,
    tail=u64,
    count=u64,
    last_ms=u64,
    last_n=st.integers(-1, 1 << 62),
)


@pytest.fixture
def catalog(tmp_path: Path) -> SqliteCatalog:
    return SqliteCatalog(tmp_path / "deep" / "catalog.db")


@settings(max_examples=20)
@given(st.lists(rows, max_size=5, unique_by=(lambda row: row.key, lambda row: row.sid)))
def test_every_row_comes_back_by_key_and_by_sid_also_from_a_new_start(written: list[StreamRow]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "catalog.db"
        first = SqliteCatalog(path)
        first.write(change(rows=written, position=77, log_floor=33, next_sid=99))
        for catalog in (first, SqliteCatalog(path)):
            assert [catalog.load(row.key) for row in written] == written
            assert [catalog.load_sid(row.sid) for row in written] == written
            assert (catalog.position, catalog.log_floor, catalog.next_sid) == (77, 33, 99)
            catalog.close()


def test_what_is_not_there_is_not_found(catalog: SqliteCatalog) -> None:
    assert catalog.load("_default/s") is None and catalog.load_sid(1) is None
    assert catalog.load_bucket("alpha") is None and catalog.load_things("domain") == {}
    assert catalog.extents(1, 0, 10) == [] and catalog.files() == set() and catalog.due(1 << 60, 10) == []
    assert (catalog.position, catalog.log_floor, catalog.next_sid) == (0, 0, 0)


def test_a_row_that_is_written_again_is_replaced(catalog: SqliteCatalog) -> None:
    catalog.write(change(rows=[stream_row(tail=1)]))
    catalog.write(change(rows=[stream_row(tail=2)]))
    assert catalog.load("_default/s") == stream_row(tail=2) == catalog.load_sid(1)


def test_a_row_that_is_gone_is_gone_by_both_names(catalog: SqliteCatalog) -> None:
    catalog.write(change(rows=[stream_row(), stream_row("_default/kept", 2)]))
    catalog.write(change(gone=[("_default/s", 1)]))
    assert catalog.load("_default/s") is None and catalog.load_sid(1) is None
    assert catalog.load("_default/kept") is not None


def test_a_name_that_was_deleted_and_made_again_leads_to_the_new_stream(catalog: SqliteCatalog) -> None:
    catalog.write(change(rows=[stream_row(sid=1)]))
    catalog.write(change(gone=[("_default/s", 1)], rows=[stream_row(sid=2, tail=7)]))
    assert catalog.load("_default/s") == stream_row(sid=2, tail=7) == catalog.load_sid(2)
    assert catalog.load_sid(1) is None
    # A removal that names the old incarnation never touches the new one.
    catalog.write(change(gone=[("_default/s", 1)]))
    assert catalog.load_sid(2) is not None


def test_a_write_that_fails_leaves_rows_and_position_where_they_were(catalog: SqliteCatalog) -> None:
    catalog.write(change(rows=[stream_row(tail=1)], position=10))
    clash = [stream_row(tail=2), stream_row("_default/a", 7), stream_row("_default/b", 7)]
    with pytest.raises(sqlite3.IntegrityError):
        catalog.write(change(rows=clash, position=20))
    assert catalog.position == 10
    assert catalog.load("_default/s") == stream_row(tail=1) and catalog.load("_default/a") is None
    catalog.write(change(position=30))
    assert catalog.position == 30


def test_positions_grow_with_every_checkpoint_and_survive_a_new_start(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    for position in (10, 20, 20, 500):
        catalog = SqliteCatalog(path)
        assert catalog.position <= position
        catalog.write(change(position=position, log_floor=position - 5, next_sid=position))
        catalog.close()
        again = SqliteCatalog(path)
        assert (again.position, again.log_floor, again.next_sid) == (position, position - 5, position)
        again.close()


def test_readers_do_not_see_a_checkpoint_before_it_is_committed(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    catalog.write(change(rows=[stream_row(tail=1)]))
    other = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    other.execute("begin immediate")
    other.execute("delete from streams")
    assert catalog.load("_default/s") == stream_row(tail=1)
    other.execute("rollback")


def test_a_file_of_another_format_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    catalog = SqliteCatalog(path)
    catalog.write(change())
    catalog.close()
    db = sqlite3.connect(path)
    with db:
        db.execute("update meta set value = ? where name = 'format'", (FORMAT + 1,))
    db.close()
    with pytest.raises(CatalogMismatch) as caught:
        SqliteCatalog(path)
    assert str(FORMAT) in str(caught.value) and str(FORMAT + 1) in str(caught.value)
    assert "empty data directory" in str(caught.value), "it says what to do"


def test_a_file_of_the_format_before_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    db = sqlite3.connect(path)
    with db:
        db.execute("create table streams (key text primary key, sid integer, row blob) without rowid")
        db.execute("create table meta (name text primary key, value integer) without rowid")
        db.execute("insert into meta values ('format', 2)")
    for opened in (SqliteCatalog, LakeFiles):
        with pytest.raises(CatalogMismatch, match="format 2"):
            opened(path)
    assert db.execute("select count(*) from sqlite_schema where type = 'table'").fetchone() == (2,)
    db.close()


def test_a_listing_is_a_range_of_keys_in_bytewise_order(catalog: SqliteCatalog) -> None:
    keys = ["alpha/é", "alpha/a", "alpha/B", "alpha/aa", "beta/a", "alpha/z"]
    catalog.write(change(rows=[stream_row(key, sid) for sid, key in enumerate(keys, 1)]))
    found = [row.key for row in catalog.page("alpha/", "alpha0", 10)]
    assert found == sorted((key for key in keys if key.startswith("alpha/")), key=str.encode)
    assert [row.key for row in catalog.page("alpha/a", "alpha0", 2)] == ["alpha/aa", "alpha/z"]


def test_streams_whose_time_has_passed_are_found_by_their_deadline(catalog: SqliteCatalog) -> None:
    catalog.write(
        change(
            rows=[
                stream_row("_default/sliding", 1, ttl_ms=500, touched_ms=1_000),
                stream_row("_default/fixed", 2, expires_ms=1_200),
                stream_row("_default/kept", 3),
            ]
        )
    )
    assert catalog.due(1_199, 10) == []
    assert catalog.due(1_500, 10) == ["_default/fixed", "_default/sliding"]
    assert catalog.due(1_500, 1) == ["_default/fixed"]
    catalog.write(change(rows=[stream_row("_default/fixed", 2)]))
    assert catalog.due(1_500, 10) == ["_default/sliding"]


def test_an_empty_bucket_loses_its_row_unless_recovery_still_needs_it(catalog: SqliteCatalog) -> None:
    catalog.write(change(buckets=[BucketRow("named", 5, True, 1, 0), BucketRow("full", 5, False, 1, 3)]))
    assert catalog.load_bucket("named") and catalog.load_bucket("full")
    empty, ahead = BucketRow("full", 50, False, 1, 0), BucketRow("named", 101, False, 1, 0)
    catalog.write(change(buckets=[empty, ahead], position=100))
    # `ahead` counts events behind the checkpoint's position: without its row they would be counted twice.
    assert catalog.load_bucket("full") is None and catalog.load_bucket("named") == ahead


def test_things_beside_the_streams_are_kept_by_domain(catalog: SqliteCatalog) -> None:
    catalog.write(change(things=[("a", "x", b"1"), ("a", "y", b"2"), ("b", "x", b"3")]))
    catalog.write(change(things=[("a", "x", None), ("a", "y", b"4")]))
    assert catalog.load_things("a") == {"y": b"4"} and catalog.load_things("b") == {"x": b"3"}


def test_extents_are_found_from_an_offset_on_and_go_with_a_cut_or_their_stream(catalog: SqliteCatalog) -> None:
    extents = [Extent(sid, at, at + 10, at, 1, 0, "file", 0, 0, 1) for sid in (1, 2) for at in (0, 10, 20)]
    catalog.write(change(rows=[stream_row(), stream_row("_default/t", 2)], extents=extents, files=["file"]))
    assert catalog.extents(1, 10, 10) == extents[1:3] and catalog.extents(1, 0, 2) == extents[:2]
    assert catalog.files() == {"file"}
    catalog.write(change(cuts=[(1, 15)]))
    assert catalog.extents(1, 0, 10) == extents[1:3]
    catalog.write(change(gone=[("_default/t", 2)]))
    assert catalog.extents(2, 0, 10) == [] and catalog.extents(1, 0, 10) == extents[1:3]


def test_a_catalog_without_a_path_lives_as_long_as_the_process() -> None:
    catalog = SqliteCatalog(None)
    catalog.write(change(rows=[stream_row()]))
    assert catalog.load("_default/s") == stream_row()
    catalog.close()
    assert SqliteCatalog(None).load("_default/s") is None


# ---- reads ------------------------------------------------------------------------------------------------------


def test_reads_add_up_and_come_in_order_of_days_and_buckets(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    catalog.write(change(reads=[ReadCount(7, "b", 1, 10), ReadCount(7, "a", 2, 20), ReadCount(6, "z", 1, 1)]))
    catalog.write(change(reads=[ReadCount(7, "b", 3, 5)]))
    catalog.close()
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    expected = [ReadCount(6, "z", 1, 1), ReadCount(7, "a", 2, 20), ReadCount(7, "b", 4, 15)]
    assert catalog.reads(-1, "", 10) == expected
    assert catalog.reads(6, "z", 10) == expected[1:]
    assert catalog.reads(7, "a", 1) == expected[2:]
    catalog.close()


def test_reads_of_long_ago_are_let_go_of() -> None:
    catalog = SqliteCatalog(None)
    catalog.write(change(reads=[ReadCount(1, "a", 1, 1), ReadCount(2, "a", 1, 1)]))
    catalog.write(change(reads=[ReadCount(2 + READS_DAYS, "a", 1, 1)]))
    assert [count.day for count in catalog.reads(-1, "", 10)] == [2, 2 + READS_DAYS]
    catalog.close()
