"""The load of B14's queues: what its workers send for what they get, and when a run is over."""

from __future__ import annotations

import json

import msgspec
import pytest

from bench.queue_load import (
    IN_WORK,
    Job,
    ListWorker,
    Load,
    TopicWorker,
    ack_request,
    claim_request,
    command,
    job,
    values_of,
)
from bench.wire import ResponseReader

PORT = 4437


class Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


def load(door: str, batch: int = 1, workers: int = 1, jobs: int = 1_000) -> Load:
    return Load({"port": PORT, "door": door, "batch": batch, "workers": workers, "jobs": jobs})


def started(worker: TopicWorker | ListWorker) -> Transport:
    transport = Transport()
    worker.connection_made(transport)  # type: ignore[arg-type]
    worker.claim()
    return transport


def answer(body: object, status: int = 200) -> bytes:
    raw = json.dumps(body).encode()
    return b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n\r\n%b" % (status, len(raw), raw)


def sent(raw: bytes) -> object:
    """The JSON body of a request whose length is told truly."""
    head, _, body = raw.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head.split(b"\r\n")
    return json.loads(body)


@pytest.mark.parametrize("lease_id", ["a-lease", 17])
def test_an_acknowledgement_repeats_the_numbers_and_leases_of_the_claim(lease_id: object) -> None:
    jobs = [Job(msgspec.Raw(b"%d" % seq), msgspec.Raw(json.dumps(lease_id).encode())) for seq in (7, 8)]
    raw = ack_request(PORT, jobs)
    assert raw.startswith(b"POST /v0/topics/bench-jobs/ack HTTP/1.1\r\n")
    assert sent(raw) == {"acks": [{"seq": 7, "lease_id": lease_id}, {"seq": 8, "lease_id": lease_id}]}


def test_a_worker_of_a_topic_claims_acknowledges_and_claims_again() -> None:
    run = load("topic", batch=2)
    worker = TopicWorker(run)
    transport = started(worker)
    assert transport.written == [claim_request(PORT, 2)]
    claimed = answer({"jobs": [{"seq": 1, "lease_id": "a", "data": "x"}, {"seq": 2, "lease_id": "b", "data": "y"}]})
    worker.data_received(claimed[:40])
    assert len(transport.written) == 1
    worker.data_received(claimed[40:])
    assert sent(transport.written[1]) == {"acks": [{"seq": 1, "lease_id": "a"}, {"seq": 2, "lease_id": "b"}]}
    assert (run.claimed, run.done) == (2, 0)
    worker.data_received(answer({"acked": [1, 2], "failed": []}))
    assert (run.done, len(run.latencies_ns)) == (2, 1)
    assert transport.written[2:] == [claim_request(PORT, 2)]


def test_a_claim_that_gets_nothing_is_counted_and_sent_again() -> None:
    run = load("topic")
    worker = TopicWorker(run)
    transport = started(worker)
    worker.data_received(answer({"jobs": []}))
    assert (run.empty_claims, run.done) == (1, 0)
    assert transport.written == [claim_request(PORT, 1)] * 2


@pytest.mark.parametrize(
    "refusal",
    [answer({"acked": [], "failed": [{"seq": 1, "code": "lease_lost"}]}), answer({"error": {}}, status=429)],
)
def test_an_acknowledgement_that_fails_ends_the_run(refusal: bytes) -> None:
    run = load("topic")
    worker = TopicWorker(run)
    started(worker)
    worker.data_received(answer({"jobs": [{"seq": 1, "lease_id": "a"}]}))
    worker.data_received(refusal)
    assert run.over.is_set()
    assert run.errors and run.done == 0


def test_a_worker_of_a_list_removes_the_values_that_it_got() -> None:
    run = load("list", batch=2)
    worker = ListWorker(run)
    transport = started(worker)
    replies = b"".join(b"$100\r\n%b\r\n" % job(number).encode() for number in (3, 4))
    worker.data_received(replies[:150])
    assert len(transport.written) == 1
    worker.data_received(replies[150:])
    assert transport.written[1] == b"".join(command("LREM", IN_WORK, "1", job(number)) for number in (3, 4))
    worker.data_received(b":1\r\n")
    assert run.done == 0
    worker.data_received(b":1\r\n")
    assert run.done == 2
    assert transport.written[2] == transport.written[0]


@pytest.mark.parametrize("reply", [b"-OOM not enough memory\r\n", b"$-1\r\n", b"*-1\r\n"])
def test_a_list_that_gives_no_value_ends_the_run(reply: bytes) -> None:
    run = load("list")
    worker = ListWorker(run)
    started(worker)
    worker.data_received(reply)
    assert run.over.is_set()
    assert run.errors


def test_a_value_that_was_not_removed_ends_the_run() -> None:
    run = load("list")
    worker = ListWorker(run)
    started(worker)
    worker.data_received(b"$100\r\n%b\r\n" % job(0).encode())
    worker.data_received(b":0\r\n")
    assert run.over.is_set()
    assert run.done == 0


def test_a_run_is_over_while_every_worker_can_still_get_a_batch() -> None:
    run = load("topic", batch=10, workers=3, jobs=100)
    run.took(60)
    assert not run.over.is_set()
    run.took(10)
    assert run.over.is_set()


def test_jobs_differ_and_have_one_length() -> None:
    made = {job(number) for number in (0, 1, 999_999_999)}
    assert len(made) == 3
    assert {len(one) for one in made} == {100}
    assert values_of(b"$100\r\n%b\r\n" % job(5).encode()) == [job(5).encode()]


def test_the_answers_of_these_tests_are_whole_responses() -> None:
    [response] = ResponseReader().feed(answer({"jobs": []}))
    assert (response.status, json.loads(response.body)) == (200, {"jobs": []})
