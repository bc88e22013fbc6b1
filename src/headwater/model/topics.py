"""What makes a stream a topic: its configuration, as it is kept with the stream.

Owns the shapes (persisted: fields are only ever added at the end). Retention and durability are the stream's own
(`commands`).
"""

from __future__ import annotations

import msgspec

PRIORITY_MIN, PRIORITY_MAX = -1000, 1000


class QueueConfig(msgspec.Struct, frozen=True, array_like=True):
    """A topic whose records are jobs: they are claimed under a lease, and deleted when they are done."""

    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    """For how long claims are gathered before they are served together; 0: each at once."""
    max_deliveries: int = 0
    """After so many a job is moved to `dead_letter`, or deleted when there is none; 0: never."""
    dead_letter: str | None = None
    """A topic, by its name."""
    leases_durable: bool = False
    """Whether leases and delivery counts survive a restart. Otherwise every job is claimable after one."""
    backoff_ms: int = 0
    """How long a job that was given back without a delay waits, doubled with every delivery."""
    backoff_ms_max: int = 600_000


class TopicConfig(msgspec.Struct, frozen=True, array_like=True):
    reject_when_full: bool = False
    """True: a write that would exceed a cap is refused. False: the oldest records go."""
    priority: int = 0
    auto_priority: bool = False
    queue: QueueConfig | None = None
