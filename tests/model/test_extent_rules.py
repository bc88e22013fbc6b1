"""The rules of extents: what is whole breaks none, and each fault is told by its kind."""

from __future__ import annotations

import pytest

from headwater.model import extent_rules
from headwater.model.extent_rules import Fault, Part
from headwater.model.holes import Holes, Run

ONE = Part(10, 20, 5, 3)


def kinds(faults: object) -> list[str]:
    found: list[Fault] = list(faults)  # type: ignore[call-overload]
    return [kind for kind, _ in found]


@pytest.mark.parametrize(
    ("earliest", "need", "fork_at", "first"),
    [(7, None, 0, 7), (7, 3, 0, 3), (7, 9, 0, 7), (7, 3, 5, 5), (7, None, 9, 9)],
)
def test_records_are_needed_from_the_lowest_that_the_stream_or_a_fork_shows(earliest, need, fork_at, first) -> None:
    assert extent_rules.first_needed(earliest, need, fork_at) == first


def test_an_extent_has_rows_and_does_not_end_before_it_begins() -> None:
    assert kinds(extent_rules.shape(ONE)) == [] == kinds(extent_rules.shape(Part(10, 10, 5, 1)))
    assert kinds(extent_rules.shape(Part(10, 9, 5, 1))) == ["extent"] == kinds(extent_rules.shape(Part(10, 20, 5, 0)))


@pytest.mark.parametrize(
    ("first", "cold_end", "earliest", "first_seq", "found"),
    [
        (10, 20, 10, 5, []),
        (12, 20, 12, 6, []),
        (9, 20, 9, 4, ["gap"]),
        (9, 9, 9, 4, []),
        (10, 20, 10, 4, ["seq"]),
    ],
)
def test_the_first_extent_holds_the_first_record_that_is_needed(first, cold_end, earliest, first_seq, found) -> None:
    assert kinds(extent_rules.beginning(ONE, first, cold_end, earliest, first_seq)) == found


@pytest.mark.parametrize(
    ("part", "found"),
    [
        (Part(20, 30, 8, 1), []),
        (Part(19, 30, 8, 1), ["overlap"]),
        (Part(21, 30, 8, 1), ["gap"]),
        (Part(20, 30, 9, 1), ["seq"]),
    ],
)
def test_an_extent_begins_where_the_one_before_it_ends(part: Part, found: list[str]) -> None:
    assert kinds(extent_rules.joint(ONE, part)) == found


def test_extents_reach_as_far_as_records_have_settled_and_hold_as_many_as_there_are() -> None:
    assert kinds(extent_rules.ending(20, 20)) == [] == kinds(extent_rules.ending(21, 20))
    assert kinds(extent_rules.ending(19, 20)) == ["gap"]
    assert kinds(extent_rules.counted(ONE, 8)) == [] and kinds(extent_rules.counted(ONE, 9)) == ["seq"]


def gone(*runs: Run) -> list[Holes]:
    holes = Holes()
    holes.add(runs)
    return [holes]


@pytest.mark.parametrize(
    ("holes", "part", "found"),
    [
        ([Run(8, 9, 20, 22)], Part(22, 30, 9, 1), []),
        ([Run(7, 11, 18, 24)], Part(22, 30, 9, 1), []),  # more was deleted since the files were written
        ([Run(8, 9, 20, 20)], Part(20, 30, 9, 1), []),  # a record without bytes
        ([Run(8, 9, 20, 22)], Part(23, 30, 9, 1), ["gap"]),
        ([Run(8, 9, 20, 22)], Part(22, 30, 10, 1), ["gap"]),
        ([Run(8, 9, 20, 21), Run(10, 11, 22, 23)], Part(23, 30, 11, 1), ["gap"]),  # one between them is missing
        ([Run(8, 9, 20, 22)], Part(19, 30, 9, 1), ["overlap"]),
    ],
)
def test_between_two_extents_deleted_records_may_be_missing_and_no_others(
    holes: list[Run], part: Part, found: list[str]
) -> None:
    assert kinds(extent_rules.joint(ONE, part, gone(*holes))) == found


def test_what_is_missing_before_the_first_record_that_is_needed_is_no_fault() -> None:
    part = Part(25, 30, 9, 1)
    assert kinds(extent_rules.joint(ONE, part, (), 25)) == [] and kinds(extent_rules.joint(ONE, part, (), 24)) == [
        "gap"
    ]


def test_deleted_records_may_be_missing_at_both_ends() -> None:
    holes = gone(Run(3, 5, 6, 10), Run(8, 10, 20, 24))
    assert kinds(extent_rules.beginning(ONE, 6, 20, 0, 0, holes)) == []
    assert kinds(extent_rules.beginning(ONE, 5, 20, 0, 0, holes)) == ["gap"]
    assert kinds(extent_rules.ending(20, 24, holes)) == [] and kinds(extent_rules.ending(20, 25, holes)) == ["gap"]
    assert kinds(extent_rules.counted(ONE, 10, holes)) == [] and kinds(extent_rules.counted(ONE, 11, holes)) == ["seq"]
