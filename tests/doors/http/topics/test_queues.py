"""Queues over HTTP: what each request may hold and what it is answered, in memory and out of the lake.
Times are tested on a simulated clock (`tests/topics`); here nothing depends on how long anything takes."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Topic, refused, told
from tests.support.node import Node

HOUR_MS = 3_600_000


def post(topic: Topic, verb: str, body: Any = None) -> dict[str, Any]:
    return told(topic.request("POST", f"/{verb}", {} if body is None else body))


def claim(topic: Topic, **wanted: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = post(topic, "claim", {"lease_ms": HOUR_MS, **wanted})["jobs"]
    return found


def held(job: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"seq": job["seq"], "lease_id": job["lease_id"], **more}


def ack(topic: Topic, *jobs: dict[str, Any]) -> dict[str, Any]:
    return post(topic, "ack", {"acks": [held(job) for job in jobs]})


def counts(topic: Topic) -> tuple[int, int, int, int]:
    found = topic.state()["queue"]
    assert list(found) == ["ready", "leased", "delayed", "dead_lettered"]
    return tuple(found.values())


def seen(topic: Topic, limit: int) -> list[int]:
    """The numbers of all records, read so many at a time."""
    seqs, page = [], topic.diff(limit=limit)
    while True:
        seqs += [one["seq"] for one in page["records"]]
        if page["up_to_date"]:
            return seqs
        page = topic.diff(limit=limit, from_seq=page["next_seq"])


@pytest.fixture
def queue(new: New) -> Topic:
    return new(queue={})


# ---- claim and ack --------------------------------------------------------------------------------------------------


def test_a_job_is_claimed_with_its_lease_and_its_labels_and_gone_once_it_is_acked(queue: Topic) -> None:
    labels = {"tag": "t", "node": "n", "meta": {"a": [1]}, "key": "k"}
    queue.post([{"data": {"to": "a@b.c"}, **labels}, {"data": "two"}])
    (job,) = claim(queue, node="w1")
    assert set(job) == {"seq", "lease_id", "deadline_ms", "deliveries", "ts", "data", *labels}
    assert (job["seq"], job["deliveries"], job["data"]) == (1, 1, {"to": "a@b.c"})
    assert {name: job[name] for name in labels} == labels and job["deadline_ms"] > job["ts"]
    assert counts(queue) == (1, 1, 0, 0)
    assert ack(queue, job) == {"acked": [1], "failed": []}
    assert ack(queue, job) == {"acked": [], "failed": [{"seq": 1, "code": "not_found"}]}
    assert queue.data() == ["two"] and counts(queue) == (1, 0, 0, 0)


def test_several_are_claimed_and_acked_together(queue: Topic) -> None:
    queue.write(*range(10))
    jobs = claim(queue, max=6)
    assert [job["data"] for job in jobs] == list(range(6))
    assert len({job["lease_id"] for job in jobs}) == 6
    done = post(queue, "ack", {"acks": [held(jobs[0]), held(jobs[2]), {"seq": 4, "lease_id": 1}, held(jobs[0])]})
    assert done == {
        "acked": [1, 3],
        "failed": [{"seq": 4, "code": "lease_lost"}, {"seq": 1, "code": "not_found"}],
    }
    assert [job["data"] for job in claim(queue, max=100)] == [6, 7, 8, 9]


def test_an_empty_queue_has_nothing(queue: Topic) -> None:
    assert claim(queue) == [] and claim(queue, wait_ms=1) == []
    assert post(queue, "claim") == {"jobs": []}
    assert told(queue.request("POST", "/claim")) == {"jobs": []}


def test_a_claim_waits_until_a_job_is_there(queue: Topic) -> None:
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(claim(queue, wait_ms=60_000)))
    waiting.start()
    queue.write("late")
    waiting.join(30)
    assert [job["data"] for job in found] == ["late"]


def test_pipelined_claims_and_acks_are_answered_in_order(queue: Topic, node: Node) -> None:
    queue.write(*range(3))
    with node.connect() as connection:
        head = f"POST {queue.path}/claim HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}".encode()
        connection.send(head * 4)
        jobs = [told(connection.read_response("POST"))["jobs"] for _ in range(4)]
    assert [[job["data"] for job in some] for some in jobs] == [[0], [1], [2], []]


def test_a_client_that_leaves_while_it_waits_takes_no_job(queue: Topic, node: Node) -> None:
    with node.connect() as connection:
        body = b'{"wait_ms":60000}'
        head = f"POST {queue.path}/claim HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        connection.send(head + body)
    queue.write("a")
    assert [job["data"] for job in claim(queue, wait_ms=60_000)] == ["a"]


def test_nack_and_extend(queue: Topic) -> None:
    queue.write("a", "b")
    first, second = claim(queue, max=2)
    nacks = [held(first), held(second, delay_ms=HOUR_MS, reason="later"), {"seq": 7, "lease_id": 1}]
    assert post(queue, "nack", {"nacks": nacks}) == {
        "released": [1, 2],
        "dead_lettered": [],
        "failed": [{"seq": 7, "code": "not_found"}],
    }
    assert counts(queue) == (1, 0, 1, 0)
    (again,) = claim(queue, max=5)
    assert (again["seq"], again["deliveries"]) == (1, 2)
    done = post(queue, "extend", {"extends": [held(again, lease_ms=2 * HOUR_MS), held(first)]})
    assert done["failed"] == [{"seq": 1, "code": "lease_lost"}]
    (extended,) = done["extended"]
    assert extended["seq"] == 1 and extended["deadline_ms"] > again["deadline_ms"]
    assert len(post(queue, "extend", {"extends": [held(again)]})["extended"]) == 1


def test_bytes_and_text_are_claimed_as_they_are_read(new: New) -> None:
    text, raw = new(content_type="text/plain", queue={}), new(content_type="application/octet-stream", queue={})
    text.post([{"data": "héllo"}])
    raw.post([{"data_base64": "AAH/"}])
    assert claim(text)[0]["data"] == "héllo" and claim(raw)[0]["data_base64"] == "AAH/"


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("durable", [False, True])
def test_every_class_of_durability_serves_a_queue(new: New, durability: str, durable: bool) -> None:
    topic = new(durability=durability, queue={"leases_durable": durable})
    topic.write(*range(5))
    jobs = claim(topic, max=3)
    assert ack(topic, *jobs[:2])["acked"] == [1, 2]
    assert post(topic, "nack", {"nacks": [held(jobs[2])]})["released"] == [3]
    assert [job["data"] for job in claim(topic, max=10)] == [2, 3, 4]


def test_an_answer_holds_no_more_than_it_may_and_the_rest_is_claimed_next(new: New) -> None:
    topic = new(queue={})
    large = "x" * (3 << 20)
    for _ in range(6):
        topic.write(large)
    seqs: list[int] = []
    while jobs := claim(topic, max=100):
        seqs += [job["seq"] for job in jobs]
    assert sorted(seqs) == [1, 2, 3, 4, 5, 6]


# ---- out of the lake ------------------------------------------------------------------------------------------------


def delayed(topic: Topic) -> list[tuple[int, Any]]:
    peeked = told(topic.request("GET", "/peek?state=delayed"))["jobs"]
    assert all(job["ready_ms"] > job["ts"] + HOUR_MS // 2 for job in peeked)
    return [(job["seq"], job["data"]) for job in peeked]


def test_jobs_that_only_the_lake_holds_are_claimed_and_acked(new: New, node: Node) -> None:
    topic = new(queue={})
    topic.write(*range(20))
    topic.post([{"data": "later", "delay_ms": HOUR_MS}, {"data": "now", "tag": "t"}])
    assert node.request("POST", "/__headwater/flush").status == 200
    topic.write("hot")
    assert counts(topic) == (22, 0, 1, 0) and delayed(topic) == [(21, "later")]
    jobs = claim(topic, max=5)
    assert [job["data"] for job in jobs] == [0, 1, 2, 3, 4]
    assert ack(topic, jobs[1], jobs[3], jobs[4])["acked"] == [2, 4, 5]
    rest = claim(topic, max=100)
    assert [job["data"] for job in rest] == [*range(5, 20), "now", "hot"] and rest[-2]["tag"] == "t"
    assert ack(topic, *rest, jobs[0])["acked"] == [*range(6, 21), 22, 23, 1]
    assert topic.data() == [2, "later"] and counts(topic) == (0, 1, 1, 0)
    assert delayed(topic) == [(21, "later")]


def test_a_backlog_in_the_lake_is_handed_out_in_order_and_each_job_once(new: New, node: Node) -> None:
    topic = new(queue={})
    count = 5_000  # several times as many as are read at once
    topic.post([{"data": number} for number in range(count)])
    assert node.request("POST", "/__headwater/flush").status == 200
    assert ack(topic, *claim(topic, max=3))["acked"] == [1, 2, 3]
    back, *others = claim(topic, max=700)
    assert post(topic, "nack", {"nacks": [held(back)]})["released"] == [4]
    assert ack(topic, *others)["failed"] == []
    rest: list[dict[str, Any]] = []
    while jobs := claim(topic, max=999):
        rest += jobs
        ack(topic, *jobs[::2])
    assert [job["data"] for job in rest] == [3, *range(703, count)]
    ack(topic, *rest)
    assert topic.data() == [] and counts(topic) == (0, 0, 0, 0)


@pytest.mark.parametrize("order", [(4, 3, 2, 5, 1, 6), (2, 1, 4, 3, 6, 5), (5, 3, 4, 1, 2, 6), (6, 5, 4, 3, 2, 1)])
@pytest.mark.parametrize("claimed", ["before the flush", "after it", "again"])
def test_jobs_out_of_the_lake_are_acked_in_any_order_and_take_no_other_with_them(
    order: tuple[int, ...], claimed: str, new: New, node: Node
) -> None:
    topic = new(queue={})
    data = ["x" * (1 + size) for size in range(8)]
    topic.write(*data)
    jobs = claim(topic, max=8) if claimed == "before the flush" else []
    assert node.request("POST", "/__headwater/flush").status == 200
    jobs = jobs or claim(topic, max=8)
    left = set(range(1, 9))
    for seq in order:
        if claimed == "again":
            post(topic, "nack", {"nacks": [held(job) for job in jobs]})
            jobs = claim(topic, max=8)
        assert ack(topic, *[job for job in jobs if job["seq"] == seq])["acked"] == [seq]
        jobs = [job for job in jobs if job["seq"] != seq]
        left.remove(seq)
        assert seen(topic, 1) == seen(topic, 100) == sorted(left)
        assert topic.state()["bytes"] == sum(len(data[one - 1]) + 2 for one in left)


def test_a_lease_from_before_the_flush_is_acked_after_it(new: New, node: Node) -> None:
    topic = new(queue={})
    topic.write(*range(6))
    jobs = claim(topic, max=6)
    assert node.request("POST", "/__headwater/flush").status == 200
    assert ack(topic, *jobs[1:4])["acked"] == [2, 3, 4]
    assert post(topic, "nack", {"nacks": [held(jobs[5])]})["released"] == [6]
    assert topic.data() == [0, 4, 5]
    assert [job["data"] for job in claim(topic)] == [5]


def test_jobs_that_settled_under_their_leases_are_deleted_alone_whatever_is_deleted_beside_them(
    new: New, node: Node
) -> None:
    """The record after a job, and the one before it, may be gone when it is acked: neither says where the job lies."""
    topic = new(queue={})
    data = ["x" * size for size in range(1, 13)]
    topic.post([{"data": one} for one in data])
    jobs = claim(topic, max=12)
    assert node.request("POST", "/__headwater/flush").status == 200
    for seq in (9, 8, 3, 5, 4, 7, 12, 11):  # each in a request of its own
        assert ack(topic, jobs[seq - 1])["acked"] == [seq]
    left = [data[seq - 1] for seq in (1, 2, 6, 10)]
    assert topic.data() == left
    read = node.request("GET", f"/v1/stream/{topic.name}?offset=-1")
    assert read.status == 200 and json.loads(read.body) == left
    assert ack(topic, *(jobs[seq - 1] for seq in (6, 1, 10, 2)))["failed"] == []
    assert topic.data() == [] and counts(topic) == (0, 0, 0, 0)


def test_the_key_of_a_job_in_the_lake_is_taken(new: New, node: Node) -> None:
    topic = new(queue={})
    topic.write("a", key="k")
    assert node.request("POST", "/__headwater/flush").status == 200
    answer = told(topic.post([{"data": "b", "key": "k"}, {"data": "c", "key": "l"}]))
    assert (answer["seqs"], answer["duplicates"]) == ([1, 2], [0])
    ack(topic, *claim(topic))
    assert told(topic.post([{"data": "b", "key": "k"}]))["seqs"] == [3]


# ---- keys -----------------------------------------------------------------------------------------------------------


def test_a_job_whose_key_is_taken_is_not_written_again(queue: Topic) -> None:
    records = [{"data": 1, "key": "k"}, {"data": 2}, {"data": 3, "key": "k"}]
    assert told(queue.post(records)) == {"seqs": [1, 2, 1], "head_seq": 2, "duplicates": [2]}
    assert told(queue.post(records[:1])) == {"seqs": [1], "head_seq": 2, "duplicates": [0]}
    assert queue.data() == [1, 2]
    ack(queue, *claim(queue))
    assert told(queue.post(records[:1])) == {"seqs": [3], "head_seq": 3, "duplicates": []}


def test_a_bound_that_is_set_later_is_true_of_the_next_look_and_of_the_next_key(queue: Topic) -> None:
    told(queue.request("POST", "/records", {"records": [{"data": 1, "key": "a"}, {"data": 2, "key": "b"}]}))
    shown = told(queue.request("PATCH", body={"cap_records": 1}))
    assert shown["state"]["count"] == 1 and counts(queue) == (1, 0, 0, 0)
    again = told(queue.request("POST", "/records", {"records": [{"data": 3, "key": "a"}]}))
    assert again["seqs"] == [3] and again["duplicates"] == []


def test_keys_mean_nothing_on_a_topic_that_is_no_queue(topic: Topic) -> None:
    assert topic.write(1, 2, key="k") == [1, 2]


def test_a_producer_goes_on_after_a_write_that_was_all_duplicates(queue: Topic) -> None:
    job = [{"data": 1, "key": "k"}]

    def write(seq: int, records: Any = job) -> dict[str, Any]:
        return told(queue.post(records, producer={"id": "p", "epoch": 0, "seq": seq}))

    assert write(0)["seqs"] == [1]
    assert write(1) == {"seqs": [1], "head_seq": 1, "duplicates": [0]}
    assert write(2, [{"data": 2}])["seqs"] == [2]
    assert write(2, [{"data": 2}]) == {"seqs": [], "head_seq": 2, "duplicates": [], "duplicate": True}
    assert refused(queue.post(job, producer={"id": "p", "epoch": 0, "seq": 9})) == (409, "producer_seq_conflict")


# ---- dead letters ---------------------------------------------------------------------------------------------------


def test_a_dead_job_is_found_in_the_dead_letter_topic(new: New, node: Node) -> None:
    topic = new()
    dead = Topic(node, f"{topic.name}-dead")
    topic.request("PATCH", body={"queue": {"max_deliveries": 1, "dead_letter": dead.name}})
    topic.write({"n": 1}, key="k", meta={"m": 1})
    (job,) = claim(topic)
    assert post(topic, "nack", {"nacks": [held(job, reason="broken")]})["dead_lettered"] == [1]
    epoch = topic.state()["epoch"]
    # Made when the letter is written: until then there is no such topic to wait for.
    while dead.request("GET").status == 404:
        pass
    (letter,) = dead.diff(wait_ms=30_000)["records"]
    told_of = {"topic": topic.name, "seq": 1, "epoch": epoch, "deliveries": 1, "reason": "broken", "key": "k"}
    assert letter["data"] == {"n": 1} and letter["meta"] == {"m": 1, "dead_letter": told_of}
    assert letter["key"] == f"{topic.name}:{epoch}:1"
    while counts(topic) != (0, 0, 0, 1):
        pass
    assert topic.data() == []


def test_a_queue_is_not_its_own_dead_letter_topic(queue: Topic) -> None:
    answer = queue.request("PATCH", body={"queue": {"dead_letter": queue.name}})
    assert refused(answer) == (400, "bad_request") and "queue.dead_letter" in answer.json()["error"]["message"]


def test_a_patch_changes_the_named_fields_of_a_queue_only(new: New) -> None:
    topic = new(queue={"lease_ms": 5_000, "dead_letter": "shop/dead"})
    queue = told(topic.request("PATCH", body={"queue": {"max_deliveries": 3}}))["config"]["queue"]
    assert (queue["lease_ms"], queue["dead_letter"], queue["max_deliveries"]) == (5_000, "shop/dead", 3)
    queue = told(topic.request("PATCH", body={"queue": {"dead_letter": None}}))["config"]["queue"]
    assert (queue["lease_ms"], queue["dead_letter"], queue["max_deliveries"]) == (5_000, None, 3)


# ---- looking --------------------------------------------------------------------------------------------------------


def test_numbers_of_a_queue(queue: Topic) -> None:
    empty = told(queue.request("GET", "/queue"))
    assert empty == {
        "ready": 0, "leased": 0, "delayed": 0, "dead_lettered": 0, "head_seq": 0, "oldest_ready_ms": None,
        "claims_count": 0, "acks_count": 0, "trouble": None,
    }  # fmt: skip
    queue.write(*range(5))
    queue.write("later", delay_ms=HOUR_MS)
    jobs = claim(queue, max=3)
    ack(queue, jobs[0])
    found = told(queue.request("GET", "/queue"))
    assert found.pop("oldest_ready_ms") >= 0
    assert found == {
        "ready": 2, "leased": 2, "delayed": 1, "dead_lettered": 0, "head_seq": 6,
        "claims_count": 3, "acks_count": 1, "trouble": None,
    }  # fmt: skip


def test_a_look_leases_nothing(queue: Topic) -> None:
    queue.write(*range(6))
    jobs = claim(queue, max=3, node="w1")
    post(queue, "nack", {"nacks": [held(jobs[1]), held(jobs[2], delay_ms=HOUR_MS)]})

    def peek(query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = told(queue.request("GET", f"/peek{query}"))["jobs"]
        return found

    assert [(job["seq"], job["state"], job["deliveries"]) for job in peek("")] == [
        (2, "ready", 1), (4, "ready", 0), (5, "ready", 0), (6, "ready", 0),
    ]  # fmt: skip
    assert [job["data"] for job in peek("?state=ready&limit=2")] == [1, 3]
    (leased,) = peek("?state=leased")
    assert (leased["seq"], leased["claimed_by"]) == (1, "w1") and leased["deadline_ms"] == jobs[0]["deadline_ms"]
    (delayed,) = peek("?state=delayed")
    assert delayed["seq"] == 3 and delayed["ready_ms"] > delayed["ts"]
    assert counts(queue) == (4, 1, 1, 0)


def test_a_purge_deletes_every_job_whoever_has_it(queue: Topic) -> None:
    queue.write(*range(5))
    job = claim(queue)[0]
    assert post(queue, "purge") == {"deleted": 5} and post(queue, "purge") == {"deleted": 0}
    assert counts(queue) == (0, 0, 0, 0)
    assert ack(queue, job)["failed"] == [{"seq": 1, "code": "not_found"}]
    assert queue.write("new") == [6] and [one["seq"] for one in claim(queue)] == [6]


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method,verb,body",
    [
        ("POST", "/claim", {}),
        ("POST", "/ack", {"acks": [{"seq": 1, "lease_id": 1}]}),
        ("POST", "/nack", {"nacks": [{"seq": 1, "lease_id": 1}]}),
        ("POST", "/extend", {"extends": [{"seq": 1, "lease_id": 1}]}),
        ("POST", "/purge", {}),
        ("GET", "/queue", None),
        ("GET", "/peek", None),
        ("GET", "/work", None),
    ],
)
def test_a_topic_that_is_no_queue_or_is_missing(topic: Topic, method: str, verb: str, body: Any) -> None:
    assert refused(topic.request(method, verb, body)) == (409, "not_a_queue")
    missing = Topic(topic.node, f"{topic.name}-missing")
    assert refused(missing.request(method, verb, body)) == (404, "topic_not_found")
    other = "GET" if method == "POST" else "POST"
    assert refused(topic.request(other, verb, b"")) == (405, "method_not_allowed")


LEASE = {"seq": 1, "lease_id": 1}
WRONG = [
    ("claim", {"max": 0}, "max"),
    ("claim", {"max": 1_001}, "max"),
    ("claim", {"max": "1"}, "max"),
    ("claim", {"lease_ms": 99}, "lease_ms"),
    ("claim", {"lease_ms": 86_400_001}, "lease_ms"),
    ("claim", {"wait_ms": -1}, "wait_ms"),
    ("claim", {"wait_ms": 60_001}, "wait_ms"),
    ("claim", {"node": ""}, "node"),
    ("claim", {"node": "a\nb"}, "node"),
    ("claim", {"node": "x" * 1_025}, "node"),
    ("claim", {"nodes": "x"}, "nodes"),
    ("claim", [], "object"),
    ("claim", b"{", ""),
    ("claim", b'{"node":"\xff"}', "UTF-8"),
    ("ack", {}, "acks"),
    ("ack", {"acks": []}, "acks"),
    ("ack", {"acks": [LEASE] * 10_001}, "acks"),
    ("ack", {"acks": [{"seq": 1}]}, "lease_id"),
    ("ack", {"acks": [{"lease_id": 1}]}, "seq"),
    ("ack", {"acks": [LEASE, {"seq": -1, "lease_id": 1}]}, "acks[1].seq"),
    ("ack", {"acks": [{"seq": 1, "lease_id": 1 << 53}]}, "acks[0].lease_id"),
    ("ack", {"acks": [{"seq": 1 << 80, "lease_id": 1}]}, "acks"),
    ("ack", {"acks": [{**LEASE, "x": 1}]}, "x"),
    ("nack", {"nacks": []}, "nacks"),
    ("nack", {"nacks": [{**LEASE, "delay_ms": -1}]}, "nacks[0].delay_ms"),
    ("nack", {"nacks": [{**LEASE, "delay_ms": 1 << 52}]}, "nacks[0].delay_ms"),
    ("nack", {"nacks": [{**LEASE, "reason": "x" * 1_025}]}, "nacks[0].reason"),
    ("nack", {"nacks": [{**LEASE, "reason": 7}]}, "reason"),
    ("extend", {"extends": []}, "extends"),
    ("extend", {"extends": [{**LEASE, "lease_ms": 99}]}, "extends[0].lease_ms"),
    ("extend", {"extends": [{**LEASE, "lease_ms": 0}]}, "extends[0].lease_ms"),
    ("extend", {"extends": [{**LEASE, "lease_ms": 1 << 60}]}, "extends[0].lease_ms"),
    ("purge", {"all": True}, "all"),
]


@pytest.mark.parametrize("verb,body,named", WRONG, ids=[f"{verb}-{number}" for number, (verb, *_) in enumerate(WRONG)])
def test_a_field_that_is_wrong_is_named(queue: Topic, verb: str, body: Any, named: str) -> None:
    answer = queue.request("POST", f"/{verb}", body)
    assert refused(answer) == (400, "bad_request")
    assert named in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "target,named",
    [
        ("/work?max=0", "max"),
        ("/work?max=1001", "max"),
        ("/work?lease_ms=99", "lease_ms"),
        ("/work?lease_ms=x", "lease_ms"),
        ("/work?node=%0A", "node"),
        ("/peek?state=gone", "state"),
        ("/peek?limit=0", "limit"),
        ("/peek?limit=1001", "limit"),
    ],
)
def test_a_query_that_is_wrong_is_named(queue: Topic, target: str, named: str) -> None:
    answer = queue.request("GET", target)
    assert refused(answer) == (400, "bad_request")
    assert named in answer.json()["error"]["message"]
