"""Which node should own a group, and who stands behind it: rendezvous hashing, with zones, in equal shares.

Owns the order of the lines. Pure: every node that sees the same nodes computes the same lines, and nobody coordinates.

Each node has a score for each group. The highest is first, unless it is first for its share of the groups already; then
it is the next one that is not. Shares differ by one at most: of 4 groups on three nodes two nodes have one. Without
shares, 16 groups on three nodes came out as 8, 5 and 3. The price: a node that joins or leaves moves some groups more
than its own, as many as the shares make room for or push out. Behind the first
stand nodes of other zones before those of zones that are already in the line, so that the standby survives the first's
zone.
"""

from __future__ import annotations

from collections.abc import Mapping

from xxhash import xxh3_64_intdigest


def lines(groups_count: int, zones: Mapping[str, str]) -> list[list[str]]:
    """The line of each group. Costs groups times nodes."""
    share, larger_count = divmod(groups_count, max(1, len(zones)))
    counts = dict.fromkeys(zones, 0)
    found: list[list[str]] = []
    for group in range(groups_count):
        line = in_line(group, zones)
        # So many nodes have one more than the others: the first that come to it.
        room = share + 1 if larger_count else share
        first = next((node for node in line if counts[node] < room), None)
        if first is not None:
            larger_count -= counts[first] == share
            counts[first] += 1
            line.remove(first)
            line.insert(0, first)
        found.append(line)
    return found


def in_line(group: int, zones: Mapping[str, str]) -> list[str]:
    """The nodes in the order of their scores, and by zones. `zones`: the zone of each node's id, "" for none."""
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
