"""Retention: what a policy lets go of, beside a model that looks at every record; and whole ranges in the lake."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.model.commands import Durability, Retention
from headwater.model.events import Appended, Created, Forked
from headwater.model.extents import Extent
from headwater.model.retention import Ages, Oldest, aged, beyond, cut, settled
from headwater.model.stream_state import Stream, born, evolve

Records = list[tuple[int, int]]
"""Size and time of each."""


def stream(policy: Retention | None, records: Records = (), forked: Forked | None = None, sid: int = 1) -> Stream:  # type: ignore[assignment]
    created = Created(f"b/{sid}", sid, "text/plain", 0, Durability.FSYNC, [], retention=policy, forked=forked)
    made = Stream(born(created, 1))
    for number, (size, ms) in enumerate(records):
        end = made.tail + size
        evolve(made, Appended(sid, made.tail, end, ms, ms, number, [b"x" * size], False, None, None), 10 + number)
    return made


def slow_cut(policy: Retention, records: Records, shown: int, now_ms: int, earliest: int) -> int | None:
    ends = [sum(size for size, _ in records[: count + 1]) for count in range(len(records))]
    visible = ends[shown - 1] if shown else 0
    gone = 0
    while gone < shown:
        _, ms = records[gone]
        left_bytes = visible - (ends[gone - 1] if gone else 0)
        too_many = policy.records is not None and shown - gone > policy.records
        too_large = policy.bytes is not None and left_bytes > policy.bytes and gone < shown - 1
        too_old = policy.age_ms is not None and ms < now_ms - policy.age_ms
        if not (too_many or too_large or too_old):
            break
        gone += 1
    offset = ends[gone - 1] if gone else 0
    return offset if gone and offset > earliest else None


policies = st.builds(
    Retention,
    age_ms=st.none() | st.integers(0, 60),
    bytes=st.none() | st.integers(0, 40),
    records=st.none() | st.integers(1, 8),
)


@given(policies, st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=12), st.data())
def test_a_policy_lets_go_of_what_a_walk_over_all_records_would(policy, sizes_and_steps, data) -> None:
    ms = 0
    records: Records = []
    for size, step in sizes_and_steps:
        ms += step
        records.append((size, ms))
    shown = data.draw(st.integers(0, len(records)))
    now_ms = data.draw(st.integers(ms, ms + 80))
    held = stream(policy, records)
    visible = sum(size for size, _ in records[:shown])
    assert cut(held, visible, now_ms) == slow_cut(policy, records, shown, now_ms, held.earliest)


def test_without_a_policy_or_records_all_of_it_stays() -> None:
    assert cut(stream(None, [(5, 0)]), 5, 1_000) is None
    assert cut(stream(Retention(age_ms=1)), 0, 1_000) is None


def test_what_was_let_go_of_already_is_not_let_go_of_again() -> None:
    one = stream(Retention(records=1), [(5, 0), (5, 0)])
    assert cut(one, 10, 0) == 5
    one.earliest = 5
    assert cut(one, 10, 0) is None


def test_records_that_nobody_sees_yet_stay_and_count_for_nothing() -> None:
    one = stream(Retention(records=1), [(5, 0), (5, 0), (5, 0)])
    assert cut(one, 0, 0) is None and cut(one, 5, 0) is None and cut(one, 10, 0) == 5


def test_the_newest_record_stays_even_when_it_is_larger_than_the_bound() -> None:
    assert cut(stream(Retention(bytes=3), [(2, 0), (9, 0)]), 11, 0) == 2


# ---- settled ranges -----------------------------------------------------------------------------------------------


def oldest(end: int = 10, seq_end: int = 2, newest_ms: int = 50) -> Oldest:
    return Oldest(0, end, seq_end, newest_ms, 7, 0)


@pytest.mark.parametrize(
    ("policy", "goes"),
    [
        (Retention(records=2), True),
        (Retention(records=3), False),
        (Retention(bytes=10), True),
        (Retention(bytes=11), False),
        (Retention(age_ms=49), True),
        (Retention(age_ms=50), False),
        (Retention(bytes=11, age_ms=49), True),
        (Retention(), False),
        (None, False),
    ],
)
def test_a_settled_range_goes_when_one_bound_keeps_nothing_of_it(policy: Retention | None, goes: bool) -> None:
    one = stream(policy, [(5, 50)] * 4)
    assert beyond(oldest(), one, 20, 100) is goes


def test_a_settled_range_that_is_not_visible_as_a_whole_stays() -> None:
    assert beyond(oldest(end=10), stream(Retention(age_ms=1), [(5, 0)] * 4), 9, 1_000) is False


def extent(start: int, end: int, seq: int, count: int, ms: int, position: int) -> Extent:
    return Extent(1, start, end, seq, ms, 0, "f", 0, 0, count, position)


def test_ranges_come_oldest_first_and_each_is_as_new_as_what_follows_it() -> None:
    one = stream(Retention(records=1), [(30, 90)])
    found = settled(one, one, [extent(0, 10, 0, 2, 5, 3), extent(10, 20, 2, 1, 40, 4)])
    assert found == [Oldest(0, 10, 2, 40, 3, 5), Oldest(0, 20, 3, 90, 4, 40)]


def test_a_fork_sees_its_sources_ranges_up_to_where_it_left() -> None:
    source = stream(None, [(30, 90)])
    fork = stream(Retention(records=1), forked=Forked(1, 15, 3, 60, 0, None, 0), sid=2)
    fork.parent = source
    ranges = [extent(0, 10, 0, 2, 5, 3), extent(10, 20, 2, 2, 40, 4), extent(20, 30, 4, 1, 70, 5)]
    assert settled(fork, source, ranges) == [Oldest(0, 10, 2, 40, 0, 5), Oldest(0, 15, 3, 70, 0, 40)]


# ---- a settled range that goes in part ----------------------------------------------------------------------------

AGES = Ages(0, 20, 0, [10, 10, 30, 50], [5, 10, 15, 20], [1, 2, 3, 4])


def old(policy: Retention | None, earliest: int = 0) -> Stream:
    one = stream(policy, [(5, 60)] * 4)
    one.earliest = earliest
    one.timeline.start = 20
    return one


@pytest.mark.parametrize(
    ("now_ms", "found"), [(100, None), (111, (10, 2, 2)), (131, (15, 3, 3)), (151, (20, 4, 4)), (9_999, (20, 4, 4))]
)
def test_what_is_too_old_in_a_range_ends_at_the_first_record_that_is_not(
    now_ms: int, found: tuple[int, int, int] | None
) -> None:
    assert aged(old(Retention(age_ms=100)), AGES, now_ms) == found


@pytest.mark.parametrize(
    ("policy", "earliest"),
    [(None, 0), (Retention(records=1), 0), (Retention(age_ms=100), 10), (Retention(age_ms=100), 20)],
    ids=["no policy", "no age", "gone already", "another range"],
)
def test_nothing_of_a_range_goes_by_age_that_is_not_there_or_has_no_bound(
    policy: Retention | None, earliest: int
) -> None:
    assert aged(old(policy, earliest), AGES, 111) is None


def test_a_fork_lets_go_of_no_more_by_age_than_it_shares() -> None:
    source = stream(None, [(5, 60)] * 4)
    fork = stream(Retention(age_ms=100), forked=Forked(1, 15, 3, 60, 0, None, 0), sid=2)
    fork.parent = source
    assert aged(fork, AGES, 9_999) == (15, 3, 0)
