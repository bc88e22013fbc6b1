"""Records by number against a list of records, wherever they are: in memory, in the lake, in an ancestor, deleted."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.record_reads import TopicRecord
from headwater.errors import Overloaded
from headwater.model.commands import Append, Create, DeleteRecords, Fork, ForkPoint, Trim
from headwater.model.holes import Run
from headwater.model.labels import Labels
from tests.engine import KEY
from tests.engine.shore import Shore, asked

FORK = "_default/fork"
# (sizes of the records of one append, what is flushed afterwards: bytes)
appends = st.lists(
    st.tuples(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.sampled_from([0, 0, 3, 99])),
    min_size=1,
    max_size=8,
)


def labels_of(number: int, everything: list[bytes] | None = None) -> Labels | None:
    """Every third has none, and neither has what is written without."""
    unlabelled = everything is not None and everything[number][:1] in (b"x", b"y")
    return Labels(tag=f"t{number}") if number % 3 and not unlabelled else None


async def fill(shore: Shore, history: list[tuple[list[int], int]]) -> list[bytes]:
    shore.create()
    everything: list[bytes] = []
    for sizes, flushed in history:
        payloads = [bytes([65 + len(everything) + index]) * size for index, size in enumerate(sizes)]
        labels = [labels_of(len(everything) + index) for index in range(len(payloads))]
        shore.submit(Append(payloads, labels=labels))
        shore.sync()
        everything += payloads
        if flushed:
            shore.flush(bytes_max=flushed)
    return everything


def delete(shore: Shore, begins: list[int], numbers: set[int], key: str = KEY) -> None:
    runs = [Run(one, one + 1, begins[one], begins[one + 1]) for one in sorted(numbers)]
    shore.submit(DeleteRecords(runs), key)
    shore.sync()


async def check(
    shore: Shore, everything: list[bytes], dead: set[int], count_max: int, bytes_max: int, key: str
) -> None:
    begins = [0, *accumulate(map(len, everything))]
    for from_seq in range(len(everything) + 2):
        live = [one for one in range(from_seq, len(everything)) if one not in dead]
        found = await shore.records(from_seq, count_max, bytes_max, key)
        told = [(one.seq, one.payload, one.labels) for one in found]
        assert told == [(one + 1, everything[one], labels_of(one, everything)) for one in live[: len(found)]]
        assert bool(found) == bool(live)
        assert len(found) <= count_max
        assert len(found) <= 1 or sum(len(one.payload) for one in found) <= bytes_max
    for number in range(len(everything) + 1):
        live_number = next((one for one in range(number, len(everything)) if one not in dead), len(everything))
        assert await shore.offset_of(number, key) == begins[live_number]


@settings(max_examples=60)
@given(appends, st.integers(0, 6), st.sets(st.integers(0, 31)), st.integers(1, 6), st.integers(1, 12))
def test_records_and_offsets_equal_those_of_a_list(
    history: list[tuple[list[int], int]], trimmed: int, deleted: set[int], count_max: int, bytes_max: int
) -> None:
    async def play(shore: Shore) -> None:
        everything = await fill(shore, history)
        begins = [0, *accumulate(map(len, everything))]
        trimmed_count = min(trimmed, len(everything))
        shore.submit(Trim(begins[trimmed_count], trimmed_count))
        numbers = {one for one in deleted if one < len(everything)}
        delete(shore, begins, numbers)
        await check(shore, everything, numbers | set(range(trimmed_count)), count_max, bytes_max, KEY)

    asked(play)


@settings(max_examples=50)
@given(appends, st.sets(st.integers(0, 31)), st.integers(0, 31), st.sets(st.integers(0, 33)), st.booleans())
def test_a_fork_keeps_the_holes_it_was_born_with_and_gets_its_own(
    history: list[tuple[list[int], int]], before: set[int], at: int, after: set[int], flushed: bool
) -> None:
    async def play(shore: Shore) -> None:
        everything = await fill(shore, history)
        begins = [0, *accumulate(map(len, everything))]
        gone = {one for one in before if one < len(everything)}
        first = next((one for one in range(len(everything)) if one not in gone), len(everything))
        point = max(min(at, len(everything)), first)
        delete(shore, begins, gone)
        fork = Fork(KEY, begins[point], point=ForkPoint(begins[point], point, []))
        shore.submit(Create(FORK, None, [], fork=fork), FORK)
        shore.sync()
        shore.submit(Append([b"x", b"yy"]), FORK)
        shore.sync()
        if flushed:
            shore.flush()
            shore.flush(FORK)
        # Of the source only: the fork does not notice.
        delete(shore, begins, {one for one in after if one < len(everything)})
        shared = [*everything[:point], b"x", b"yy"]
        await check(shore, shared, {one for one in gone if one < point}, 5, 9, FORK)
        delete(shore, [0, *accumulate(map(len, shared))], {one for one in after if one < len(shared)}, FORK)
        dead = {one for one in gone if one < point} | {one for one in after if one < len(shared)}
        await check(shore, shared, dead, 5, 9, FORK)

    asked(play)


def test_labels_come_with_records_that_memory_holds() -> None:
    async def play(shore: Shore) -> None:
        await fill(shore, [([1, 1, 1], 0)])
        found = await shore.records(1)
        assert found == [TopicRecord(2, 1_000_000, b"B", Labels("t1")), TopicRecord(3, 1_000_000, b"C", Labels("t2"))]

    asked(play)


def test_who_reads_on_in_the_lake_is_not_searched_for() -> None:
    async def play(shore: Shore) -> None:
        shore.create()
        for ms in range(100):
            shore.append(ms, b"a", b"b", b"c", b"d")
            shore.flush()
        seq, looked = 50, []
        find = shore.group.loaded.extents

        def counted(sid: int, offset: int, count_max: int) -> object:
            looked.append(offset)
            return find(sid, offset, count_max)

        shore.group.loaded.extents = counted
        for _ in range(10):
            found = await shore.records(seq, 3)
            assert [one.seq for one in found] == [seq + 1, seq + 2, seq + 3]
            seq += 3
        assert len(looked) <= 20 + 9, "a search for the first, then one lookup each"
        assert shore.lake.reads_count <= 40

    asked(play)


def test_what_is_deleted_while_the_lake_is_read_is_not_shown() -> None:
    async def play(shore: Shore) -> None:
        shore.create()
        shore.append(1, b"a", b"b", b"c")
        shore.flush()
        stream = shore.group.find(KEY, touch=False)
        found: list[object] = []
        shore.by_number.read(stream, 0, 10, 100, found.append)
        shore.submit(DeleteRecords([Run(1, 2, 1, 2)]))
        assert [one.seq for one in await shore.records(0)] == [1, 3]
        assert [[one.seq for one in batch] for batch in found] == [[1, 3]]

    asked(play)


def test_a_lake_that_is_away_is_said_to_be() -> None:
    async def play(shore: Shore) -> None:
        shore.create()
        shore.append(1, b"a", b"b")
        shore.flush()
        shore.append(2, b"c")
        shore.lake.away = True
        assert isinstance(await shore.records(0), Overloaded)
        assert isinstance(await shore.offset_of(1), Overloaded)
        assert [one.seq for one in await shore.records(2)] == [3]

    asked(play)
