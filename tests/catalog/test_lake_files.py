"""Files of the lake in the catalog: swaps that a checkpoint brings, and what streams let go of."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.catalog.lake_files import LakeFiles
from headwater.catalog.sqlite import SqliteCatalog
from headwater.model.extents import Extent, packed
from headwater.model.holes import Holes, Run
from headwater.model.row import StreamRow
from headwater.ports import FilesSwapped, RowCounts, Standing
from tests.catalog import change, stream_row

NOW_MS = 5_000


def extent(sid: int, start: int, file: str, count: int = 10, row_start: int = 0) -> Extent:
    return Extent(sid, start, start + count, start, 1, 0, file, 0, row_start, count, start + count)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqliteCatalog]:
    """Two streams, each with an extent in each of two files."""
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    rows = [stream_row("_default/a", 1, tail=20), stream_row("_default/b", 2, tail=20)]
    extents = [extent(sid, start, f"old{start}", row_start=sid * 10) for sid in (1, 2) for start in (0, 10)]
    catalog.write(change(rows=rows, extents=extents, files=["old0", "old10"]))
    yield catalog
    catalog.close()


@pytest.fixture
def lake_files(catalog: SqliteCatalog, tmp_path: Path) -> Iterator[LakeFiles]:
    lake_files = LakeFiles(tmp_path / "catalog.db")
    yield lake_files
    lake_files.close()


NEW = [extent(1, 0, "new", 20), extent(2, 0, "new", 20, 20)]


def swapped(
    removed: list[str], added: list[str], extents: list[Extent], now_ms: int = NOW_MS, part: int = 1
) -> FilesSwapped:
    """As it is logged: in parts."""
    parts = [packed(extents[at : at + part]) for at in range(0, len(extents), part)]
    return FilesSwapped(removed, added, [*parts, packed([])], now_ms)


def swap(catalog: SqliteCatalog) -> None:
    catalog.write(change(swaps=[swapped(["old0", "old10"], ["new"], NEW)], files=["new"]))


def test_after_a_swap_extents_lead_to_the_new_file_alone(catalog: SqliteCatalog, lake_files: LakeFiles) -> None:
    assert catalog.alive() == {"old0": True, "old10": True} and not catalog.table_behind
    swap(catalog)
    assert catalog.extents(1, 0, 10) == NEW[:1] and catalog.extents(2, 5, 10) == NEW[1:]
    assert lake_files.row_counts() == {"new": RowCounts(40, 0)} and catalog.alive() == {"new": True}
    assert lake_files.files() == {"old0": NOW_MS, "old10": NOW_MS, "new": None}
    known = lake_files.standing(["old0", "new", "other"])
    assert known == {"old0": Standing(NOW_MS, None, 1), "new": Standing(None, 1, None)}
    assert lake_files.swapped(1) == ({"old0", "old10"}, {"new"})


def test_the_catalog_says_that_the_table_is_behind_until_it_followed(
    catalog: SqliteCatalog, lake_files: LakeFiles, tmp_path: Path
) -> None:
    swap(catalog)
    assert lake_files.table_behind()
    again = SqliteCatalog(tmp_path / "catalog.db")
    assert again.table_behind
    again.table_followed()
    assert not again.table_behind and not lake_files.table_behind()
    again.close()


def test_an_extent_of_a_file_that_was_swapped_brings_nothing_back(
    catalog: SqliteCatalog, lake_files: LakeFiles
) -> None:
    swap(catalog)
    catalog.write(change(extents=[extent(1, 0, "old0"), extent(1, 20, "fresh")], files=["old0", "fresh"]))
    assert catalog.extents(1, 0, 10) == [NEW[0], extent(1, 20, "fresh")]
    assert lake_files.files()["old0"] == NOW_MS and catalog.alive() == {"new": True, "fresh": True}


def test_trims_and_deletes_reach_the_new_extents(catalog: SqliteCatalog, lake_files: LakeFiles) -> None:
    swap(catalog)
    catalog.write(change(cuts=[(1, 20)], gone=[("_default/b", 2)]))
    assert catalog.extents(1, 0, 10) == [] == catalog.extents(2, 0, 10)
    assert lake_files.unused() == {"old0", "old10", "new"}


def test_a_new_file_without_a_live_row_is_dead_at_once(catalog: SqliteCatalog, lake_files: LakeFiles) -> None:
    catalog.write(change(gone=[("_default/a", 1), ("_default/b", 2)]))
    catalog.write(change(swaps=[swapped(["old0", "old10"], ["new"], [])]))
    assert lake_files.files() == {"old0": NOW_MS, "old10": NOW_MS, "new": NOW_MS}


def test_what_was_deleted_or_trimmed_after_a_swap_was_judged_does_not_come_back(
    catalog: SqliteCatalog, lake_files: LakeFiles
) -> None:
    """Whoever follows the log may have taken a checkpoint between the two: it knows no extents of them any more."""
    trimmed = stream_row("_default/a", 1, tail=20, earliest=15, lost_position=15)
    catalog.write(change(rows=[trimmed], cuts=[(1, 15)], gone=[("_default/b", 2)]))
    new = [extent(1, 0, "new"), extent(1, 10, "new", 10, 10), *(extent(2, start, "new") for start in (0, 10))]
    catalog.write(change(swaps=[swapped(["old0", "old10"], ["new"], new)]))
    assert list(lake_files.extents()) == new[1:2] and lake_files.row_counts() == {"new": RowCounts(10, 0)}


def test_what_forks_still_read_of_a_trimmed_stream_is_swapped(catalog: SqliteCatalog, lake_files: LakeFiles) -> None:
    source = stream_row("_default/a", 1, tail=20, earliest=15, lost_position=15, children=1)
    catalog.write(change(rows=[source]))
    swap(catalog)
    assert list(lake_files.extents()) == NEW


def test_one_checkpoint_may_bring_a_file_its_swap_and_the_next_one(
    catalog: SqliteCatalog, lake_files: LakeFiles
) -> None:
    fresh = extent(1, 20, "fresh")
    later = [extent(1, 0, "newer", 30), extent(2, 0, "newer", 20, 30)]
    swaps = [swapped(["old0", "old10"], ["new"], NEW), swapped(["new", "fresh"], ["newer"], later)]
    catalog.write(change(extents=[fresh], files=["fresh", "new", "newer"], swaps=swaps))
    assert list(lake_files.extents()) == later and catalog.alive() == {"newer": True}
    assert lake_files.standing(["new", "fresh"]) == {"new": Standing(NOW_MS, 1, 2), "fresh": Standing(NOW_MS, None, 2)}


def test_a_swap_that_contradicts_the_catalog_changes_nothing(catalog: SqliteCatalog, lake_files: LakeFiles) -> None:
    swap(catalog)
    before = [list(lake_files.extents()), lake_files.files()]
    for wrong in (swapped(["new"], ["old0"], NEW), swapped(["old0"], ["new"], NEW), swapped(["old0"], ["other"], NEW)):
        with pytest.raises((RuntimeError, sqlite3.IntegrityError, KeyError)):
            catalog.write(change(swaps=[wrong], position=900))
        assert [list(lake_files.extents()), lake_files.files()] == before and lake_files.position() == 100


def test_swaps_are_numbered_and_a_file_knows_which_brought_and_which_took_it(
    catalog: SqliteCatalog, lake_files: LakeFiles
) -> None:
    swap(catalog)
    later = [extent(1, 0, "newer", 20), extent(2, 0, "newer", 20, 20)]
    catalog.write(change(swaps=[swapped(["new"], ["newer"], later, NOW_MS + 1)]))
    standing = {"new": Standing(NOW_MS + 1, 1, 2), "newer": Standing(None, 2, None)}
    assert lake_files.standing(["new", "newer"]) == standing
    lake_files.forget(["old0"])
    assert lake_files.swapped(1) == ({"old10"}, {"new"})


def test_losses_come_by_position_and_only_those_behind_it(catalog: SqliteCatalog, lake_files: LakeFiles) -> None:
    rows = [
        stream_row("_default/a", 1, lost_position=70),
        stream_row("_default/b", 2, lost_position=50),
        stream_row("_default/c", 3),
        stream_row("_default/d", 4, lost_position=60, soft_deleted=True),
        stream_row("_default/e", 5, lost_position=90),
    ]
    catalog.write(change(rows=rows))
    assert [row.sid for row in lake_files.losses(0, 10)] == [2, 1, 5]
    assert [row.sid for row in lake_files.losses(50, 1)] == [1] and lake_files.losses(90, 10) == []
    catalog.write(change(rows=[stream_row("_default/b", 2, lost_position=95)], gone=[("_default/e", 5)]))
    assert [row.sid for row in lake_files.losses(0, 10)] == [1, 2]


def test_streams_are_paged_by_incarnation(catalog: SqliteCatalog, lake_files: LakeFiles) -> None:
    assert _page(lake_files.streams_after(-1, 1, 1 << 20)) == ([1], True)
    assert _page(lake_files.streams_after(-1, 10, 1)) == ([1], True)
    assert _page(lake_files.streams_after(1, 10, 1 << 20)) == ([2], False)
    assert _page(lake_files.streams_after(2, 10, 1 << 20)) == ([], False)
    assert lake_files.extents_count(["old0", "none"]) == 2


def _page(found: tuple[list[StreamRow], bool]) -> tuple[list[int], bool]:
    return [row.sid for row in found[0]], found[1]


# ---- deleted records --------------------------------------------------------------------------------------------


def holes(*runs: tuple[int, int]) -> bytes:
    """Every record is of one byte."""
    made = Holes()
    made.add([Run(*run, *run) for run in runs])
    return made.packed()


def rows_in(found: list[Extent]) -> list[tuple[int, int, int, int]]:
    """(sid, first record, row of the file it is in, how many)."""
    return [(one.sid, one.seq_start, one.row_start, one.row_count) for one in found]


def test_rows_of_deleted_records_are_not_live(catalog: SqliteCatalog, lake_files: LakeFiles) -> None:
    """A hole over the border of two files, one at the end, and a stream that begins in the middle of an extent."""
    catalog.write(
        change(
            rows=[
                stream_row("_default/a", 1, tail=20, count=20, holes=holes((8, 12), (19, 20))),
                stream_row("_default/b", 2, tail=20, count=20, deleted_offset=3, deleted_seq=3),
            ]
        )
    )
    assert lake_files.row_counts() == {"old0": RowCounts(15, 0), "old10": RowCounts(17, 0)}
    assert rows_in(lake_files.live_in("old0")) == [(1, 0, 10, 8), (2, 3, 23, 7)]
    assert rows_in(lake_files.live_in("old10")) == [(1, 12, 12, 7), (2, 10, 20, 10)]
    # What extents say is what was written, for whoever holds files against it.
    assert rows_in(lake_files.extents_in("old0")) == [(1, 0, 10, 10), (2, 0, 20, 10)]
    assert lake_files.counts()["rows_live"] == 32


def test_a_file_that_holds_nothing_else_is_known_as_one_without_live_rows(
    catalog: SqliteCatalog, lake_files: LakeFiles
) -> None:
    rows = [stream_row(key, sid, tail=20, count=20, holes=holes((10, 20))) for key, sid in BOTH]
    catalog.write(change(rows=rows))
    assert lake_files.row_counts() == {"old0": RowCounts(20, 0), "old10": RowCounts(0, 0)}
    assert lake_files.live_in("old10") == []


BOTH = [("_default/a", 1), ("_default/b", 2)]


def test_forks_keep_rows_of_deleted_records(catalog: SqliteCatalog, lake_files: LakeFiles) -> None:
    forked = stream_row("_default/a", 1, tail=20, count=20, holes=holes((2, 5)), children=1)
    catalog.write(change(rows=[forked]))
    assert lake_files.row_counts() == {"old0": RowCounts(20, 3), "old10": RowCounts(20, 0)}
    parts = [(part.extent.sid, part.extent.seq_start, part.deleted) for part in lake_files.live_parts("old0")]
    assert parts == [(1, 0, False), (1, 2, True), (1, 5, False), (2, 0, False)]


def test_a_stream_that_is_gone_leaves_no_trace_of_its_deletions(catalog: SqliteCatalog, tmp_path: Path) -> None:
    catalog.write(change(rows=[stream_row("_default/a", 1, tail=20, count=20, holes=holes((2, 5)))]))
    catalog.write(change(gone=[("_default/a", 1)]))
    with sqlite3.connect(tmp_path / "catalog.db") as db:
        assert db.execute("select * from deletions").fetchall() == []


def test_a_catalog_from_before_there_were_deletions_is_read(catalog: SqliteCatalog, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "catalog.db") as db:
        db.execute("drop table deletions")
    old = LakeFiles(tmp_path / "catalog.db", read_only=True)
    assert old.row_counts() == {"old0": RowCounts(20, 0), "old10": RowCounts(20, 0)}
    assert len(old.live_in("old0")) == 2
    old.close()
    again = SqliteCatalog(tmp_path / "catalog.db")
    again.write(change(rows=[stream_row("_default/a", 1, tail=20, count=20, holes=holes((2, 5)))]))
    again.close()
    found = LakeFiles(tmp_path / "catalog.db")
    assert found.row_counts()["old0"] == RowCounts(17, 0)
    found.close()


def test_extents_before_what_was_deleted_do_not_come_back_with_a_swap(
    catalog: SqliteCatalog, lake_files: LakeFiles
) -> None:
    catalog.write(
        change(
            rows=[
                stream_row(
                    "_default/a", 1, tail=20, count=20, earliest=10, first_seq=10, deleted_offset=10, deleted_seq=10
                )
            ]
        )
    )
    new = [extent(1, 0, "new"), extent(1, 10, "new", 10, 10), extent(2, 0, "new", 20, 20)]
    catalog.write(change(swaps=[swapped(["old0", "old10"], ["new"], new)]))
    assert list(lake_files.extents()) == new[1:]
