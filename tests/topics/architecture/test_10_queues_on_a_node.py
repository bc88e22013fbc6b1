"""Topics architecture, "A queue topic (DESIGN §10)", on a node: jobs are records of a topic, leases end with a crash.
The rules of leases themselves are held on simulated time in test_10_queues."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doors.http.extensions.surface import fresh_name
from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Topic, new_topic, refused, told
from tests.support.http import EventStream
from tests.support.node import Node
from tests.topics.architecture.looks import at_every_door, floors, gap, hold_floors, settle

HOUR_MS = 3_600_000
WAIT_MS = 30_000


def claim(topic: Topic, most: int = 1, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = told(topic.request("POST", "/claim", {"max": most, **more}))["jobs"]
    return found


def ack(topic: Topic, *jobs: dict[str, Any]) -> dict[str, Any]:
    return told(topic.request("POST", "/ack", {"acks": [lease(job) for job in jobs]}))


def nack(topic: Topic, job: dict[str, Any], **more: Any) -> dict[str, Any]:
    return told(topic.request("POST", "/nack", {"nacks": [{**lease(job), **more}]}))


def lease(job: dict[str, Any]) -> dict[str, int]:
    return {"seq": job["seq"], "lease_id": job["lease_id"]}


def seqs(jobs: list[dict[str, Any]]) -> list[int]:
    return [job["seq"] for job in jobs]


def counts(topic: Topic) -> dict[str, int]:
    found: dict[str, int] = topic.state()["queue"]
    return found


@pytest.mark.parametrize("settled", [False, True], ids=["memory", "lake"])
def test_a_queue_is_a_topic_with_leases_on_top(new: New, settled: bool) -> None:
    """ "reuses every structure above for its jobs log ... and adds a thin lease layer on top - purely additive": jobs
    are read as records at every door, leased or not."""
    topic = new(queue={})
    topic.write("a", "b", "c", tag="t")
    if settled:
        settle(topic.node)
    (job,) = claim(topic, node="w")
    assert (job["seq"], job["data"], job["tag"], job["deliveries"]) == (1, "a", "t", 1)
    assert at_every_door(topic) == ["a", "b", "c"]
    assert counts(topic) == {"ready": 2, "leased": 1, "delayed": 0, "dead_lettered": 0}


@pytest.mark.parametrize("settled", [False, True], ids=["memory", "lake"])
def test_an_ack_deletes_the_job_and_is_no_loss(new: New, settled: bool) -> None:
    """ "ack reuses the permanent-delete path (§3.5), so an acked job's storage is reclaimed exactly like any deleted
    record"."""
    topic = new(queue={})
    topic.write(*range(4))
    if settled:
        settle(topic.node)
    first, second, third = claim(topic, 3)
    assert ack(topic, first, third) == {"acked": [1, 3], "failed": []}
    assert at_every_door(topic) == [1, 3] and floors(topic) == (1, 2)
    assert ack(topic, second, first) == {"acked": [2], "failed": [{"seq": 1, "code": "not_found"}]}
    assert floors(topic) == (1, 4) and gap(topic.diff()) is None
    hold_floors(topic)


def test_what_was_given_back_goes_before_what_is_fresh(new: New) -> None:
    """ "A claim pass drains this first (reclaimed work jumps ahead of never-delivered work)"."""
    topic = new(queue={})
    topic.write(*range(5))
    jobs = claim(topic, 3)
    assert nack(topic, jobs[2])["released"] == [3] and nack(topic, jobs[0])["released"] == [1]
    again = claim(topic, 3)
    assert [(job["seq"], job["deliveries"]) for job in again] == [(1, 2), (3, 2), (4, 1)]
    assert ack(topic, jobs[0])["failed"] == [{"seq": 1, "code": "lease_lost"}]


def test_a_delayed_nack_and_a_scheduled_job_wait_for_their_time(new: New) -> None:
    """ "delayed: (ready_at_ms, seq) for delayed nacks", and jobs that are to be delivered later."""
    topic = new(queue={})
    topic.post([{"data": 1}, {"data": 2, "delay_ms": HOUR_MS}, {"data": 3}])
    (job,) = claim(topic)
    nack(topic, job, delay_ms=HOUR_MS)
    assert seqs(claim(topic, 5)) == [3]
    assert counts(topic) == {"ready": 0, "leased": 1, "delayed": 2, "dead_lettered": 0}


