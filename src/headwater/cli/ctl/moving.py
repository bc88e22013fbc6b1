"""`headwater ctl move`, `drain`, `undrain`, `forget` and `snapshot`: what an operator asks a cluster to do.

Owns the waiting until it is done. Never decides whether it may be done: nodes do.
"""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
import typer

from headwater.cli.client import BadUsage, ClientError
from headwater.cli.ctl.cluster import Cluster, ClusterSeen, NodeSeen, numbers
from headwater.cli.ctl.common import AsJson, NodeName, Timeout, Urls, Wait, connected, say, show, telling, wait
from headwater.cli.ctl.health import groups

GroupNumber = Annotated[int, typer.Argument(metavar="GROUP", min=0, help="Number of a group.", show_default=False)]


def move(
    group: GroupNumber,
    node: Annotated[
        str | None, typer.Argument(metavar="[NODE]", help="Number or id of a node.", show_default=False)
    ] = None,
    auto: Annotated[bool, typer.Option("--auto", help="No node is preferred any more.")] = False,
    wait_for: Wait = False,
    timeout_s: Timeout = 60.0,
    urls: Urls = None,
) -> None:
    """Let a node own a group, until that node stops; or with --auto whoever the placement gives it to.

    The group goes over when the node has followed its log to the end: nothing is refused meanwhile.

    Exit codes: 0 asked for, with --wait done; 1 refused or not in time; 2 no node answers, or the command was wrong.

    Examples: headwater ctl move 3 1 --wait; headwater ctl move 3 --auto
    """
    with telling():
        if (node is None) != auto:
            raise BadUsage("there must be one of NODE and --auto", "headwater ctl move GROUP NODE")
        cluster = connected(urls)
        seen = cluster.seen()
        seen.numbered(group)
        target = None if node is None else _able(seen.named(node))
        cluster.move(group, None if target is None else target.node)
        if not wait_for:
            to = "wherever it is placed" if target is None else f"to node {target.node}"
            say(f"group {group} goes {to}; see: headwater ctl groups")
            return

        def missing(seen: ClusterSeen) -> list[str]:
            one = seen.numbered(group)
            wanted = one.in_line[:1] if target is None else [target.node]
            if one.owner in wanted:
                return []
            return [f"group {group} is with {'nobody' if one.owner is None else f'node {one.owner}'}"]

        seen = wait(cluster, missing, "moved", timeout_s)
        say(f"group {group} is with node {seen.numbered(group).owner}")


def _able(node: NodeSeen) -> NodeSeen:
    if not node.alive:
        raise ClientError(f"node {node.node} is not alive", "see: headwater ctl status")
    if node.draining:
        raise ClientError(f"node {node.node} drains", f"first: headwater ctl undrain {node.node}")
    return node


def drain(name: NodeName, wait_for: Wait = False, timeout_s: Timeout = 120.0, urls: Urls = None) -> None:
    """Hand the groups of a node over to others, and let it take none: before it is stopped for a while.

    It serves on: requests are passed to the owners. Until undrain, or until it is started again.

    Exit codes: 0 asked for, with --wait it owns nothing; 1 refused or not in time; 2 no node answers, or the command
    was wrong.

    Example: headwater ctl drain 1 --wait
    """
    with telling():
        cluster = connected(urls)
        node = start_drain(cluster, name)
        if not wait_for:
            say(f"node {node.node} drains: {groups(node.groups) if node.groups else 'it owns nothing'}")
            return
        wait_drained(cluster, node, timeout_s)
        say(f"node {node.node} owns nothing")


def start_drain(cluster: Cluster, name: str) -> NodeSeen:
    """Raises ClientError, also when nobody could take the node's groups."""
    seen = cluster.seen()
    node = seen.named(name)
    if not node.alive:
        raise ClientError(f"node {node.node} is not alive", "its groups go to others by themselves")
    if not any(one.alive and not one.draining and one.node != node.node for one in seen.nodes):
        raise ClientError(
            f"no other node could take the groups of node {node.node}", "start another one, or undrain one"
        )
    cluster.drain(node.node, True)
    return node


def wait_drained(cluster: Cluster, node: NodeSeen, timeout_s: float) -> None:
    """Returns when the node owns nothing, and every group that it owned has another owner. Raises NotInTime."""

    def missing(seen: ClusterSeen) -> list[str]:
        now = next((one for one in seen.nodes if one.id == node.id), None)
        found = []
        if now is not None and now.groups:
            found.append(f"node {node.node} still owns {groups(now.groups)}")
        ownerless = [one.group for one in seen.groups if one.owner is None]
        if ownerless:
            found.append(f"{groups(ownerless)} without an owner")
        if now is not None and now.run == node.run and not now.draining:
            found.append(f"node {node.node} does not drain yet")
        return found

    advice = f"it drains on; take it back with: headwater ctl undrain {node.node}"
    wait(cluster, missing, "drained", timeout_s, advice)


def undrain(name: NodeName, urls: Urls = None) -> None:
    """Let a node own groups again.

    Exit codes: 0 asked for; 1 refused; 2 no node answers, or the command was wrong.

    Example: headwater ctl undrain 1
    """
    with telling():
        cluster = connected(urls)
        node = cluster.seen().named(name)
        cluster.drain(node.node, False)
        say(f"node {node.node} takes part again; its groups come back by and by")


def forget(name: NodeName, urls: Urls = None) -> None:
    """Take a node off the list that is gone for good, with its disk: the cluster waits for it no longer.

    A node that stops by itself is taken off by itself. One that is alive is refused.

    Exit codes: 0 done; 1 refused; 2 no node answers, or the command was wrong.

    Example: headwater ctl forget 1
    """
    with telling():
        cluster = connected(urls)
        node = cluster.seen().named(name)
        if node.alive:
            raise ClientError(f"node {node.node} is alive", "stop it: then it is taken off by itself")
        cluster.forget(node.node)
        say(f"node {node.node} is forgotten; its number is free")


def snapshot(
    group: Annotated[
        int | None,
        typer.Argument(
            metavar="[GROUP]", min=0, help="Of this group alone. Default: of every group.", show_default=False
        ),
    ] = None,
    urls: Urls = None,
    as_json: AsJson = False,
) -> None:
    """Write catalog snapshots now, and show the log positions that they are true for.

    A cluster does it by itself as its logs grow. A snapshot is what a new node begins with, and what a cluster comes
    back from that has lost its log.

    Exit codes: 0 written; 1 refused; 2 no node answers, or the command was wrong.

    Example: headwater ctl snapshot 3
    """
    with telling():
        cluster = connected(urls)
        seen = cluster.seen()
        if group is not None:
            seen.numbered(group)
        written = cluster.snapshot(group)
        if as_json:
            typer.echo(json.dumps({"groups": msgspec.to_builtins(written)}))
        else:
            rows = [(str(one.group), str(one.position), str(one.log_floor), str(one.epoch)) for one in written]
            show(("group", "position", "log needed from", "epoch"), rows)
        asked = {one.group for one in seen.groups} if group is None else {group}
        if lacking := asked - {one.group for one in written}:
            raise ClientError(f"no snapshot was written of {numbers(lacking)}", "see: headwater ctl groups")
