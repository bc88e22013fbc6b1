"""Topics themselves: made, looked at, configured, deleted and listed. Topics architecture §1 (state, the two floors),
§5 (configuration), §7 (epochs)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doors.http.extensions.surface import fresh_name
from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Topic, new_topic, refused, told
from tests.support.node import Node

DEFAULTS = {
    "content_type": "application/json",
    "ttl_ms": None,
    "cap_records": None,
    "cap_bytes": None,
    "discard": "old",
    "durability": "fsync",
    "priority": 0,
    "auto_priority": False,
    "queue": None,
}
QUEUE = {
    "lease_ms": 30_000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
    "backoff_ms": 0,
    "backoff_ms_max": 600_000,
}
FULL = {
    "content_type": "text/plain; charset=utf-8",
    "ttl_ms": 60_000,
    "cap_records": 10,
    "cap_bytes": 1_000,
    "discard": "reject",
    "durability": "memory",
    "priority": -1000,
    "auto_priority": True,
    "queue": {**QUEUE, "lease_ms": 5, "dead_letter": "shop/dead", "leases_durable": True},
}


# ---- PUT and GET ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"{}", b" {} "])
def test_a_topic_that_asks_for_nothing_has_the_defaults(node: Node, body: bytes) -> None:
    topic = Topic(node, fresh_name("topic"))
    made = told(topic.request("PUT", body=body), 201)
    assert (made["topic"], made["created"], made["config"]) == (topic.name, True, DEFAULTS)
    empty = {"head_seq": 0, "earliest_seq": 1, "evict_floor": 1, "count": 0, "bytes": 0}
    assert made["state"].items() > empty.items() and made["state"]["epoch"] > 0
    assert told(topic.request("GET")) == {name: made[name] for name in ("topic", "config", "state")}


def test_a_topic_has_the_configuration_it_was_made_with(node: Node) -> None:
    topic = Topic(node, fresh_name("topic"))
    assert told(topic.put(**FULL), 201)["config"] == FULL
    assert topic.config() == FULL


def test_making_a_topic_again_is_no_change(new: New) -> None:
    topic = new(**FULL)
    again = told(topic.put(**FULL))
    assert (again["created"], again["config"]) == (False, FULL)


@pytest.mark.parametrize(
    "other",
    [
        {"content_type": "text/plain"},
        {"ttl_ms": 1},
        {"cap_records": 1},
        {"cap_bytes": 1},
        {"discard": "reject"},
        {"durability": "disk"},
        {"durable": False},
        {"priority": 1},
        {"auto_priority": True},
        {"queue": {}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_making_a_topic_again_with_another_configuration_is_a_conflict(topic: Topic, other: dict[str, Any]) -> None:
    assert refused(topic.put(**other)) == (409, "topic_exists_incompatible")
    assert topic.config() == DEFAULTS


def test_a_configuration_is_complete_and_what_it_leaves_out_has_its_default(new: New) -> None:
    for config in ({"ttl_ms": 5_000}, {"cap_records": 5}, {"cap_bytes": 5}, {"priority": 3}, {"discard": "reject"}):
        assert refused(new(**config).put()) == (409, "topic_exists_incompatible")


def test_durable_is_another_word_for_two_classes(new: New) -> None:
    assert new(durable=True).config()["durability"] == "fsync"
    assert new(durable=False).config()["durability"] == "disk"
    assert new(durable=True, durability="fsync").config()["durability"] == "fsync"


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_each_class_of_durability_can_be_asked_for(new: New, durability: str) -> None:
    topic = new(durability=durability)
    assert topic.config()["durability"] == durability
    assert topic.write(1, 2) == [1, 2] and topic.data() == [1, 2]


def test_quorum_is_refused_by_a_node_that_is_by_itself_with_advice(node: Node) -> None:
    answer = Topic(node, fresh_name("topic")).put(durability="quorum")
    assert refused(answer) == (422, "quorum_needs_cluster")
    assert "fsync" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"content_type": 5}, "content_type"),
        ({"content_type": None}, "content_type"),
        ({"content_type": "text"}, "content_type"),
        ({"content_type": "text/plain\n"}, "content_type"),
        ({"content_type": ""}, "content_type"),
        ({"content_type": f"text/{'x' * 300}"}, "content_type"),
        ({"ttl_ms": 0}, "ttl_ms"),
        ({"ttl_ms": -1}, "ttl_ms"),
        ({"ttl_ms": "5"}, "ttl_ms"),
        ({"ttl_ms": 1.5}, "ttl_ms"),
        ({"ttl_ms": True}, "ttl_ms"),
        ({"ttl_ms": 1 << 70}, "ttl_ms"),
        ({"ttl_ms": 1 << 53}, "ttl_ms"),
        ({"cap_records": 0}, "cap_records"),
        ({"cap_records": []}, "cap_records"),
        ({"cap_bytes": -(1 << 80)}, "cap_bytes"),
        ({"cap_bytes": {}}, "cap_bytes"),
        ({"discard": "new"}, "discard"),
        ({"discard": None}, "discard"),
        ({"discard": 1}, "discard"),
        ({"durability": "Fsync"}, "durability"),
        ({"durability": ""}, "durability"),
        ({"durability": 3}, "durability"),
        ({"durable": "yes"}, "durable"),
        ({"durable": None}, "durable"),
        ({"durable": True, "durability": "disk"}, "durable"),
        ({"priority": 1001}, "priority"),
        ({"priority": -1001}, "priority"),
        ({"priority": "0"}, "priority"),
        ({"priority": None}, "priority"),
        ({"auto_priority": 1}, "auto_priority"),
        ({"queue": []}, "queue"),
        ({"queue": True}, "queue"),
        ({"queue": {"lease_ms": 0}}, "queue.lease_ms"),
        ({"queue": {"lease_ms": 1 << 60}}, "queue.lease_ms"),
        ({"queue": {"lease_ms": None}}, "queue.lease_ms"),
        ({"queue": {"claim_jitter_ms": -1}}, "queue.claim_jitter_ms"),
        ({"queue": {"max_deliveries": -1}}, "queue.max_deliveries"),
        ({"queue": {"dead_letter": ""}}, "queue.dead_letter"),
        ({"queue": {"dead_letter": ".."}}, "queue.dead_letter"),
        ({"queue": {"dead_letter": "a\0"}}, "queue.dead_letter"),
        ({"queue": {"dead_letter": "x" * 2_000}}, "queue.dead_letter"),
        ({"queue": {"dead_letter": 5}}, "queue.dead_letter"),
        ({"queue": {"leases_durable": 1}}, "queue.leases_durable"),
        ({"queue": {"backoff_ms": -1}}, "queue.backoff_ms"),
        ({"queue": {"backoff_ms_max": "x"}}, "queue.backoff_ms_max"),
        ({"queue": {"lease": 5}}, "lease"),
        ({"colour": "red"}, "colour"),
        ({"": 1}, ""),
        ({"a\u0000\n": 1}, "a"),
        ({"x" * 5_000: 1}, "x"),
    ],
    ids=lambda one: str(one)[:40],
)
def test_a_field_that_is_wrong_or_unknown_is_named(node: Node, config: dict[str, Any], named: str) -> None:
    topic = Topic(node, fresh_name("topic"))
    for method in ("PUT", "PATCH"):
        if method == "PATCH":
            assert topic.put().status == 201
        answer = topic.request(method, body=config)
        assert refused(answer) == (400, "bad_request")
        message = answer.json()["error"]["message"]
        assert named in message and len(message) < 500
        assert topic.request("GET").status == (404 if method == "PUT" else 200)


@pytest.mark.parametrize(
    "body", [b"[]", b"null", b"5", b"{", b"{}{}", b'{"ttl_ms":}', b'{"ttl_ms":"\xff"}', b"\xff", b"[" * 100_000, b"\0"]
)
def test_a_body_that_is_no_object_is_refused(node: Node, body: bytes) -> None:
    topic = Topic(node, fresh_name("topic"))
    assert refused(topic.request("PUT", body=body)) == (400, "bad_request")
    assert refused(topic.request("GET")) == (404, "topic_not_found")


@pytest.mark.parametrize("name", ["..", "a/..", "__ds", "__ds/x", "a\0b", "x" * 1_025, ""])
def test_a_name_that_no_topic_can_have_is_refused(node: Node, name: str) -> None:
    assert refused(Topic(node, name).put()) == (400, "bad_request")
    assert refused(Topic(node, name).request("GET")) == (400, "bad_request")


@pytest.mark.parametrize("name", ["a b", "é/ü/字", "shop/a/b", "x" * 1_000, "a:b,c", "-", "null", "a?b#c%"])
def test_any_other_name_is_one(node: Node, name: str) -> None:
    topic = Topic(node, f"{fresh_name('names')}/{name}")
    assert told(topic.put(), 201)["topic"] == topic.name
    assert topic.write(1) == [1] and topic.data() == [1]
    assert told(topic.request("DELETE"))["topic"] == topic.name


def test_a_topic_that_ends_in_a_verb_is_named_with_its_slash_encoded(node: Node) -> None:
    bucket = fresh_name("verbs")
    answer = node.request("PUT", f"/v0/topics/{bucket}%2Frecords")
    assert told(answer, 201)["topic"] == f"{bucket}/records"
    assert node.request("POST", f"/v0/topics/{bucket}%2Frecords/records", (), b'{"records":[{"data":1}]}').status == 200


# ---- PATCH ----------------------------------------------------------------------------------------------------------


def test_a_change_names_what_it_changes_and_leaves_the_rest(new: New) -> None:
    topic = new(cap_records=5, priority=7)
    changed = told(topic.request("PATCH", body={"ttl_ms": 9_000, "priority": 8, "queue": {"max_deliveries": 3}}))
    expected = {**DEFAULTS, "cap_records": 5, "ttl_ms": 9_000, "priority": 8, "queue": {**QUEUE, "max_deliveries": 3}}
    assert changed["config"] == topic.config() == expected
    none = {"cap_records": None, "ttl_ms": None, "queue": None}
    assert told(topic.request("PATCH", body=none))["config"] == {**DEFAULTS, "priority": 8}
    assert told(topic.request("PATCH", body={}))["config"] == {**DEFAULTS, "priority": 8}


def test_a_cap_that_is_lowered_takes_what_is_beyond_it(new: New) -> None:
    topic = new()
    topic.write(1, 2, 3, 4)
    told(topic.request("PATCH", body={"cap_records": 1}))
    found = topic.diff()
    assert ([one["seq"] for one in found["records"]], found["tombstone"]) == ([4], {"gap_from": 1, "gap_to": 3})


@pytest.mark.parametrize("fixed", [{"content_type": "text/plain"}, {"durability": "memory"}, {"durable": False}])
def test_what_a_stream_has_for_good_cannot_be_changed(topic: Topic, fixed: dict[str, Any]) -> None:
    assert refused(topic.request("PATCH", body=fixed)) == (409, "topic_exists_incompatible")
    assert topic.config() == DEFAULTS
    same = {"content_type": "Application/JSON; x=y", "durability": "fsync", "durable": True}
    assert told(topic.request("PATCH", body=same))["config"] == DEFAULTS


def test_what_is_not_there_is_not_found_whatever_is_wanted_of_it(node: Node) -> None:
    topic = Topic(node, fresh_name("never"))
    for method, verb, body in (
        ("GET", "", None),
        ("PATCH", "", {}),
        ("DELETE", "", None),
        ("POST", "/records", {"records": [{"data": 1}]}),
        ("GET", "/diff", None),
        ("GET", "/diff?wait_ms=1000", None),
        ("GET", "/sse", None),
        ("POST", "/delete", {"before_seq": 1}),
    ):
        assert refused(topic.request(method, verb, body)) == (404, "topic_not_found"), (method, verb)


# ---- DELETE ---------------------------------------------------------------------------------------------------------


def test_a_topic_that_was_deleted_and_made_again_has_another_epoch_and_counts_from_one(new: New) -> None:
    topic = new()
    topic.write(1, 2)
    before = topic.state()
    assert told(topic.request("DELETE")) == {"topic": topic.name, "deleted": True}
    assert refused(topic.request("GET")) == (404, "topic_not_found")
    assert topic.put().status == 201
    assert topic.state()["epoch"] != before["epoch"] and topic.write(3) == [1]


# ---- listing --------------------------------------------------------------------------------------------------------


def listed(node: Node, query: str) -> tuple[list[str], str | None]:
    found = told(node.request("GET", f"/v0/topics?{query}"))
    return [one["topic"] for one in found["topics"]], found["next"]


def test_the_topics_of_a_bucket_are_listed_page_by_page_in_the_order_of_their_names(node: Node) -> None:
    bucket = fresh_name("listed")
    names = [f"{bucket}/{name}" for name in ("a", "a/b", "b", "é")]
    for name in reversed(names):
        assert Topic(node, name).put().status == 201
    assert listed(node, f"bucket={bucket}") == (names, None)
    assert listed(node, f"bucket={bucket}&prefix=a") == (names[:2], None)
    first, following = listed(node, f"bucket={bucket}&limit=3")
    assert (first, following) == (names[:3], names[2])
    assert listed(node, f"bucket={bucket}&limit=3&after={following}") == (names[3:], None)
    assert listed(node, f"bucket={bucket}&after=b") == (names[3:], None)
    assert listed(node, "bucket=nobody") == ([], None)


def test_a_listing_tells_the_state_of_each_topic(node: Node) -> None:
    topic = new_topic(node, cap_records=2)
    topic.write(1, 2, 3)
    state = topic.state()
    found = told(node.request("GET", f"/v0/topics?prefix={topic.name}"))["topics"]
    assert found == [{"topic": topic.name, "state": state}]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "limit=-1", "limit=1&limit=2", "bucket=a/b", "prefix=%ff", "limit="]
)
def test_a_listing_refuses_what_it_cannot_understand(node: Node, query: str) -> None:
    assert refused(node.request("GET", f"/v0/topics?{query}")) == (400, "bad_request")


# ---- routes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v0/", "/v0/topic", "/v0/topics/", "/v0/sse/x", "/v0/records", "/v0//"])
def test_a_path_that_leads_nowhere_is_refused_as_topics_refuse(node: Node, path: str) -> None:
    assert refused(node.request("GET", path)) in ((404, "no_such_route"), (400, "bad_request"))


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v0/topics/a"), ("PUT", "/v0/topics"), ("GET", "/v0/topics/a/records"), ("POST", "/v0/topics/a/diff")],
)
def test_another_method_is_refused_with_those_that_are_allowed(node: Node, method: str, path: str) -> None:
    answer = node.request(method, path, (), b"")
    assert refused(answer) == (405, "method_not_allowed")
    assert (answer.header("allow") or "").endswith("OPTIONS")


def test_a_browser_may_use_every_method(node: Node) -> None:
    answer = node.request("OPTIONS", "/v0/topics/a")
    assert answer.status == 204
    assert "PATCH" in (answer.header("access-control-allow-methods") or "")
