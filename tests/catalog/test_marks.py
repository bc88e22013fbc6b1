"""The catalog's marks: found by one mark or a range of them, and gone with what they mark, in bounded steps."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from headwater.catalog import marks
from headwater.catalog.sqlite import SqliteCatalog
from headwater.model.labels import Labels
from headwater.model.marks import LabelledRun
from tests.catalog import change


def run(sid: int, count: int, seq: int = 0) -> LabelledRun:
    """Records of two bytes, with tags in turn."""
    labels: list[Labels | None] = [Labels("abc"[number % 3]) for number in range(seq, seq + count)]
    return LabelledRun(sid, seq, 2 * seq, array("Q", range(2 * seq + 2, 2 * (seq + count) + 2, 2)), labels)


def count_of(catalog: SqliteCatalog, sid: int) -> int:
    return len(catalog.marked_between(sid, ("", -1), "\U0010ffff", 1_000_000))


def test_marks_are_found_in_order_and_page_by_page(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    catalog.write(change(marks=[run(1, 7), run(2, 3)]))
    catalog.write(change(marks=[run(1, 3, 7)]))
    assert catalog.marked(1, "t:a", 0, 100, 10) == [(0, 0, 2), (3, 6, 8), (6, 12, 14), (9, 18, 20)]
    assert catalog.marked(1, "t:a", 3, 9, 1) == [(3, 6, 8)]
    assert catalog.marked(1, "t:a", 4, 9, 10) == [(6, 12, 14)]
    whole = catalog.marked_between(1, ("t:a", -1), "t:c", 100)
    assert [row[:2] for row in whole] == [("t:a", n) for n in (0, 3, 6, 9)] + [("t:b", n) for n in (1, 4, 7)]
    after, paged = ("t:a", -1), []
    while rows := catalog.marked_between(1, after, "t:c", 2):
        paged += rows
        after = rows[-1][:2]
    assert paged == whole
    catalog.close()


def test_marks_go_with_what_they_mark_a_step_at_a_time_also_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "PRUNED_MAX", 4)
    path = tmp_path / "catalog.db"
    catalog = SqliteCatalog(path)
    catalog.write(change(marks=[run(1, 10), run(2, 10), run(3, 10)]))
    catalog.write(change(cuts=[(1, 12)], gone=[("b/s", 2)]))
    assert count_of(catalog, 1) + count_of(catalog, 2) == 16
    catalog.close()
    catalog = SqliteCatalog(path)
    steps = 0
    while catalog.prune_marks():
        steps += 1
    assert steps == 3
    assert [count_of(catalog, sid) for sid in (1, 2, 3)] == [4, 0, 10]
    assert [row[1] for row in catalog.marked_between(1, ("", -1), "u", 100)] == [6, 9, 7, 8]
    catalog.close()


def test_a_cut_of_a_stream_without_marks_leaves_nothing_to_do(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    catalog.write(change(cuts=[(1, 12)], gone=[("b/s", 2)]))
    assert not catalog.prune_marks()
    catalog.close()
