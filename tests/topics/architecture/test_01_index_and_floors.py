"""Topics architecture, the principles at its head and §1: numbers without gaps, the two floors, holes, state, epoch.
Each docstring quotes the sentence that the test holds."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Topic, refused, told
from tests.topics.architecture.looks import at_every_door, floors, gap, hold_floors, seqs, settle

WAIT_MS = 30_000


def test_an_eviction_that_passes_a_cursor_is_told_with_its_gap(new: New) -> None:
    """Principle 1: "Every involuntary eviction/TTL crossing that passes a consumer's cursor surfaces an in-band
    tombstone carrying [gap_from, gap_to]"."""
    topic = new(cap_records=3)
    topic.write(*range(10))
    assert gap(topic.diff(from_seq=4)) == (5, 7)
    assert gap(topic.diff(from_seq=7)) is None
    hold_floors(topic)


def test_a_voluntary_deletion_moves_the_earliest_and_never_the_evict_floor(topic: Topic) -> None:
    """Principle 1: "Voluntary deletion advances earliest_seq, never evict_floor, so a deleted gap reads silently"."""
    topic.write(*range(6))
    assert floors(topic) == (1, 1)
    assert told(topic.delete(before_seq=5))["deleted"] == 4
    assert floors(topic) == (1, 5)
    found = topic.diff()
    assert (seqs(found), gap(found)) == ([5, 6], None)
    hold_floors(topic)


def test_numbers_are_given_out_in_order_and_never_skip(topic: Topic) -> None:
    """§1.1: "writes never skip"; refused writes and deletions included."""
    assert topic.write(1, 2) == [1, 2]
    assert refused(topic.post([{"data": 1, "tag": 5}])) == (400, "bad_request")
    assert topic.write(3) == [3]
    assert told(topic.delete(before_seq=4))["deleted"] == 3
    assert topic.write(4) == [4] and topic.state()["head_seq"] == 4


@pytest.mark.parametrize("settled", [False, True], ids=["memory", "lake"])
def test_the_difference_from_any_cursor_is_what_lies_behind_it(topic: Topic, settled: bool) -> None:
    """§1.1: "getDifference(from_seq) becomes slice locs[from_seq - base_seq ..] then skip deleted/expired/foreign
    slots"."""
    topic.write(*range(1, 9), tag="a")
    topic.write(9, 10, tag="b", node="me")
    assert told(topic.delete(match=["tag", "Eq", "a"], before_seq=3))["deleted"] == 2
    if settled:
        settle(topic.node)
    hold_floors(topic)
    for cursor in range(11):
        own = topic.diff(from_seq=cursor, node="me")
        assert seqs(own) == [seq for seq in range(3, 9) if seq > cursor] and own["next_seq"] == 10


def test_a_node_filter_is_no_hole(topic: Topic) -> None:
    """§1.1: "node-filtering is a read-time filter, not a hole"."""
    topic.post([{"data": 1, "node": "a"}, {"data": 2, "node": "b"}])
    assert topic.data(node="a") == [2] and topic.data(node="b") == [1]
    assert topic.state()["count"] == 2 and floors(topic) == (1, 1)


@pytest.mark.parametrize("settled", [False, True], ids=["memory", "lake"])
def test_a_record_deleted_in_the_middle_frees_its_bytes_and_moves_no_number(topic: Topic, settled: bool) -> None:
    """§1.2: "its payload/tag is freed immediately (subtract bytes, decrement count ...), but the slot stays so seq -
    base_seq indexing remains O(1)"."""
    topic.write("xx", "yyy", "zzzz", tag="keep")
    topic.write("gone", tag="gone")
    topic.write("last")
    if settled:
        settle(topic.node)
    before = topic.state()
    assert told(topic.delete(match=["tag", "Eq", "gone"]))["deleted"] == 1
    state = topic.state()
    assert (state["count"], state["bytes"]) == (before["count"] - 1, before["bytes"] - len('"gone"'))
    assert seqs(topic.diff()) == [1, 2, 3, 5] and floors(topic) == (1, 1)


