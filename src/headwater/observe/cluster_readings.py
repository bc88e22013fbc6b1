"""What a node of a cluster tells of the cluster, as it sees it.

Owns that list, and the reading of it. Never asks another node: a page about this node must not wait for one.
"""

from __future__ import annotations

from typing import Protocol

from headwater.cluster.ownership import AWAY, OWNER, STANDBY, SUSPENDED, Ownership
from headwater.cluster.view import View


class ClusterReadings(Protocol):
    @property
    def groups_count(self) -> int: ...

    @property
    def is_settled(self) -> bool:
        """Every node that was registered when this one came has answered, or had the time to."""
        ...

    @property
    def is_draining(self) -> bool:
        """This node wants to own nothing, or stops."""
        ...

    def nodes_alive(self) -> int:
        """This one among them."""
        ...

    def groups_owned(self) -> int:
        """By this node."""
        ...

    def groups_without_owner(self) -> list[int]: ...

    def standbys_ready(self) -> int:
        """Groups of other nodes that this one could take over at once."""
        ...

    def snapshots_failing(self) -> int:
        """Groups that this node owns or follows whose last step with a catalog snapshot did not succeed."""
        ...

    def groups_by_state(self) -> dict[str, float]:
        """All groups, by what this node is to them."""
        ...

    def standby_lag_s(self) -> float:
        """The longest time since a standby of this node got something of its log."""
        ...

    def snapshot_age_s(self) -> float:
        """The greatest age of the newest catalog snapshots of groups that this node owns."""
        ...

    def snapshot_lag_bytes(self) -> int:
        """Log of groups that this node owns, and that no catalog snapshot covers."""
        ...

    def claims(self) -> int:
        """Groups that this node has taken over since its start."""
        ...

    def hand_overs(self) -> int:
        """Groups that this node has let go of in good order since its start."""
        ...

    def suspensions(self) -> int:
        """How often this node has stopped to serve a group since its start, because the log gave no answer in time."""
        ...


class NodeReadings:
    """`ClusterReadings` of a running node."""

    def __init__(self, view: View, ownership: Ownership) -> None:
        self._view = view
        self._ownership = ownership
        self.groups_count = view.groups_count

    @property
    def is_settled(self) -> bool:
        return self._view.settled

    @property
    def is_draining(self) -> bool:
        return self._view.state.draining or self._view.state.leaving

    def nodes_alive(self) -> int:
        return len(self._view.alive)

    def groups_owned(self) -> int:
        return sum(group.state == OWNER for group in self._ownership.groups)

    def groups_without_owner(self) -> list[int]:
        return [group for group in range(self.groups_count) if self._view.claim_of(group) is None]

    def standbys_ready(self) -> int:
        return len(self._view.state.ready)

    def snapshots_failing(self) -> int:
        return sum(group.told()["snapshot_failure"] is not None for group in self._ownership.groups)

    def groups_by_state(self) -> dict[str, float]:
        states = [group.state for group in self._ownership.groups]
        return {state: float(states.count(state)) for state in (OWNER, SUSPENDED, STANDBY, AWAY)}

    def standby_lag_s(self) -> float:
        return max(group.standby_lag_s for group in self._ownership.groups)

    def snapshot_age_s(self) -> float:
        return max(group.snapshot_age_s for group in self._ownership.groups)

    def snapshot_lag_bytes(self) -> int:
        return sum(group.snapshot_lag_bytes for group in self._ownership.groups)

    def claims(self) -> int:
        return sum(group.claims_count for group in self._ownership.groups)

    def hand_overs(self) -> int:
        return sum(group.hand_overs_count for group in self._ownership.groups)

    def suspensions(self) -> int:
        return sum(group.suspensions_count for group in self._ownership.groups)
