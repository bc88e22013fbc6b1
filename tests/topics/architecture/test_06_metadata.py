"""Topics architecture §5 and §6: configuration, names and epochs are durable and ordered with data; the read loop.
Our layout on disk is another one (see the decision about differences): what it has to give is held here."""

from __future__ import annotations

from tests.doors.http.extensions.surface import fresh_name
from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Topic, refused, told
from tests.doors.s3p.client import Client, Error
from tests.support.node import Node
from tests.topics.architecture.looks import floors, gap, seqs, settle
from tests.topics.architecture.test_03_eviction import HOUR_MS, write_old


def test_a_changed_configuration_counts_from_then_on(new: New) -> None:
    """§5: "mutations are control frames in the WAL (crash-consistent and ordered with data)"."""
    topic = new()
    topic.write(*range(5))
    assert told(topic.request("PATCH", body={"cap_records": 2}))["config"]["cap_records"] == 2
    assert seqs(topic.diff()) == [4, 5] and floors(topic) == (4, 4)
    told(topic.request("PATCH", body={"cap_records": None}))
    topic.write(6, 7)
    assert seqs(topic.diff()) == [4, 5, 6, 7] and floors(topic) == (4, 4)


def test_what_cannot_change_is_refused_and_changes_nothing(topic: Topic) -> None:
    """§5, topic_cfg: content type and durability are what the records in the log were written with."""
    before = topic.config()
    for change in ({"content_type": "text/plain"}, {"durability": "memory"}):
        assert topic.request("PATCH", body={**change, "priority": 3}).status == 409
    assert topic.config() == before


def test_one_pass_skips_what_is_deleted_too_old_or_ones_own(new: New) -> None:
    """§5: "One pass for TTL + deleted + node skipping"; "TTL-expired slots (involuntary -> feeds evict_floor)"."""
    topic = new(ttl_ms=HOUR_MS)
    write_old(topic, 1, 2)
    topic.write(3, tag="dead")
    topic.write(4, node="me")
    topic.write(5)
    topic.delete(match=["tag", "Eq", "dead"])
    found = topic.diff(node="me")
    assert (seqs(found), gap(found), found["next_seq"]) == ([5], (1, 2), 5)
    assert floors(topic) == (3, 4)


def test_a_topic_that_is_deleted_is_gone_at_once_and_its_name_is_free(new: New) -> None:
    """§6: "A topic delete is a control frame + a fast rename ... then background unlink"."""
    topic = new()
    topic.write(*range(10), tag="a")
    settle(topic.node)
    old = topic.state()["epoch"]
    assert told(topic.request("DELETE")) == {"topic": topic.name, "deleted": True}
    assert refused(topic.request("GET", "/diff")) == (404, "topic_not_found")
    assert topic.put(cap_records=3).status == 201
    assert topic.state()["epoch"] != old and topic.data() == []
    topic.write("new", tag="b")
    assert told(topic.delete(match=["tag", "Eq", "a"]))["deleted"] == 0
    assert topic.data() == ["new"]


def test_a_name_leads_to_one_topic_at_every_door(node: Node) -> None:
    """§5, topics: "name -> interned u64 id (stable across restart)": a name of any text is one stream everywhere."""
    bucket = fresh_name("bucket")
    topic = Topic(node, f"{bucket}/grün & <odd>/records")
    quoted = topic.path.rpartition("/")[0] + "%2Frecords"
    assert node.request("PUT", quoted, (), b"{}").status == 201
    assert node.request("POST", f"{quoted}/records", (), b'{"records":[{"data":1}]}').status == 200
    with Client.of(node) as s3p:
        read = s3p.read(topic.name.encode(), count=5)
        assert not isinstance(read, Error) and [payload for _, payload in read] == [b"1"]
    listed = told(node.request("GET", f"/v0/topics?bucket={bucket}"))
    assert [one["topic"] for one in listed["topics"]] == [topic.name]
