"""Creations of names that are placed in another node's group: through every door they are confirmed by the name's home,
and refused when a node sent them that did not know better."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.engine.placements import Placement
from headwater.model.names import DEFAULT_BUCKET
from tests.doors.s3p import request as s3p_request
from tests.support.cluster_nodes import HOST, Cluster, ClusterNode, cluster

TEXT = {"Content-Type": "text/plain"}


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Cluster]:
    """Four nodes; each owns the group of its number, by a claim."""
    with cluster(tmp_path, "a", "b", "c", "d") as made:
        for number, node in enumerate(made.nodes):
            node.owned[number].group.epoch = 1
        yield made


def http(nodes: Cluster, node: ClusterNode, name: str) -> tuple[int, str]:
    answer = nodes.request(node, "PUT", f"/v1/stream/{name}", TEXT)
    return answer.status, "" if answer.status < 300 else answer.json()["error"]["code"]


def bulk(nodes: Cluster, node: ClusterNode, name: str) -> tuple[int, str]:
    entries = [{"stream": name, "text": ["x"], "content_type": "text/plain", "create": True}]
    (answer,) = nodes.request(node, "POST", "/__headwater/append", {}, json.dumps(entries).encode()).json()
    return answer["status"], answer["error"]["code"] if "error" in answer else ""


def s3p(nodes: Cluster, node: ClusterNode, name: str) -> tuple[int, str]:
    with socket.create_connection((HOST, node.s3p_port), timeout=20) as sock, sock.makefile("rb") as file:
        sock.sendall(s3p_request(b"CREATE", name.encode(), []))
        line = file.readline().decode()
    return (200, "") if line.startswith("+") else (503, line[1:].split(" ")[0])


def asked(node: ClusterNode) -> list[str]:
    """Names that the node was asked to confirm from now on."""
    found: list[str] = []
    answer = node.calls._answers["placement_confirm"]

    async def noted(key: str, group: int) -> bool:
        found.append(key)
        return bool(await answer(key, group))

    node.calls.register("placement_confirm", noted)
    return found


def place(nodes: Cluster, node: ClusterNode, name: str, source: str) -> None:
    nodes.run(node.engine_placing.place(f"{DEFAULT_BUCKET}/{name}", f"{DEFAULT_BUCKET}/{source}"))


@pytest.mark.parametrize("door", [http, bulk, s3p])
@pytest.mark.parametrize("sender", [0, 2])
def test_a_creation_by_a_true_placement_is_confirmed_and_done(four: Cluster, door: object, sender: int) -> None:
    name, source = four.name(0), four.name(1)
    assert http(four, four.nodes[1], source)[0] == 201
    place(four, four.nodes[0], name, source)
    confirmed = asked(four.nodes[0])
    status, why = door(four, four.nodes[sender], name)  # type: ignore[operator]
    assert status < 300 and not why
    assert confirmed == [f"{DEFAULT_BUCKET}/{name}"]
    assert four.nodes[1].owned[1].group.has(f"{DEFAULT_BUCKET}/{name}")


@pytest.mark.parametrize("door", [http, bulk, s3p])
def test_a_creation_by_a_placement_that_is_over_is_refused_and_changes_nothing(four: Cluster, door: object) -> None:
    name = four.name(0)
    # As a node would that was the home's owner once, and has not heard that the name was placed elsewhere since.
    four.nodes[0].engine.placement = lambda key: Placement(1, 5)  # type: ignore[method-assign]
    status, why = door(four, four.nodes[0], name)  # type: ignore[operator]
    assert status == 503 and why in ("not_served_here", "ERR_UNAVAILABLE")
    assert not any(node.owned[number].group.has(f"{DEFAULT_BUCKET}/{name}") for number, node in enumerate(four.nodes))
