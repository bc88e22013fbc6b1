"""What the connections of one listener share, as a Protocol.

Owns no code: `server` is what stands behind it. Never imports it, so that neither needs the other to be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headwater.config import Settings
from headwater.doors.http.access import Access
from headwater.doors.http.client_address import Proxies
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.respond import Responder
from headwater.doors.http.slices import Slicer
from headwater.doors.http.watch import Watch
from headwater.doors.http.wire import Budget, Heads
from headwater.security.principals import Principal


class Server(Protocol):
    """What the connections of one listener share."""

    settings: Settings
    access: Access
    responder: Responder
    watch: Watch
    heads: Heads
    proxy_heads: Heads
    proxies: Proxies
    admitted: Callable[[bytes | None], Principal | None] | None
    """Whom a client's certificate is for; None where none is asked for, or none means anything."""
    bodies: Budget
    slicer: Slicer
    closing: bool
    winding_down: bool
    internal: bool
    head_bytes_max: int
    header_count_max: int
    body_bytes_max: int

    @property
    def now_s(self) -> float: ...

    def admit(self, connection: Any) -> bool:
        """False when there are too many connections, or none are taken any more."""
        ...

    def forget(self, connection: Any) -> None: ...

    def handle(self, exchange: Exchange) -> None: ...
