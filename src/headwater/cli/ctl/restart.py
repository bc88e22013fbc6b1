"""`headwater ctl restart`: every node of a cluster in turn, so that nothing is refused meanwhile.

Owns the order of the steps and what has to hold between them. Never goes on after a step that failed, and never starts
or stops anything itself: the command that it is given does.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import Annotated

import typer

from headwater.cli.client import BadUsage, ClientError
from headwater.cli.ctl.cluster import Cluster, ClusterSeen, NodeSeen
from headwater.cli.ctl.common import Urls, connected, counted, note, say, telling, wait
from headwater.cli.ctl.health import groups, problems
from headwater.cli.ctl.moving import start_drain, wait_drained

HEALTHY_S_MAX = 15.0
"""For how long a cluster is waited for before the first node is touched."""
_PLACEHOLDER = re.compile(r"\{(node|id|address|public_address|host)\}")
_BRACED = re.compile(r"(?<!\$)\{([a-z_]+)\}")
"""What looks like one. After a dollar it is a variable of the shell that the command starts."""


def restart(
    command: Annotated[
        str | None,
        typer.Option(
            "--restart-cmd",
            metavar="COMMAND",
            help="What restarts a node. {node}, {id}, {address}, {public_address} and {host} stand for its number, id, "
            "addresses, and the host of its public address. It is run without a shell.",
            show_default=False,
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="NODE", help="Only this one; may be given several times.", show_default=False),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long each step may take.")
    ] = 120.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    urls: Urls = None,
) -> None:
    """Restart the nodes one after the other: the safe way to a new version or new settings.

    For each node: drain it and wait until it owns nothing; run the command; wait until the node has come back as
    another run; wait until the cluster is healthy. The first failure ends it, and says what to do.

    Exit codes: 0 all done; 1 a step failed or the cluster is not healthy; 2 no node answers, or the command was wrong.

    Example: headwater ctl restart --restart-cmd "ssh {host} systemctl restart headwater@{node}"
    """
    with telling():
        if command is None and not dry_run:
            raise BadUsage("--restart-cmd is missing", 'such as --restart-cmd "systemctl restart headwater@{node}"')
        cluster = connected(urls)
        seen = cluster.seen()
        nodes = [seen.named(name) for name in dict.fromkeys(names)] if names else seen.nodes
        words = {node.id: _words(command or "COMMAND", node) for node in nodes}
        if dry_run:
            _show_plan(seen, nodes, words)
            return
        # A group that has just moved has no standby for a moment.
        wait(cluster, problems, "healthy", min(timeout_s, HEALTHY_S_MAX), "mend that first; nothing was restarted")
        done: list[NodeSeen] = []
        for node in nodes:
            try:
                _one(cluster, node, words[node.id], timeout_s)
            except ClientError as why:
                note(f"stopped at node {node.node}; restarted before it: {_numbers(done)}")
                raise why
            done.append(node)
        say(f"restarted {counted(len(done), 'node')}: the cluster is healthy")


def _numbers(nodes: list[NodeSeen]) -> str:
    return ", ".join(str(node.node) for node in nodes) or "none"


def _one(cluster: Cluster, node: NodeSeen, words: list[str], timeout_s: float) -> None:
    note(f"node {node.node}: drains {groups(node.groups) if node.groups else '(it owns nothing)'}")
    start_drain(cluster, node.id)
    wait_drained(cluster, node, timeout_s)
    before = cluster.seen().named(node.id)
    note(f"node {node.node}: runs {shlex.join(words)}")
    _run(words, node)
    after = wait(
        cluster,
        lambda seen: _not_back(seen, before),
        f"back: node {node.node}",
        timeout_s,
        f"look at its log; it is drained as long as it is the old run: headwater ctl undrain {node.node}",
    ).named(node.id)
    changed = "" if after.version == before.version else f" ({before.version} became {after.version})"
    note(f"node {node.node}: is back{changed}")
    wait(cluster, problems, "healthy", timeout_s, f"node {node.node} was restarted; no other node was touched since")


def _not_back(seen: ClusterSeen, before: NodeSeen) -> list[str]:
    now = next((one for one in seen.nodes if one.id == before.id), None)
    if now is None:
        return [f"node {before.node} is stopped"]
    if now.run == before.run:
        return [f"node {before.node} {'is still the old run' if now.alive else 'is not alive'}"]
    if not now.alive:
        return [f"node {before.node} has started, and the others do not reach it yet"]
    if now.draining:
        return [f"node {before.node} is back and drains"]
    return []


def _run(words: list[str], node: NodeSeen) -> None:
    kept = f"node {node.node} is drained; let it take part again with: headwater ctl undrain {node.node}"
    try:
        # Its output is the operator's; standard output is kept for what this command says.
        code = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=2, check=False).returncode
    except OSError as why:
        raise ClientError(f"cannot run {words[0]}: {why.strerror or why}", kept) from None
    if code:
        raise ClientError(f"{shlex.join(words)} ended with {code}", kept)


def _words(command: str, node: NodeSeen) -> list[str]:
    """Split before anything is put in: what a node says of itself stays within one word."""
    values = {
        "node": str(node.node),
        "id": node.id,
        "address": node.address,
        "public_address": node.public_address,
        "host": node.public_address.rpartition(":")[0].strip("[]"),
    }
    try:
        words = shlex.split(command)
    except ValueError as why:
        raise BadUsage(f"--restart-cmd cannot be read: {why}", "check its quotes") from None
    if not words:
        raise BadUsage("--restart-cmd is empty", 'such as "systemctl restart headwater@{node}"')
    for unknown in _BRACED.findall(command):
        if unknown not in values:
            known = ", ".join(f"{{{name}}}" for name in values)
            raise BadUsage(f"--restart-cmd has {{{unknown}}}, which stands for nothing", f"use {known}")
    return [_PLACEHOLDER.sub(lambda found: values[found[1]], word) for word in words]


def _show_plan(seen: ClusterSeen, nodes: list[NodeSeen], words: dict[str, list[str]]) -> None:
    wrong = problems(seen)
    if wrong:
        say(f"would wait now, and then refuse: the cluster is degraded ({'; '.join(wrong)})")
    for node in nodes:
        owned = groups(node.groups) if node.groups else "nothing"
        say(f"node {node.node} ({node.public_address}, version {node.version})")
        say(f"  drain it, and wait until it owns nothing (now: {owned})")
        say(f"  run: {shlex.join(words[node.id])}")
        say(f"  wait until it is back as another run than {node.run}")
        say("  wait until the cluster is healthy")
