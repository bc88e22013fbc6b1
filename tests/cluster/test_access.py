"""Access in a cluster of three nodes: the matrix on a node, keys on every one, and a directory that changes hands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headwater.cluster_dev.local_cluster import LocalCluster
from headwater.cluster_dev.node_process import NodeProcess
from headwater.ports import SystemRng
from headwater.security import keys
from headwater.security.policy import Concern, Rule
from tests.doors.http.access.matrix import check_matrix
from tests.doors.http.access.samples import policy_rows
from tests.doors.http.access.waiting import until
from tests.support.guarded import Guarded, bearer
from tests.support.http import Connection, Response

GROUPS = 4
pytestmark = pytest.mark.full


@dataclass
class Asked:
    """A node of the cluster, as far as `Guarded` asks one."""

    process: NodeProcess

    def connect(self, timeout_s: float = 60.0) -> Connection:
        return Connection("127.0.0.1", self.process.port, timeout_s)

    def request(self, method: str, path: str, headers: Any = (), body: bytes | None = None) -> Response:
        with self.connect() as connection:
            return connection.request(method, path, headers, body)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Guarded]]:
    folder = tmp_path_factory.mktemp("cluster")
    admin = keys.make(SystemRng()).text
    (folder / "key").write_text(admin)
    flags = ("--auth", "on", "--admin-key-file", str(folder / "key"))
    with_key: list[Guarded] = []
    cluster = LocalCluster(folder / "made", nodes=3, log="objects", s3=False, groups=GROUPS, flags=flags)
    try:
        cluster.start_servers()
        for process in cluster.nodes:
            process.start(wait=False)
        for process in cluster.nodes:
            process.wait_ready()
            with_key.append(Guarded(Asked(process), admin))  # type: ignore[arg-type]
        for node in with_key:
            for number in range(4 * GROUPS):
                path = f"/v1/stream/shop/{number}"
                until(lambda: node.ask(admin, "PUT", path).status in (200, 201))  # noqa: B023
        yield with_key
    finally:
        cluster.close()


def test_the_matrix_holds_on_a_node_of_a_cluster(nodes: list[Guarded], tmp_path: Path) -> None:
    rows = [row for row in policy_rows(tmp_path) if not moves_a_cluster(*row)]
    node = nodes[2]
    node.call("PUT", "/v1/stream/shop/cart")
    node.call("PUT", "/shop")
    node.call("PUT", "/v0/topics/shop/wakes")
    check_matrix(node, rows)


def moves_a_cluster(route: str, rule: Rule) -> bool:
    """Calls that would stop the cluster that the others are tried on."""
    return rule.concern is not Concern.MEMBERS and route.endswith(("/cluster", "/owner", "/ownership"))


def test_a_key_is_good_on_every_node_and_on_none_when_it_is_revoked(nodes: list[Guarded]) -> None:
    made = nodes[0].made("read:shop")
    for node in nodes:
        for number in range(2 * GROUPS):
            path = f"/v1/stream/shop/{number}"
            until(lambda: node.ask(made["token"], "HEAD", path).status == 200)  # noqa: B023
            assert node.ask(made["token"], "DELETE", path).status == 403
            assert node.ask(None, "HEAD", path).status == 401
    nodes[1].call("DELETE", f"/__headwater/tokens/{made['id']}")
    for node in nodes:
        for number in range(2 * GROUPS):
            until(lambda: node.ask(made["token"], "HEAD", f"/v1/stream/shop/{number}").status == 401)  # noqa: B023


def test_the_audit_log_tells_of_every_node_and_goes_on_where_its_owner_changes(nodes: list[Guarded]) -> None:
    def told(node: Guarded) -> list[dict[str, Any]]:
        answer = node.ask(node.admin, "GET", "/v1/stream/_headwater/audit?offset=-1")
        return list(json.loads(answer.body)) if answer.status == 200 else []

    def is_told(number: int, forged: str) -> bool:
        """Refusals of other tests before may be told of together with this one: until one is told by itself."""
        nodes[number].ask("hw_forged", "GET", f"/v1/stream/shop/{number}", headers={"X-Request-Id": forged})
        return all(forged in {one["request_id"] for one in told(node)} for node in nodes)

    for number in range(len(nodes)):
        until(lambda: is_told(number, f"forged-{number}"))  # noqa: B023
    cluster = nodes[0].call("GET", "/__headwater/cluster")
    for group in range(GROUPS):
        owner = next(one["owner"] for one in cluster["groups"] if one["group"] == group)
        nodes[0].call("POST", "/__headwater/cluster/move", {"group": group, "node": (owner + 1) % len(nodes)})
    until(lambda: is_told(1, "forged-later"))

    def moves() -> list[dict[str, Any]]:
        return [one for one in told(nodes[0]) if one["action"] == "cluster.move"]

    until(lambda: len(moves()) == GROUPS)  # each node tells of its own, when it comes to that
    assert all('"group"' in one["what"] for one in moves())
    assert len({one["node"] for one in told(nodes[0])}) == len(nodes)


def test_keys_go_on_when_the_owner_of_the_directory_dies(nodes: list[Guarded]) -> None:
    made = nodes[0].made("read:shop")
    view = nodes[0].call("GET", "/__headwater/cluster")
    owner = next(group["owner"] for group in view["groups"] if group["group"] == 0)
    address = next(node["public_address"] for node in view["nodes"] if node["node"] == owner)
    dead = next(node for node in nodes if node.node.process.public_address == address)  # type: ignore[attr-defined]
    others = [node for node in nodes if node is not dead]
    dead.node.process.kill()  # type: ignore[attr-defined]
    for node in others:
        # Whoever had the keys has them still, whatever becomes of the streams for a while.
        answer = node.node.request("GET", "/v0/routers/none", bearer(made["token"] + "x"))
        assert answer.status == 401
        assert node.ask(made["token"], "HEAD", "/v1/stream/shop/0").status in (200, 503)
    until(lambda: others[0].ask(others[0].admin, "GET", "/__headwater/tokens").status == 200)
    others[0].call("DELETE", f"/__headwater/tokens/{made['id']}")
    for node in others:
        until(lambda: node.ask(made["token"], "HEAD", "/v1/stream/shop/0").status == 401)  # noqa: B023
    assert others[1].made("read:shop")["token"]
