"""The walk over what memory holds, against a plain list: in the order of the log, within its bounds, never with a hole.
The log is moved by hand, and settling comes in between two slices of a walk."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine import hot_records
from headwater.engine.hot_records import Walked, walk
from headwater.model.choices import Choice, Chosen
from headwater.model.commands import Append, Create, Delete, DeleteRecords, Durability, Fork, Trim
from headwater.model.extents import Extent
from headwater.model.holes import Run
from headwater.model.labels import Labels
from tests.engine import Bench

FAR = 1 << 62


class Event(NamedTuple):
    position: int
    key: str
    payloads: list[bytes]


def written(choices: list[tuple[int, int]], synced_count: int) -> tuple[Bench, list[Event]]:
    """An append for each choice (which stream, how many records); the first so many are synced."""
    bench = Bench()
    for number in range(3):
        bench.create(f"some/{number}")
    events = []
    for index, (number, count) in enumerate(choices):
        payloads = [b"%d.%d" % (index, part) for part in range(count)]
        bench.submit(Append(payloads, None), f"some/{number}")
        events.append(Event(bench.log.tail, f"some/{number}", payloads))
        if index + 1 == synced_count:
            bench.sync()
    return bench, events


def run(bench: Bench, after: int = 0, until: int = FAR, rows_max: int = FAR, bytes_max: int = FAR) -> Walked:
    return asyncio.run(walk(bench.group, after, until, rows_max, bytes_max, payload_only=True))


def taken(walked: Walked) -> list[Event]:
    return [Event(batch.position, batch.stream.key, batch.payloads) for batch in walked.batches]


def settle(bench: Bench, key: str) -> None:
    """All of a stream's synced records are in the lake."""
    stream = bench.group.loaded.by_key[key]
    timeline = stream.timeline
    size = (timeline.start, timeline.ends[-1], timeline.seq, timeline.ms[0], timeline.n[0])
    extent = Extent(stream.sid, *size, "data/0/1-x.parquet", 0, 0, len(timeline.payloads), timeline.positions[-1])
    bench.group.settle(extent.file, [extent], {stream.sid: stream})
    bench.sync()


choices = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=12)


@settings(max_examples=80)
@given(choices, st.integers(0, 12), st.integers(0, 130), st.integers(0, 130), st.integers(1, 8), st.integers(1, 40))
def test_a_walk_is_the_log_in_order_up_to_its_bounds(
    chosen: list[tuple[int, int]], synced_count: int, after: int, until: int, rows_max: int, bytes_max: int
) -> None:
    bench, events = written(chosen, synced_count)
    limit = min(until, bench.log.synced)
    expected: list[Event] = []
    position = max(after, limit)
    rows = size = 0
    for event in events:
        if after < event.position <= limit:
            more, larger = rows + len(event.payloads), size + sum(map(len, event.payloads))
            if expected and (more > rows_max or larger > bytes_max):
                position = expected[-1].position
                break
            expected.append(event)
            rows, size = more, larger
    walked = run(bench, after, until, rows_max, bytes_max)
    assert taken(walked) == expected
    assert (walked.rows_count, walked.payload_bytes, walked.position) == (rows, size, position)


def test_what_is_in_the_lake_or_trimmed_is_not_walked_over() -> None:
    bench, events = written([(0, 1), (1, 2), (0, 1), (1, 1), (2, 1)], 5)
    settle(bench, "some/0")
    bench.submit(Trim(len(events[1].payloads[0])), "some/1")
    bench.sync()
    walked = run(bench, walked_from := bench.group.lake_position())
    assert walked_from == events[1].position - 1
    assert taken(walked) == [events[1]._replace(payloads=events[1].payloads[1:]), events[3], events[4]]
    assert [batch.seq for batch in walked.batches] == [1, 2, 0]
    assert walked.batches[0].start == len(events[1].payloads[0])


def test_a_walk_ends_before_records_that_settle_while_it_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, events = written([(0, 1), (1, 1), (0, 1), (1, 1)], 4)
    monkeypatch.setattr(hot_records, "SLICE_BATCHES", 2)

    async def both() -> Walked:
        walking = asyncio.create_task(walk(bench.group, 0, FAR, FAR, FAR, payload_only=True))
        await asyncio.sleep(0)
        settle(bench, "some/0")
        return await walking

    walked = asyncio.run(both())
    assert taken(walked) == events[:2]
    assert walked.position == events[1].position, "it must not vouch for what it has not seen"


def test_a_walk_passes_over_deleted_records_and_carries_labels() -> None:
    bench = Bench()
    bench.create("some/0")
    labels = [Labels(tag=str(number)) if number % 2 else None for number in range(5)]
    bench.submit(Append([b"a", b"bb", b"", b"d", b"e"], None, labels=labels), "some/0")
    bench.submit(Append([b"f"], None), "some/0")
    bench.submit(DeleteRecords([Run(1, 3, 1, 3), Run(5, 6, 5, 6)]), "some/0")
    bench.sync()
    walked = run(bench)
    found = [(one.seq, one.start, one.payloads, one.ends, one.n, one.labels) for one in walked.batches]
    assert found == [
        (0, 0, [b"a"], [1], 0, [None]),
        (3, 3, [b"d", b"e"], [4, 5], 3, [Labels(tag="3"), None]),
    ]
    assert walked.rows_count == 3 and walked.payload_bytes == 3 and walked.position == bench.log.synced


def test_what_is_deleted_at_the_front_while_a_fork_keeps_it_is_not_walked() -> None:
    bench = Bench()
    bench.create("some/0")
    bench.submit(Append([b"a", b"b", b"c"], None), "some/0")
    bench.sync()
    bench.submit(Create("some/fork", None, [], fork=Fork("some/0")), "some/fork")
    bench.submit(DeleteRecords([Run(0, 2, 0, 2)]), "some/0")
    bench.sync()
    assert bench.group.loaded.by_key["some/0"].timeline.payloads == [b"a", b"b", b"c"]
    assert [one.payloads for one in run(bench).batches] == [[b"c"]]


def test_a_buckets_streams_are_found_among_others_until_they_settled_or_went() -> None:
    bench = Bench()
    keys = ["some/0", "some/1", "other/0", "some-more/0"]
    for key in keys:
        bench.create(key)
        bench.submit(Append([key.encode()], None), key)
    bench.sync()
    chosen = Chosen(Choice(bucket="some"))

    def of_the_bucket() -> list[bytes]:
        walked = asyncio.run(walk(bench.group, 0, FAR, FAR, FAR, payload_only=True, chosen=chosen))
        counted = asyncio.run(hot_records.count(bench.group, 0, FAR, chosen))
        assert counted is not None and counted.rows_count == len(walked.batches)
        return [one.payloads[0] for one in walked.batches]

    assert of_the_bucket() == [b"some/0", b"some/1"]
    settle(bench, "some/0")
    assert of_the_bucket() == [b"some/1"]
    bench.submit(Delete(), "some/1")
    bench.sync()
    assert of_the_bucket() == []
    assert set(bench.group.loaded.holding_by_bucket) == {"other", "some-more"}


def test_records_of_an_ephemeral_stream_are_not_walked() -> None:
    bench = Bench()
    bench.submit(Create("some/0", None, [b"born"], durability=Durability.EPHEMERAL), "some/0")
    bench.submit(Append([b"a"], None), "some/0")
    bench.sync()
    assert bench.group.loaded.by_key["some/0"].timeline.payloads == [b"born", b"a"]
    assert run(bench).batches == [] and not bench.group.loaded.holding
    assert bench.group.lake_position() == bench.log.synced
