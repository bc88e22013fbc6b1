"""`headwater ctl verify`: what it compares, and what it finds."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.ctl.conftest import Typed
from tests.cli.ctl.pretended import Pretended


def test_a_cluster_whose_nodes_agree_is_ok(ctl: Typed, cluster: Pretended) -> None:
    *groups, verdict = ctl("verify").stdout.splitlines()
    assert groups == [f"{group}\tok\t2\t" for group in range(4)]
    assert verdict == "ok: 3 nodes asked, 4 groups, 0 groups with a problem"
    assert set(cluster.asked) == {0, 1, 2}
    facts = json.loads(ctl("verify", "--json").stdout)
    assert (facts["ok"], facts["problems"]) == (True, [])


def test_nodes_that_name_different_owners_are_found(ctl: Typed, cluster: Pretended) -> None:
    def otherwise(facts: dict[str, Any]) -> dict[str, Any]:
        facts["groups"][2] |= {"owner": 0, "epoch": 9}
        return facts

    cluster.views[1] = otherwise
    result = ctl("verify", code=1)
    lines = result.stdout.splitlines()
    told = "nodes name different owners: node 2 in epoch 1 by nodes 0, 2; node 0 in epoch 9 by node 1"
    assert lines[2] == f"2\tproblem\t2\t{told}"
    assert lines[-1] == "problems found: 3 nodes asked, 4 groups, 1 group with a problem"


def test_a_difference_of_a_moment_is_no_finding(ctl: Typed, cluster: Pretended) -> None:
    looks = 0

    def late(facts: dict[str, Any]) -> dict[str, Any]:
        nonlocal looks
        looks += 1
        if looks < 3:
            facts["groups"][2] |= {"owner": 0}
        return facts

    cluster.views[1] = late
    ctl("verify")


def test_nodes_that_know_different_nodes_are_found(ctl: Typed, cluster: Pretended) -> None:
    def fewer(facts: dict[str, Any]) -> dict[str, Any]:
        facts["nodes"] = facts["nodes"][:2]
        facts["nodes"][0] = facts["nodes"][0] | {"alive": False}
        return facts

    cluster.views[1] = fewer
    facts = json.loads(ctl("verify", "--json", code=1).stdout)
    assert facts["ok"] is False
    assert facts["problems"] == [
        "nodes know different nodes, or different runs of them: 0-2 by nodes 0, 2; 0-1 by node 1",
        "node 1 does not reach node 0, which answers",
    ]


def test_a_node_that_cannot_be_asked_is_found(ctl: Typed, cluster: Pretended) -> None:
    gone = f"http://{cluster.nodes[2]['public_address']}"
    cluster.stop(2)
    assert f"cluster: node 2 could not be asked: nothing answers at {gone}" in ctl("verify", code=1).stdout


def test_an_owner_that_says_otherwise_of_itself_is_found(ctl: Typed, cluster: Pretended) -> None:
    cluster.states[1] = "standby"
    cluster.heads[2] = 70
    cluster.heads[3] = 10
    cluster.snapshots[3] = None
    lines = ctl("verify", code=1).stdout.splitlines()
    assert "node 1 answers for it and is standby" in lines[1]
    assert "its log begins at 70, and its catalog snapshot needs it from 60 on" in lines[2]
    assert "there is no catalog snapshot" in lines[3]


def test_a_catalog_that_lists_what_the_table_lacks_is_found(ctl: Typed, cluster: Pretended) -> None:
    cluster.refuse["/__headwater/groups/1/lake/files"] = (503, "the table does not hold data/1/a.parquet")
    assert "the table does not hold data/1/a.parquet" in ctl("verify", code=1).stdout.splitlines()[1]


def test_degraded_is_not_verified(ctl: Typed, cluster: Pretended) -> None:
    cluster.nodes[2]["alive"] = False
    assert "cluster: node 2 is not alive" in ctl("verify", code=1).stdout
