"""A cluster as people read it: the table, and the lines for what changed."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

from rich.console import Console

from headwater.cli.cluster_view import GroupSeen, Seen, changes, table

PROCESSES = {"node-0": "runs", "node-1": "runs", "s3": "runs"}


def node(number: int, alive: bool = True, draining: bool = False) -> dict[str, Any]:
    return {"node": number, "public_address": f"127.0.0.1:{9000 + number}", "alive": alive, "draining": draining}


def status(*nodes: dict[str, Any], owner: int | None = 1) -> dict[str, Any]:
    groups = [
        {"group": 0, "owner": 0, "epoch": 3, "in_line": [0, 1], "ready": [2, 1]},
        {"group": 1, "owner": owner, "epoch": 1, "in_line": [1, 0], "ready": [0]},
    ]
    return {"nodes": list(nodes), "groups": groups}


def seen(*nodes: dict[str, Any], owner: int | None = 1) -> Seen:
    return Seen.of(status(*nodes, owner=owner), PROCESSES, {"127.0.0.1:9000": 41, "127.0.0.1:9001": 42})


def drawn(what: Seen) -> list[list[str]]:
    """The cells of each line."""
    console = Console(file=StringIO(), width=120)
    console.print(table(what))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return [[cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]] for line in lines if "│" in line]


def caption(what: Seen) -> str:
    return str(table(what).caption)


def test_the_table_has_a_row_per_node_with_what_it_owns_and_could_take_over() -> None:
    assert drawn(seen(node(0), node(1)))[-2:] == [
        ["0", "127.0.0.1:9000", "41", "alive", "0@3", "1"],
        ["1", "127.0.0.1:9001", "42", "alive", "1@1", "0"],
    ]
    assert caption(seen(node(0), node(1))) == "all parts run"


def test_the_table_tells_draining_and_dead_nodes_and_groups_without_an_owner() -> None:
    assert drawn(seen(node(0, draining=True), node(7, alive=False), owner=None))[-3:] == [
        ["0", "127.0.0.1:9000", "41", "draining", "0@3", "1"],
        ["7", "127.0.0.1:9007", "", "gone", "", ""],
        ["", "nobody", "", "", "1", ""],
    ]


def test_under_the_table_stand_processes_that_do_not_run() -> None:
    processes = {**PROCESSES, "node-1": "was ended by signal 9"}
    assert caption(Seen.of(status(node(0)), processes, {})) == "node-1 was ended by signal 9"
    assert caption(Seen.of(None, processes, {})) == "no node answers; node-1 was ended by signal 9"


def test_at_first_everything_is_told() -> None:
    assert list(changes(Seen(), seen(node(0), node(1)))) == [
        "node 0 (127.0.0.1:9000) is alive",
        "node 1 (127.0.0.1:9001) is alive",
        "group 0: owner node 0, epoch 3, ready to take over: 1, 2",
        "group 1: owner node 1, epoch 1, ready to take over: 0",
    ]


def test_what_stays_is_not_told_again() -> None:
    assert list(changes(seen(node(0), node(1)), seen(node(0), node(1)))) == []


def test_a_dead_node_and_what_follows_is_told() -> None:
    before = seen(node(0), node(1))
    now = replace(
        seen(node(0), node(1, alive=False), owner=None),
        processes={**PROCESSES, "node-1": "was ended by signal 9"},
    )
    assert list(changes(before, now)) == [
        "node-1 was ended by signal 9",
        "node 1 (127.0.0.1:9001) is gone",
        "group 1: owner nobody, epoch 1, ready to take over: 0",
    ]
    taken = replace(now, groups={**now.groups, 1: GroupSeen(0, 2, ())})
    assert list(changes(now, taken)) == ["group 1: owner node 0, epoch 2, ready to take over: none"]
    assert list(changes(now, replace(now, processes=PROCESSES))) == ["node-1 runs"]


def test_a_node_that_is_registered_no_more_is_told() -> None:
    assert "node 1 is no longer registered" in list(changes(seen(node(0), node(1)), seen(node(0))))


def test_silence_is_told_once_and_its_end_with_everything() -> None:
    silent = Seen.of(None, PROCESSES, {})
    assert list(changes(seen(node(0)), silent)) == ["no node answers"]
    assert list(changes(silent, silent)) == []
    assert next(changes(silent, seen(node(0)))) == "node 0 (127.0.0.1:9000) is alive"


def test_an_address_from_elsewhere_cannot_write_to_the_terminal() -> None:
    bad = {**node(0), "public_address": "\x1b[2J"}
    assert not any("\x1b" in line for line in changes(Seen(), seen(bad)))
