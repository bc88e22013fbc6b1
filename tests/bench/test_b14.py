"""B14 beside its loads: who takes part, what is compared with what, and what records are written."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path

import pytest

from bench import queues, tagged_records, topic_load
from bench.generator import Failed
from bench.peers import FSYNC, Peer, Server
from bench.queues import LIST, OURS, OURS_DURABLE_LEASES, RQ, RQ_FORK, WORKS, Work
from bench.rounds import Settings

SETTINGS = Settings(rounds=1, seconds=2.0, warmup_s=1.0, quick=True, only_peer=None)
SINGLE, BY_TEN = Work(16, 1, 100), Work(16, 10, 100)


def rates(**pairs_per_s: float) -> dict[str, list[dict]]:
    quiet = {"others_cpu": 0.0, "generator_cpu": 0.5, "connections_lost": 0}
    return {name: [{"pairs_per_s": rate, "p50_ms": 1.0, "p99_ms": 2.0, **quiet}] for name, rate in pairs_per_s.items()}


def server(name: str) -> Server:
    return Server(Peer(name, FSYNC, lambda _: []), 1, 2, Path("nowhere"))


def with_rq(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object() if installed else None)


def test_rq_is_left_out_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with_rq(monkeypatch, installed=False)
    assert [one.name for one in queues.contenders(SINGLE)] == [LIST, OURS, OURS_DURABLE_LEASES]
    assert queues.why_not_rq(1) == "not installed: pip install -e .[bench]"


def test_workers_that_fork_are_left_out_where_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    with_rq(monkeypatch, installed=True)
    monkeypatch.setattr(queues, "memory_available_bytes", lambda: 1 << 40)
    rq = {work.workers: [one.name for one in queues.contenders(work)][3:] for work in WORKS if work.batch == 1}
    assert rq == {1: [RQ, RQ_FORK], 16: [RQ, RQ_FORK], 100: [RQ]}


def test_rq_is_left_out_where_its_workers_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    with_rq(monkeypatch, installed=True)
    assert "100 workers need" in (queues.why_not_rq(100, available_bytes=1 << 30) or "")
    assert queues.why_not_rq(16, available_bytes=1 << 30) is None


def test_batches_are_measured_beside_the_list_alone() -> None:
    assert [one.name for one in queues.contenders(BY_TEN)] == [LIST, OURS]


def test_the_list_gets_the_jobs_that_a_topic_gets() -> None:
    specs = {name: queues.load_spec(server(name), SETTINGS, SINGLE) for name in (LIST, OURS, OURS_DURABLE_LEASES)}
    assert len({spec["jobs"] for spec in specs.values()}) == 1
    assert [specs[name]["door"] for name in specs] == ["list", "topic", "topic"]
    assert [name for name in specs if specs[name]["leases_durable"]] == [OURS_DURABLE_LEASES]
    assert [queues.load_spec(server(name), SETTINGS, SINGLE)["fork"] for name in (RQ, RQ_FORK)] == [False, True]


def test_ours_is_compared_with_the_list_and_the_faster_rq() -> None:
    rounds = rates(redis=1_000, headwater=800, headwater_durable_leases=600)
    rounds |= {name: [{"pairs_per_s": rate, "redis_cpu": 0.1}] for name, rate in ((RQ, 200), (RQ_FORK, 40))}
    of_list, durable, of_rq = queues.figures_of(SINGLE, rounds)
    assert (of_list.measure, of_list.value, of_list.met) == ("list_ratio_16_workers", 0.8, True)
    assert (durable.measure, durable.value, durable.met) == ("durable_leases_list_ratio_16_workers", 0.6, True)
    assert (of_rq.measure, of_rq.value, of_rq.met) == ("rq_ratio_16_workers", 4.0, True)


def test_ours_alone_is_a_rate() -> None:
    [only] = queues.figures_of(BY_TEN, rates(headwater=800))
    assert (only.measure, only.value, only.met) == ("pairs_per_s_16_workers_by_10", 800, None)


def test_every_work_has_a_name_of_its_own() -> None:
    assert len({work.name for work in WORKS}) == len(WORKS)


def test_sets_are_spread_over_the_records_and_each_is_whole() -> None:
    spec = {"records": 1_000, "sets": ["a", "b", "c"], "set_records": 10}
    places = topic_load.tags(spec)
    assert Counter(places.values()) == {"a": 10, "b": 10, "c": 10}
    # Each tenth of the records has a place of every set.
    assert all({places[n] for n in places if n // 100 == tenth} == {"a", "b", "c"} for tenth in range(10))


def test_sets_that_do_not_fit_among_the_records_are_refused() -> None:
    with pytest.raises(Failed, match="30 records of 3 sets are not among 20"):
        topic_load.tags({"records": 20, "sets": ["a", "b", "c"], "set_records": 10})


def test_a_batch_is_the_body_of_a_write() -> None:
    tagged = json.loads(topic_load.batch(8, 11, True, {9: "hot-0"}))
    assert [one["tag"] for one in tagged["records"]] == ["order-0000000008", "hot-0", "order-0000000010"]
    assert [one["data"]["number"] for one in tagged["records"]] == [8, 9, 10]
    plain = json.loads(topic_load.batch(8, 11, False, {}))
    assert [one["data"] for one in plain["records"]] == [one["data"] for one in tagged["records"]]
    assert all(set(one) == {"data"} for one in plain["records"])


def test_a_tag_takes_what_a_tagged_record_takes_over_a_plain_one() -> None:
    states = tagged_records.STATES
    common = {"records": 100_000, "payload_bytes_per_record": 49, "others_cpu": 0.5}
    plain = {**common, "bytes_per_record": dict.fromkeys(states, 200.0), "deletes_ms": {}, "tag_bytes": 0}
    tagged = {**common, "bytes_per_record": dict.fromkeys(states, 260.0), "tag_bytes": 16}
    tagged["deletes_ms"] = {state: [30.0, 4.0, 5.0, 6.0, 7.0] for state in states}
    figures = {one.measure: one for one in tagged_records.figures_of(plain, tagged)}
    assert figures["delete_ms_hot"].value == 6.0 and figures["delete_ms_hot"].met
    assert figures["delete_ms_settled"].note == "first 30 max 30 records 100000 (machine busy)"
    assert figures["bytes_per_record_hot"].value == 200.0
    assert "mb_per_million_tags 60" in figures["bytes_per_record_restarted"].note
