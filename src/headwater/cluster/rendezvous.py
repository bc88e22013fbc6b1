"""Which node should own a group, and who stands behind it: rendezvous hashing, with zones.

Owns the order of the line. Pure: every node that sees the same nodes computes the same line, and nobody coordinates.

Each node has a score for each group. The highest is first. A node that joins comes first only where its own score is
the highest, and one that leaves moves only the groups where it was first: no other group moves. Behind the first stand
nodes of other zones before those of zones that are already in the line, so that the standby survives the first's zone.
"""

from __future__ import annotations

from collections.abc import Mapping

from xxhash import xxh3_64_intdigest


def in_line(group: int, zones: Mapping[str, str]) -> list[str]:
    """The nodes in the order in which they should own the group. `zones`: the zone of each node's id, "" for none."""
    waiting = sorted(zones, key=lambda node: (-score(node, group), node))
    line: list[str] = []
    while waiting:
        # One round takes the best node of each zone. Nodes without a zone are each a zone of their own.
        seen: set[str] = set()
        left: list[str] = []
        for node in waiting:
            zone = zones[node]
            if zone and zone in seen:
                left.append(node)
            else:
                seen.add(zone)
                line.append(node)
        waiting = left
    return line


def score(node: str, group: int) -> int:
    return xxh3_64_intdigest(node.encode(), seed=group)
