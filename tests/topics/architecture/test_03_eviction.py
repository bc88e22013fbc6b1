"""Topics architecture §3.1 to §3.4: caps and age take the oldest, told by a floor; reads from memory and lake are one.
Age is held with ids that S3P lets a writer choose, so that no test waits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Topic, new_topic, refused, told
from tests.doors.s3p.client import Client, Error
from tests.support.node import Node
from tests.topics.architecture.looks import (
    at_every_door,
    everything,
    floors,
    gap,
    hold_floors,
    seqs,
    settle,
    streamed,
    whole,
)

LONG_AGO_MS = 1_000_000_000_000
HOUR_MS = 3_600_000


def write_old(topic: Topic, *values: int, ms: int = LONG_AGO_MS) -> None:
    with Client.of(topic.node) as s3p:
        assert not isinstance(s3p.append(topic.name.encode(), *[b"%d" % value for value in values], ms=ms), Error)


def test_a_cap_on_records_moves_both_floors_past_the_oldest(new: New) -> None:
    """§3.3: "For count cap, ... advance evict_floor past the oldest live records (which also advances
    earliest_seq)"."""
    topic = new(cap_records=3)
    for n in range(1, 8):
        topic.write(n)
        found = topic.diff()
        assert seqs(found) == list(range(max(1, n - 2), n + 1))
        assert floors(topic) == (max(1, n - 2), max(1, n - 2))


def test_a_cap_on_bytes_does_so_too(new: New) -> None:
    """§1.2: "bytes_retained ... for byte-cap eviction"."""
    topic = new(cap_bytes=30)
    topic.write(*["12345678"] * 10)
    assert seqs(topic.diff()) == [8, 9, 10] and floors(topic) == (8, 8)
    assert topic.state()["bytes"] == 30
    hold_floors(topic)


def test_age_takes_what_is_older_than_the_bound(new: New) -> None:
    """§3.3: "For TTL, advance past records whose ts < now - ttl_ms"."""
    topic = new(ttl_ms=HOUR_MS)
    write_old(topic, 1, 2, 3)
    topic.write(4, 5)
    found = topic.diff()
    assert (seqs(found), gap(found)) == ([4, 5], (1, 3))
    assert floors(topic) == (4, 4)
    hold_floors(topic)


def test_age_takes_what_has_settled_too(node: Node) -> None:
    """§3.3, TTL, with §3.2: of what lies in storage a whole piece goes."""
    topic = new_topic(node)
    write_old(topic, 1, 2, 3)
    settle(node)
    told(topic.request("PATCH", body={"ttl_ms": HOUR_MS}))
    assert (topic.data(), floors(topic)) == ([], (4, 4))
    topic.write(4)
    found = whole(topic)
    assert (seqs(found), gap(found)) == ([4], (1, 3))
    hold_floors(topic)


def by_state(topic: Topic) -> list[Any]:
    return list(range(topic.state()["earliest_seq"], topic.state()["head_seq"] + 1))


def by_difference(topic: Topic) -> list[Any]:
    found = topic.diff()
    assert (gap(found), found["evict_floor"]) == ((1, 3), 4)
    return [one["data"] for one in found["records"]]


def by_cursor(topic: Topic) -> list[Any]:
    """That of a reader who is in the middle of what is too old."""
    found = topic.diff(from_seq=1)
    assert gap(found) == (2, 3)
    return [one["data"] for one in found["records"]]


def by_event(topic: Topic) -> list[Any]:
    with topic.tail("?from_seq=0") as tail:
        assert tail.next("tombstone") == {"topic": topic.name, "gap_from": 1, "gap_to": 3}
        return [one["data"] for one in tail.next()["records"]]


def by_claim(topic: Topic) -> list[Any]:
    told(topic.request("PATCH", body={"queue": {}}))
    found: list[Any] = []
    while jobs := told(topic.request("POST", "/claim", {"max": 10}))["jobs"]:
        found += [job["data"] for job in jobs]
    return found


def by_id(topic: Topic) -> list[Any]:
    with Client.of(topic.node) as s3p:
        page = s3p.read(topic.name.encode(), min_id="0-0")
        assert not isinstance(page, Error), page
        return [json.loads(payload) for _, payload in page]


