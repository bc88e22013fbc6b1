"""What a reader is told since its cursor. Topics architecture §1 (the two floors), §3.3 (eviction), §5 (the read loop:
deleted, expired and own records are skipped), §8 (long-poll)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from headwater.doors.http.topics import diff as diffs
from headwater.doors.http.topics.diff import Diff, Wanted
from headwater.doors.http.topics.state import state_of
from headwater.errors import Failure
from headwater.model.commands import Append, Create, DeleteRecords, Retention
from headwater.model.holes import Run
from headwater.model.labels import Labels
from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Topic, refused, told
from tests.engine import KEY, Bench, engine_on

EVERY = Wanted(0, 100, 1 << 20, frozenset())

# ---- over HTTP ------------------------------------------------------------------------------------------------------


def test_a_reader_goes_on_where_it_was(topic: Topic) -> None:
    topic.write(*range(1, 6))
    first = topic.diff(limit=2)
    assert ([one["seq"] for one in first["records"]], first["next_seq"], first["up_to_date"]) == ([1, 2], 2, False)
    second = topic.diff(from_seq=2, limit=3)
    assert ([one["seq"] for one in second["records"]], second["next_seq"], second["up_to_date"]) == ([3, 4, 5], 5, True)
    last = topic.diff(from_seq=5)
    assert last == {**second, "records": [], "next_seq": 5}


def test_an_empty_topic_is_up_to_date(topic: Topic) -> None:
    epoch = topic.state()["epoch"]
    assert topic.diff() == {
        "records": [],
        "next_seq": 0,
        "head_seq": 0,
        "earliest_seq": 1,
        "evict_floor": 1,
        "epoch": epoch,
        "up_to_date": True,
    }


def test_a_cursor_beyond_the_head_goes_on_from_the_head(topic: Topic) -> None:
    topic.write(1)
    found = topic.diff(from_seq=(1 << 53) - 1)
    assert (found["records"], found["next_seq"]) == ([], 1)


def test_a_tombstone_tells_what_a_cap_took_and_only_to_whom_it_matters(new: New) -> None:
    topic = new(cap_records=2)
    topic.write(1, 2, 3, 4, 5)
    assert topic.diff()["tombstone"] == {"gap_from": 1, "gap_to": 3}
    found = topic.diff(from_seq=1)
    assert found["tombstone"] == {"gap_from": 2, "gap_to": 3} and [one["seq"] for one in found["records"]] == [4, 5]
    for from_seq in (3, 4, 5):
        assert "tombstone" not in topic.diff(from_seq=from_seq)


def test_the_records_of_its_own_node_are_skipped_and_the_cursor_moves_past_them(topic: Topic) -> None:
    topic.post([{"data": 1, "node": "a"}, {"data": 2, "node": "b"}, {"data": 3}, {"data": 4, "node": "a"}])
    assert topic.data(node="a") == [2, 3]
    assert topic.data(node="a,b") == [3]
    assert topic.data(node="c") == [1, 2, 3, 4]
    found = topic.diff(node="a", from_seq=3)
    assert (found["records"], found["next_seq"], found["up_to_date"]) == ([], 4, True)
    found = topic.diff(node="a", limit=1)
    assert (found["records"], found["next_seq"], found["up_to_date"]) == ([], 1, False)


def test_another_epoch_than_the_reader_knows_is_a_conflict_that_tells_the_present_one(topic: Topic) -> None:
    epoch = topic.state()["epoch"]
    assert topic.diff(epoch=epoch)["epoch"] == epoch
    answer = topic.request("GET", f"/diff?epoch={epoch + 1}")
    assert refused(answer) == (409, "epoch_changed")
    assert answer.json()["error"]["detail"]["epoch"] == epoch


@pytest.mark.parametrize(
    "query",
    [
        *("from_seq=-1", "from_seq=x", "from_seq=", "from_seq=1.5", "from_seq=9007199254740992", "from_seq=now"),
        *("limit=0", "limit=10001", "limit=-5", "limit=ten", "wait_ms=-1", "wait_ms=60001", "wait_ms=1s"),
        *("epoch=-1", "epoch=x", "from_seq=1&from_seq=2", "limit=1&limit=1", "node=a&node=b", "node=%ff"),
        "node=" + ",".join(map(str, range(65))),
    ],
)
def test_a_query_that_cannot_be_understood_is_refused_and_named(topic: Topic, query: str) -> None:
    answer = topic.request("GET", f"/diff?{query}")
    assert refused(answer) == (400, "bad_request")
    name = query.partition("=")[0]
    assert name in answer.json()["error"]["message"] or "%ff" in query


def test_a_batch_is_as_long_as_a_read_may_be_and_goes_on(new: New) -> None:
    topic = new()
    for _ in range(3):
        topic.write(*["x" * 1_000_000] * 2)
    found = topic.diff()
    assert 1 < len(found["records"]) < 6 and not found["up_to_date"]
    rest = topic.diff(from_seq=found["next_seq"])
    assert [one["seq"] for one in found["records"] + rest["records"]] == [1, 2, 3, 4, 5, 6]


def test_a_record_that_is_longer_than_a_batch_comes_alone(new: New) -> None:
    topic = new()
    topic.write("x" * 5_000_000)
    topic.write(2)
    found = topic.diff()
    assert ([len(str(one["data"])) for one in found["records"]], found["next_seq"]) == ([5_000_000], 1)


# ---- waiting --------------------------------------------------------------------------------------------------------


class Waits:
    """A long-poll on a connection of its own. `answer` blocks until it is there."""

    def __init__(self, topic: Topic, query: str) -> None:
        self._answers: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._answers.append(topic.request("GET", f"/diff?{query}")))
        self._thread.start()

    def answer(self) -> Any:
        self._thread.join(30)
        return self._answers[0]


def test_a_reader_that_waits_gets_what_is_written_meanwhile(topic: Topic) -> None:
    waits = Waits(topic, "wait_ms=30000")
    topic.write(1)
    found = told(waits.answer())
    assert [one["data"] for one in found["records"]] == [1] and found["next_seq"] == 1


def test_a_reader_that_waits_is_answered_at_once_when_something_is_there(topic: Topic) -> None:
    topic.write(1)
    assert topic.data(wait_ms=30_000) == [1]


def test_a_reader_that_waits_in_vain_is_told_where_it_is(topic: Topic) -> None:
    topic.write(1)
    found = topic.diff(from_seq=1, wait_ms=30)
    assert (found["records"], found["next_seq"], found["up_to_date"]) == ([], 1, True)


def test_a_reader_that_waits_is_not_woken_by_its_own_records(topic: Topic) -> None:
    waits = Waits(topic, "wait_ms=30000&node=me")
    topic.write(1, 2, node="me")
    topic.write(3, node="me")
    topic.write(4, node="other")
    found = told(waits.answer())
    assert ([one["data"] for one in found["records"]], found["next_seq"]) == ([4], 4)


def test_a_reader_that_waits_hears_of_the_topics_deletion(topic: Topic) -> None:
    waits = Waits(topic, "wait_ms=30000")
    assert topic.request("DELETE").status == 200
    assert refused(waits.answer()) == (404, "topic_not_found")


def test_a_reader_does_not_wait_for_a_topic_that_is_closed(topic: Topic) -> None:
    headers = {"Content-Type": "application/json", "Stream-Closed": "true"}
    assert topic.node.request("POST", f"/v1/stream/{topic.name}", headers, b"1").status == 204
    assert topic.data(wait_ms=30_000) == [1]
    assert topic.diff(from_seq=1, wait_ms=30_000)["records"] == []


# ---- on a clock and a log that stand still --------------------------------------------------------------------------


class Still:
    """A JSON topic on a hand-made log."""

    def __init__(self, retention: Retention | None = None) -> None:
        self.bench = Bench()
        self.bench.submit(Create(KEY, "application/json", [], retention=retention))
        self.bench.sync()
        self.engine = engine_on(self.bench.group)
        self.stream = self.bench.group.find(KEY, touch=False)

    def write(self, *payloads: bytes, sync: bool = True, labels: list[Labels | None] | None = None) -> None:
        self.bench.submit(Append(list(payloads), "application/json", labels=labels))
        if sync:
            self.bench.sync()

    def delete(self, first: int, last: int) -> None:
        """Records by their seqs, `last` included; each is one byte long."""
        self.bench.submit(DeleteRecords([Run(first - 1, last, first - 1, last)]))
        self.bench.sync()

    def read(self, wanted: Wanted = EVERY) -> Diff:
        found: list[Diff | Failure] = []
        diffs.read(self.engine, self.stream, wanted, found.append)
        assert isinstance(found[0], Diff)
        return found[0]


def seqs(diff: Diff) -> list[int]:
    return [int(text.partition(b":")[2].partition(b",")[0]) for text in diff.records]


def on_a_loop(body: Any) -> None:
    async def run() -> None:
        body()

    asyncio.run(run())


def test_what_is_not_durable_yet_is_not_shown_nor_counted() -> None:
    def body() -> None:
        still = Still()
        still.write(b"1")
        still.write(b"2", sync=False)
        found = still.read()
        assert (seqs(found), found.next_seq, found.head_seq, found.up_to_date) == ([1], 1, 1, True)
        state = state_of(still.stream)
        assert (state.head_seq, state.count, state.bytes) == (1, 1, 1)
        still.bench.sync()
        assert seqs(still.read()) == [1, 2] and state_of(still.stream).count == 2

    on_a_loop(body)


def test_what_is_too_old_is_gone_for_whoever_reads_and_the_tombstone_is_logged() -> None:
    def body() -> None:
        still = Still(Retention(age_ms=1_000))
        still.write(b"1", b"2")
        still.bench.clock.ms += 600
        still.write(b"3")
        assert seqs(still.read()) == [1, 2, 3]
        still.bench.clock.ms += 600
        logged = len(still.bench.log.events)
        found = still.read()
        assert (seqs(found), found.gap_from, found.gap_to, found.evict_floor) == ([3], 1, 2, 3)
        assert len(still.bench.log.events) == logged + 1
        still.bench.clock.ms += 10_000
        found = still.read()
        assert (seqs(found), found.gap_to, found.next_seq, found.up_to_date) == ([], 3, 3, True)
        assert (found.earliest_seq, found.evict_floor, found.head_seq) == (4, 4, 3)
        assert not still.read(EVERY._replace(from_seq=3)).says_something

    on_a_loop(body)


def test_deleted_records_are_passed_over_in_silence_wherever_they_are() -> None:
    def body() -> None:
        still = Still()
        still.write(*b"1 2 3 4 5 6".split())
        still.delete(3, 4)
        found = still.read()
        assert (seqs(found), found.gap_to, found.earliest_seq, found.evict_floor) == ([1, 2, 5, 6], 0, 1, 1)
        still.delete(1, 2)
        found = still.read()
        assert (seqs(found), found.gap_to, found.earliest_seq, found.evict_floor) == ([5, 6], 0, 5, 1)
        still.delete(6, 6)
        found = still.read(EVERY._replace(from_seq=2, limit=1))
        assert (seqs(found), found.next_seq, found.up_to_date) == ([5], 6, True)
        still.delete(5, 5)
        found = still.read()
        assert (seqs(found), found.gap_to, found.next_seq, found.up_to_date) == ([], 0, 6, True)
        assert state_of(still.stream).count == state_of(still.stream).bytes == 0

    on_a_loop(body)


def test_only_what_was_lost_is_in_the_tombstone_when_some_was_deleted_as_well() -> None:
    def body() -> None:
        still = Still(Retention(records=3))
        still.write(*b"1 2 3 4 5".split())
        still.bench.group.apply_retention()
        still.bench.sync()
        still.delete(3, 3)
        found = still.read()
        assert (seqs(found), found.gap_from, found.gap_to) == ([4, 5], 1, 2)
        assert (found.earliest_seq, found.evict_floor) == (4, 3)
        found = still.read(EVERY._replace(from_seq=2))
        assert (seqs(found), found.gap_to) == ([4, 5], 0)

    on_a_loop(body)


def test_records_are_told_as_they_were_written_with_all_they_carry() -> None:
    def body() -> None:
        still = Still()
        still.write(b'{"a" :1}', b"2", labels=[Labels('"', "n", b'{"m":1}', "k", 7), None])
        first, second = still.read().records
        at = still.bench.clock.ms
        told_first = b'{"seq":1,"ts":%d,"data":{"a" :1},"tag":"\\"","node":"n","meta":{"m":1},"key":"k","deliver_at":7}'
        assert (first, second) == (told_first % at, b'{"seq":2,"ts":%d,"data":2}' % at)

    on_a_loop(body)
