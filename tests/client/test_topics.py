"""Topics and routers through both clients, against a server of the contract, with and without a lossy proxy.
Each test has topics of its own; the server is shared."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headwater.client import (
    NO_RETRIES,
    Conflict,
    Draft,
    EpochChanged,
    Full,
    Headwater,
    NotFound,
    Record,
    Tombstone,
    Unavailable,
)
from headwater.client.topic_plans import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, batches
from tests.client.conftest import Connect
from tests.client.faulty_proxy import LoseAnswer, LoseRequest, Proxy
from tests.client.serving import Told


def data(items: Any) -> list[Any]:
    return [item.data if isinstance(item, Record) else item for item in items]


def test_a_topic_is_created_once_and_found_again(hw: Any, name: str) -> None:
    topic = hw.topic(name)
    made = topic.create(cap_records=10)
    assert made.created and made.topic == name
    assert (made.config.cap_records, made.config.content_type) == (10, "application/json")
    assert (made.state.head_seq, made.state.earliest_seq) == (0, 1)
    assert not topic.create(cap_records=10).created
    with pytest.raises(Conflict) as other:
        topic.create(cap_records=11)
    assert other.value.code == "topic_exists_incompatible"


def test_ensure_creates_or_changes_what_is_there(hw: Any, name: str) -> None:
    topic = hw.topic(name)
    assert topic.ensure(cap_records=10).created
    assert topic.ensure(cap_records=20).config.cap_records == 20
    with pytest.raises(Conflict):
        topic.ensure(content_type="text/plain")
    assert topic.update(priority=5).config.priority == 5
    assert topic.config().config.cap_records == 20


def test_a_topic_that_is_not_there_is_not_found(hw: Any, name: str) -> None:
    topic = hw.topic(name)
    attempts = (topic.config, topic.delete, lambda: topic.write(1), topic.diff, lambda: list(topic.records()))
    for attempt in attempts:
        with pytest.raises(NotFound) as missing:
            attempt()
        assert missing.value.code == "topic_not_found"
    topic.create()
    topic.delete()
    with pytest.raises(NotFound):
        topic.config()


@pytest.mark.parametrize("last", ["records", "queue", "plain name"])
def test_a_topic_may_be_named_like_a_verb(hw: Any, name: str, last: str) -> None:
    topic = hw.topic(f"{name}/{last}")
    topic.create()
    topic.write(1)
    assert data(topic.records()) == [1]


def test_records_come_back_with_what_they_were_given(hw: Any, name: str) -> None:
    topic = hw.topic(name)
    topic.create()
    moment = datetime(2090, 1, 1, tzinfo=UTC)
    first = topic.write({"a": 1}, tag="t", node="n", meta={"m": [1]}, key="k", deliver_at=moment)
    assert (first.seq, first.seqs, first.head_seq, first.repeated) == (1, [1], 1, False)
    topic.write([1, 2])
    record, bare = topic.records()
    assert (record.seq, record.data, record.tag, record.node, record.meta, record.key) == (
        *(1, {"a": 1}, "t", "n"),
        *({"m": [1]}, "k"),
    )
    assert record.deliver_at_ms == int(moment.timestamp() * 1_000)
    assert (bare.seq, bare.data, bare.tag, bare.meta, bare.deliver_at_ms) == (2, [1, 2], None, None, None)
    assert record.ts_ms <= bare.ts_ms


def test_bytes_that_are_no_text_come_back_as_bytes(hw: Any, name: str) -> None:
    topic = hw.topic(name)
    topic.create(content_type="application/octet-stream")
    topic.write_many([b"\xff\x00", "text"])
    assert data(topic.records()) == [b"\xff\x00", b"text"]


def test_text_comes_back_as_text(hw: Any, name: str) -> None:
    topic = hw.topic(name)
    topic.create(content_type="text/plain")
    topic.write_many(["text", b"more"])
    assert data(topic.records()) == ["text", "more"]


def test_many_records_are_written_in_order_with_labels_of_their_own(hw: Any, name: str) -> None:
    topic = hw.topic(name)
    topic.create()
    written = topic.write_many([0, Draft(1, tag="odd", node="other"), 2], node="me")
    assert written.seqs == [1, 2, 3]
    assert [(r.data, r.tag, r.node) for r in topic.records()] == [(0, None, "me"), (1, "odd", "other"), (2, None, "me")]
    assert topic.write_many([]).seqs == []


@pytest.mark.parametrize("one", ["text", b"bytes", {"id": 1}])
def test_one_record_is_not_taken_for_a_list_of_them(hw: Any, name: str, one: Any) -> None:
    topic = hw.topic(name)
    topic.create()
    with pytest.raises(TypeError, match="a list of records"):
        topic.write_many(one)
    assert topic.config().state.head_seq == 0


def test_requests_are_bounded_by_records_and_by_bytes() -> None:
    by_count = list(batches(map(Draft, range(BATCH_RECORDS_MAX + 1))))
    assert list(map(len, by_count)) == [BATCH_RECORDS_MAX, 1]
    half = "x" * (BATCH_BYTES_MAX // 2)
    assert list(map(len, batches(map(Draft, [half, half, "y"])))) == [1, 2]


def test_what_cannot_be_said_is_refused_before_it_is_sent(hw: Any, name: str) -> None:
    topic = hw.topic(name)
    with pytest.raises(ValueError, match="time zone"):
        topic.write(1, deliver_at=datetime(2090, 1, 1))
    with pytest.raises(ValueError, match="not both"):
        topic.write(1, delay=1, deliver_at=5)
    with pytest.raises(ValueError, match="length of time"):
        topic.write(1, delay=timedelta(seconds=-1))
    with pytest.raises(TypeError):
        topic.write(object())
    with pytest.raises(ValueError, match="not both"):
        topic.delete_where(tag="a", tag_prefix="b")
    with pytest.raises(ValueError, match="give tag"):
        topic.delete_where()


# --- reading --------------------------------------------------------------------------------------------------


def test_diff_goes_on_at_its_cursor_and_leaves_out_a_nodes_own_records(hw: Any, name: str) -> None:
    topic = hw.topic(name)
    topic.create()
    topic.write_many([Draft(n, node="me" if n % 2 else "other") for n in range(6)])
    page = topic.diff(limit=2)
    assert (data(page.records), page.next_seq, page.head_seq, page.up_to_date) == ([0, 1], 2, 6, False)
    rest = topic.diff(page.next_seq, node="me")
    assert (data(rest.records), rest.next_seq, rest.up_to_date) == ([2, 4], 6, True)
    assert topic.diff(6, wait=0.01).records == []


def test_records_that_the_cap_took_are_told_as_a_tombstone(hw: Any, name: str) -> None:
    topic = hw.topic(name)
    topic.create(cap_records=2)
    topic.write_many(range(5))
    assert data(topic.records()) == [Tombstone(1, 3), 3, 4]
    assert data(topic.records(from_seq=3)) == [3, 4]


def test_a_tail_goes_on_after_lost_connections(connect: Connect, topics_url: str, lossy: Proxy, name: str) -> None:
    with Headwater(topics_url) as beside:
        writer = beside.topic(name)
        writer.create()
        writer.write("before")
        following = connect(lossy.url).topic(name).tail(from_seq=0)
        seen = [next(following).data]
        lossy.meant = lambda method, path: "/diff" in path
        for number in range(4):
            lossy.faults.extend([LoseAnswer(), LoseRequest(), Told(503)])
            writer.write(number)
            seen.append(next(following).data)
        following.close()
    assert seen == ["before", 0, 1, 2, 3]


def test_a_tail_without_a_cursor_begins_behind_the_present_end(
    connect: Connect, topics_url: str, lossy: Proxy, name: str
) -> None:
    with Headwater(topics_url) as beside:
        writer = beside.topic(name)
        writer.create()
        writer.write("before")

        def write_at_first_diff(method: str, path: str) -> bool:
            if "/diff" in path and len([line for line in lossy.seen if "/diff" in line]) == 1:
                writer.write("after")
            return False

        lossy.meant = write_at_first_diff
        lossy.faults.append(LoseRequest())
        following = connect(lossy.url).topic(name).tail()
        assert next(following).data == "after"
        following.close()


def test_a_reader_hears_of_a_topic_that_was_made_anew(hw: Any, name: str) -> None:
    topic = hw.topic(name)
    topic.create()
    topic.write(1)
    following = topic.tail(from_seq=0)
    assert next(following).data == 1
    topic.delete()
    topic.create()
    topic.write(2)
    with pytest.raises(EpochChanged):
        next(following)


# --- writing over a bad line ----------------------------------------------------------------------------------


def test_a_write_whose_answer_is_lost_is_stored_once(connect: Connect, lossy: Proxy, name: str) -> None:
    topic = connect(lossy.url).topic(name)
    topic.create()
    lossy.meant = lambda method, path: path.endswith("/records")
    for number in range(5):
        lossy.faults.extend([LoseRequest(), LoseAnswer(), Told(503), Told(429, [("Retry-After", "0")])])
        written = topic.write(number)
        assert written.repeated and written.seq is None
    assert topic.write(5).seq == 6
    assert data(topic.records()) == [0, 1, 2, 3, 4, 5]


def test_after_an_unknown_outcome_the_next_write_is_not_taken_for_a_repetition(
    connect: Connect, lossy: Proxy, name: str
) -> None:
    topic = connect(lossy.url, retries=NO_RETRIES).topic(name)
    topic.create()
    for fault in (LoseAnswer(), LoseRequest()):
        lossy.faults.append(fault)
        with pytest.raises(Unavailable) as lost:
            topic.write(type(fault).__name__)
        assert lost.value.outcome_unknown and lost.value.detail["written"] == 0
        topic.write("next")
    assert data(topic.records()) == ["LoseAnswer", "next", "next"]


def test_a_full_topic_says_so_and_how_much_was_written_before(hw: Any, name: str) -> None:
    topic = hw.topic(name)
    topic.create(cap_records=BATCH_RECORDS_MAX, discard="reject")
    with pytest.raises(Full) as full:
        topic.write_many(range(BATCH_RECORDS_MAX + 1))
    assert full.value.code == "topic_full" and full.value.detail["written"] == BATCH_RECORDS_MAX
    assert topic.config().state.count == BATCH_RECORDS_MAX


# --- deleting, listing, routing -------------------------------------------------------------------------------


def test_records_are_deleted_by_seq_tag_and_prefix_without_a_trace(hw: Any, name: str) -> None:
    topic = hw.topic(name)
    topic.create()
    topic.write_many([Draft(tag, tag=tag) for tag in ("a", "b", "ab", "a", "c")])
    assert topic.delete_before(2).deleted == 1
    assert topic.delete_where(tag="a").deleted == 1
    assert topic.delete_where(tag_prefix="a", before_seq=3).deleted == 0
    told = topic.delete_where(tag_prefix="a")
    assert (told.deleted, told.earliest_seq, told.head_seq) == (1, 2, 5)
    assert data(topic.records()) == ["b", "c"]


def test_topics_are_listed_by_prefix(hw: Any, name: str) -> None:
    for last in ("b", "a", "c"):
        hw.topic(f"{name}-{last}").create()
    hw.topic(f"{name}-b").write(1)
    found = list(hw.topics(prefix=f"{name}-"))
    assert [(one.topic, one.state.head_seq) for one in found] == [(f"{name}-a", 0), (f"{name}-b", 1), (f"{name}-c", 0)]


def test_routers_are_made_found_listed_and_deleted(hw: Any, name: str) -> None:
    for end in ("from", "to"):
        hw.topic(f"{name}-{end}").create()
    made = hw.routers.create(name, f"{name}-from", f"{name}-to", tag_prefix="x", preserve_meta=False)
    assert (made.name, made.source, made.dest) == (name, f"{name}-from", f"{name}-to")
    assert (made.filter, made.preserve_meta) == (("tag", "Glob", "x*"), False)
    assert hw.routers.get(name).dest == f"{name}-to"
    assert name in [router.name for router in hw.routers.list()]
    hw.routers.delete(name)
    with pytest.raises(NotFound):
        hw.routers.get(name)
    hw.routers.create(name, f"{name}-from", f"{name}-to")
    with pytest.raises(Conflict) as cycle:
        hw.routers.create(f"{name}-back", f"{name}-to", f"{name}-from")
    assert cycle.value.code == "router_cycle"
