"""`headwater ctl status`, `wait-ready` and `groups`: what is printed, and which exit code."""

from __future__ import annotations

import json

import pytest

from headwater.cli.ctl.common import lasted
from tests.cli.ctl.conftest import Typed
from tests.cli.ctl.pretended import Facts, Pretended


def test_a_healthy_cluster_is_a_line_for_each_node_and_exit_code_0(ctl: Typed) -> None:
    *nodes, health = ctl("status").stdout.splitlines()
    assert [line.split("\t")[0] for line in nodes] == ["0", "1", "2"]
    assert nodes[0].split("\t")[5:] == ["alive", "2: 0, 3", "2: 1-2"]
    assert health == "healthy: 3 nodes, 4 groups, each with an owner and a standby"


def test_json_holds_all_of_it_and_what_is_wrong(ctl: Typed, cluster: Pretended) -> None:
    facts = json.loads(ctl("status", "--json").stdout)
    assert (facts["health"], facts["problems"], len(facts["nodes"])) == ("healthy", [], 3)
    cluster.owners[2] = None
    facts = json.loads(ctl("status", "--json", code=1).stdout)
    assert (facts["health"], facts["problems"]) == ("degraded", ["group 2 has no owner"])


def test_groups_without_owners_dead_nodes_and_missing_standbys_make_it_degraded(ctl: Typed, cluster: Pretended) -> None:
    cluster.owners[1] = cluster.owners[2] = None
    assert "degraded: groups 1-2 have no owner" in ctl("status", code=1).stdout
    cluster.owners = [0, 0, 0, 0]
    cluster.nodes[2]["alive"] = False
    assert "degraded: node 2 is not alive" in ctl("status", code=1).stdout
    cluster.nodes[1]["alive"] = False
    assert "no node is ready to take over groups 0-3" in ctl("status", code=1).stdout


def test_a_node_that_knows_nobody_yet_is_said(ctl: Typed, cluster: Pretended) -> None:
    cluster.settled = False
    assert "node 0 has not heard from the other nodes yet" in ctl("status", code=1).stdout


def test_draining_and_mixed_versions_are_said_and_are_not_wrong(ctl: Typed, cluster: Pretended) -> None:
    cluster.owners = [0, 0, 2, 2]
    cluster.nodes[1] |= {"draining": True, "version": "1.1"}
    health = ctl("status").stdout.splitlines()[-1]
    assert health.startswith("healthy: ")
    assert "node 1 drains; nodes run different versions: 1.0, 1.1" in health


def test_the_next_node_is_asked_when_one_does_not_answer_and_that_is_said(ctl: Typed, cluster: Pretended) -> None:
    gone = cluster.urls.split(",")[0]
    cluster.stop(0)
    result = ctl("status", "--url", gone, "--url", cluster.urls.split(",")[1])
    assert f"nothing answers at {gone}" in result.stderr
    assert set(cluster.asked) == {1}


def test_exit_code_2_when_nobody_answers_and_when_the_address_is_none(ctl: Typed, cluster: Pretended) -> None:
    for number in range(3):
        cluster.stop(number)
    assert "no node answers" in ctl("status", code=2).stderr
    assert "is not the address of a server" in ctl("status", url="nonsense", code=2).stderr
    assert "names no address" in ctl("status", "--url", ",", code=2).stderr


def test_a_node_that_is_of_no_cluster_is_a_wrong_address(ctl: Typed, cluster: Pretended) -> None:
    cluster.refuse["/__headwater/cluster"] = (404, "this node is not of a cluster")
    assert "is not a node of a cluster" in ctl("status", code=2).stderr


def test_what_is_not_a_cluster_s_answer_is_said(ctl: Typed, cluster: Pretended) -> None:
    cluster.views[0] = lambda facts: {"nodes": 3}
    assert "is not understood" in ctl("status", code=1).stderr


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 s"), (-5, "0 s"), (59_999, "59 s"), (61_000, "1 min 1 s"), (3_600_000, "1 h"), (90_000_000, "1 d 1 h")],
)
def test_a_time_is_shown_in_its_two_largest_units(ms: int, text: str) -> None:
    assert lasted(ms) == text


# ---- wait-ready ------------------------------------------------------------------------------------------------------


def test_waiting_ends_at_once_when_everything_is_served(ctl: Typed) -> None:
    assert ctl("wait-ready", "--nodes", "3").stdout == "ready: 3 nodes alive, 4 groups, each with an owner\n"


def test_waiting_says_what_is_missing_once_and_ends_when_it_has_come(ctl: Typed, cluster: Pretended) -> None:
    cluster.owners[3] = None
    looks = 0

    def look(facts: Facts) -> Facts:
        nonlocal looks
        looks += 1
        if looks == 5:
            cluster.owners[3] = 1
        return facts

    cluster.views[0] = look
    result = ctl("wait-ready")
    assert result.stderr.splitlines() == ["waiting: group 3 has no owner"]
    assert looks == 6


def test_when_the_time_is_over_one_line_says_why(ctl: Typed, cluster: Pretended) -> None:
    cluster.nodes[2]["alive"] = False
    result = ctl("wait-ready", "--nodes", "3", "--timeout", "0", code=1)
    assert result.stderr.splitlines()[0] == "error: not ready within 0 s: 2 of 3 nodes are alive"
    ctl("wait-ready", "--nodes", "2")


def test_a_cluster_that_is_not_there_yet_is_waited_for(ctl: Typed, cluster: Pretended) -> None:
    cluster.refuse["/__headwater/cluster"] = (503, "starting")
    cluster.refuse_times["/__headwater/cluster"] = 3
    assert ctl("wait-ready").stderr == "waiting: starting\n"
    assert ctl("wait-ready", "--timeout", "0", url="http://127.0.0.1:1", code=2)


def test_another_number_of_groups_is_an_error_that_no_waiting_mends(ctl: Typed) -> None:
    assert "has 4 groups, and not 16" in ctl("wait-ready", "--expected-groups", "16", code=1).stderr
    ctl("wait-ready", "--expected-groups", "4")


# ---- groups ----------------------------------------------------------------------------------------------------------


def test_groups_show_what_their_owners_say(ctl: Typed, cluster: Pretended) -> None:
    cluster.snapshots[1] = None
    lines = [line.split("\t") for line in ctl("groups").stdout.splitlines()]
    assert lines[0] == ["0", "0", "1", "1", "100", "80", "40 bytes", ""]
    assert lines[1] == ["1", "1", "1", "0", "100", "none", "100 bytes", ""]


def test_a_group_whose_owner_does_not_answer_is_said_and_the_others_are_shown(ctl: Typed, cluster: Pretended) -> None:
    cluster.refuse["/__headwater/groups/2/ownership"] = (503, "node 2 does not answer")
    result = ctl("groups", code=1)
    assert "node 2 does not answer" in result.stdout.splitlines()[2]
    facts = json.loads(ctl("groups", "--json", code=1).stdout)["groups"]
    assert [group["problem"] for group in facts] == [None, None, "node 2 does not answer", None]
    assert facts[0]["uncovered_bytes"] == 40
