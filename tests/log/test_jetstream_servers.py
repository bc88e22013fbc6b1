"""What is checked of JetStream's servers and streams before anything is written: pure, without a server."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from headwater.log.jetstream_servers import (
    Refused,
    ServerFacts,
    check_stream,
    facts_of,
    monitors_of,
    refusals,
    stream_config,
)
from headwater.log.jetstream_stream import in_touch


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (ServerFacts("n1", "2.15.1", True), []),
        (ServerFacts("n1", "2.16.0-RC.1", True), []),
        (ServerFacts("n1", "3.0.0", True), []),
        (ServerFacts("n1", "2.15.0", True), ["upgrade it to 2.15.1"]),
        (ServerFacts("n1", "2.9.30", False), ["upgrade it to 2.15.1", "sync_interval: always"]),
        (ServerFacts("n1", "dev", True), ["upgrade it to 2.15.1"]),
        (ServerFacts("n1", "2.15.1", False, False), ["add jetstream {}"]),
    ],
)
def test_what_is_wrong_with_a_server_is_said_with_what_to_change(facts: ServerFacts, said: list[str]) -> None:
    found = refusals(facts, "http://there:8222")
    assert len(found) == len(said)
    assert all(words in sentence for words, sentence in zip(said, found, strict=True))


def test_a_server_without_jetstream_says_so() -> None:
    assert facts_of({"server_name": "n1", "version": "2.15.1", "jetstream": {}}) == ServerFacts(
        "n1", "2.15.1", False, False
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"storage": "memory"}, "storage: file"),
        ({"num_replicas": 1}, "--replicas=3"),
        ({"retention": "workqueue"}, "retention: limits"),
        ({"max_age": 10}, "max_age: 10"),
        ({"max_bytes": 10}, "max_bytes: 10"),
        ({"allow_atomic": False}, "allow_atomic"),
        ({"allow_direct": False}, "allow_direct"),
        ({"persist_mode": "async"}, "persist_mode"),
        ({"sealed": True}, "sealed"),
    ],
)
def test_what_is_wrong_with_a_stream_is_said_with_what_to_change(change: dict[str, Any], said: str | None) -> None:
    info = {"config": stream_config("headwater-0", "a.log", "a.stored", 3) | change}
    if said is None:
        check_stream(info, 3, {})
    else:
        with pytest.raises(Refused, match=said):
            check_stream(info, 3, {})


def test_a_stream_on_servers_of_which_too_few_were_checked_is_refused() -> None:
    config = stream_config("headwater-0", "a.log", "a.stored", 3)
    info = {"config": config, "cluster": {"leader": "n1", "replicas": [{"name": "n2"}, {"name": "n3"}]}}
    checked = {name: ServerFacts(name, "2.15.1", True) for name in ("n1", "n2", "n9")}
    check_stream(info, 3, checked)
    del checked["n2"]
    with pytest.raises(Refused, match=r"not checked \(n2, n3\)"):
        check_stream(info, 3, checked)


def test_monitoring_is_looked_for_at_the_hosts_of_the_address() -> None:
    urls = ["nats://user:word@one:4222", "nats://two", "three:4223", "nats://[::1]:4222", "nats://two:9"]
    assert monitors_of(urls) == ["http://one:8222", "http://two:8222", "http://three:8222", "http://[::1]:8222"]


def test_a_leader_is_believed_that_has_heard_from_a_quorum_lately() -> None:
    def told(*active_s: float) -> dict[str, Any]:
        return {"cluster": {"replicas": [{"name": str(n), "active": int(s * 1e9)} for n, s in enumerate(active_s)]}}

    assert in_touch({})
    assert in_touch(told(0.5, 60))
    assert not in_touch(told(5, 60))
    assert in_touch(told(0, 0, 60, 60))
    assert not in_touch(told(0, 60, 60, 60))


def test_a_node_without_such_a_log_imports_nothing_of_it() -> None:
    code = "import sys, headwater.app; sys.exit('nats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
