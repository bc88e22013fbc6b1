"""Records by id against a list of records, wherever they are: in memory, in the lake, in an ancestor, already let go.
The lake is a dictionary; its threads are real."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.reads_by_id import Place, Record
from headwater.errors import Overloaded
from headwater.model.commands import Create, Fork, Trim
from tests.engine import KEY
from tests.engine.shore import Shore, asked

FORK = "_default/fork"


# (milliseconds to add, sizes of the records of one append, what is flushed afterwards: bytes)
appends = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.sampled_from([0, 0, 3, 99])),
    min_size=1,
    max_size=8,
)


@settings(max_examples=150)
@given(appends, st.integers(0, 6), st.integers(1, 6), st.integers(1, 12))
def test_reads_and_places_equal_those_of_a_list(
    history: list[tuple[int, list[int], int]], trimmed: int, count_max: int, bytes_max: int
) -> None:
    async def play(shore: Shore) -> None:
        shore.create()
        everything: list[Record] = []
        ms, n = 1, -1
        for step, sizes, flushed in history:
            if step:
                ms, n = ms + step, -1
            payloads = [bytes([65 + len(everything) + index]) * size for index, size in enumerate(sizes)]
            shore.append(ms, *payloads)
            everything += [(ms, n + 1 + index, payload) for index, payload in enumerate(payloads)]
            n += len(payloads)
            if flushed:
                shore.flush(bytes_max=flushed)
        starts = [0, *accumulate(len(payload) for _, _, payload in everything)]
        trimmed_count = min(trimmed, len(everything))
        shore.submit(Trim(starts[trimmed_count], trimmed_count))
        shore.sync()
        kept = everything[trimmed_count:]
        for wanted in [(0, 0), *((ms, n + more) for ms, n, _ in everything for more in (0, 1)), (ms + 9, 0)]:
            matching = [record for record in kept if record[:2] >= wanted]
            found = await shore.read(*wanted, count_max, bytes_max)
            # A reply may be shorter than it could be where memory and lake meet, but never empty for no reason.
            assert found == matching[: len(found)]
            assert bool(found) == bool(matching)
            assert len(found) <= count_max
            assert len(found) <= 1 or sum(len(payload) for _, _, payload in found) <= bytes_max
            place = await shore.place(*wanted)
            assert place.offset == starts[len(everything) - len(matching)]
            assert place.seq in (None, len(everything) - len(matching))

    asked(play)


def test_a_reader_at_the_tail_never_asks_the_lake() -> None:
    async def play(shore: Shore) -> None:
        shore.create()
        shore.append(1, b"a", b"b", b"c")
        shore.flush()
        shore.append(2, b"d")
        shore.append(3, b"e")
        assert await shore.read(2, 0) == [(2, 0, b"d"), (3, 0, b"e")]
        assert await shore.read(3, 0) == [(3, 0, b"e")]
        assert await shore.read(3, 1) == []
        shore.flush()
        assert await shore.read(3, 1) == []
        assert shore.lake.reads_count == 0

    asked(play)


def test_a_read_far_in_the_past_looks_at_few_extents() -> None:
    async def play(shore: Shore) -> None:
        shore.create()
        for ms in range(200):
            shore.append(ms, b"a", b"b", b"c", b"d")
            shore.flush()
        assert await shore.read(123, 1, count_max=2) == [(123, 1, b"b"), (123, 2, b"c")]
        assert shore.lake.reads_count <= 2

    asked(play)


def test_a_fork_is_read_through_its_source_wherever_either_is() -> None:
    async def play(shore: Shore) -> None:
        shore.create()
        shore.append(5, b"a", b"b", b"c")
        shore.submit(Create(FORK, None, [], fork=Fork(KEY, 2)), FORK)
        shore.sync()
        shore.append(6, b"x", b"y", key=FORK)
        shore.append(6, b"never seen by the fork")
        expected = [(5, 0, b"a"), (5, 1, b"b"), (6, 0, b"x"), (6, 1, b"y")]
        for flushed in ((), (KEY,), (FORK,)):
            for key in flushed:
                shore.flush(key)
            for index, (ms, n, _) in enumerate(expected):
                found = await shore.read(ms, n, key=FORK)
                assert found == expected[index : index + len(found)] and found
                assert (await shore.place(ms, n, FORK)).offset == index
            assert await shore.read(6, 2, key=FORK) == []

    asked(play)


def test_a_lake_that_is_away_is_said_to_be() -> None:
    async def play(shore: Shore) -> None:
        shore.create()
        shore.append(1, b"a")
        shore.flush()
        shore.append(2, b"b")
        shore.lake.away = True
        assert isinstance(await shore.read(0, 0), Overloaded)
        assert isinstance(await shore.place(0, 0), Overloaded)
        assert await shore.read(2, 0) == [(2, 0, b"b")]

    asked(play)


@pytest.mark.parametrize("wanted", [(0, 0), (1, 0), (2**64 - 1, 2**64 - 1)])
def test_an_empty_stream_has_no_records_and_its_place_is_its_tail(wanted: tuple[int, int]) -> None:
    async def play(shore: Shore) -> None:
        shore.create()
        assert await shore.read(*wanted) == []
        assert await shore.place(*wanted) == Place(0, None)

    asked(play)
