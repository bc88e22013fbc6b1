"""Read plans against a list of records: whole records, up to the bound, at least one, and never what is not visible."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.read_plan import plan
from headwater.errors import BadQuery, OffsetBeyondTail, OffsetGone
from headwater.model.commands import Append, Create, Trim
from headwater.model.offsets import NOW, START
from tests.engine import KEY, Bench

sizes = st.lists(st.integers(1, 6), max_size=10)


def filled(durable: list[int], pending: list[int]) -> Bench:
    bench = Bench()
    bench.create()
    for group in (durable, pending):
        for size in group:
            bench.post(b"x" * size)
        if group is durable:
            bench.sync()
    return bench


@settings(max_examples=60)
@given(sizes, sizes, st.integers(1, 20))
def test_a_plan_holds_whole_visible_records_up_to_its_bound_and_at_least_one(
    durable: list[int], pending: list[int], bytes_max: int
) -> None:
    stream = filled(durable, pending).group.find(KEY, touch=False)
    starts = [sum(durable[:index]) for index in range(len(durable) + 1)]
    tail = starts[-1]
    for offset in range(tail + 3):
        if offset > tail:
            with pytest.raises(OffsetBeyondTail) as beyond:
                plan(stream, offset, bytes_max)
            assert beyond.value.tail == tail
        elif offset not in starts:
            with pytest.raises(BadQuery):
                plan(stream, offset, bytes_max)
        else:
            rest = durable[starts.index(offset) :]
            fit = [size for index, size in enumerate(rest) if sum(rest[: index + 1]) <= bytes_max] or rest[:1]
            part = plan(stream, offset, bytes_max)
            assert [len(payload) for payload in part.payloads] == fit
            assert (part.start, part.end) == (offset, offset + sum(fit))
            assert part.up_to_date == (part.end == tail) and not part.closed


def test_the_beginning_and_the_tail_have_names_of_their_own() -> None:
    stream = filled([3, 2], [4]).group.find(KEY, touch=False)
    assert plan(stream, START, 100).payloads == [b"xxx", b"xx"]
    now = plan(stream, NOW, 100)
    assert (now.payloads, now.start, now.up_to_date) == ([], 5, True)


def test_a_stream_ends_for_the_reader_who_reached_the_end_of_a_closed_one() -> None:
    bench = filled([3, 2], [])
    bench.submit(Append([], close=True))
    stream = bench.group.find(KEY, touch=False)
    assert not plan(stream, 5, 10).closed
    bench.sync()
    assert plan(stream, 5, 10).closed and plan(stream, 0, 10).closed
    assert not plan(stream, 0, 3).closed


def test_what_was_let_go_is_announced_with_the_earliest_offset() -> None:
    bench = filled([3, 2, 4], [])
    bench.submit(Trim(5))
    bench.sync()
    stream = bench.group.find(KEY, touch=False)
    for offset in (START, 0, 3):
        with pytest.raises(OffsetGone) as gone:
            plan(stream, offset, 10)
        assert gone.value.earliest == 5
    assert plan(stream, 5, 10).payloads == [b"xxxx"]


def test_an_empty_stream_is_read_as_nothing_up_to_date() -> None:
    bench = Bench()
    bench.submit(Create(KEY, None, []))
    bench.sync()
    part = plan(bench.group.find(KEY, touch=False), START, 10)
    assert (part.payloads, part.end, part.up_to_date) == ([], 0, True)
