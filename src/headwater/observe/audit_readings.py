"""The audit log in numbers: what it was told, and what it could not keep.

Owns names and help texts. Never counts: the log does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.observe.metrics import Gauge

if TYPE_CHECKING:
    from headwater.security.audit import Audit


def audit_gauges(audit: Audit) -> list[Gauge]:
    return [
        Gauge("audit_noted", "What the audit log was told.", lambda: audit.noted_count, True),
        Gauge("audit_coalesced", "Of that, what has no record of its own.", lambda: audit.coalesced_count, True),
        Gauge("audit_lost", "Records there was no room for.", lambda: audit.lost_count, True),
        Gauge("audit_waiting", "Records that are not appended yet.", lambda: audit.waiting_count),
    ]
