"""How long things of a group's ownership take, and how often they are looked at.

Owns the numbers. Never is part of safety: see `ownership`.
"""

from __future__ import annotations

import msgspec


class Timing(msgspec.Struct, frozen=True):
    look_s: float = 0.25
    """How often a group is looked at when nothing happens."""
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
