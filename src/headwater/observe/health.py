"""Health: is the process up, and may it be given work?

Owns the two pages. Never hides a failure: what is wrong is named in the detail.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Check = Callable[[], str | None]
"""None when fine, otherwise what is wrong."""


class Health:
    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}

    def add(self, name: str, check: Check) -> None:
        self._checks[name] = check

    def healthz(self) -> tuple[int, str, bytes]:
        return 200, "application/json", b'{"status":"up"}'

    def readyz(self) -> tuple[int, str, bytes]:
        """200 when every check passes; 503 with the reasons otherwise."""
        findings = {name: check() for name, check in self._checks.items()}
        ready = all(finding is None for finding in findings.values())
        detail = {name: finding or "ok" for name, finding in findings.items()}
        body = msgspec.json.encode({"status": "ready" if ready else "not ready", "checks": detail})
        return (200 if ready else 503), "application/json", body
