"""The audit log that a node's settings ask for, and what appends it.

Owns what the stream is: JSON, kept for the time that a setting says. Never notes anything.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from headwater.config import Settings
from headwater.model.json_mode import JSON
from headwater.ports import Clock, Rng
from headwater.security.audit import Audit
from headwater.security.audit_writer import AuditWriter
from headwater.security.principals import AUDIT_KEY
from headwater.setting_values import AUTO


class Write(Protocol):
    """See `topics.access.TopicAccess.write`."""

    def __call__(
        self, key: str, records: list[bytes], *, content_type: str | None, age_ms: int | None, sets_age: bool
    ) -> Awaitable[object]: ...


def new_audit(settings: Settings, clock: Clock, rng: Rng, worker: int) -> Audit | None:
    if not settings.audit_on:
        return None
    address = settings.listen if settings.public_address == AUTO else settings.public_address
    return Audit(clock, rng, f"{address}/{worker}")


def new_writer(audit: Audit, settings: Settings, write: Write, clock: Clock) -> AuditWriter:
    is_first = True

    async def append(records: list[bytes]) -> None:
        nonlocal is_first
        # Once, or nodes with another setting would change it back and forth.
        await write(AUDIT_KEY, records, content_type=JSON, age_ms=settings.audit_age_ms, sets_age=is_first)
        is_first = False

    return AuditWriter(audit, append, clock)