@pytest.mark.parametrize("first", [by_state, by_difference, by_cursor, by_event, by_claim, by_id, streamed])
def test_age_is_exact_to_the_record_at_every_door_while_its_piece_is_still_there(
    node: Node, first: Callable[[Topic], list[Any]]
) -> None:
    """§3.3: "advance past records whose ts < now - ttl_ms" is logical, and the piece is dropped when all of it is gone.
    One piece holds both sorts here, and whoever asks first, at whichever door, is shown the younger ones alone."""
    topic = new_topic(node)
    write_old(topic, 1, 2, 3)
    topic.write(4, 5, 6)
    settle(node)
    told(topic.request("PATCH", body={"ttl_ms": HOUR_MS}))
    assert first(topic) == [4, 5, 6]
    assert floors(topic) == (4, 4)
    assert at_every_door(topic) == [4, 5, 6]
    hold_floors(topic)


def test_a_reader_of_the_tail_does_not_wait_for_the_lake_to_tell_ages(tmp_path: Path) -> None:
    """§3.6, the hard invariant: "cold reads may degrade historical reads but never affect writes or live delivery"."""
    with Node.started(tmp_path, flags=["--s3p", "127.0.0.1:0"]) as node:
        topic = new_topic(node)
        write_old(topic, 1, 2, 3)
        topic.write(4, 5, 6)
        settle(node)
        for file in (node.data_directory / "lake").rglob("*.parquet"):
            file.unlink()
        told(topic.request("PATCH", body={"ttl_ms": HOUR_MS}))
        with topic.tail("?from_seq=6") as tail:
            topic.write(7)
            assert [one["data"] for one in tail.next()["records"]] == [7]
        assert topic.data(from_seq=6) == [7]
        assert topic.state()["head_seq"] == 7
        assert topic.request("GET", "/diff?from_seq=0").status == 503


@pytest.mark.parametrize("bound", ["records", "bytes", "age"])
def test_deleted_records_are_not_evicted(new: New, bound: str) -> None:
    """§3.3: "Popping already-deleted front slots is not eviction and does not advance evict_floor (only
    earliest_seq/base_seq); evicting live records does"."""
    config = {"records": {"cap_records": 2}, "bytes": {"cap_bytes": 2}, "age": {"ttl_ms": HOUR_MS}}[bound]
    topic = new()
    write_old(topic, 1, 2, 3, 4)
    topic.write(5, tag="x")
    topic.write(6)
    topic.delete(before_seq=5)
    assert floors(topic) == (1, 5)
    told(topic.request("PATCH", body=config))
    assert seqs(topic.diff()) == [5, 6]
    assert floors(topic) == (1, 5)
    topic.write(7)
    if bound != "age":
        assert floors(topic) == (6, 6)
    hold_floors(topic)


@pytest.mark.parametrize("bound", ["records", "bytes"])
def test_a_loss_ends_with_the_last_live_record_that_was_taken(new: New, bound: str) -> None:
    """§1.2: "evict_floor advances only on involuntary cap/TTL eviction of live records": those deleted behind the last
    one that a bound took are not lost."""
    topic = new()
    topic.write(1, tag="live")
    topic.write(2, 3, tag="dead")
    topic.delete(match=["tag", "Eq", "dead"])
    topic.write(4, 5, 6, tag="live")
    told(topic.request("PATCH", body={"cap_records": 3} if bound == "records" else {"cap_bytes": 3}))
    found = topic.diff()
    assert seqs(found) == [4, 5, 6]
    assert floors(topic) == (2, 4) and gap(found) == (1, 1)
    assert gap(topic.diff(from_seq=1)) is None
    hold_floors(topic)


