"""Configurations as commands: what only a cluster takes, and what a change leaves as it was."""

from __future__ import annotations

import pytest

from headwater.doors.http.topics.config import Configs
from headwater.errors import BadBody, QuorumNeedsCluster
from headwater.model.commands import Configure, Durability, Retention
from headwater.model.events import Created
from headwater.model.stream_state import Stream, born
from headwater.model.topics import QueueConfig, TopicConfig

KEY = "_default/t"


def configs(in_cluster: bool = False) -> Configs:
    return Configs(in_cluster, 256, 1_024)


def stream(durability: Durability = Durability.FSYNC, retention: Retention | None = None) -> Stream:
    return Stream(born(Created(KEY, 1, "application/json", 0, durability, [], retention=retention), 1))


def test_quorum_is_what_a_synced_log_is_in_a_cluster() -> None:
    with pytest.raises(QuorumNeedsCluster):
        configs().create(KEY, b'{"durability":"quorum"}')
    with pytest.raises(QuorumNeedsCluster):
        configs().change(stream(), b'{"durability":"quorum"}')
    inside = configs(in_cluster=True)
    assert inside.create(KEY, b'{"durability":"quorum"}').durability == Durability.FSYNC
    assert inside.shown(stream())["durability"] == "quorum"
    assert inside.shown(stream(Durability.MEMORY))["durability"] == "memory"
    assert configs().shown(stream())["durability"] == "fsync"
    assert inside.change(stream(), b'{"durability":"quorum"}') == Configure(None, TopicConfig())
    assert inside.change(stream(), b'{"durability":"fsync","durable":true}') == Configure(None, TopicConfig())


def test_a_topic_without_a_bound_has_no_policy_at_all() -> None:
    assert configs().create(KEY, b'{"ttl_ms":null,"cap_records":null}').retention is None
    assert configs().create(KEY, b'{"cap_bytes":5}').retention == Retention(bytes=5)
    bounded = stream(retention=Retention(age_ms=5))
    assert configs().change(bounded, b'{"cap_records":3}').retention == Retention(age_ms=5, records=3)
    assert configs().change(bounded, b'{"ttl_ms":null}').retention is None


def test_the_default_class_is_the_nodes() -> None:
    assert configs().create(KEY, b"").durability is None


def test_a_queue_is_replaced_as_a_whole_and_names_its_dead_letters_as_topics_are_named() -> None:
    made = configs().create(KEY, b'{"queue":{"dead_letter":"_default/dead","max_deliveries":3}}')
    assert made.topic == TopicConfig(queue=QueueConfig(max_deliveries=3, dead_letter="dead"))
    for limits in ('{"lease_ms":86400001}', '{"backoff_ms_max":99999999999}', '{"claim_jitter_ms":60001}'):
        with pytest.raises(BadBody, match="expected a whole number"):
            configs().create(KEY, b'{"queue":%b}' % limits.encode())
