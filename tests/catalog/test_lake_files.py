"""The catalog beside its checkpoints: swaps of files in one transaction, and what streams let go of.
What a swap may not do is refused here too, whoever asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.catalog.lake_files import LakeFiles
from headwater.catalog.sqlite import SqliteCatalog
from headwater.model.extents import Extent
from headwater.ports import Standing
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


def swap(lake_files: LakeFiles) -> None:
    lake_files.swap(["old0", "old10"], ["new"], NEW, 4, NOW_MS)


def test_after_a_swap_extents_lead_to_the_new_file_alone(catalog: SqliteCatalog, lake_files: LakeFiles) -> None:
    assert catalog.alive() == {"old0": True, "old10": True} and not catalog.table_behind
    swap(lake_files)
    assert catalog.extents(1, 0, 10) == NEW[:1] and catalog.extents(2, 5, 10) == NEW[1:]
    assert lake_files.live_rows() == {"new": 40} and catalog.alive() == {"new": True}
    assert lake_files.files() == {"old0": NOW_MS, "old10": NOW_MS, "new": None}
    known = lake_files.standing(["old0", "new", "other"])
    assert known == {"old0": Standing(NOW_MS, None, 1), "new": Standing(None, 1, None)}
    assert lake_files.swapped(1) == ({"old0", "old10"}, {"new"})


def test_the_catalog_says_that_the_table_is_behind_until_it_followed(
    catalog: SqliteCatalog, lake_files: LakeFiles, tmp_path: Path
) -> None:
    swap(lake_files)
    assert lake_files.table_behind()
    again = SqliteCatalog(tmp_path / "catalog.db")
    assert again.table_behind
    again.table_followed()
    assert not again.table_behind and not lake_files.table_behind()
    again.close()


def test_an_extent_of_a_file_that_was_swapped_brings_nothing_back(
    catalog: SqliteCatalog, lake_files: LakeFiles
) -> None:
    swap(lake_files)
    catalog.write(change(extents=[extent(1, 0, "old0"), extent(1, 20, "fresh")], files=["old0", "fresh"]))
    assert catalog.extents(1, 0, 10) == [NEW[0], extent(1, 20, "fresh")]
    assert lake_files.files()["old0"] == NOW_MS and catalog.alive() == {"new": True, "fresh": True}


def test_trims_and_deletes_reach_the_new_extents(catalog: SqliteCatalog, lake_files: LakeFiles) -> None:
    swap(lake_files)
    catalog.write(change(cuts=[(1, 20)], gone=[("_default/b", 2)]))
    assert catalog.extents(1, 0, 10) == [] == catalog.extents(2, 0, 10)
    assert lake_files.unused() == {"old0", "old10", "new"}


def test_a_new_file_without_a_live_row_is_dead_at_once(catalog: SqliteCatalog, lake_files: LakeFiles) -> None:
    catalog.write(change(gone=[("_default/a", 1), ("_default/b", 2)]))
    lake_files.swap(["old0", "old10"], ["new"], [], 0, NOW_MS)
    assert lake_files.files() == {"old0": NOW_MS, "old10": NOW_MS, "new": NOW_MS}


@pytest.mark.parametrize(
    ("removed", "added", "count"),
    [
        (["old0", "none"], ["new"], 2),
        (["old0"], ["old10"], 2),
        (["old0", "old10"], ["new"], 3),
        (["old0", "old10"], ["new"], 5),
    ],
)
def test_a_swap_of_something_else_changes_nothing(
    catalog: SqliteCatalog, lake_files: LakeFiles, removed: list[str], added: list[str], count: int
) -> None:
    before = [list(lake_files.extents()), lake_files.files()]
    with pytest.raises(RuntimeError):
        lake_files.swap(removed, added, NEW, count, NOW_MS)
    assert [list(lake_files.extents()), lake_files.files()] == before and not lake_files.table_behind()


def test_a_swap_that_fails_in_the_middle_changes_nothing(catalog: SqliteCatalog, lake_files: LakeFiles) -> None:
    before = [list(lake_files.extents()), lake_files.files()]

    def extents() -> Iterator[Extent]:
        yield NEW[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lake_files.swap(["old0", "old10"], ["new"], extents(), 4, NOW_MS)
    assert [list(lake_files.extents()), lake_files.files()] == before
    swap(lake_files)
    with pytest.raises(RuntimeError):
        swap(lake_files)
    assert list(lake_files.extents()) == NEW


def test_swaps_are_numbered_and_a_file_knows_which_brought_and_which_took_it(
    catalog: SqliteCatalog, lake_files: LakeFiles
) -> None:
    swap(lake_files)
    later = [extent(1, 0, "newer", 20), extent(2, 0, "newer", 20, 20)]
    lake_files.swap(["new"], ["newer"], later, 2, NOW_MS + 1)
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
    assert [row.sid for row in lake_files.streams_after(-1, 1)] == [1]
    assert [row.sid for row in lake_files.streams_after(1, 10)] == [2] and lake_files.streams_after(2, 10) == []
    assert lake_files.extents_count(["old0", "none"]) == 2
