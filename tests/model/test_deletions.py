"""Deletions beside a slow model: a list of which records are there."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from headwater.model.deletions import Deletions, has_deleted
from headwater.model.extents import Extent
from headwater.model.holes import Holes, Run
from headwater.model.row import StreamRow


def row(sizes: list[int], first: int, deleted: set[int], evict_floor: int = 1, children: int = 0) -> StreamRow:
    begins = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    holes = Holes()
    for number in sorted(deleted):
        holes.add([Run(number, number + 1, begins[number], begins[number + 1])])
    first, earliest = holes.cut(first, begins[first])
    given = {"content_type": "a/b", "created_ms": 0, "durability": 0, "ttl_ms": None, "expires_ms": None}
    given |= {"touched_ms": 0, "closed": False, "closed_by": None, "producers": [], "stream_seq": None}
    given |= {"last_ms": 0, "last_n": 0, "last_write_ms": 0, "tail": begins[-1], "count": len(sizes)}
    return StreamRow(
        "b/s",
        7,
        1,
        **given,  # type: ignore[arg-type]
        earliest=earliest,
        first_seq=first,
        holes=holes.packed(),
        evict_floor=evict_floor,
        children=children,
    )


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=20),
    st.sets(st.integers(0, 19)),
    st.integers(0, 20),
    st.integers(0, 19),
    st.integers(1, 20),
)
def test_the_parts_of_an_extent_are_its_rows_with_and_without_records(
    sizes: list[int], deleted: set[int], first: int, start: int, count: int
) -> None:
    first = min(first, len(sizes))
    deleted = {number for number in deleted if number < len(sizes)}
    start = min(start, len(sizes) - 1)
    count = min(count, len(sizes) - start)
    begins = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    extent = Extent(7, begins[start], begins[start + count], start, 5, 6, "f", 2, 100, count, 9)
    deletions = Deletions(row(sizes, first, deleted))

    gone = [number < first or number in deleted for number in range(start, start + count)]
    expected = []
    at = start
    for state, some in groupby(gone):
        length = len(list(some))
        expected.append((state, at, length, begins[at], begins[at + length], 100 + at - start))
        at += length
    found: list[tuple[bool, int, int, int, int, int]] = []
    for part, state in deletions.parts(extent):
        one = (state, part.seq_start, part.row_count, part.start, part.end, part.row_start)
        if found and found[-1][0] == state:  # the front and a hole may be neighbours
            last = found.pop()
            one = (state, last[1], last[2] + part.row_count, last[3], part.end, last[5])
        found.append(one)
        assert part.row_count
        assert part.position == (9 if part == extent else 0)
    assert found == expected
    assert deletions.deleted_rows(extent) == sum(gone)


def test_what_a_policy_let_go_of_is_not_a_deletion() -> None:
    assert not has_deleted(row([1, 1, 1], 2, set(), evict_floor=3))
    assert has_deleted(row([1, 1, 1], 2, set(), evict_floor=2))
    assert has_deleted(row([1, 1, 1], 1, {2}, evict_floor=2))
    assert not has_deleted(row([1, 1, 1], 0, set()))


def test_forks_keep_what_is_deleted() -> None:
    assert Deletions(row([1, 1], 0, {1}, children=1)).kept
    assert not Deletions(row([1, 1], 0, {1})).kept
