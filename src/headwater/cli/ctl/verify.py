"""`headwater ctl verify`: whether the nodes of a cluster agree, and whether each group is what its owner says.

Owns what is compared. Never changes anything, and reads no object of the lake itself: `headwater lake verify` does, of
a stopped node.
"""

from __future__ import annotations

import json
import time

import typer

from headwater.cli.client import ClientError
from headwater.cli.ctl.cluster import Cluster, ClusterSeen, seen_by
from headwater.cli.ctl.common import LOOK_S, AsJson, Urls, connected, counted, say, show, telling
from headwater.cli.ctl.health import differences, group_differences, owner_problems, problems

ROUNDS = 5
"""Nodes hear of a change one after the other: what they disagree on is asked again so many times."""


def verify(urls: Urls = None, as_json: AsJson = False) -> None:
    """Ask every node how it sees the cluster, and every owner for its group, and compare.

    Of each group: all nodes name the same owner; that node says so itself; the log reaches back to what the newest
    catalog snapshot needs; and the owner's catalog lists no file that the lake's table does not hold.

    Exit codes: 0 all is well; 1 something is wrong; 2 no node answers, or the command was wrong.

    Example: headwater ctl verify --json
    """
    with telling():
        cluster = connected(urls)
        seen, views, wrong = _agreed(cluster)
        found = [(group.group, *_group(cluster, seen, views, group.group)) for group in seen.groups]
        if as_json:
            facts = [{"group": group, "problems": some, "lake_files": files} for group, some, files in found]
            typer.echo(
                json.dumps(
                    {"ok": not wrong and not any(some for _, some, _ in found), "problems": wrong, "groups": facts}
                )
            )
        else:
            rows = [
                (str(group), "problem" if some else "ok", "?" if files is None else str(files), "; ".join(some))
                for group, some, files in found
            ]
            show(("group", "state", "lake files", "what is wrong"), rows)
            for one in wrong:
                say(f"cluster: {one}")
        bad = sum(bool(some) for _, some, _ in found)
        if not as_json:
            nodes = f"{counted(len(views), 'node')} asked"
            verdict = "problems found" if bad or wrong else "ok"
            say(f"{verdict}: {nodes}, {counted(len(found), 'group')}, {counted(bad, 'group')} with a problem")
        if bad or wrong:
            raise typer.Exit(1)


def _agreed(cluster: Cluster) -> tuple[ClusterSeen, dict[int, ClusterSeen], list[str]]:
    """What one node says, what each of them says, and what is wrong with that."""
    for left in reversed(range(ROUNDS)):
        seen = cluster.seen()
        views: dict[int, ClusterSeen] = {}
        wrong = problems(seen)
        for node in seen.nodes:
            try:
                view = seen_by(cluster.url_of(node))
            except ClientError as why:
                wrong.append(f"node {node.node} could not be asked: {why.message}")
                continue
            if view.node == node.node:
                views[node.node] = view
            else:
                wrong.append(f"node {view.node} answers at the address of node {node.node}")
        wrong += differences(views)
        split = any(group_differences(views, group.group) for group in seen.groups)
        if not left or not (wrong or split):
            break
        time.sleep(LOOK_S)
    return seen, views, wrong


def _group(
    cluster: Cluster, seen: ClusterSeen, views: dict[int, ClusterSeen], group: int
) -> tuple[list[str], int | None]:
    """What is wrong with the group, and how many files of the lake are its own; None when nobody could tell."""
    wrong = group_differences(views, group)
    files: int | None = None
    try:
        owned = cluster.ownership(group)
        if moved := owner_problems(seen, group, owned):
            # It may have gone over to another node since the first question.
            seen = cluster.seen()
            moved = owner_problems(seen, group, cluster.ownership(group))
        wrong += moved
        listed = cluster.lake_files(group).get("files")
        files = len(listed) if isinstance(listed, list) else None
    except ClientError as why:
        wrong.append(why.message)
    return wrong, files
