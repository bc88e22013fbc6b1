"""The timeline's columns against a plain list of records: same ranges, same boundaries, same memory freed."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.model.timeline import RECORD_BYTES, Timeline


@dataclass(frozen=True)
class Record:
    begin: int
    payload: bytes
    id: tuple[int, int]
    position: int

    @property
    def end(self) -> int:
        return self.begin + len(self.payload)


batches = st.lists(
    st.tuples(st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=4), st.integers(0, 2)), max_size=8
)


def build(start: int, brought: list[tuple[list[bytes], int]]) -> tuple[Timeline, list[Record]]:
    timeline, records = Timeline(start, 3), list[Record]()
    ms, n, position, end = 5, -1, 0, start
    for payloads, ms_later in brought:
        position += 100
        ms, n = (ms + ms_later, -1) if ms_later else (ms, n)
        returned = timeline.extend(payloads, end, ms, n + 1, position)
        for payload in payloads:
            n += 1
            records.append(Record(end, payload, (ms, n), position))
            end += len(payload)
        assert returned == end
    return timeline, records


def held(timeline: Timeline) -> list[Record]:
    return [
        Record(timeline.begin_of(index), payload, (timeline.ms[index], timeline.n[index]), timeline.positions[index])
        for index, payload in enumerate(timeline.payloads)
    ]


@settings(max_examples=200)
@given(st.integers(0, 3), batches)
def test_a_timeline_answers_like_a_list_of_records(start: int, brought: list[tuple[list[bytes], int]]) -> None:
    timeline, records = build(start, brought)
    assert held(timeline) == records
    assert list(timeline.ends) == [record.end for record in records]
    tail = records[-1].end if records else start
    for offset in range(tail + 3):
        at = [index for index, record in enumerate(records) if record.begin == offset]
        assert timeline.index_at(offset) == (at[0] if at else len(records) if offset == tail else None)
        assert timeline.index_until(offset) == sum(record.end <= offset for record in records)
    for ms in range(4, 25):
        for n in range(-1, 10):
            later = [index for index, record in enumerate(records) if record.id >= (ms, n)]
            if n >= 0:
                assert timeline.index_id(ms, n) == (later[0] if later else len(records))


@settings(max_examples=100)
@given(st.integers(0, 3), batches, st.integers(-1, 40))
def test_dropping_the_oldest_leaves_the_rest_where_it_was(
    start: int, brought: list[tuple[list[bytes], int]], count: int
) -> None:
    timeline, records = build(start, brought)
    count = min(count, len(records))
    gone = records[: max(count, 0)]
    held_bytes = timeline.held_bytes
    assert timeline.drop_before(count) == sum(len(record.payload) + RECORD_BYTES for record in gone)
    assert timeline.held_bytes == held_bytes - sum(len(record.payload) + RECORD_BYTES for record in gone)
    assert held(timeline) == records[len(gone) :]
    assert timeline.start == (gone[-1].end if gone else start)
    assert timeline.seq == 3 + len(gone)
    assert timeline.index_at(timeline.start) == 0
    for record in gone:
        if record.begin != timeline.start:
            assert timeline.index_at(record.begin) is None


def test_a_batch_of_nothing_adds_nothing() -> None:
    timeline = Timeline(7)
    assert timeline.extend([], 7, 1, 0, 10) == 7
    assert held(timeline) == []
