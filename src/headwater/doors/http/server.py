"""The HTTP listener: what its connections share.

Owns the Date of answers and what happens to a request that fails. Never looks at a request: `routes` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from headwater.config import Settings
from headwater.doors.http.access import Access
from headwater.doors.http.admin_listener import Handles
from headwater.doors.http.client_address import Proxies
from headwater.doors.http.connection import Connection
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.limited import LimitedConnection, LimitedRoutes
from headwater.doors.http.respond import Responder
from headwater.doors.http.slices import Slicer
from headwater.doors.http.watch import Watch
from headwater.doors.http.wire import Budget, Heads
from headwater.doors.listener import Listener
from headwater.errors import Failure
from headwater.security.limits import Limits
from headwater.security.principals import Principal

INTERNAL_CONNECTIONS_MAX = 1_000_000
"""Every client's connection may have one to each other process: what limits clients limits these."""

INTERNAL_HEAD_BYTES_MAX = 32 * 1024 * 1024
INTERNAL_HEADERS_MORE = 8
INTERNAL_BODY_BYTES_MORE = 64 * 1024 * 1024


class HttpServer(Listener[Connection]):
    def __init__(
        self,
        settings: Settings,
        routes: Handles,
        responder: Responder,
        bodies: Budget,
        internal: bool = False,
        watch: Watch | None = None,
        access: Access | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`internal`: its clients are other processes of this node, which have admitted and limited theirs. Without
        `access` nobody is asked who they are; without `limits` nobody is told to wait."""
        super().__init__(INTERNAL_CONNECTIONS_MAX if internal else settings.connections_max)
        self.internal = internal
        self.watch = Watch(settings, self._loop.time) if watch is None else watch
        self.access = Access() if access is None else access
        self.admitted: Callable[[bytes | None], Principal | None] | None = None
        self.settings = settings
        # What processes ask of each other is made from a request of a client, and may take more room than it did.
        self.head_bytes_max = settings.head_bytes_max
        self.header_count_max = settings.header_count_max
        self.body_bytes_max = settings.body_bytes_max
        if internal:
            self.head_bytes_max = INTERNAL_HEAD_BYTES_MAX
            self.header_count_max += INTERNAL_HEADERS_MORE
            self.body_bytes_max = 2 * settings.body_bytes_max + INTERNAL_BODY_BYTES_MORE
        self.responder = responder
        self.heads, self.proxy_heads = Heads(), Heads()
        self.proxies = Proxies(settings)
        self.bodies = bodies
        self.slicer = Slicer(self.bodies)
        self._limits = limits
        self._routes = routes if limits is None else LimitedRoutes(routes, self.access, limits)
        self.swept()

    def accept(self) -> Connection:
        return Connection(self) if self._limits is None else LimitedConnection(self, self._limits)

    def admit(self, connection: Connection) -> bool:
        if isinstance(connection, LimitedConnection) and not connection.may_stay():
            self.refused_count += 1
            return False
        return super().admit(connection)

    def swept(self) -> None:
        self.responder.renew(int(time.time()))

    def handle(self, exchange: Exchange) -> None:
        try:
            self._routes.handle(exchange)
        except Failure as failure:
            exchange.fail(failure)
        except Exception:
            exchange.broke()
