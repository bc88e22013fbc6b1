"""Patterns over stream paths: `*` is any one segment, `**` any number of them, everything else stands for itself.

Owns their meaning and the search of many patterns at once. Never looks a stream up.
"""

from __future__ import annotations

PATTERN_BYTES_MAX = 1_024
ANY_DEPTH_MAX = 4
"""`**` in one pattern: each one multiplies the ways a path can be split."""

ONE, MANY = 0, 1
"""The wildcards inside a parsed pattern; literal segments are strings, so that `%2A` can mean a real star."""

Segment = int | str


def parse(pattern: str) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    for part in pattern.split("/"):
        if part == "**":
            if segments[-1:] != [MANY]:
                segments.append(MANY)
        elif part == "*":
            segments.append(ONE)
        else:
            segments.append(part.replace("%2A", "*").replace("%2a", "*"))
    return tuple(segments)


def matches(pattern: str, path: str) -> bool:
    single = Patterns()
    single.add(pattern, pattern)
    return bool(single.matching(path))


def literal_prefix(pattern: str) -> tuple[str, bool]:
    """What every matching path begins with, in whole segments, and whether that is already the whole pattern."""
    segments = parse(pattern)
    prefix: list[str] = []
    for segment in segments:
        if not isinstance(segment, str):
            break
        prefix.append(segment)
    return "/".join(prefix), len(prefix) == len(segments)


class _Node:
    __slots__ = ("names", "next")

    def __init__(self) -> None:
        self.next: dict[Segment, _Node] = {}
        self.names: set[str] = set()


class Patterns:
    """Named patterns. A search costs by the patterns that share the path's beginning, not by how many there are."""

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, pattern: str, name: str) -> None:
        node = self._root
        for segment in parse(pattern):
            node = node.next.setdefault(segment, _Node())
        node.names.add(name)

    def remove(self, pattern: str, name: str) -> None:
        """Forgets the name under that pattern, and every branch that only it needed."""
        way: list[tuple[_Node, Segment]] = []
        node = self._root
        for segment in parse(pattern):
            following = node.next.get(segment)
            if following is None:
                return
            way.append((node, segment))
            node = following
        node.names.discard(name)
        for before, segment in reversed(way):
            child = before.next[segment]
            if child.names or child.next:
                break
            del before.next[segment]

    def matching(self, path: str) -> set[str]:
        segments = path.split("/")
        count = len(segments)
        found: set[str] = set()
        seen: set[tuple[int, int]] = set()
        todo = [(self._root, 0)]
        while todo:
            node, at = todo.pop()
            if (id(node), at) in seen:
                continue
            seen.add((id(node), at))
            many = node.next.get(MANY)
            if many is not None:
                todo.extend((many, later) for later in range(at, count + 1))
            if at == count:
                found |= node.names
                continue
            for step in (segments[at], ONE):
                following = node.next.get(step)
                if following is not None:
                    todo.append((following, at + 1))
        return found
