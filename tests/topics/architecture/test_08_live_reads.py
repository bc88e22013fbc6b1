"""Topics architecture §8 and §9: live reads are woken and not polled, isolated from each other, and always lossless or
told. Followers over SSE; several topics over one connection; the performance block."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import PERFORMANCE, Tail, Topic, tail_of, told
from tests.support.http import EventStream
from tests.support.node import Node
from tests.topics.architecture.looks import floors, settle

WITHIN_S = 60.0


def data(event: dict[str, Any]) -> list[Any]:
    return [one["data"] for one in event["records"]]


def test_each_watcher_of_a_topic_is_told_and_nobody_else(new: New) -> None:
    """§9.2: "each topic keeps its registered watchers; the Notify wakes only those connections"."""
    topic, other = new(), new()
    with topic.tail() as first, topic.tail() as second, other.tail() as third:
        topic.write(1)
        other.write(2)
        assert (data(first.next()), data(second.next()), data(third.next())) == ([1], [1], [2])


def test_a_follower_sees_what_a_reader_of_differences_sees(new: New) -> None:
    """§8, SSE push and getDifference: the same records in the same order, whichever door wrote them."""
    topic = new()
    with topic.tail("?from_seq=0") as tail:
        for n in range(10):
            if n % 2:
                topic.write(n)
            else:
                headers = {"Content-Type": "application/json"}
                assert topic.node.request("POST", f"/v1/stream/{topic.name}", headers, b"%d" % n).status == 204
        followed: list[Any] = []
        while len(followed) < 10:
            followed += tail.next()["records"]
    assert followed == topic.diff()["records"]


def test_a_tombstone_comes_before_what_follows_it_and_a_deleted_gap_is_silent(new: New) -> None:
    """§8, getDifference: "tombstone iff from_seq+1 < evict_floor ... a purely-deleted gap below earliest_seq is
    silent", for followers too."""
    topic = new(cap_records=4)
    topic.write(1, 2, 3, 4, 5, tag="a")
    topic.diff()
    topic.delete(match=["tag", "Eq", "a"], before_seq=4)
    assert floors(topic) == (2, 4)
    with topic.tail("?from_seq=0") as tail:
        assert tail.next("tombstone") == {"topic": topic.name, "gap_from": 1, "gap_to": 1}
        assert data(tail.next()) == [4, 5]
    with topic.tail("?from_seq=1") as tail:
        assert data(tail.next()) == [4, 5]


def test_own_records_are_skipped_and_the_cursor_goes_on(new: New) -> None:
    """§9.3: "skipping deleted/expired/own-node slots, builds one frame"."""
    topic = new()
    with topic.tail("?from_seq=0&node=me") as tail:
        topic.write(1, 2, node="me")
        topic.write(3)
        assert (data(tail.next()), tail.id) == ([3], f"{topic.name}:3")


def test_several_topics_have_one_cursor_that_resumes_them_all(node: Node, new: New) -> None:
    """§8: the server "records the last-delivered composite cursor"."""
    topics = [new() for _ in range(3)]
    names = ",".join(topic.name for topic in topics)
    with tail_of(node, f"/v0/sse?topics={names}") as tail:
        for topic in topics:
            topic.write("first")
            assert data(tail.next()) == ["first"]
        cursor = tail.id
    for topic in topics:
        topic.write("second")
    with tail_of(node, f"/v0/sse?topics={names}", {"Last-Event-ID": cursor}) as tail:
        assert sorted(tail.next()["topic"] for _ in topics) == sorted(topic.name for topic in topics)


def test_history_and_live_are_one_for_a_follower(node: Node, new: New) -> None:
    """§3.6, the hard invariant, and §3.4: a follower that begins in storage arrives at the live tail, without a gap."""
    topic = new()
    topic.write(*range(5))
    settle(node)
    topic.write(*range(5, 8))
    with topic.tail("?from_seq=0") as tail:
        got: list[Any] = []
        while len(got) < 8:
            got += data(tail.next())
        topic.write(8)
        assert got + data(tail.next()) == list(range(9))


def test_a_client_that_does_not_read_holds_up_neither_writers_nor_other_watchers(new: New) -> None:
    """§8: "it does not block the topic drain; ... One slow client is contained to its own connection"; §9.5:
    "Backpressure cannot stall the writer"."""
    topic = new(durability="memory")
    count, size = 60, 100_000
    with topic.node.connect(receive_buffer_bytes=4_096) as connection, topic.tail() as quick:
        slow = Tail(EventStream.open(connection, f"{topic.path}/sse"))
        got: list[int] = []

        def follow() -> None:
            while not got or got[-1] < count:
                got.extend(one["seq"] for one in quick.next()["records"])

        following = threading.Thread(target=follow)
        following.start()
        for _ in range(count):
            topic.write("x" * size)
        following.join(WITHIN_S)
        assert got == list(range(1, count + 1))
        # What is still there the slow one gets from its cursor: all of it.
        late: list[int] = []
        while not late or late[-1] < count:
            late += [one["seq"] for one in slow.next()["records"]]
        assert late == list(range(1, count + 1))


def test_what_a_slow_client_can_no_longer_get_is_told(new: New) -> None:
    """§8: "on the next successful send emits a tombstone for the skipped range (for lossy topics)"."""
    topic = new(durability="memory", cap_records=5)
    count = 120
    with topic.node.connect(receive_buffer_bytes=4_096) as connection:
        slow = Tail(EventStream.open(connection, f"{topic.path}/sse"))
        for _ in range(count):
            topic.write("x" * 100_000)
        seen: list[int] = []
        lost = 0
        while not seen or seen[-1] < count:
            name, event = slow.any()
            if name == "tombstone":
                assert event["reason"] == "lagged"
                seen += range(event["gap_from"], event["gap_to"] + 1)
                lost += event["gap_to"] - event["gap_from"] + 1
            else:
                seen += [one["seq"] for one in event["records"]]
    assert seen == list(range(1, count + 1)) and lost > 0


@pytest.mark.parametrize("verb", ["GET", "diff", "records", "delete"])
def test_every_answer_says_what_its_time_went_to(topic: Topic, verb: str) -> None:
    """§9: delays are "explicit and visible (in the performance.fsync_ms/throttle_wait_ms fields ...)"."""
    requests = {
        "GET": lambda: topic.request("GET"),
        "diff": lambda: topic.request("GET", "/diff"),
        "records": lambda: topic.post([{"data": 1}]),
        "delete": lambda: topic.delete(before_seq=1),
    }
    found = requests[verb]().json()["performance"]
    assert set(found) == PERFORMANCE and all(value >= 0 for value in found.values())
    assert found["queue_ms"] + found["fsync_ms"] <= found["total_ms"] + 0.01
    if verb in ("GET", "diff"):
        assert found["fsync_ms"] == 0


def test_a_topic_that_ends_is_told_to_who_follows_or_waits(topic: Topic) -> None:
    """§8: nobody is left waiting for a topic that is gone."""
    answers: list[int] = []
    waiting = threading.Thread(target=lambda: answers.append(topic.request("GET", "/diff?wait_ms=60000").status))
    with topic.tail() as tail:
        waiting.start()
        told(topic.request("DELETE"))
        assert tail.next("gone") == {"topic": topic.name} and tail.ended()
    waiting.join(WITHIN_S)
    assert answers == [404]
