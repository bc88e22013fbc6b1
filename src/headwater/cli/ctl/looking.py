"""`headwater ctl status`, `wait-ready` and `groups`: how a cluster is.

Owns what is shown of it. Never changes anything.
"""

from __future__ import annotations

import json
import time
from typing import Annotated

import msgspec
import typer

from headwater.cli.client import ClientError
from headwater.cli.ctl.cluster import ClusterSeen, GroupSeen, OwnershipSeen, numbers
from headwater.cli.ctl.common import AsJson, Timeout, Urls, connected, counted, lasted, say, show, telling, wait
from headwater.cli.ctl.health import problems, remarks, unready


def status(urls: Urls = None, as_json: AsJson = False) -> None:
    """Show the nodes of a cluster, and whether it is healthy.

    Degraded is a cluster with a group that has no owner, a node that is not alive, or a group that no other node is
    ready to take over. What is shown is what the node that is asked believes.

    Exit codes: 0 healthy; 1 degraded; 2 no node answers, or the command was wrong.

    Example: headwater ctl status --url http://10.0.0.1:4437,http://10.0.0.2:4437
    """
    with telling():
        seen = connected(urls).seen()
        wrong, notes = problems(seen), remarks(seen)
        if as_json:
            health = {"health": "degraded" if wrong else "healthy", "problems": wrong, "remarks": notes}
            typer.echo(json.dumps(health | msgspec.to_builtins(seen)))
        else:
            titles = ("node", "address", "version", "zone", "up", "state", "owns", "standby for")
            show(titles, _node_rows(seen))
            say(_health_line(seen, wrong, notes))
        if wrong:
            raise typer.Exit(1)


def _node_rows(seen: ClusterSeen) -> list[tuple[str, ...]]:
    now_ms = int(time.time() * 1000)
    return [
        (
            str(node.node),
            node.public_address,
            node.version,
            node.zone or "-",
            lasted(now_ms - node.started_ms) if node.alive else "-",
            ("draining" if node.draining else "alive") if node.alive else "not alive",
            f"{len(node.groups)}: {numbers(node.groups)}" if node.groups else "0",
            f"{len(node.ready)}: {numbers(node.ready)}" if node.ready else "0",
        )
        for node in seen.nodes
    ]


def _health_line(seen: ClusterSeen, wrong: list[str], notes: list[str]) -> str:
    size = f"{counted(len(seen.nodes), 'node')}, {counted(seen.groups_count, 'group')}"
    if wrong:
        return f"degraded: {'; '.join([*wrong, *notes])} ({size})"
    return "; ".join([f"healthy: {size}, each with an owner and a standby", *notes])


def wait_ready(
    nodes_count: Annotated[
        int | None,
        typer.Option(
            "--nodes", metavar="N", min=1, help="So many nodes must be alive. Default: all.", show_default=False
        ),
    ] = None,
    groups_count: Annotated[
        int | None,
        typer.Option("--expected-groups", metavar="N", min=1, help="The cluster must have so many groups."),
    ] = None,
    timeout_s: Timeout = 60.0,
    urls: Urls = None,
) -> None:
    """Return when every group has an owner and the nodes are alive: for scripts that start or change a cluster.

    Says on standard error what is missing whenever that changes, and ends with one line about it when the time is over.

    Exit codes: 0 ready; 1 not in time; 2 no node answered in time, or the command was wrong.

    Example: headwater ctl wait-ready --nodes 3 --timeout 120
    """
    with telling():

        def missing(seen: ClusterSeen) -> list[str]:
            if groups_count is not None and seen.groups_count != groups_count:
                advice = "the number of groups is fixed when a cluster is made"
                raise ClientError(f"the cluster has {seen.groups_count} groups, and not {groups_count}", advice)
            return unready(seen, nodes_count)

        seen = wait(connected(urls), missing, "ready", timeout_s)
        alive = sum(node.alive for node in seen.nodes)
        say(f"ready: {counted(alive, 'node')} alive, {counted(seen.groups_count, 'group')}, each with an owner")


def groups(urls: Urls = None, as_json: AsJson = False) -> None:
    """Show every group: its owner, who could take it over, and how far its log and its catalog snapshot are.

    "needed of the log" is what a node reads that begins at the newest catalog snapshot: what no snapshot covers.

    Exit codes: 0 all groups answered; 1 one did not; 2 no node answers, or the command was wrong.

    Example: headwater ctl groups --json
    """
    with telling():
        cluster = connected(urls)
        seen = cluster.seen()
        found: list[tuple[GroupSeen, OwnershipSeen | None, str]] = []
        for group in seen.groups:
            try:
                found.append((group, cluster.ownership(group.group), ""))
            except ClientError as why:
                if why.exit_code == 2:
                    raise
                found.append((group, None, why.message))
        if as_json:
            facts = [
                msgspec.to_builtins(group)
                | {"ownership": msgspec.to_builtins(owned), "problem": trouble or None}
                | {"uncovered_bytes": None if owned is None else owned.uncovered_bytes}
                for group, owned, trouble in found
            ]
            typer.echo(json.dumps({"groups": facts}))
        else:
            titles = ("group", "owner", "epoch", "ready", "position", "snapshot at", "needed of the log", "trouble")
            show(titles, [_group_row(*one) for one in found])
        if any(trouble for _, _, trouble in found):
            raise typer.Exit(1)


def _group_row(group: GroupSeen, owned: OwnershipSeen | None, trouble: str) -> tuple[str, ...]:
    owner = "nobody" if group.owner is None else str(group.owner)
    known = (str(group.group), owner, str(group.epoch), numbers(group.ready) or "nobody")
    if owned is None:
        return (*known, "?", "?", "?", trouble)
    snapshot = "none" if owned.snapshot is None else str(owned.snapshot.position)
    needed = f"{owned.uncovered_bytes:,} bytes"
    return (*known, str(owned.position), snapshot, needed, owned.snapshot_failure or "")
