"""A catalog without its log: streams end where the lake ends, and everything else that was acknowledged stays known."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headwater.catalog.sqlite import SqliteCatalog
from headwater.catalog.without_log import SIDS_SKIPPED, Cut, cut, survey
from headwater.model.events import Forked
from headwater.model.extents import Extent
from headwater.model.holes import Holes, Run
from headwater.model.lineage import DOMAIN, IDENTITY
from headwater.model.row import StreamRow
from tests.catalog import change, stream_row

IDENTITY_OF_NEW = "00000000000000ab"


def extent(sid: int, start: int, end: int, seq_start: int, row_count: int) -> Extent:
    return Extent(sid, start, end, seq_start, 1, 0, f"data/0/{sid}.parquet", 0, 0, row_count)


def catalog_of(path: Path, rows: list[StreamRow], extents: list[Extent]) -> Path:
    with closing(SqliteCatalog(path)) as catalog:
        catalog.write(change(rows=rows, extents=extents, position=500, log_floor=100, next_sid=50))
    return path


def rows_of(path: Path) -> dict[str, StreamRow]:
    with closing(SqliteCatalog(path)) as catalog:
        return {row.key: row for row in catalog.page("", "\U0010ffff", 100)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0.db"


def test_a_stream_ends_after_its_last_record_in_the_lake_and_keeps_what_its_producers_know(path: Path) -> None:
    producers = [("p", 1, 9, 3)]
    row = stream_row(key="b/hot", sid=1, tail=90, count=9, cold_end=60, producers=producers, last_ms=7, position=400)
    catalog_of(path, [row], [extent(1, 0, 20, 0, 2), extent(1, 20, 60, 2, 4)])
    assert cut(path, IDENTITY_OF_NEW) == Cut(500, 1, 1, 30, 0)
    found = rows_of(path)["b/hot"]
    assert (found.tail, found.count, found.cold_end) == (60, 6, 60)
    assert (found.producers, found.last_ms) == (producers, 7)


def test_a_stream_that_has_settled_stays_as_it_is(path: Path) -> None:
    row = stream_row(key="b/cold", sid=1, tail=60, count=6, cold_end=60)
    catalog_of(path, [row], [extent(1, 0, 60, 0, 6)])
    assert cut(path, IDENTITY_OF_NEW) == Cut(500, 1, 0, 0, 0)
    assert rows_of(path)["b/cold"] == row


def test_streams_that_never_settled_begin_again_where_they_began(path: Path) -> None:
    new = stream_row(key="b/new", sid=1, tail=30, count=3, cold_end=0)
    trimmed = stream_row(key="b/trimmed", sid=2, tail=90, count=9, cold_end=20, earliest=50, first_seq=5)
    fork = stream_row(key="b/fork", sid=3, tail=40, count=5, cold_end=20, forked=Forked(9, 20, 3, 1, 0, None, 0))
    catalog_of(path, [new, trimmed, fork], [])
    cut(path, IDENTITY_OF_NEW)
    found = rows_of(path)
    assert {key: (row.tail, row.count) for key, row in found.items()} == {
        "b/new": (0, 0),
        "b/trimmed": (50, 5),
        "b/fork": (20, 3),
    }


def test_a_fork_of_what_its_source_lost_begins_where_it_left_the_source(path: Path) -> None:
    source = stream_row(key="b/source", sid=1, tail=90, count=9, cold_end=60, children=2)
    late = stream_row(key="b/late", sid=2, tail=100, count=10, cold_end=100, forked=Forked(1, 80, 8, 1, 0, None, 0))
    early = stream_row(key="b/early", sid=3, tail=100, count=9, cold_end=100, forked=Forked(1, 60, 6, 1, 0, None, 0))
    catalog_of(path, [source, late, early], [extent(1, 0, 60, 0, 6)])
    assert cut(path, IDENTITY_OF_NEW) == Cut(500, 3, 1, 30, 1)
    found = rows_of(path)
    assert (found["b/late"].earliest, found["b/late"].first_seq, found["b/late"].tail) == (80, 8, 100)
    assert found["b/late"].lost_position > 0
    assert found["b/early"] == early


def test_it_is_a_catalog_of_the_new_log_from_its_position_on(path: Path) -> None:
    catalog_of(path, [stream_row(key="b/a", sid=1, tail=0, count=0, position=510)], [])
    with closing(SqliteCatalog(path)) as catalog:
        catalog.keep_incarnations([("aa", 0), ("bb", 300)])
    cut(path, IDENTITY_OF_NEW)
    with closing(SqliteCatalog(path)) as catalog:
        # Not before the newest row: what is logged up to its position would not be applied to it.
        assert (catalog.position, catalog.log_floor, catalog.next_sid) == (510, 510, 50 + SIDS_SKIPPED)
        assert catalog.thing(DOMAIN, IDENTITY) == IDENTITY_OF_NEW.encode()
        assert catalog.incarnations() == [("aa", 0), ("bb", 300)]
        assert catalog.table_behind


def test_a_survey_tells_the_same_and_changes_nothing(path: Path) -> None:
    row = stream_row(key="b/hot", sid=1, tail=90, count=9, cold_end=60)
    catalog_of(path, [row], [extent(1, 0, 60, 0, 6)])
    assert survey(path) == Cut(500, 1, 1, 30, 0)
    assert rows_of(path)["b/hot"] == row


def test_a_catalog_that_lacks_the_place_of_settled_records_is_not_cut(path: Path) -> None:
    catalog_of(path, [stream_row(key="b/hot", sid=1, tail=90, count=9, cold_end=60)], [])
    with pytest.raises(sqlite3.DatabaseError, match="holds b/hot up to 60"):
        cut(path, IDENTITY_OF_NEW)


def holes(*runs: Run) -> bytes:
    made = Holes()
    made.add(runs)
    return made.packed()


def test_deleted_records_at_the_end_of_what_settled_stay_deleted(path: Path) -> None:
    """The lake holds none of them any more: files were rewritten since."""
    exact = holes(Run(1, 2, 10, 20), Run(4, 6, 40, 60), Run(7, 8, 70, 80))
    beyond = holes(Run(1, 2, 10, 20), Run(4, 7, 40, 70))
    rows = [
        stream_row(key="b/exact", sid=1, tail=90, count=9, cold_end=60, holes=exact),
        stream_row(key="b/beyond", sid=2, tail=90, count=9, cold_end=60, holes=beyond),
    ]
    extents = [extent(sid, *place) for sid in (1, 2) for place in ((0, 10, 0, 1), (20, 40, 2, 2))]
    catalog_of(path, rows, extents)
    cut(path, IDENTITY_OF_NEW)
    found = rows_of(path)
    assert (found["b/exact"].tail, found["b/exact"].count, found["b/exact"].cold_end) == (60, 6, 60)
    assert list(Holes(found["b/exact"].holes)) == [Run(1, 2, 10, 20), Run(4, 6, 40, 60)]
    # Where in the hole the lake ended nobody knows: the stream goes on before it.
    assert (found["b/beyond"].tail, found["b/beyond"].count, found["b/beyond"].cold_end) == (40, 4, 40)
    assert list(Holes(found["b/beyond"].holes)) == [Run(1, 2, 10, 20)]


def test_a_fork_that_lost_what_it_shared_forgets_what_it_had_deleted_of_it(path: Path) -> None:
    source = stream_row(key="b/source", sid=1, tail=90, count=9, cold_end=60, children=1)
    forked = Forked(1, 80, 8, 1, 0, None, 0)
    mine = holes(Run(2, 3, 20, 30), Run(8, 9, 80, 90), Run(10, 11, 100, 110))
    fork = stream_row(key="b/fork", sid=2, tail=120, count=12, cold_end=120, forked=forked, holes=mine)
    catalog_of(path, [source, fork], [extent(1, 0, 60, 0, 6)])
    cut(path, IDENTITY_OF_NEW)
    found = rows_of(path)["b/fork"]
    assert (found.earliest, found.first_seq) == (90, 9)
    assert list(Holes(found.holes)) == [Run(10, 11, 100, 110)]
