"""What is wrong with a cluster, from what one node or several say of it. Pure.

Owns what `healthy` and `ready` mean. Never asks anybody and never waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headwater.cli.ctl.cluster import ClusterSeen, OwnershipSeen, numbers


def unready(seen: ClusterSeen, nodes_count: int | None = None) -> list[str]:
    """Why the cluster does not serve everything: [] when every group has an owner and enough nodes are alive."""
    problems = []
    if not seen.settled:
        problems.append(f"node {seen.node} has not heard from the other nodes yet")
    ownerless = [group.group for group in seen.groups if group.owner is None]
    ownerless += set(range(seen.groups_count)) - {group.group for group in seen.groups}
    if ownerless:
        problems.append(f"{groups(ownerless)} {'has' if len(ownerless) == 1 else 'have'} no owner")
    alive = sum(node.alive for node in seen.nodes)
    if nodes_count is None:
        problems += [f"node {node.node} is not alive" for node in seen.nodes if not node.alive]
    elif alive < nodes_count:
        problems.append(f"{alive} of {nodes_count} nodes are alive")
    return problems


def problems(seen: ClusterSeen) -> list[str]:
    """Why the cluster is degraded: [] when it is ready, and every group has a node that could take it over at once."""
    alone = [group.group for group in seen.groups if group.owner is not None and not _standbys(seen, group.ready)]
    return unready(seen) + ([f"no node is ready to take over {groups(alone)}"] if alone else [])


def _standbys(seen: ClusterSeen, ready: Iterable[int]) -> list[int]:
    alive = {node.node for node in seen.nodes if node.alive and not node.draining}
    return [node for node in ready if node in alive]


def groups(found: Iterable[int]) -> str:
    some = sorted(set(found))
    return f"group {some[0]}" if len(some) == 1 else f"groups {numbers(some)}"


def remarks(seen: ClusterSeen) -> list[str]:
    """What is worth knowing and not wrong."""
    found = [f"node {node.node} drains" for node in seen.nodes if node.draining]
    versions = sorted({node.version for node in seen.nodes if node.alive})
    if len(versions) > 1:
        found.append(f"nodes run different versions: {', '.join(versions)}")
    return found


def differences(views: Mapping[int, ClusterSeen]) -> list[str]:
    """Where nodes contradict each other. Keys are the nodes that were asked."""
    found = []
    for what in ("name", "log", "format", "groups_count"):
        said = {node: getattr(seen, what) for node, seen in views.items()}
        if len(set(said.values())) > 1:
            found.append(f"nodes do not agree on the cluster's {what.replace('_', ' ')}: {_who_says(said)}")
    known = {node: tuple((one.node, one.id, one.run) for one in seen.nodes) for node, seen in views.items()}
    if len(set(known.values())) > 1:
        listed = {node: numbers(one.node for one in seen.nodes) for node, seen in views.items()}
        found.append(f"nodes know different nodes, or different runs of them: {_who_says(listed)}")
    for node, seen in views.items():
        missing = [one.node for one in seen.nodes if one.node in views and not one.alive]
        found += [f"node {node} does not reach node {other}, which answers" for other in missing]
    return found


def group_differences(views: Mapping[int, ClusterSeen], group: int) -> list[str]:
    """Where nodes name different owners of a group."""
    said = {}
    for node, seen in views.items():
        one = next((one for one in seen.groups if one.group == group), None)
        said[node] = "nobody" if one is None or one.owner is None else f"node {one.owner} in epoch {one.epoch}"
    return [f"nodes name different owners: {_who_says(said)}"] if len(set(said.values())) > 1 else []


def _who_says(said: Mapping[int, object]) -> str:
    by_value: dict[object, list[int]] = {}
    for node, value in said.items():
        by_value.setdefault(value, []).append(node)
    return "; ".join(
        f"{value} by node{'' if len(nodes) == 1 else 's'} {numbers(nodes)}" for value, nodes in by_value.items()
    )


def owner_problems(seen: ClusterSeen, group: int, owned: OwnershipSeen) -> list[str]:
    """What an owner says of its group, beside what the cluster says of it."""
    found = []
    one = seen.numbered(group)
    if owned.state != "owner":
        found.append(f"node {owned.node} answers for it and is {owned.state}")
    if one.owner is not None and (owned.node, owned.epoch) != (one.owner, one.epoch):
        found.append(
            f"node {owned.node} owns it in epoch {owned.epoch}, and node {seen.node} says node {one.owner} "
            f"in epoch {one.epoch}"
        )
    if owned.snapshot is not None and owned.snapshot.log_floor < owned.log_head:
        found.append(
            f"its log begins at {owned.log_head}, and its catalog snapshot needs it from {owned.snapshot.log_floor} "
            "on: no new node could follow it"
        )
    if owned.snapshot is not None and owned.snapshot.position > owned.position:
        found.append(f"its catalog snapshot is at {owned.snapshot.position}, and its log ends at {owned.position}")
    if owned.snapshot is None and owned.log_head > 0:
        found.append(f"its log begins at {owned.log_head}, and there is no catalog snapshot")
    if owned.snapshot_failure is not None:
        found.append(owned.snapshot_failure)
    return found
