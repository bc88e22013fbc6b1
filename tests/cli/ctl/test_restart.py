"""`headwater ctl restart`: the order of its steps, and where it stops."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from headwater.cli.ctl import restart
from tests.cli.ctl.conftest import Typed
from tests.cli.ctl.pretended import Facts, Pretended


@pytest.fixture
def ran(cluster: Pretended, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that were run: each restarts the node whose number is its last word."""
    found: list[list[str]] = []

    def run(words: list[str], node: Any) -> None:
        found.append(words)
        assert node.node not in cluster.owners, "it was restarted while it owned something"
        cluster.restarted(int(words[-1]), version="1.1")

    def drain(path: str, body: Any) -> None:
        if path.endswith("/drain") and body["draining"]:
            cluster.nodes[body["node"]]["draining"] = True
            cluster.hand_over(body["node"])

    cluster.on_call = drain
    monkeypatch.setattr(restart, "_run", run)
    return found


def test_each_node_is_drained_restarted_and_waited_for(ctl: Typed, cluster: Pretended, ran: list[list[str]]) -> None:
    result = ctl("restart", "--restart-cmd", "again {id} {node}")
    assert ran == [["again", f"{number:016x}", str(number)] for number in range(3)]
    assert result.stdout == "restarted 3 nodes: the cluster is healthy\n"
    assert "node 2: is back (1.0 became 1.1)" in result.stderr
    drained = [body["node"] for _, path, body in cluster.calls if path.endswith("/drain")]
    assert drained == [0, 1, 2]


def test_only_the_nodes_that_are_named(ctl: Typed, ran: list[list[str]]) -> None:
    ctl("restart", "--restart-cmd", "again {node}", "--node", "2", "--node", "1")
    assert [words[-1] for words in ran] == ["2", "1"]


def test_what_a_node_says_of_itself_stays_within_one_word(ctl: Typed, cluster: Pretended, ran: list[list[str]]) -> None:
    cluster.nodes[1]["address"] = "a; rm {node} 'b"
    ctl("restart", "--restart-cmd", "again '{address}' {host} {node}", "--node", "1")
    assert ran[0][1:] == ["a; rm {node} 'b", "127.0.0.1", "1"]


def test_a_degraded_cluster_is_not_restarted(ctl: Typed, cluster: Pretended, ran: list[list[str]]) -> None:
    cluster.nodes[2]["alive"] = False
    stderr = ctl("restart", "--restart-cmd", "x {node}", "--timeout", "0", code=1).stderr
    assert "not healthy within 0 s: node 2 is not alive" in stderr
    assert "nothing was restarted" in stderr
    assert (ran, cluster.calls) == ([], [])


def test_a_node_that_does_not_come_back_stops_it(
    ctl: Typed, cluster: Pretended, ran: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart, "_run", lambda words, node: cluster.nodes[0].update(alive=False))
    stderr = ctl("restart", "--restart-cmd", "x {node}", "--timeout", "0.2", code=1).stderr
    assert "stopped at node 0; restarted before it: none" in stderr
    assert "node 0 is not alive" in stderr
    assert [body["node"] for _, path, body in cluster.calls if path.endswith("/drain")] == [0]


def test_a_node_whose_groups_stay_is_not_restarted(ctl: Typed, cluster: Pretended, ran: list[list[str]]) -> None:
    cluster.on_call = lambda path, body: None
    stderr = ctl("restart", "--restart-cmd", "x {node}", "--timeout", "0", code=1).stderr
    assert "not drained within 0 s" in stderr
    assert ran == []


def test_the_command_is_run_and_its_failure_stops_everything(ctl: Typed, cluster: Pretended, tmp_path: Path) -> None:
    def drain(path: str, body: Any) -> None:
        cluster.nodes[body["node"]]["draining"] = True
        cluster.hand_over(body["node"])

    cluster.on_call = drain
    seen = tmp_path / "seen"
    command = f"{sys.executable} -c \"import sys; open('{seen}', 'w').write(sys.argv[1]); sys.exit(3)\" {{node}}"
    stderr = ctl("restart", "--restart-cmd", command, code=1).stderr
    assert seen.read_text() == "0"
    assert "ended with 3" in stderr
    assert "headwater ctl undrain 0" in stderr
    assert "cannot run" in ctl("restart", "--restart-cmd", str(tmp_path / "missing"), "--node", "1", code=1).stderr


def test_a_node_that_takes_its_time_is_waited_for(
    ctl: Typed, cluster: Pretended, ran: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def look(facts: Facts) -> Facts:
        nonlocal looks
        looks += 1
        if looks == 3:
            cluster.restarted(1)
        return facts

    def run(words: list[str], node: Any) -> None:
        cluster.nodes[1]["alive"] = False
        cluster.views[0] = look

    monkeypatch.setattr(restart, "_run", run)
    stderr = ctl("restart", "--restart-cmd", "x {node}", "--node", "1").stderr
    assert "waiting: node 1 is not alive" in stderr


def test_a_dry_run_shows_the_plan_and_asks_for_nothing(ctl: Typed, cluster: Pretended, ran: list[list[str]]) -> None:
    plan = ctl("restart", "--dry-run", "--restart-cmd", "systemctl restart headwater@{node}").stdout
    assert "  run: systemctl restart headwater@1\n" in plan
    assert "(now: groups 0, 3)" in plan
    cluster.owners[0] = None
    assert "would wait now" in ctl("restart", "--dry-run").stdout
    assert (ran, cluster.calls) == ([], [])


def test_a_command_is_needed_and_has_to_be_readable(ctl: Typed) -> None:
    assert "--restart-cmd is missing" in ctl("restart", code=2).stderr
    assert "cannot be read" in ctl("restart", "--restart-cmd", "a 'b", code=2).stderr
    assert "is empty" in ctl("restart", "--restart-cmd", " ", code=2).stderr
