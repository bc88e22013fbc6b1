"""What the tests of routers share: pauses after a failure are short.
How long a router really waits is no part of what they assert."""

from __future__ import annotations

import pytest

from headwater.topics import router_worker


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_worker, "PAUSE_S_MIN", 0.001)
    monkeypatch.setattr(router_worker, "PAUSE_S_MAX", 0.002)
