"""`headwater ctl move`, `drain`, `undrain` and `snapshot`: what is asked of the cluster, and what is waited for."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.ctl.conftest import Typed
from tests.cli.ctl.pretended import Pretended


def carry_out(cluster: Pretended) -> None:
    """What is asked for happens."""

    def happen(path: str, body: Any) -> None:
        if path.endswith("/move") and body["node"] is not None:
            cluster.owners[body["group"]] = body["node"]
        if path.endswith("/drain") and body["draining"]:
            cluster.nodes[body["node"]]["draining"] = True
            cluster.hand_over(body["node"])

    cluster.on_call = happen


def test_a_move_is_asked_for_and_with_wait_it_is_waited_for(ctl: Typed, cluster: Pretended) -> None:
    assert "group 3 goes to node 1" in ctl("move", "3", "1").stdout
    assert cluster.calls == [("POST", "/__headwater/cluster/move", {"group": 3, "node": 1})]
    carry_out(cluster)
    assert ctl("move", "3", "2", "--wait").stdout == "group 3 is with node 2\n"


def test_a_node_may_be_named_by_its_id(ctl: Typed, cluster: Pretended) -> None:
    ctl("move", "3", f"{1:016x}")
    assert cluster.calls[-1][2] == {"group": 3, "node": 1}


def test_auto_lets_go_of_the_preference_and_waits_for_the_first_in_line(ctl: Typed, cluster: Pretended) -> None:
    assert ctl("move", "3", "--auto", "--wait").stdout == "group 3 is with node 0\n"
    assert cluster.calls[-1][2] == {"group": 3, "node": None}


def test_a_move_that_does_not_come_about_is_exit_code_1(ctl: Typed) -> None:
    assert "group 3 is with node 0" in ctl("move", "3", "1", "--wait", "--timeout", "0", code=1).stderr


def test_moves_that_make_no_sense_are_refused_before_anything_is_asked(ctl: Typed, cluster: Pretended) -> None:
    assert "one of NODE and --auto" in ctl("move", "3", code=2).stderr
    assert "one of NODE and --auto" in ctl("move", "3", "1", "--auto", code=2).stderr
    assert "no node 7" in ctl("move", "3", "7", code=2).stderr
    assert "no group 9" in ctl("move", "9", "1", code=2).stderr
    cluster.nodes[1]["draining"] = True
    assert "undrain 1" in ctl("move", "3", "1", code=1).stderr
    cluster.nodes[1]["alive"] = False
    assert "not alive" in ctl("move", "3", "1", code=1).stderr
    assert cluster.calls == []


def test_a_drain_hands_everything_over(ctl: Typed, cluster: Pretended) -> None:
    carry_out(cluster)
    assert ctl("drain", "0", "--wait").stdout == "node 0 owns nothing\n"
    assert 0 not in cluster.owners
    ctl("undrain", "0")
    assert cluster.nodes[0]["draining"] is False


def test_a_drain_without_wait_says_what_will_go(ctl: Typed) -> None:
    assert ctl("drain", "0").stdout == "node 0 drains: groups 0, 3\n"


def test_a_drain_that_does_not_end_says_what_is_left_and_how_to_go_back(ctl: Typed) -> None:
    stderr = ctl("drain", "0", "--wait", "--timeout", "0", code=1).stderr
    assert "not drained within 0 s: node 0 still owns groups 0, 3" in stderr
    assert "headwater ctl undrain 0" in stderr


def test_the_last_node_that_takes_groups_is_not_drained(ctl: Typed, cluster: Pretended) -> None:
    cluster.nodes[1]["draining"] = True
    cluster.nodes[2]["alive"] = False
    assert "no other node could take the groups of node 0" in ctl("drain", "0", code=1).stderr
    assert cluster.calls == []


def test_a_call_that_a_node_cannot_pass_on_just_now_is_made_again(ctl: Typed, cluster: Pretended) -> None:
    path = "/__headwater/cluster/drain"
    cluster.refuse[path] = (503, "node 1 does not answer")
    assert "node 1 does not answer" in ctl("drain", "1", code=1).stderr
    # One question for how the cluster is, then all tries.
    assert len(cluster.asked) == 1 + 8


def test_a_node_that_is_gone_for_good_is_forgotten_and_one_that_is_alive_is_not(ctl: Typed, cluster: Pretended) -> None:
    assert "node 2 is alive" in ctl("forget", "2", code=1).stderr
    cluster.owners = [0, 1, 0, 1]
    cluster.nodes[2]["alive"] = False
    ctl("status", code=1)
    assert ctl("forget", "2").stdout == "node 2 is forgotten; its number is free\n"
    ctl("status")


def test_snapshots_are_written_of_all_groups_or_of_one(ctl: Typed, cluster: Pretended) -> None:
    assert len(ctl("snapshot").stdout.splitlines()) == 4
    assert ctl("snapshot", "2").stdout == "2\t90\t70\t1\n"
    assert [body for _, _, body in cluster.calls] == [{"group": None}, {"group": 2}]
    facts = json.loads(ctl("snapshot", "2", "--json").stdout)
    assert facts == {"groups": [{"position": 90, "log_floor": 70, "epoch": 1, "group": 2}]}
    ctl("snapshot", "9", code=2)
