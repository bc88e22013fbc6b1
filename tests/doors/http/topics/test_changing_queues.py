"""Queues whose topics change under their workers, and jobs that are as odd as they may be."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Topic, refused, told
from tests.support import waiting
from tests.support.http import Response


def pair(job: dict[str, Any]) -> dict[str, int]:
    return {"seq": job["seq"], "lease_id": job["lease_id"]}


def claimed(queue: Topic, count: int = 1) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = told(queue.request("POST", "/claim", {"max": count}))["jobs"]
    return found


@pytest.mark.parametrize(
    ("change", "code"),
    [(("DELETE", None), (404, "topic_not_found")), (("PATCH", {"queue": None}), (409, "not_a_queue"))],
    ids=["deleted", "no queue any more"],
)
def test_a_claim_that_waits_is_told_when_there_is_no_queue_any_more(
    new: New, change: tuple[str, Any], code: tuple[int, str]
) -> None:
    queue = new(queue={})
    queue.write(1)
    (job,) = claimed(queue)
    answers: list[Response] = []
    with queue.node.connect() as connection:

        def wait() -> None:
            body = b'{"wait_ms":60000}'
            answers.append(connection.request("POST", f"{queue.path}/claim", (), body))

        waiter = threading.Thread(target=wait)
        waiter.start()
        # What is configured while it waits is no reason to answer it.
        told(queue.request("PATCH", body={"queue": {"lease_ms": 700, "claim_jitter_ms": 5}}))
        waiting.until(lambda: queue.state()["queue"]["leased"] == 1, "the job is leased", 60.0)
        assert not answers
        assert queue.request(change[0], body=change[1]).status < 300
        waiter.join(60)
    assert refused(answers[0]) == code
    assert refused(queue.request("POST", "/ack", {"acks": [pair(job)]})) == code


def test_a_lease_of_a_topic_that_was_made_again_is_nobodys(new: New) -> None:
    queue = new(queue={})
    queue.write(1)
    (job,) = claimed(queue)
    assert queue.request("DELETE").status == 200
    told(queue.put(queue={}), 201)
    queue.write(2)
    assert told(queue.request("POST", "/ack", {"acks": [pair(job)]}))["failed"] == [{"seq": 1, "code": "lease_lost"}]
    assert [one["data"] for one in claimed(queue)] == [2]


@pytest.fixture
def deep_json() -> Iterator[None]:
    """The node decodes what is nested as deep as its own stack allows, and that of a test is not as empty."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(4 * limit)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("deep_json")
def test_jobs_with_meta_as_deep_as_may_be_reach_the_dead_letters(new: New) -> None:
    dead = new()
    queue = new(queue={"max_deliveries": 1, "dead_letter": dead.name})
    taken = 0
    for depth in range(50, 1_100, 50):
        meta = "[" * depth + "]" * depth
        body = f'{{"records":[{{"data":{depth},"meta":{{"a":{meta}}}}}]}}'.encode()
        answer = queue.request("POST", "/records", body)
        assert answer.status in (200, 400), answer
        taken += answer.status == 200
    jobs = claimed(queue, 1_000)
    assert len(jobs) == taken > 0
    nacked = told(queue.request("POST", "/nack", {"nacks": [pair(job) for job in jobs]}))
    assert len(nacked["dead_lettered"]) == taken
    waiting.until(lambda: dead.state()["count"] == taken, "the letters are written", 60.0)
    assert json.loads(queue.request("GET", "/queue").body)["trouble"] is None
