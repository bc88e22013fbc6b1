"""Which log a node's positions are of: what a start leaves, what a copy is told by, and what calls refuse."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.lake.on_a_node.surface import QUIET, TEXT, append, flush, path_of
from tests.support.node import Node

GROUPS = "/__headwater/groups"
CALLS = (f"{GROUPS}/0/feed", f"{GROUPS}/0/cut", GROUPS, f"{GROUPS}/0/losses", f"{GROUPS}/0/lake/files")


def state(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = node.request("GET", GROUPS).json()["groups"][0]
    return found


def seen(node: Node) -> str:
    found = state(node)
    return f"{found['log']}/{found['incarnations'][-1][0]}/{found['position']}"


def codes(node: Node, expected: str) -> set[str | None]:
    """What each call says to who expects that."""
    found: set[str | None] = set()
    start = state(node)["lake_position"]
    for call in CALLS:
        query = f"?from={start}" if call.endswith(("feed", "cut")) else ""
        told = f"0:{expected}" if call == GROUPS else expected
        answer = node.request("GET", call + query, {"Headwater-Expected-Log": told})
        assert answer.status in (200, 400, 409), answer
        found.add(None if answer.status == 200 else answer.json()["error"]["code"])
    return found


def write(node: Node, count: int) -> None:
    with node.connect() as connection:
        connection.request("PUT", path_of("logs/one"), TEXT)
        for number in range(count):
            append(connection, "logs/one", b"%d" % number)


def test_a_restart_is_the_same_log_and_every_position_of_it_is_let_through(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=QUIET) as node:
        write(node, 3)
        first = seen(node)
        assert codes(node, first) == {None}
        node.restart()
        assert codes(node, first) == {None}
        write(node, 3)
        second = seen(node)
        flush(node)
        node.kill()
        node.start()
        assert codes(node, first) == codes(node, second) == {None}
        found = state(node)
        assert len(found["incarnations"]) == 3 and found["log"] == found["incarnations"][0][0]
        whole = node.request("GET", f"{GROUPS}/0/incarnations").json()
        assert whole["incarnations"] == found["incarnations"] and whole["log"] == found["log"]
        feed = node.request("GET", f"{GROUPS}/0/feed?from={found['lake_position']}")
        assert feed.header("headwater-log") == f"{found['log']}/{found['incarnations'][-1][0]}"
        files = node.request("GET", "/__headwater/groups/0/lake/files").json()
        assert (files["log"], files["incarnation"]) == (found["log"], found["incarnations"][-1][0])


def test_a_directory_put_back_to_an_earlier_state_is_told_from_what_it_was(tmp_path: Path) -> None:
    with Node.started(tmp_path / "node", flags=QUIET) as node:
        write(node, 3)
        early = seen(node)
        node.terminate()
        shutil.copytree(node.data_directory, tmp_path / "kept")
        node.start()
        late_by_nothing = seen(node)
        write(node, 3)
        late = seen(node)
        node.terminate()
        shutil.rmtree(node.data_directory)
        shutil.copytree(tmp_path / "kept", node.data_directory)
        node.start()
        write(node, 9)  # beyond where it was: positions alone tell nothing any more
        assert state(node)["position"] > int(late.rpartition("/")[2])
        assert codes(node, early) == {None}, "this is in both"
        assert codes(node, late) == codes(node, late_by_nothing) == {"log_set_back"}


def test_a_log_that_lost_its_end_and_one_made_anew_are_told(tmp_path: Path) -> None:
    with Node.started(tmp_path / "node", flags=QUIET) as node:
        write(node, 3)
        log, incarnation, position = seen(node).split("/")
        assert codes(node, f"{log}/{incarnation}/{int(position) + 1}") == {"log_set_back"}
        node.terminate()
        shutil.rmtree(node.data_directory)
        node.start()
        write(node, 9)
        assert codes(node, f"{log}/{incarnation}/{position}") == {"another_log"}
        for wrong in ("", "x", f"{log}/{position}", f"{log}/{incarnation}/-1", f"{log}/{incarnation}/{'9' * 30}"):
            assert codes(node, wrong) == {"bad_header"}, wrong


def test_a_node_that_keeps_nothing_is_another_log_after_each_start(tmp_path: Path) -> None:
    with Node.started(tmp_path, memory=True) as node:
        before = seen(node)
        node.restart()
        answer = node.request("GET", GROUPS, {"Headwater-Expected-Log": f"0:{before}"})
        assert answer.json()["error"]["code"] == "another_log"


def test_what_a_stream_let_go_of_is_told_with_when(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=QUIET) as node:
        assert node.request("PUT", "/logs").status == 201
        write(node, 5)
        before_it = state(node)["position"]
        assert node.request("PUT", f"/logs/one/snapshot/{3:020d}", TEXT, b"so far").status == 204
        (loss,) = node.request("GET", f"{GROUPS}/0/losses").json()["losses"]
        assert loss["position"] <= before_it < loss["at"] <= state(node)["position"]
        before = state(node)["position"]
        write(node, 1)
        node.restart()
        (again,) = node.request("GET", f"{GROUPS}/0/losses").json()["losses"]
        assert again == loss and again["at"] <= before
