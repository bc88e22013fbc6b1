"""Subscriptions on a cluster of real nodes: one key for all of them, and no wake-up that is lost when one is killed.
It owns its streams and workers; nodes are met over HTTP only, and nothing is timed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

from headwater.cluster_dev.local_cluster import LocalCluster
from headwater.cluster_dev.node_process import NodeProcess
from tests.support import waiting
from tests.support.http import Connection, ConnectionEnded, Response

GROUPS = 4
WITHIN_S = 120.0
SUBSCRIPTIONS = "/v1/stream/__ds"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), log="objects", groups=GROUPS, s3=False) as cluster:
        cluster.wait_ready()
        yield cluster


def ask(node: NodeProcess, method: str, path: str, body: bytes = b"") -> Response | None:
    """None when the node does not answer."""
    try:
        with Connection("127.0.0.1", node.port) as connection:
            return connection.request(method, path, JSON, body)
    except (OSError, ConnectionEnded):
        return None


def until(holds: Callable[[], Any], what: str) -> Any:
    return waiting.until(holds, what, WITHIN_S, 0.1)


def done(node: NodeProcess, method: str, path: str, body: bytes = b"") -> Response:
    """Tries until it is done: a group may be changing hands."""

    def tried() -> Response | None:
        answer = ask(node, method, path, body)
        return answer if answer is not None and answer.status < 300 else None

    found: Response = until(tried, f"{method} {path}")
    return found


def named(group: int, prefix: str) -> str:
    return next(key for n in range(1000) if xxh3_64_intdigest((key := f"{prefix}{n}").encode()) % GROUPS == group)


def owner(cluster: LocalCluster, group: int) -> NodeProcess:
    def found() -> NodeProcess | None:
        status = cluster.status()
        number = None if status is None else status["groups"][group]["owner"]
        return None if number is None else cluster.node_numbered(number)

    node: NodeProcess = until(found, f"an owner of group {group}")
    return node


def claim(node: NodeProcess, subscription: str, path: str) -> dict[str, Any]:
    """A claim that shows work in that stream."""
    answer = done(node, "POST", f"{SUBSCRIPTIONS}/subscriptions/{subscription}/claim", b'{"worker":"w"}')
    told: dict[str, Any] = answer.json()
    assert path in [one["path"] for one in told["streams"] if one["has_pending"]], told
    return told


def finish(node: NodeProcess, subscription: str, told: dict[str, Any]) -> None:
    """Acknowledges everything, with a token that another node may have given."""
    acks = [{"stream": one["path"], "offset": one["tail_offset"]} for one in told["streams"] if one["has_pending"]]
    wish = {"wake_id": told["wake_id"], "generation": told["generation"], "acks": acks, "done": True}
    headers = {**JSON, "Authorization": f"Bearer {told['token']}"}
    with Connection("127.0.0.1", node.port) as connection:
        path = f"{SUBSCRIPTIONS}/subscriptions/{subscription}/ack"
        answer = connection.request("POST", path, headers, json.dumps(wish).encode())
    assert answer.status < 300, answer


def test_a_wake_up_survives_the_death_of_the_owners_of_the_stream_and_of_the_subscription(three: LocalCluster) -> None:
    nodes = three.nodes
    # All nodes sign with one key, hash names with one key, and tell of themselves.
    jwks = [done(node, "GET", f"{SUBSCRIPTIONS}/jwks.json").body for node in nodes]
    assert len(set(jwks)) == 1
    known = [done(node, "POST", "/__headwater/erase/known", b'{"stream":"a/b"}').json() for node in nodes]
    assert len({one["stream_hash"] for one in known}) == 1
    for node in nodes:
        done(node, "GET", "/readyz")
        metrics = done(node, "GET", "/__headwater/metrics").json()
        assert metrics["cluster_nodes_alive"] == 3 and "workers" not in metrics

    subscription = named(0, "__ds/sub").removeprefix("__ds/")
    first, second = named(1, "events/s"), named(2, "events/s")
    done(nodes[0], "PUT", "/v1/stream/wake/pool", b"")
    for path in (first, second):
        done(nodes[0], "PUT", f"/v1/stream/{path}")
    wish = {"type": "pull-wake", "pattern": "events/*", "wake_stream": "wake/pool", "lease_ttl_ms": 600_000}
    done(nodes[0], "PUT", f"{SUBSCRIPTIONS}/subscriptions/{subscription}", json.dumps(wish).encode())

    done(nodes[0], "POST", f"/v1/stream/{first}", b'{"n":1}')
    told = claim(nodes[1], subscription, first)
    finish(nodes[2], subscription, told)

    dead = owner(three, 1)  # the owner of the stream, right after it acknowledged an append
    done(dead, "POST", f"/v1/stream/{first}", b'{"n":2}')
    dead.kill()
    alive = [node for node in nodes if node is not dead]
    told = claim(alive[0], subscription, first)
    finish(alive[1], subscription, told)
    dead.start()
    three.wait_ready()

    dead = owner(three, 0)  # the owner of the subscription
    alive = [node for node in nodes if node is not dead]
    done(alive[0], "POST", f"/v1/stream/{second}", b'{"n":3}')
    dead.kill()
    told = claim(alive[1], subscription, second)
    finish(alive[0], subscription, told)
    assert done(alive[0], "GET", f"{SUBSCRIPTIONS}/jwks.json").body == jwks[0]
