"""A cluster as people read it: a table of its nodes and their groups, and what changed from one look to the next.

Pure: it is given what a node answered and draws no conclusion of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from headwater.client.connection import printable

NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class NodeSeen:
    address: str
    state: str
    """alive, draining, or gone: as the node that was asked sees it."""
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class GroupSeen:
    owner: int | None
    epoch: int
    ready: tuple[int, ...]
    """Nodes that could take it over at once."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a cluster."""

    answered: bool = True
    nodes: Mapping[int, NodeSeen] = field(default_factory=dict)
    groups: Mapping[int, GroupSeen] = field(default_factory=dict)
    processes: Mapping[str, str] = field(default_factory=dict)
    """What became of each process of a local cluster, by its name."""

    @classmethod
    def of(cls, status: Mapping[str, Any] | None, processes: Mapping[str, str], pids: Mapping[str, int]) -> Seen:
        """`status` is what `GET /__headwater/cluster` answered, None when no node did; `pids` are by public address."""
        if status is None:
            return cls(answered=False, processes=processes)
        nodes = {
            node["node"]: NodeSeen(printable(node["public_address"]), _state(node), pids.get(node["public_address"]))
            for node in status["nodes"]
        }
        groups = {
            group["group"]: GroupSeen(group["owner"], group["epoch"], tuple(sorted(group["ready"])))
            for group in status["groups"]
        }
        return cls(True, nodes, groups, processes)


def _state(node: Mapping[str, Any]) -> str:
    if not node["alive"]:
        return "gone"
    return "draining" if node["draining"] else "alive"


def table(seen: Seen) -> Table:
    """A row per node: which groups it owns, each with the epoch of its ownership, and which it could take over."""
    shown = Table(title=None, caption=_caption(seen), caption_justify="left", expand=False)
    for name in ("node", "address", "process", "state", "owns group@epoch", "ready to take over"):
        shown.add_column(name, overflow="fold")
    for number, node in sorted(seen.nodes.items()):
        owns = [f"{group}@{one.epoch}" for group, one in sorted(seen.groups.items()) if one.owner == number]
        ready = [str(group) for group, one in sorted(seen.groups.items()) if number in one.ready]
        pid = "" if node.pid is None else str(node.pid)
        shown.add_row(str(number), node.address, pid, node.state, " ".join(owns), " ".join(ready))
    without = [str(group) for group, one in sorted(seen.groups.items()) if one.owner is None]
    if without:
        shown.add_row("", NOBODY, "", "", " ".join(without), "")
    return shown


def _caption(seen: Seen) -> str:
    parts = [] if seen.answered else ["no node answers"]
    parts += [f"{name} {state}" for name, state in seen.processes.items() if state != "runs"]
    return "; ".join(parts) or "all parts run"


def changes(before: Seen, now: Seen) -> Iterator[str]:
    """A line for each thing that is not as it was."""
    for name, state in now.processes.items():
        if before.processes.get(name, "runs") != state:
            yield f"{name} {state}"
    if not now.answered:
        if before.answered:
            yield "no node answers"
        return
    for number, node in sorted(now.nodes.items()):
        old = before.nodes.get(number)
        if old is None or (old.address, old.state) != (node.address, node.state):
            yield f"node {number} ({node.address}) is {node.state}"
    for number in sorted(before.nodes.keys() - now.nodes.keys()):
        yield f"node {number} is no longer registered"
    for number, group in sorted(now.groups.items()):
        if before.groups.get(number) != group:
            owner = NOBODY if group.owner is None else f"node {group.owner}"
            ready = ", ".join(map(str, group.ready)) or "none"
            yield f"group {number}: owner {owner}, epoch {group.epoch}, ready to take over: {ready}"
