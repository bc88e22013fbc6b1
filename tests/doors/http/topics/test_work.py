"""Workers that stay connected: what `/work` sends, and when it ends.
Which jobs a worker gets is tested on a simulated clock (`tests/topics`)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Topic, refused, told
from tests.doors.http.topics.test_queues import HOUR_MS, ack, claim, counts, held, post
from tests.support.http import EventStream


@pytest.fixture
def queue(new: New) -> Topic:
    return new(queue={})


class Jobs:
    """A connection to /work."""

    def __init__(self, topic: Topic, query: str) -> None:
        self.connection = topic.node.connect()
        stream = EventStream.open(self.connection, f"{topic.path}/work{query}")
        assert stream.head.status == 200 and stream.head.header("content-type") == "text/event-stream"
        self._events = iter(stream)
        assert next(self._events).name == "open"

    def next(self) -> dict[str, Any]:
        event = next(self._events)
        assert event.name == "job", event
        found: dict[str, Any] = event.json()
        return found

    def close(self) -> None:
        self.connection.close()


def test_a_worker_gets_jobs_as_they_come_and_no_more_than_it_wants(queue: Topic) -> None:
    worker = Jobs(queue, f"?max=2&lease_ms={HOUR_MS}&node=w1")
    queue.write(*range(5))
    jobs = [worker.next(), worker.next()]
    assert [job["data"] for job in jobs] == [0, 1] and counts(queue) == (3, 2, 0, 0)
    ack(queue, jobs[0])
    assert worker.next()["data"] == 2
    post(queue, "nack", {"nacks": [held(jobs[1])]})
    assert worker.next()["data"] == 1
    worker.close()
    assert claim(queue, max=5, wait_ms=60_000)[0]["data"] == 1


def test_a_worker_of_a_topic_that_is_deleted_is_told(queue: Topic) -> None:
    worker = Jobs(queue, "")
    queue.request("DELETE")
    event = next(worker._events)
    assert event.name == "error" and set(event.json()) == {"code", "message", "detail"}
    assert event.json()["code"] == "topic_not_found"
    assert next(worker._events, None) is None
    worker.close()


def test_jobs_of_a_worker_whose_topic_is_made_no_queue_are_given_back_at_once(queue: Topic) -> None:
    worker = Jobs(queue, f"?max=2&lease_ms={HOUR_MS}")
    queue.write(1, 2, 3)
    assert [worker.next()["data"], worker.next()["data"]] == [1, 2]
    told(queue.request("PATCH", body={"queue": None}))
    assert next(worker._events).name == "error"
    worker.close()
    told(queue.request("PATCH", body={"queue": {}}))
    assert counts(queue) == (3, 0, 0, 0)
    assert [job["deliveries"] for job in claim(queue, max=3)] == [2, 2, 1]


def test_whoever_waits_at_a_topic_that_is_made_no_queue_is_told(queue: Topic) -> None:
    worker, answers = Jobs(queue, ""), []
    waiting = threading.Thread(target=lambda: answers.append(queue.request("POST", "/claim", {"wait_ms": 60_000})))
    waiting.start()
    told(queue.request("PATCH", body={"queue": None}))
    event = next(worker._events)
    assert event.name == "error" and event.json()["code"] == "not_a_queue"
    assert next(worker._events, None) is None
    waiting.join(30)
    assert [refused(answer) for answer in answers] == [(409, "not_a_queue")]
    worker.close()
    queue.write("job")
    told(queue.request("PATCH", body={"queue": {}}))
    assert [job["data"] for job in claim(queue)] == ["job"]
