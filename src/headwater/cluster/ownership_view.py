"""The view as `ownership` takes it: nodes by their ids, which is what claims in the logs name.

Owns the way from ids to numbers, and tells the others which groups this node serves. A listener of the engine, so that
what is told changes in the same turn as what is served.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.cluster.view import View
from headwater.engine.owned_group import OwnedGroup
from headwater.errors import MemberUnavailable


class OwnershipView:
    """`epoch_of` tells the epoch of this node's own claim of a group, once it has claimed it."""

    def __init__(self, view: View, epoch_of: Callable[[int], int]) -> None:
        self._view = view
        self._epoch_of = epoch_of
        self.me = view.node.id

    def alive(self) -> list[str]:
        """Members that answered lately, and this one."""
        return [self._id(member) for member in self._view.alive]

    def in_line(self, group: int) -> list[str]:
        """Those of them in the order in which they should own the group; nobody until the view is settled."""
        return [self._id(member) for member in self._view.in_line(group)] if self._view.settled else []

    def successor(self, group: int) -> str | None:
        """Who of them claims the group when it has no owner; nobody until the view is settled. See `View.successor`."""
        member = self._view.successor(group) if self._view.settled else None
        return None if member is None else self._id(member)

    def is_urgent(self, group: int) -> bool:
        """The first in line should have the group now: this node drains, or an operator moved the group there."""
        line = self._view.in_line(group)
        return self._view.state.draining or bool(line and self._view.is_preferred(line[0], group))

    def claimed(self, group: int) -> tuple[str, int] | None:
        """Who of the other members that are alive says that it owns the group, and the epoch: the highest one."""
        claim = self._view.claim_of(group)
        return None if claim is None or claim.member == self._view.me else (self._id(claim.member), claim.epoch)

    def number_of(self, member: str) -> int:
        """Raises MemberUnavailable when it is not alive."""
        for number in self._view.alive:
            if self._id(number) == member:
                return number
        raise MemberUnavailable(-1)

    def set_ready(self, group: int, ready: bool) -> None:
        """This node has followed the group to its end, or does not follow it any more."""
        self._view.set_ready(group, ready)

    # ---- as a listener of the engine ------------------------------------------------------------------------------

    def entered(self, owned: OwnedGroup) -> None:
        self._view.claimed(owned.number, self._epoch_of(owned.number))

    def left(self, owned: OwnedGroup) -> None:
        self._view.gave_up(owned.number)

    def _id(self, member: int) -> str:
        node = self._view.node_of(member)
        return "" if node is None else node.id