def test_a_job_that_is_dead_is_moved_to_its_topic(new: New) -> None:
    """ "Dead-lettering is an internal append into the dead_letter topic plus a permanent delete from the jobs log"."""
    dead = fresh_name("dead")
    topic = new(queue={"max_deliveries": 2, "dead_letter": dead})
    topic.write("poison", tag="t", meta={"own": 1})
    topic.write("fine")
    (job,) = claim(topic)
    assert nack(topic, job)["released"] == [1]
    (job,) = claim(topic)
    assert nack(topic, job, reason="broke")["dead_lettered"] == [1]
    letters = Topic(topic.node, dead)
    (letter,) = letters.diff(wait_ms=WAIT_MS)["records"]
    about = letter["meta"]["dead_letter"]
    assert (letter["data"], letter["tag"], letter["meta"]["own"]) == ("poison", "t", 1)
    assert (about["topic"], about["seq"], about["deliveries"], about["reason"]) == (topic.name, 1, 2, "broke")
    assert topic.data() == ["fine"] and counts(topic)["dead_lettered"] == 1 and floors(topic) == (1, 2)


def test_a_key_is_taken_once_while_its_job_lives(new: New) -> None:
    """Job keys: no second job of a key is written while the first is there; after its ack one is."""
    topic = new(queue={})
    answer = told(topic.post([{"data": 1, "key": "k"}, {"data": 2, "key": "k"}, {"data": 3}]))
    assert (answer["seqs"], answer["duplicates"]) == ([1, 1, 2], [1])
    (job,) = claim(topic)
    assert told(topic.post([{"data": 4, "key": "k"}]))["duplicates"] == [0]
    ack(topic, job)
    assert told(topic.post([{"data": 5, "key": "k"}]))["seqs"] == [3]


def test_the_leases_of_a_work_stream_end_with_its_connection(new: New) -> None:
    """ "by_work_conn: Option<ConnId>"."""
    topic = new(queue={"lease_ms": HOUR_MS})
    topic.write(1, 2, 3)
    with topic.node.connect() as connection:
        stream = iter(EventStream.open(connection, f"{topic.path}/work?max=2"))
        jobs = []
        while len(jobs) < 2:
            event = next(stream)
            if event.name == "job":
                jobs.append(event.json())
        assert seqs(jobs) == [1, 2]
    back: list[int] = []
    while len(back) < 3:
        back += seqs(claim(topic, 3, wait_ms=WAIT_MS))
    assert sorted(back) == [1, 2, 3]


def test_what_is_no_queue_has_no_jobs(topic: Topic) -> None:
    """The lease layer is "purely additive": a topic without it has none of it."""
    assert refused(topic.request("POST", "/claim", {})) == (409, "not_a_queue")
    assert "queue" not in topic.state()


@pytest.mark.full
def test_after_a_kill_jobs_in_flight_are_claimable_and_acked_ones_are_gone(node: Node) -> None:
    """ "a crash typically replays no active leases, so every in-flight job is immediately claimable - the self-healing
    visibility-timeout"; with leases_durable they are kept."""
    plain = new_topic(node, queue={"lease_ms": HOUR_MS})
    durable = new_topic(node, queue={"lease_ms": HOUR_MS, "leases_durable": True})
    held = {}
    for topic in (plain, durable):
        topic.write(*range(6))
        jobs = claim(topic, 4)
        assert ack(topic, jobs[0], jobs[2])["acked"] == [1, 3]
        held[topic.name] = jobs[1]
    node.restart()
    assert seqs(claim(plain, 10)) == [2, 4, 5, 6]
    assert ack(plain, held[plain.name])["failed"] == [{"seq": 2, "code": "lease_lost"}]
    assert seqs(claim(durable, 10)) == [5, 6]
    assert ack(durable, held[durable.name])["acked"] == [2]
    for topic in (plain, durable):
        assert topic.data()[-1] == 5 and floors(topic)[0] == 1
