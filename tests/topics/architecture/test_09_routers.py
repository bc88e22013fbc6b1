"""Topics architecture §8 (routers), §4 (their recovery), §9.4: forwarding beside the write path, each record once.
Copies are logged by the destination's group here (see the decision about differences); the promises are the same."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from tests.doors.http.extensions.surface import fresh_name
from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Topic, new_topic, refused, told
from tests.support.http import Response
from tests.support.node import Node
from tests.topics.architecture.looks import floors

WAIT_MS = 30_000


def put(node: Node, name: str, source: Topic, dest: Topic, **more: Any) -> Response:
    body = json.dumps({"source": source.name, "dest": dest.name, **more}).encode()
    return node.request("PUT", f"/v0/routers/{name}", (), body)


def copies(dest: Topic, count: int) -> list[dict[str, Any]]:
    """The first records of a destination, waited for."""
    found: list[dict[str, Any]] = []
    with dest.tail("?from_seq=0") as tail:
        while len(found) < count:
            found += tail.next()["records"]
    return found


def routed(node: Node, **more: Any) -> tuple[str, Topic, Topic]:
    name, source, dest = fresh_name("router"), new_topic(node), new_topic(node)
    assert put(node, name, source, dest, **more).status == 201
    return name, source, dest


def test_what_is_written_to_a_source_comes_to_its_dest_in_order(node: Node) -> None:
    """§9.4: "a forwarded record triggers the dest topic's Notify exactly like a direct write"."""
    _, source, dest = routed(node)
    with dest.tail() as tail:
        source.write(*range(5), tag="t", node="n", meta={"m": 1})
        got: list[dict[str, Any]] = []
        while len(got) < 5:
            got += tail.next()["records"]
    assert [(one["seq"], one["data"], one["tag"], one["node"], one["meta"]) for one in got] == [
        (n + 1, n, "t", "n", {"m": 1}) for n in range(5)
    ]


def test_a_filter_and_what_is_kept_of_labels_are_the_routers(node: Node) -> None:
    """§5, routers: "{name, source, dest, preserve_*, filter, allow_cycle}"."""
    _, source, dest = routed(node, filter=["tag", "Glob", "red*"], preserve_tag=False, preserve_meta=False)
    source.post([{"data": n, "tag": tag, "node": "n", "meta": {}} for n, tag in enumerate(("red", "blue", "reddish"))])
    source.write("no tag")
    source.write("last", tag="red")
    found = copies(dest, 3)
    assert [one["data"] for one in found] == [0, 2, "last"]
    assert [(one.get("tag"), one.get("node"), one.get("meta")) for one in found] == [
        (None, "n", None), (None, "n", None), (None, None, None)
    ]  # fmt: skip


def test_nodes_are_filtered_when_the_dest_is_read(node: Node) -> None:
    """§8, Router: "node filtering at dest read time": copies keep who wrote them, so nobody gets its own back."""
    _, source, dest = routed(node)
    source.write(1, node="me")
    source.write(2, node="you")
    copies(dest, 2)
    assert dest.data(node="me") == [2] and dest.data() == [1, 2]


def test_a_dest_has_one_source(node: Node, new: New) -> None:
    """§8, Router: "each derived dest is single-source (a different second source => 409 topic_exists_incompatible,
    error.detail.reason: "router_dest_fan_in")"."""
    _, _, dest = routed(node)
    answer = put(node, fresh_name("router"), new(), dest)
    assert refused(answer) == (409, "topic_exists_incompatible")
    assert answer.json()["error"]["detail"]["reason"] == "router_dest_fan_in"


def test_a_cycle_is_refused_unless_it_is_allowed(node: Node, new: New) -> None:
    """§5, routers: allow_cycle; otherwise a record could go round for ever."""
    a, b, c = new(), new(), new()
    assert put(node, fresh_name("router"), a, b).status == 201
    assert put(node, fresh_name("router"), b, c).status == 201
    assert refused(put(node, fresh_name("router"), c, a)) == (409, "router_cycle")
    assert put(node, fresh_name("router"), c, a, allow_cycle=True).status == 201


def test_a_writer_does_not_wait_for_copies(node: Node, new: New) -> None:
    """§8, Router: "async, off the write/ack path": a dest that takes nothing holds up no write to its source."""
    full, source = new(cap_records=1, discard="reject"), new()
    full.write("full")
    assert put(node, fresh_name("router"), source, full).status == 201
    assert source.write(1, 2, 3) == [1, 2, 3] and source.data() == [1, 2, 3]
    assert full.data() == ["full"]


def test_one_source_fans_out(node: Node, new: New) -> None:
    """§8, Router: a source may have many dests."""
    source = new()
    dests = [new() for _ in range(3)]
    for dest in dests:
        assert put(node, fresh_name("router"), source, dest).status == 201
    source.write(1, 2)
    assert [[one["data"] for one in copies(dest, 2)] for dest in dests] == [[1, 2]] * 3


def test_a_chain_of_routers_passes_records_on(node: Node, new: New) -> None:
    """§9.4: "Routers add one hop"."""
    chain = [new() for _ in range(4)]
    for source, dest in pairwise(chain):
        assert put(node, fresh_name("router"), source, dest).status == 201
    chain[0].write("a", "b")
    assert [one["data"] for one in copies(chain[-1], 2)] == ["a", "b"]


def test_a_cap_of_the_dest_is_a_loss_in_the_dest_alone(node: Node, new: New) -> None:
    """§8, Router: "dest scheduling/priority applies": the dest is a topic with its own bounds and floors."""
    source, dest = new(), new(cap_records=2)
    assert put(node, fresh_name("router"), source, dest).status == 201
    source.write(*range(6))
    found: dict[str, Any] = {"next_seq": 0}
    while found["next_seq"] < 6:
        found = dest.diff(from_seq=found["next_seq"], wait_ms=WAIT_MS)
    assert dest.data() == [4, 5] and floors(dest) == (5, 5) and floors(source) == (1, 1)


@pytest.mark.full
def test_a_router_goes_on_from_its_cursor_after_a_kill_without_a_double(node: Node) -> None:
    """§4: "Routers recover from a durable per-router cursor"; ours: each record once, also where it was at-least-once
    there."""
    name, source, dest = routed(node)
    other, filtered_source, filtered = routed(node, filter=["tag", "Eq", "x"])
    source.write(*range(20))
    filtered_source.post([{"data": n, "tag": "xy"[n % 2]} for n in range(20)])
    copies(dest, 1)
    node.restart()
    source.write(*range(20, 30))
    filtered_source.write("last", tag="x")
    assert [one["data"] for one in copies(dest, 30)] == list(range(30))
    assert [one["data"] for one in copies(filtered, 11)] == [*range(0, 20, 2), "last"]
    state = told(node.request("GET", f"/v0/routers/{name}"))["state"]
    assert (state["cursor"], state["source_head"], state["lag"], state["lost"]) == (30, 30, 0, 0)
    assert dest.state()["head_seq"] == 30 and filtered.state()["head_seq"] == 11
    assert told(node.request("DELETE", f"/v0/routers/{other}"))["deleted"] is True
