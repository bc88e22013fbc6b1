"""Labels become marks: one for each thing that a record can be found by, and times in their order."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from headwater.model.labels import Labels
from headwater.model.marks import LabelledRun, due_mark, marks_of


def test_tag_key_and_time_have_a_mark_each_and_the_rest_has_none() -> None:
    assert marks_of(Labels("a", "node", b"{}", "b", 12)) == ["t:a", "k:b", "d:000000000000012"]
    assert marks_of(Labels(node="node", meta=b"{}")) == []
    assert marks_of(Labels(tag="")) == ["t:"]


@given(st.lists(st.integers(0, 10**15 - 1), min_size=2))
def test_marks_of_times_sort_as_the_times_do(times_ms: list[int]) -> None:
    assert [int(mark[2:]) for mark in sorted(map(due_mark, times_ms))] == sorted(times_ms)


def test_rows_say_where_each_marked_record_lies() -> None:
    run = LabelledRun(7, 3, 10, array("Q", [12, 15, 20]), [Labels("a"), None, Labels("b", key="c")])
    assert list(run.rows()) == [(7, "t:a", 3, 10, 12), (7, "t:b", 5, 15, 20), (7, "k:c", 5, 15, 20)]