def test_the_front_is_popped_over_all_that_is_dead(topic: Topic) -> None:
    """§1.2: "when the prefix of locs is fully dead ..., drain it and advance base_seq"; earliest_seq "is the earliest
    live seq"."""
    topic.post([{"data": n, "tag": tag} for n, tag in enumerate("abcaab")])
    for tag, earliest in (("b", 1), ("c", 1), ("a", 6)):
        topic.delete(match=["tag", "Eq", tag], before_seq=6)
        assert floors(topic) == (1, earliest)
    assert seqs(topic.diff()) == [6]
    topic.delete(before_seq=7)
    assert floors(topic) == (1, 7) and topic.state()["count"] == 0
    hold_floors(topic)


def test_the_floors_keep_their_order_whatever_happens(new: New) -> None:
    """§1.2: "Invariant evict_floor <= earliest_seq is held by construction", and the tombstone is decided "with two
    atomic loads" from the floors alone."""
    topic = new(cap_records=5)
    steps: list[Any] = [
        lambda: topic.write(1, 2, 3, tag="a"),
        lambda: topic.write(4, 5, 6, tag="b"),
        lambda: topic.delete(match=["tag", "Eq", "a"]),
        lambda: topic.write(*range(4), tag="a"),
        lambda: topic.delete(before_seq=8),
        lambda: topic.write(*range(9), tag="c"),
        lambda: topic.delete(match=["tag", "Glob", "*"]),
        lambda: topic.write(0),
    ]
    for step in steps:
        step()
        hold_floors(topic)


def test_the_state_tells_head_floors_count_bytes_and_epoch(topic: Topic) -> None:
    """§1.2, struct Topic: head_seq, earliest_seq, evict_floor, epoch, bytes_retained "live payload bytes"."""
    epoch = topic.state()["epoch"]
    topic.write("a", {"b": 1}, meta={"not": "counted"})
    state = {"head_seq": 2, "earliest_seq": 1, "evict_floor": 1, "count": 2, "epoch": epoch}
    assert topic.state() == {**state, "bytes": len('"a"') + len('{"b": 1}')}


def test_an_epoch_tells_a_topic_that_was_made_again(topic: Topic) -> None:
    """§1.2: "epoch ... bumped on create; detects delete+recreate"."""
    topic.write(1, 2)
    old = topic.state()["epoch"]
    assert topic.request("DELETE").status == 200
    assert topic.put().status == 201
    state = topic.state()
    assert state["epoch"] > old and (state["head_seq"], state["evict_floor"]) == (0, 1)
    assert refused(topic.request("GET", f"/diff?epoch={old}")) == (409, "epoch_changed")
    assert topic.write("new") == [1]


def test_an_append_wakes_who_waits_for_it(topic: Topic) -> None:
    """§1.2: "Notify is the wakeup primitive that lets SSE/diff hit 1-5 ms without polling"."""
    found: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: found.append(topic.diff(wait_ms=WAIT_MS)))
    with topic.tail() as tail:
        waiting.start()
        topic.write("new")
        assert [one["data"] for one in tail.next()["records"]] == ["new"]
    waiting.join()
    assert [one["data"] for one in found[0]["records"]] == ["new"]


def test_every_door_reads_the_same_live_records(new: New) -> None:
    """§1.2 and §3.5: deletion is "invisible to reads"; here also at the doors that know no tags."""
    topic = new(cap_records=8)
    topic.write(*range(6), tag="a")
    topic.write(*range(6, 12), tag="b")
    topic.diff()
    topic.delete(match=["tag", "Eq", "a"])
    assert at_every_door(topic) == list(range(6, 12))
    settle(topic.node)
    topic.delete(before_seq=9)
    assert at_every_door(topic) == list(range(8, 12))
