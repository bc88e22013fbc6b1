"""Who of a cluster's nodes is alive, and which groups each says that it owns, as one node sees it.

Owns that view. Sans-IO: `pings` tells it what was heard. Never part of safety: it says when to try, and to whom a
request goes. Two nodes may see different things for a while; a request that reaches a node which does not own its group
is refused, and the client tries again.

A node is alive when it answered one of the last `missed_max` rounds of pings. Rounds are counted, not seconds: a node
that stood still for a minute has not seen the others miss anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from headwater.cluster import rendezvous
from headwater.cluster.nodes import Node
from headwater.errors import NoOwner

MISSED_MAX = 4


class Claim(NamedTuple):
    member: int
    epoch: int


class State(msgspec.Struct, frozen=True, array_like=True):
    """What a node tells of itself in a ping, and in the answer to one."""

    node: Node
    count: int
    """Rises with each change: of two states of one run, the higher count is the later one."""
    claims: dict[int, int]
    """The groups that it owns, with the epoch of each."""
    ready: list[int]
    """The groups that it follows and could take over without loading anything."""
    draining: bool
    """It wants to own nothing."""
    leaving: bool
    """It stops now."""
    preferred: list[int] = []
    """The groups that an operator moved to it: it comes before others in their lines, until it stops."""


class _Other:
    """Another node."""

    __slots__ = ("answered", "missed_count", "node", "state")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.state = State(node, -1, {}, [], False, False)
        self.answered = False
        """It has answered at least once."""
        self.missed_count = 0


class View:
    """Members are nodes, by number. Changes of one call become visible together."""

    def __init__(self, node: Node, groups_count: int, missed_max: int = MISSED_MAX) -> None:
        self.node = node
        self.me = node.number
        self.groups_count = groups_count
        self._missed_max = missed_max
        self._others: dict[int, _Other] = {}
        self._mine = State(node, 0, {}, [], False, False)
        self._alive: list[int] = [self.me]
        self._owners: dict[int, Claim] = {}
        self._epochs: dict[int, int] = {}
        self._lines: list[list[int]] = []
        self._standing: list[tuple[int, tuple[int, ...], tuple[int, ...], bool]] = []
        self._listed = False
        self.settled = False
        """Every node that was registered when this one came has answered, or had the time to: what nobody claims has no
        owner. A node that comes later owns nothing yet."""
        self.version = 0
        """Another number whenever the owner of any group has changed."""
        self.on_change: list[Callable[[], None]] = []
        """Called after who is alive, who owns what, who is ready or who drains has changed."""
        self.on_told: list[Callable[[], None]] = []
        """Called after this node's own state has changed: the others should hear of it."""

    # ---- what is seen -------------------------------------------------------------------------------------------

    @property
    def alive(self) -> list[int]:
        """This node, and all that answer, in ascending order."""
        return self._alive

    @property
    def others(self) -> list[int]:
        """All other nodes that are known, alive or not."""
        return sorted(self._others)

    def node_of(self, member: int) -> Node | None:
        if member == self.me:
            return self.node
        other = self._others.get(member)
        return None if other is None else other.node

    def zone(self, member: int) -> str:
        node = self.node_of(member)
        return "" if node is None else node.zone

    def state_of(self, member: int) -> State | None:
        """What the node told last, whether it is alive or not."""
        if member == self.me:
            return self._mine
        other = self._others.get(member)
        return None if other is None else other.state

    def claim_of(self, group: int) -> Claim | None:
        """The owner that is alive. A claim below the highest epoch that was ever seen is none."""
        return self._owners.get(group)

    def epoch_of(self, group: int) -> int:
        """The highest epoch that anybody was ever seen to claim the group with; 0 when nobody was."""
        return self._epochs.get(group, 0)

    def owner(self, group: int) -> int:
        """Raises NoOwner."""
        claim = self._owners.get(group)
        if claim is None:
            raise NoOwner(group)
        return claim.member

    def groups_of(self, member: int) -> list[int]:
        return sorted(group for group, claim in self._owners.items() if claim.member == member)

    def in_line(self, group: int) -> list[int]:
        """Who is alive and does not drain, in the order in which they should own the group."""
        if not self._lines:
            by_id = {node.id: member for member in self._alive if (node := self._willing(member)) is not None}
            zones = {node_id: self.zone(member) for node_id, member in by_id.items()}
            for number, ids in enumerate(rendezvous.lines(self.groups_count, zones)):
                line = [by_id[node_id] for node_id in ids]
                preferred = [member for member in line if self.is_preferred(member, number)]
                self._lines.append([*preferred, *(member for member in line if member not in preferred)])
        return self._lines[group]

    def is_preferred(self, member: int, group: int) -> bool:
        state = self.state_of(member)
        return state is not None and group in state.preferred

    def successor(self, group: int) -> int | None:
        """Who claims the group when it has no owner: the first in line of those that are ready for it, otherwise the
        first in line. A node that came back and is first in line does not keep a standby from taking over."""
        line = self.in_line(group)
        for member in line:
            state = self.state_of(member)
            if state is not None and group in state.ready:
                return member
        return line[0] if line else None

    def may_claim(self, group: int) -> bool:
        """This node is the one to claim the group now, because nobody who is alive owns it."""
        return self.settled and group not in self._owners and self.successor(group) == self.me

    def reads_format(self) -> int:
        """The highest format of log entries that every known node can read, alive or not."""
        return min(node.reads_format for node in (self.node, *(one.node for one in self._others.values())))

    def _willing(self, member: int) -> Node | None:
        state = self.state_of(member)
        return None if state is None or state.draining or state.leaving else state.node

    # ---- what this node tells -----------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._mine

    def claimed(self, group: int, epoch: int) -> None:
        """This node owns the group from now on."""
        self._tell(claims={**self._mine.claims, group: epoch})

    def gave_up(self, group: int) -> None:
        """This node does not own the group any more: it was fenced, or has handed it over."""
        self._tell(claims={one: epoch for one, epoch in self._mine.claims.items() if one != group})

    def set_ready(self, group: int, ready: bool) -> None:
        others = [one for one in self._mine.ready if one != group]
        self._tell(ready=sorted([*others, group]) if ready else others)

    def drain(self, draining: bool) -> None:
        self._tell(draining=draining)

    def prefer(self, group: int, preferred: bool) -> None:
        """An operator wants this node to own the group, or does not care any more."""
        others = [one for one in self._mine.preferred if one != group]
        self._tell(preferred=sorted([*others, group]) if preferred else others)

    def leave(self) -> None:
        self._tell(leaving=True)

    def _tell(self, **changes: object) -> None:
        changed = msgspec.structs.replace(self._mine, **changes)
        if changed != self._mine:
            self._mine = msgspec.structs.replace(changed, count=self._mine.count + 1)
            self._changed()
            for call in self.on_told:
                call()

    # ---- what is heard ------------------------------------------------------------------------------------------

    def registered(self, nodes: Iterable[Node]) -> None:
        """Takes up who is new, and forgets who is not registered any more and does not answer."""
        self._listed = True
        numbers = set()
        for node in nodes:
            numbers.add(node.number)
            self._meet(node)
        for member in [one for one in self._others if one not in numbers and one not in self._alive]:
            del self._others[member]
        self._changed()

    def heard(self, state: State, answered: bool) -> None:
        """What another node told. Only an answer shows that it can be reached from here."""
        node = state.node
        if node.number == self.me:
            return
        self._meet(node)
        other = self._others[node.number]
        if other.node.run != node.run:
            return  # of an earlier run, or of a node that has lost its number
        if answered:
            other.answered = True
            other.missed_count = 0
        if state.count > other.state.count:
            other.state = state
        if state.leaving:
            del self._others[node.number]
        self._changed()

    def round(self) -> None:
        """A round of pings begins: the last one is over for whoever has not answered."""
        for other in self._others.values():
            other.missed_count += 1
        self._changed()

    def _meet(self, node: Node) -> None:
        known = self._others.get(node.number)
        if node.number != self.me and (known is None or (node.turn > known.node.turn and node.run != known.node.run)):
            self._others[node.number] = _Other(node)

    # ---- inside -------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        before = self._alive, self._owners, self._standing
        self._alive = sorted(
            [self.me, *(n for n, one in self._others.items() if one.answered and one.missed_count <= self._missed_max)]
        )
        states = {member: state for member in self._alive if (state := self.state_of(member)) is not None}
        # A claim that was only heard of counts as well: whoever has a lower epoch was fenced.
        for state in (self._mine, *(one.state for one in self._others.values())):
            for group, epoch in state.claims.items():
                self._epochs[group] = max(self._epochs.get(group, 0), epoch)
        self._owners = {
            group: Claim(member, epoch)
            for member, state in states.items()
            for group, epoch in state.claims.items()
            if epoch == self._epochs[group]
        }
        self._standing = [
            (member, tuple(state.ready), tuple(state.preferred), state.draining) for member, state in states.items()
        ]
        settled = self.settled
        if self._listed and all(one.answered or one.missed_count > self._missed_max for one in self._others.values()):
            self.settled = True
        if self._owners != before[1]:
            self.version += 1
        if (self._alive, self._owners, self._standing) != before or self.settled != settled:
            self._lines.clear()
            for call in self.on_change:
                call()
