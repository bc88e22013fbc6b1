"""What is read ahead of claims, against a lake that answers when the test says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headwater.engine.record_reads import TopicRecord
from headwater.errors import Failure, Overloaded
from headwater.topics import jobs_ahead
from headwater.topics.jobs_ahead import RECORD_BYTES, JobsAhead, Room

COUNT = 20


class Lake:
    """As an engine: holds jobs 1 to `COUNT` of one byte each, and answers the oldest question with `answer`."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        """(first seq, count)"""
        self._waiting: list[Any] = []

    def read_records(self, stream: Any, from_seq: int, count: int, bytes_max: int, done: Any) -> None:
        self.asked.append((from_seq + 1, count))
        self._waiting.append((from_seq + 1, count, done))

    def answer(self, failure: Failure | None = None, fewer: int = 0) -> None:
        first, count, done = self._waiting.pop(0)
        until = min(first + count - fewer, COUNT + 1)
        done(failure or [TopicRecord(seq, 0, b"x", None, seq) for seq in range(first, until)])


class Told:
    def __init__(self) -> None:
        self.found: list[int] | Failure | None = None

    def __call__(self, found: list[TopicRecord] | Failure) -> None:
        self.found = found if isinstance(found, Failure) else [one.seq for one in found]


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_ahead, "STRETCH_COUNT", 4)


def stream_of(lake_until: int = COUNT) -> Any:
    timeline = SimpleNamespace(seq=lake_until)
    columns = {"live_bytes": COUNT, "live_count": COUNT, "count": COUNT, "visible": COUNT, "tail": COUNT}
    return SimpleNamespace(parent=None, forked=None, timeline=timeline, **columns)


def made(lake: Lake, room: Room | None = None, lake_until: int = COUNT) -> JobsAhead:
    return JobsAhead(lake, stream_of(lake_until), room or Room())  # type: ignore[arg-type]


def held(ahead: JobsAhead) -> list[int]:
    """Looking for all of them is like handing them out."""
    return [seq for seq in range(1, COUNT + 1) if ahead.get(seq) is not None]


def test_one_read_answers_claims_of_a_whole_stretch() -> None:
    lake, told = Lake(), Told()
    ahead = made(lake)
    ahead.read(1, 1, 100, told)
    assert told.found is None
    lake.answer()
    assert told.found == [1, 2, 3, 4]
    assert lake.asked == [(1, 4)]
    assert held(ahead) == [1, 2, 3, 4]


def test_the_next_stretch_is_read_when_the_newest_is_begun() -> None:
    lake = Lake()
    ahead = made(lake)
    ahead.read(1, 1, 100, Told())
    lake.answer()
    assert ahead.get(1) and ahead.get(2)
    assert lake.asked == [(1, 4), (5, 4)]
    lake.answer()
    assert ahead.get(4)
    assert len(lake.asked) == 2, "nothing of the newest was handed out yet"
    assert ahead.get(5)
    assert lake.asked == [(1, 4), (5, 4), (9, 4)]
    lake.answer()
    assert held(ahead) == [5, 6, 7, 8, 9, 10, 11, 12]


def test_what_follows_is_not_read_where_memory_holds_it() -> None:
    lake = Lake()
    ahead = made(lake, lake_until=4)
    ahead.read(1, 1, 100, Told())
    lake.answer()
    assert ahead.get(1)
    assert lake.asked == [(1, 4)]


def test_a_read_that_is_under_way_is_waited_for() -> None:
    lake, first, second = Lake(), Told(), Told()
    ahead = made(lake)
    ahead.read(1, 1, 100, first)
    ahead.read(3, 1, 100, second)
    assert lake.asked == [(1, 4)]
    lake.answer()
    assert first.found == second.found == [1, 2, 3, 4]


def test_jobs_that_come_back_are_read_by_themselves() -> None:
    lake, told = Lake(), Told()
    ahead = made(lake)
    ahead.cursor = 9
    ahead.read(2, 1, 100, told)
    lake.answer()
    assert told.found == [2]
    assert lake.asked == [(2, 1)]
    assert held(ahead) == []


def test_a_failure_is_told_to_everybody_and_the_next_read_asks_again() -> None:
    lake, first, second = Lake(), Told(), Told()
    ahead = made(lake)
    ahead.read(1, 1, 100, first)
    ahead.read(2, 1, 100, second)
    lake.answer(Overloaded("busy"))
    assert isinstance(first.found, Overloaded) and isinstance(second.found, Overloaded)
    ahead.read(1, 1, 100, first)
    lake.answer()
    assert first.found == [1, 2, 3, 4]


def test_a_failed_read_ahead_disturbs_nobody() -> None:
    lake = Lake()
    ahead = made(lake)
    ahead.read(1, 1, 100, Told())
    lake.answer()
    assert ahead.get(1)
    lake.answer(Overloaded("busy"))
    assert held(ahead) == [1, 2, 3, 4]


def test_queues_share_a_room_and_the_one_longest_unused_forgets() -> None:
    lake, room = Lake(), Room(10 * (RECORD_BYTES + 1))
    queues = [made(lake, room) for _ in range(3)]
    for ahead in queues:
        ahead.read(1, 1, 100, Told())
        lake.answer()
    assert [held(ahead) for ahead in queues] == [[], [1, 2, 3, 4], [1, 2, 3, 4]]
    assert room.bytes == 8 * (RECORD_BYTES + 1)
    for ahead in queues:
        ahead.forget()
    assert room.bytes == 0


def test_what_comes_for_a_queue_that_is_gone_is_told_and_not_kept() -> None:
    lake, room, told = Lake(), Room(), Told()
    ahead = made(lake, room)
    ahead.read(1, 1, 100, told)
    ahead.close()
    lake.answer()
    assert told.found == [1, 2, 3, 4]
    assert room.bytes == 0 and held(ahead) == []
