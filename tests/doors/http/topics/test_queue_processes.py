"""Queues of nodes that stop and start again, and of nodes with several processes.
Whichever process a client is connected to, it is served as by the one that has the queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doors.http.topics.surface import Topic, new_topic, told
from tests.doors.http.topics.test_queues import HOUR_MS, ack, claim, counts, held, post
from tests.doors.http.topics.test_work import Jobs
from tests.support.node import Node


def test_leases_that_are_kept_are_there_after_a_stop_and_a_kill(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=("--checkpoint-interval-ms", "50")) as node:
        topic = new_topic(node, queue={"leases_durable": True})
        topic.write(*range(5))
        jobs = claim(topic, max=3)
        assert ack(topic, jobs[0])["acked"] == [1]
        assert node.terminate() == 0, node.output()
        node.start()
        assert counts(topic) == (2, 2, 0, 0)
        post(topic, "nack", {"nacks": [held(jobs[1], delay_ms=HOUR_MS)]})
        node.kill()
        node.start()
        assert counts(topic) == (2, 1, 1, 0)
        assert ack(topic, jobs[2])["acked"] == [3]
        assert [job["data"] for job in claim(topic, max=9)] == [3, 4]


def test_leases_that_are_not_kept_end_with_the_node(tmp_path: Path) -> None:
    with Node.started(tmp_path) as node:
        topic = new_topic(node, queue={})
        topic.write(*range(3))
        jobs = claim(topic, max=2)
        assert ack(topic, jobs[0])["acked"] == [1]
        assert node.terminate() == 0, node.output()
        node.start()
        assert ack(topic, jobs[1])["failed"] == [{"seq": 2, "code": "lease_lost"}]
        assert [job["data"] for job in claim(topic, max=9)] == [1, 2]


def test_scheduled_jobs_and_keys_are_known_after_a_restart(tmp_path: Path) -> None:
    with Node.started(tmp_path) as node:
        topic = new_topic(node, queue={})
        topic.post([{"data": "later", "key": "k", "delay_ms": HOUR_MS}, {"data": "now"}])
        assert node.request("POST", "/__headwater/flush").status == 200
        assert node.terminate() == 0, node.output()
        node.start()
        assert counts(topic) == (1, 0, 1, 0)
        assert told(topic.post([{"data": "again", "key": "k"}]))["duplicates"] == [0]
        assert [job["data"] for job in claim(topic, max=9)] == ["now"]
        assert counts(topic) == (0, 1, 1, 0)


def test_a_claim_that_waits_and_a_worker_end_when_the_node_stops(tmp_path: Path) -> None:
    with Node.started(tmp_path) as node, node.connect() as connection:
        topic = new_topic(node, queue={})
        worker = Jobs(topic, "")
        body = b'{"wait_ms":60000}'
        head = f"POST {topic.path}/claim HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        connection.send(head + body)
        assert counts(topic) == (0, 0, 0, 0)
        assert node.terminate() == 0, node.output()
        assert told(connection.read_response("POST")) == {"jobs": []}
        assert next(worker._events, None) is None
        worker.close()


@pytest.fixture(scope="module")
def node_of_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("three"), flags=("--workers", "3")) as node:
        yield node
        assert node.terminate() == 0, node.output()
        assert "Traceback" not in node.stderr(), node.output()


@pytest.mark.parametrize("number", range(6))
def test_a_queue_is_served_by_every_process(node_of_three: Node, number: int) -> None:
    node = node_of_three
    topic = new_topic(node, queue={"max_deliveries": 2, "dead_letter": f"dead/letters-{number}"})
    worker = Jobs(topic, "?max=1")
    topic.write("a", "b")
    job = worker.next()
    assert job["data"] == "a"
    worker.close()
    (again,) = claim(topic, wait_ms=60_000)
    while again["seq"] != 1:
        post(topic, "nack", {"nacks": [held(again, delay_ms=HOUR_MS)]})
        (again,) = claim(topic, wait_ms=60_000)
    assert again["deliveries"] == 2
    assert post(topic, "nack", {"nacks": [held(again)]})["dead_lettered"] == [1]
    dead = Topic(node, f"dead/letters-{number}")
    while dead.request("GET").status == 404:
        pass
    assert [letter["data"] for letter in dead.diff(wait_ms=30_000)["records"]] == ["a"]


@pytest.mark.parametrize("number", range(6))
def test_a_client_of_any_process_that_leaves_while_it_waits_takes_no_job(node_of_three: Node, number: int) -> None:
    node = node_of_three
    topic = new_topic(node, queue={})
    body = b'{"wait_ms":60000,"lease_ms":3600000}'
    head = f"POST {topic.path}/claim HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with node.connect() as connection:
        connection.send(head + body)
    assert claim(topic, wait_ms=200) == []
    topic.write("a")
    assert [job["data"] for job in claim(topic, wait_ms=60_000)] == ["a"]
