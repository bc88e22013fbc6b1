"""What the ownership of groups is built from: what is believed of other nodes, the way to them, logs and catalogs, and
how long things take.

Owns these contracts and numbers. None of it is part of safety: see `ownership`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from headwater.catalog.sqlite import SqliteCatalog
from headwater.cluster.catalog_snapshots import CatalogSnapshots
from headwater.engine.owned_group import OwnedGroup
from headwater.log.quorum import QuorumLog


class View(Protocol):
    """What this node believes of the others. Wrong beliefs cost time, never data."""

    me: str

    def alive(self) -> Collection[str]:
        """Members that answered lately, and this one."""
        ...

    def in_line(self, group: int) -> Sequence[str]:
        """Those of them in the order in which they should own the group."""
        ...

    def successor(self, group: int) -> str | None:
        """Who of them claims the group when it has no owner: the first in line that is ready."""
        ...

    def is_urgent(self, group: int) -> bool:
        """Another node that is first in line is handed the group at once, not when it has been so for a while."""
        ...

    def set_ready(self, group: int, ready: bool) -> None:
        """This node has followed the group to its end, or does not follow it any more: others are told."""
        ...

    def claimed(self, group: int) -> tuple[str, int] | None:
        """Who of the other members that are alive says that it owns the group, and the epoch: the highest one."""
        ...


class Timing(msgspec.Struct, frozen=True):
    look_s: float = 0.25
    """How often a group is looked at when nothing happens."""
    gather_s: float = 0.05
    """A standby that hears of more in its log waits this long before it reads: several entries cost little more than
    one."""
    claim_after_s: float = 2.0
    """For how long a log is silent before it is claimed without having been handed over."""
    lease_s: float = 2.0
    """How long an owner serves without an answer of its log. Not longer than `claim_after_s`."""
    checkpoint_interval_s: float = 10.0
    """Of a standby."""
    snapshot_interval_s: float = 5.0
    rebalance_after_s: float = 10.0
    """For how long another node has to be first in line before it is handed the group."""
    leave_s: float = 10.0
    """For how long a node that leaves goes on serving while nobody could take the group over."""
    retry_s: float = 2.0
    """After something that should not happen."""


class Wiring(msgspec.Struct, frozen=True):
    """What a group is built from, and the way to other nodes."""

    log: Callable[[int], Awaitable[QuorumLog]]
    """A log that nothing was read from yet. Raises Unavailable."""
    build: Callable[[int, QuorumLog, SqliteCatalog], OwnedGroup]
    """The group with all its domains, not recovered and not started."""
    catalog_path: Callable[[int], Path]
    snapshots: Callable[[int], CatalogSnapshots]
    tell: Callable[[str, int, int, bool], Awaitable[bool]]
    """Calls `Ownership.asked` of another member. Raises Failure when it cannot be reached."""
    report: Callable[[str, str], None]
    """Is told what went wrong with what."""
    streams_loaded_max: int
    snapshot_bytes: int
    """A catalog snapshot is written when the log has grown by this much since the last one."""
    note: Callable[[str, dict[str, Any]], None] = lambda what, facts: None
    """Is told what happened as it should."""
    address: str = ""
    cluster_format: int = 1
