"""Holes beside a slow model: a list of which records are there, and where each begins."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.model.holes import Holes, Run, totals

SIZES = st.lists(st.integers(0, 3), min_size=1, max_size=30)


class Slow:
    """Records of given sizes: each is there, deleted, or before the stream's beginning."""

    def __init__(self, sizes: list[int]) -> None:
        self.begins = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        self.deleted: set[int] = set()
        self.first = 0

    def run(self, first: int, last: int) -> Run:
        return Run(first, last, self.begins[first], self.begins[last])

    def runs(self) -> list[Run]:
        found: list[Run] = []
        for number in sorted(self.deleted):
            if found and found[-1].last == number:
                found[-1] = self.run(found[-1].first, number + 1)
            else:
                found.append(self.run(number, number + 1))
        return found

    def cut(self, number: int) -> None:
        self.first = number
        while self.first in self.deleted:
            self.first += 1
        self.deleted = {one for one in self.deleted if one >= self.first}


STEPS = st.lists(st.tuples(st.sampled_from(["delete", "cut"]), st.integers(0, 29), st.integers(1, 6)), max_size=25)


@given(SIZES, STEPS)
def test_runs_are_what_a_list_of_deleted_records_says(sizes: list[int], steps: list[tuple[str, int, int]]) -> None:
    slow, holes = Slow(sizes), Holes()
    count = len(sizes)
    for what, number, length in steps:
        first = max(min(number, count - 1), slow.first)
        if first >= count:
            continue
        last = min(first + length, count)
        if what == "delete":
            added = holes.without(slow.run(first, last))
            expected_count = len(holes) + holes.more(added)
            holes.add(added)
            assert len(holes) == expected_count
            slow.deleted.update(range(first, last))
            slow.cut(slow.first)
            assert holes.cut(*_front(holes, slow, sizes)) == (slow.first, slow.begins[slow.first])
        else:
            slow.cut(first)
            assert holes.cut(first, slow.begins[first]) == (slow.first, slow.begins[slow.first])
        assert list(holes) == slow.runs()
        assert holes.count == len(slow.deleted)
        assert holes.bytes == sum(sizes[one] for one in slow.deleted)
        assert list(Holes(holes.packed())) == list(holes)
        assert totals(holes.packed()) == (holes.count, holes.bytes)
        assert [one for low, high in holes.live(slow.first, count) for one in range(low, high)] == [
            one for one in range(slow.first, count) if one not in slow.deleted
        ]
        for one in range(slow.first, count):
            assert holes.holds(one) == (one in slow.deleted)
            alive = [other for other in range(one, count + 1) if other not in slow.deleted]
            assert holes.next_live(one) == alive[0]
            assert holes.live_before(one) == max(
                (other + 1 for other in range(slow.first, one) if other not in slow.deleted), default=one
            )
            assert holes.before(one) == sum(other < one for other in slow.deleted)
            shared = Slow(sizes)
            shared.deleted = {other for other in slow.deleted if other < one}
            assert list(holes.up_to(one, slow.begins[one])) == shared.runs()


def _front(holes: Holes, slow: Slow, sizes: list[int]) -> tuple[int, int]:
    """Where the stream began before the deletion: at the first record of a run at its front, if there is one."""
    first = next(iter(holes)).first if len(holes) else 0
    number = first if first < slow.first else slow.first
    return number, slow.begins[number]


@given(SIZES, st.sets(st.integers(0, 29)), st.integers(0, 90))
def test_a_reader_by_offset_passes_over_them(sizes: list[int], deleted: set[int], offset: int) -> None:
    slow, holes = Slow(sizes), Holes()
    slow.deleted = {one for one in deleted if one < len(sizes)}
    holes.add(slow.runs())
    gone = {at for run in slow.runs() for at in range(run.begin, run.end)}
    offset = min(offset, slow.begins[-1])
    reached = offset
    while reached in gone:
        reached += 1
    assert holes.after(offset) == reached
    number = next((run.last for run in slow.runs() if run.begin <= offset < run.end), 77)
    assert holes.passed(offset, 77) == (reached, number)
    begins = [run.begin for run in slow.runs() if run.end > offset]
    assert holes.next_begin(offset) == (begins[0] if begins else None)


@given(st.sets(st.integers(1, 60), max_size=40), st.sets(st.integers(1, 60), min_size=1, max_size=40))
def test_many_runs_at_once_are_the_same_as_one_after_the_other(before: set[int], more: set[int]) -> None:
    begins = [2 * number for number in range(62)]
    one_by_one, together = Holes(), Holes()
    for number in sorted(before):
        one_by_one.add([Run(number, number + 1, begins[number], begins[number + 1])])
    together.add(runs := list(one_by_one))
    together._merge([])
    assert list(together) == runs
    new = [Run(one, one + 1, begins[one], begins[one + 1]) for one in sorted(more - before)]
    for run in new:
        one_by_one.add([run])
    together._merge(new)
    assert list(together) == list(one_by_one)
    assert (together.count, together.bytes) == (one_by_one.count, one_by_one.bytes)
    assert together.packed() == one_by_one.packed()