@pytest.mark.parametrize("settled", [False, True], ids=["memory", "lake"])
def test_a_loss_by_age_ends_with_the_last_live_record_that_was_taken(node: Node, settled: bool) -> None:
    """§1.2, as above, by age: what somebody deleted is not reported as lost because it would be too old by now."""
    topic = new_topic(node)
    topic.write("first", tag="live")
    topic.write("second", "third", tag="dead")
    topic.delete(match=["tag", "Eq", "dead"])
    if settled:
        settle(node)
    told(topic.request("PATCH", body={"ttl_ms": 1}))
    # The clock goes on by itself: at most some milliseconds until all is older than one.
    found = topic.diff()
    while found["records"]:
        found = topic.diff()
    assert floors(topic) == (2, 4) and gap(found) == (1, 1)
    assert gap(topic.diff(from_seq=1)) is None
    hold_floors(topic)


def test_a_cap_counts_live_records(new: New) -> None:
    """§1.2 with §3.3: a deleted record is no longer counted, so it makes nothing else go."""
    topic = new(cap_records=3)
    topic.write(1, 2, 3, tag="a")
    topic.delete(match=["tag", "Eq", "a"], before_seq=3)
    topic.write(4, 5)
    assert seqs(topic.diff()) == [3, 4, 5] and floors(topic) == (1, 3)


def test_what_settled_goes_by_whole_pieces_so_a_topic_may_keep_a_little_more(new: New) -> None:
    """§3.3: "Reclaim is segment-granular and lazy, so the topic may retain slightly more than cap (only whole sealed
    segments drop)". Never less, and whatever goes is told."""
    topic = new(cap_records=4)
    written = 0
    for size in (3, 2, 4, 1, 5, 3):
        topic.write(*range(size))
        settle(topic.node)
        written += size
        found = whole(topic)
        assert len(found["records"]) >= min(4, written) and seqs(found)[-1] == written
        hold_floors(topic)
    assert floors(topic)[0] > 1


def test_eviction_rewrites_nothing(new: New) -> None:
    """§3.3: "It never rewrites a segment": a file of the lake stays as it is, or goes as a whole."""
    topic = new(cap_records=10)
    lake = topic.node.data_directory / "lake" / "data"
    topic.write(*range(10))
    settle(topic.node)
    before = contents(lake)
    topic.write(*range(15))
    assert floors(topic) == (16, 16)
    after = contents(lake)
    assert before and {name: after[name] for name in before if name in after} == {
        name: before[name] for name in before if name in after
    }


def contents(lake: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in lake.rglob("*.parquet")}


def test_a_full_topic_that_rejects_refuses_before_anything_is_written(new: New) -> None:
    """§3.3: "a rejected write (422 topic_full) never enters the log - never ack-then-drop"."""
    topic = new(cap_records=3, discard="reject")
    topic.write(1, 2)
    before = everything(topic)
    assert refused(topic.post([{"data": 3}, {"data": 4}])) == (422, "topic_full")
    assert everything(topic) == before
    assert topic.write(3) == [3] and floors(topic) == (1, 1)
    by_bytes = new(cap_bytes=5, discard="reject")
    assert refused(by_bytes.post([{"data": "123456"}])) == (422, "topic_full")
    assert by_bytes.state()["head_seq"] == 0


def test_records_in_memory_and_in_the_lake_read_as_one(new: New) -> None:
    """§3.4: "Newest records (written, not yet checkpointed) -> served directly ... never waiting for checkpoint", and
    older ones from segments, "skipping deleted/expired/own-node slots during the copy, bounded by limit"."""
    topic = new()
    expected: list[int] = []
    for part in range(4):
        expected += topic.write(*range(10 * part, 10 * part + 10), tag=f"part-{part % 2}", meta={"part": part})
        if part < 3:
            settle(topic.node)
    found = whole(topic)
    assert seqs(found) == expected
    assert [one["meta"]["part"] for one in found["records"]] == [part for part in range(4) for _ in range(10)]
    paged: list[int] = []
    while len(paged) < len(expected):
        page = seqs(topic.diff(from_seq=paged[-1] if paged else 0, limit=7))
        assert 1 <= len(page) <= 7
        paged += page
    assert paged == expected
    topic.delete(match=["tag", "Eq", "part-1"])
    assert seqs(whole(topic)) == [*range(1, 11), *range(21, 31)]
    assert at_every_door(topic) == [*range(10), *range(20, 30)]
