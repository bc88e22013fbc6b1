"""A topic is a stream: what one door writes every other reads; a restart keeps what a topic is. Topics architecture §4
(recovery), durability table (what each class keeps), contract "What a topic is"."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.doors.http.extensions.surface import fresh_name
from tests.doors.http.topics.surface import Tail, Topic, new_topic, refused, tail_of, told
from tests.doors.s3p.client import Client, Error
from tests.support.node import Node

JSON = {"Content-Type": "application/json"}
EACH = 40


def test_a_topic_that_three_doors_write_to_at_once_is_one_stream(node: Node) -> None:
    name = f"{fresh_name('shared')}/orders"
    topic = Topic(node, name)
    assert topic.put().status == 201

    def by_topics() -> None:
        with node.connect() as connection:
            for n in range(EACH):
                body = b'{"records":[{"data":"topics %d","tag":"t"}]}' % n
                assert connection.request("POST", f"{topic.path}/records", (), body).status == 200

    def by_streams() -> None:
        with node.connect() as connection:
            for n in range(EACH):
                body = b'"streams %d"' % n
                assert connection.request("POST", f"/v1/stream/{name}", JSON, body).status == 204

    threads = [threading.Thread(target=target) for target in (by_topics, by_streams)]
    for thread in threads:
        thread.start()
    with Client.of(node) as s3p:
        for n in range(EACH):
            assert type(s3p.append(name.encode(), b'"s3p %d"' % n)) is not Error
        for thread in threads:
            thread.join()
        read = s3p.read(name.encode(), count=1_000)
    found = topic.diff(limit=1_000)["records"]
    assert [one["seq"] for one in found] == list(range(1, 3 * EACH + 1))
    values = [one["data"] for one in found]
    for door in ("topics", "streams", "s3p"):
        assert [value for value in values if value.startswith(door)] == [f"{door} {n}" for n in range(EACH)]
    assert node.request("GET", f"/v1/stream/{name}").json() == values
    assert [one.get("tag") for one in found] == ["t" if "topics" in value else None for value in values]
    assert not isinstance(read, Error)
    assert [payload for _, payload in read] == [f'"{value}"'.encode() for value in values]


def test_what_another_door_does_is_seen_by_those_who_follow(node: Node) -> None:
    topic = new_topic(node)
    path = f"/v1/stream/{topic.name}"
    with topic.tail() as tail:
        assert node.request("POST", path, JSON, b'[1,{"a":2}]').status == 204
        assert [one["data"] for one in tail.next()["records"]] == [1, {"a": 2}]
        assert node.request("DELETE", path).status == 204
        assert tail.next("gone") == {"topic": topic.name}
    assert refused(topic.request("GET")) == (404, "topic_not_found")


def test_a_stream_that_another_door_made_is_a_topic(node: Node) -> None:
    topic = Topic(node, fresh_name("made"))
    headers = {"Content-Type": "text/plain", "Stream-Retention-Records": "5", "Stream-Durability": "disk"}
    assert node.request("PUT", f"/v1/stream/{topic.name}", headers, b"first").status == 201
    config = topic.config()
    shown = (config["content_type"], config["cap_records"], config["durability"], config["queue"])
    assert shown == ("text/plain", 5, "disk", None)
    assert told(topic.put(content_type="text/plain", cap_records=5))["created"] is False
    assert topic.write("second") == [2] and topic.data() == ["first", "second"]
    assert told(topic.request("PATCH", body={"priority": 5}))["config"]["priority"] == 5


def test_a_closed_stream_takes_no_more_records(node: Node) -> None:
    topic = new_topic(node)
    assert node.request("POST", f"/v1/stream/{topic.name}", {"Stream-Closed": "true"}).status == 204
    assert refused(topic.post([{"data": 1}])) == (409, "stream_closed")


# ---- restarts ---------------------------------------------------------------------------------------------------


def everything(topic: Topic) -> dict[str, Any]:
    found = topic.diff(limit=1_000)
    return {"config": topic.config(), "state": topic.state(), "records": found}


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_restart_keeps_configuration_floors_and_labels(tmp_path: Path, how: str) -> None:
    with Node.started(tmp_path) as node:
        topic = new_topic(node, cap_records=6, priority=3, queue={"dead_letter": "dead"})
        topic.write(*range(8), tag="a", node="n", meta={"m": [1]})
        topic.post([{"data": 9, "tag": "b", "key": "k", "deliver_at": 5}])
        assert told(topic.delete(match=["tag", "Eq", "b"])) == {"deleted": 1, "earliest_seq": 4, "head_seq": 9}
        assert told(topic.delete(before_seq=6)) == {"deleted": 2, "earliest_seq": 6, "head_seq": 9}
        topic.write(10, tag="c")
        before = everything(topic)
        assert before["state"]["evict_floor"] < before["state"]["earliest_seq"]
        assert before["records"]["tombstone"]["gap_to"] == before["state"]["evict_floor"] - 1
        if how == "stopped":
            assert node.terminate() == 0
            node.start()
        else:
            node.restart()
        assert everything(topic) == before
        assert topic.write(11) == [before["state"]["head_seq"] + 1]
        assert told(topic.delete(match=["tag", "Glob", "*"]))["deleted"] == 4
        assert topic.data() == [11]


def test_of_an_ephemeral_topic_a_restart_keeps_the_head_and_tells_that_its_records_are_lost(tmp_path: Path) -> None:
    with Node.started(tmp_path) as node:
        topic = new_topic(node, durability="ephemeral", priority=9)
        answer = topic.post([{"data": n} for n in range(5)])
        assert answer.json()["performance"]["fsync_ms"] == 0
        epoch = topic.state()["epoch"]
        assert node.terminate() == 0  # it makes a checkpoint
        node.start()
        assert (topic.config()["durability"], topic.config()["priority"]) == ("ephemeral", 9)
        state = topic.state()
        assert state == {**state, "head_seq": 5, "earliest_seq": 6, "evict_floor": 6, "count": 0, "epoch": epoch}
        found = topic.diff(from_seq=2)
        assert (found["records"], found["tombstone"], found["next_seq"]) == ([], {"gap_from": 3, "gap_to": 5}, 5)
        with topic.tail("?from_seq=2") as tail:
            assert tail.next("tombstone") == {"topic": topic.name, "gap_from": 3, "gap_to": 5}
        assert topic.write("new") == [6] and topic.data(from_seq=5) == ["new"]


# ---- workers ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    flags = ("--workers", "3", "--groups", "6")
    with Node.started(tmp_path_factory.mktemp("workers"), flags=flags) as node:
        yield node
        assert node.terminate() == 0, node.output()
        assert "Traceback" not in node.stderr(), node.output()


def test_any_worker_answers_for_any_topic(workers: Node) -> None:
    topics = [new_topic(workers, cap_records=100) for _ in range(12)]
    with workers.connect() as connection:
        # Once it is open a connection stays where its first request was for: the others are sent on.
        for turn in range(3):
            for topic in topics:
                body = b'{"records":[{"data":1,"tag":"t"}]}'
                answer = connection.request("POST", f"{topic.path}/records", (), body)
                assert told(answer)["seqs"] == [turn + 1]
        for topic in topics:
            assert len(told(connection.request("GET", f"{topic.path}/diff"))["records"]) == 3
            assert told(connection.request("GET", topic.path))["state"]["count"] == 3
            assert told(connection.request("PATCH", topic.path, (), b'{"priority":4}'))["config"]["priority"] == 4
            wish = b'{"match":["tag","Eq","t"],"before_seq":3}'
            assert told(connection.request("POST", f"{topic.path}/delete", (), wish))["deleted"] == 2
            answer = connection.request("POST", f"{topic.path}/records", (), b'{"records":[{"data":}]}')
            assert refused(answer) == (400, "bad_request")
        listed = told(connection.request("GET", "/v0/topics?limit=5"))
        assert [one["topic"] for one in listed["topics"]] == sorted(topic.name for topic in topics)[:5]
        for topic in topics:
            assert told(connection.request("DELETE", topic.path))["deleted"]
            assert refused(connection.request("GET", topic.path)) == (404, "topic_not_found")


def test_a_tail_follows_topics_of_all_groups_wherever_they_live(workers: Node) -> None:
    topics = [new_topic(workers, cap_records=3) for _ in range(12)]
    for topic in topics:
        topic.write(*range(5))
    names = ",".join(topic.name for topic in topics)
    start = ",".join(f"{topic.name}:0" for topic in topics)
    with tail_of(workers, f"/v0/sse?topics={names}&from={start}&node=me") as tail:
        first = [tail.any() for _ in range(2 * len(topics))]
        gaps = {event["topic"]: event["gap_to"] for name, event in first if name == "tombstone"}
        assert gaps == {topic.name: 2 for topic in topics}
        assert {event["topic"]: event["next_seq"] for name, event in first if name == "records"} == {
            topic.name: 5 for topic in topics
        }
        for topic in topics:
            topic.write("mine", node="me")
            topic.write("other", node="other")
            # Whether both came with one event or the first was passed over before: only one of them is told.
            assert [one["data"] for one in _next_of(tail, topic)] == ["other"]
        token = tail.id
        assert set(token.split(",")) == {f"{topic.name}:7" for topic in topics}
    for topic in topics:
        topic.write("later")
    with tail_of(workers, f"/v0/sse?topics={names}", {"Last-Event-ID": token}) as tail:
        events = [tail.next() for _ in topics]
        assert {event["topic"] for event in events} == {topic.name for topic in topics}
        assert all(event["records"][0]["data"] == "later" for event in events)
        for topic in topics[:-1]:
            assert topic.request("DELETE").status == 200
        assert {tail.next("gone")["topic"] for _ in topics[:-1]} == {topic.name for topic in topics[:-1]}
        assert topics[-1].request("DELETE").status == 200
        assert tail.next("gone") == {"topic": topics[-1].name} and tail.ended()
    answer = workers.request("GET", f"/v0/sse?topics={names}")
    assert refused(answer) == (404, "topic_not_found")


def _next_of(tail: Tail, topic: Topic) -> list[dict[str, Any]]:
    event = tail.next()
    assert event["topic"] == topic.name
    records: list[dict[str, Any]] = event["records"]
    return records


def test_a_fork_that_lives_outside_its_names_home_is_a_topic_at_every_worker(workers: Node) -> None:
    source = new_topic(workers)
    source.write(1, 2)
    forks = [Topic(workers, fresh_name("fork")) for _ in range(8)]
    for fork in forks:
        headers = {**JSON, "Stream-Forked-From": f"/v1/stream/{source.name}"}
        assert workers.request("PUT", f"/v1/stream/{fork.name}", headers).status == 201
        assert fork.write(3) == [3]
        # A batch may end where the fork's own records begin.
        assert fork.data(from_seq=0)[:2] == [1, 2] and fork.data(from_seq=2) == [3]
    names = ",".join(fork.name for fork in forks)
    with tail_of(workers, f"/v0/sse?topics={names}") as tail:
        for fork in forks:
            assert fork.write(4) == [4]
            assert [one["data"] for one in _next_of(tail, fork)] == [4]
