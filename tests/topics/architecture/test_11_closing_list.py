"""Topics architecture §11, the closing list: "The three highest-value invariants the storage layer enforces", each held
in memory, in the lake and after SIGKILL."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doors.http.topics.surface import Topic, new_topic, told
from tests.support.node import Node
from tests.topics.architecture.looks import (
    at_every_door,
    everything,
    floors,
    gap,
    hold_floors,
    seqs,
    settle,
    whole,
)
from tests.topics.architecture.test_03_eviction import contents

PLACES = [
    pytest.param("memory"),
    pytest.param("lake"),
    pytest.param("killed", marks=pytest.mark.full),
]


def move(node: Node, place: str) -> None:
    """Brings what is in memory elsewhere."""
    if place == "lake":
        settle(node)
    if place == "killed":
        node.restart()


@pytest.mark.parametrize("place", PLACES)
def test_1_never_silent_involuntary_loss(node: Node, place: str) -> None:
    """(1) "evict_floor is always durable and cheaply queryable, so any read crossing it yields an in-band tombstone,
    while a purely-deleted gap (below earliest_seq, at/above evict_floor) reads silently"."""
    topic = new_topic(node, cap_records=6)
    topic.write(*range(10), tag="a")
    assert floors(topic) == (5, 5)
    topic.delete(match=["tag", "Eq", "a"], before_seq=8)
    topic.write("x", tag="b")
    before = everything(topic)
    move(node, place)
    assert everything(topic) == before
    assert floors(topic) == (5, 8)
    for cursor in range(12):
        found = whole(topic, cursor)
        assert gap(found) == ((cursor + 1, 4) if cursor < 4 else None)
        assert seqs(found) == [seq for seq in (8, 9, 10, 11) if seq > cursor]
        with topic.tail(f"?from_seq={cursor}") as tail:
            if cursor < 4:
                assert tail.next("tombstone")["gap_to"] == 4
            if cursor < 11:
                assert tail.next()["records"][0]["seq"] == max(8, cursor + 1)
    hold_floors(topic)


@pytest.mark.parametrize("place", PLACES)
def test_2_eviction_is_lazy_moves_a_watermark_and_rewrites_nothing(node: Node, place: str) -> None:
    """(2) "segment-granular, lazy cap/TTL eviction - never rewrite on the hot path; advance a watermark and drop whole
    sealed segments"."""
    topic = new_topic(node, cap_records=5)
    topic.write(*range(5))
    move(node, place)
    lake = node.data_directory / "lake" / "data"
    before = contents(lake)
    for n in range(5, 15):
        assert topic.write(n) == [n + 1]
    found = whole(topic)
    # What is kept is the cap, or more by what lies in one file with it.
    assert seqs(found)[-5:] == [11, 12, 13, 14, 15] and len(found["records"]) <= 10
    assert gap(found) == (1, floors(topic)[0] - 1)
    after = contents(lake)
    assert {name for name in before if name in after and after[name] != before[name]} == set()
    hold_floors(topic)


@pytest.mark.parametrize("place", PLACES)
def test_3_deletion_is_logically_immediate_and_physically_lazy(node: Node, place: str) -> None:
    """(3) "free the payload and advance earliest_seq synchronously, reclaim disk/memory in the background"."""
    topic = new_topic(node)
    topic.post([{"data": n, "tag": f"t{n % 3}"} for n in range(12)])
    if place == "lake":
        settle(node)
    lake = node.data_directory / "lake" / "data"
    before = contents(lake)
    left = list(range(1, 13))

    def delete(expected: list[int], **wish: Any) -> None:
        nonlocal left
        answer = told(topic.delete(**wish))
        left = [seq for seq in left if seq not in expected]
        assert answer == {"deleted": len(expected), "earliest_seq": left[0] if left else 13, "head_seq": 12}
        assert floors(topic) == (1, answer["earliest_seq"])
        state = topic.state()
        assert (state["count"], state["bytes"]) == (len(left), sum(len(str(seq - 1)) for seq in left))
        assert at_every_door(topic) == [seq - 1 for seq in left]

    delete([2, 5, 8, 11], match=["tag", "Eq", "t1"])
    delete([1, 3, 4], before_seq=6)
    delete([6, 7, 9], match=["tag", "Glob", "t*"], before_seq=10)
    after = contents(lake)
    assert {name for name in before if name in after and after[name] != before[name]} == set()
    if place == "killed":
        node.restart()
    delete([10], match=["tag", "Eq", "t0"])
    delete([12], before_seq=13)
    assert everything(topic)["diff"]["records"] == [] and topic.write("next") == [13]
    hold_floors(topic)


def test_the_invariants_hold_of_a_topic_without_a_record(node: Node) -> None:
    """The edge of all three: nothing is lost or deleted of what never was."""
    topic: Topic = new_topic(node, cap_records=1)
    assert told(topic.delete(before_seq=1_000)) == {"deleted": 0, "earliest_seq": 1, "head_seq": 0}
    assert told(topic.delete(match=["tag", "Glob", "*"]))["deleted"] == 0
    assert (floors(topic), topic.write(1)) == ((1, 1), [1])
