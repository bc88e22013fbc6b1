"""Requests and connections of clients where there are limits: judged before anything is looked up or sent on.

Owns what a refusal does to its connection, and which requests are live reads. Never counts: `security.limits` does.
Only listeners of clients have it, and only where a limit is set: what other processes send was judged there.

A refusal costs the server about as much as an append, so whoever goes on as fast as it can would still take the time
of all others. A connection whose request was refused is therefore held: it is not read, and nothing that came on it is
begun, for HOLD_S to twice that. One of a trusted proxy is not, because requests of others may come on it.
"""

from __future__ import annotations

import asyncio
from urllib.parse import unquote_to_bytes

from headwater.doors.http.access import Access
from headwater.doors.http.admin_listener import Handles
from headwater.doors.http.connection import Connection
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.shared import Server
from headwater.doors.http.wire import Request
from headwater.errors import Failure, TooManyConnections
from headwater.security.limits import Account, Limits
from headwater.security.principals import Principal

HOLD_S = 1.0
_STEPS = 64
"""Connections that are held together are let go in so many steps, not all at the same time."""
PROBES = frozenset((b"/healthz", b"/readyz"))
"""They are always answered: who asks them decides whether the node is well."""
_LIVE_BY_PATH = (b"/claim", b"/work", b"/ws", b"/sse")
_TAIL = b"/__headwater/tail"

Accounts = tuple[Account, Account | None]
"""Of an address, and of a principal if there is one that counts."""


class LimitedConnection(Connection):
    """A client's."""

    __slots__ = ("accounts", "address", "followed", "limits")

    def __init__(self, server: Server, limits: Limits) -> None:
        super().__init__(server)
        self.limits = limits
        self.address: Account | None = None
        """Of the other end; None until it is connected, and for a trusted proxy."""
        self.accounts: Accounts | None = None
        """Who is charged for what is sent: whoever sent the last request."""
        self.followed: Accounts | None = None
        """Whose live read is under way. There is one at most, and nothing is answered beside it."""

    def may_stay(self) -> bool:
        """Counts it for its address. False: it is to be cut."""
        if self.through_proxy:
            return True
        address = self.limits.of_address(self.peer)
        if self.limits.connected(address):
            self.address = address
        return self.address is not None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._followed()
        if self.address is not None:
            self.address.connections -= 1
            self.address = None

    # ---- holding ------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        server = self._server
        if self.held or self.through_proxy or server.winding_down or self._closing:
            return
        self.held = True
        self._pause_reading()
        self.limits.held_count += 1
        held_s = HOLD_S * (1 + self.limits.held_count % _STEPS / _STEPS)
        asyncio.get_running_loop().call_later(held_s, self._let_go)

    def _let_go(self) -> None:
        self.held = False
        if not self._closing:
            self._active = True
            self.advance()

    def _start(self, request: Request) -> None:
        if self.held:
            self.waiting.append(request)  # nothing waits yet, or it would not be started
        else:
            Connection._start(self, request)

    def _resume_reading(self) -> None:
        if not self.held:
            super()._resume_reading()

    def tick(self, now_s: float) -> None:
        if not self.held or self._closing or self.streamer is not None:
            super().tick(now_s)  # else the time that it is held is not its client's

    # ---- what is sent -------------------------------------------------------------------------------------------

    def send(self, data: bytes, keep_alive: bool) -> None:
        Connection.send(self, data, keep_alive)
        if self.accounts is not None and self.limits.meters_bytes:
            self.limits.take(self.accounts, 0, len(data))
        if self.followed is not None and not self.exchanges:
            self._followed()

    def write(self, data: bytes | memoryview) -> None:
        Connection.write(self, data)
        if self.accounts is not None and self.limits.meters_bytes:
            self.limits.take(self.accounts, 0, len(data))

    def finish(self, exchange: Exchange) -> None:
        self._followed()
        super().finish(exchange)

    def hang_up(self, exchange: Exchange) -> None:
        self._followed()
        super().hang_up(exchange)

    def follow(self, accounts: Accounts) -> None:
        """A live read begins. Raises TooManyFollowers."""
        self._followed()
        refused = self.limits.follow(accounts)
        if refused is not None:
            raise refused
        self.followed = accounts

    def _followed(self) -> None:
        accounts, self.followed = self.followed, None
        if accounts is not None:
            self.limits.followed(accounts)


class LimitedRoutes:
    """Routes as clients have them where there are limits."""

    def __init__(self, routes: Handles, access: Access, limits: Limits) -> None:
        self._handle = routes.handle
        self._access = access
        self._guard = access.guard
        self._limits = limits
        self._counts_principals = access.guard.on and limits.counts_principals

    def handle(self, exchange: Exchange) -> None:
        """Raises RateLimited, TooManyConnections, TooManyFollowers, and what the routes raise."""
        line, request, limits = exchange.connection, exchange.request, self._limits
        if not isinstance(line, LimitedConnection):
            raise RuntimeError("limits are for clients")
        address = line.address
        if address is None:
            address = limits.of_address(exchange.client_address)
        elif limits.has_too_many(address) and not _is_probe(request):
            request.keep_alive = False
            raise TooManyConnections(limits.address_caps.connections_max)
        principal = limits.of_principal(self._principal(exchange)) if self._counts_principals else None
        line.accounts = (address, principal)
        refused = limits.begin(address, principal, len(request.body))
        if refused is not None and not _is_probe(request):
            line.hold()
            raise refused
        if limits.counts_followers and is_live(request):
            if principal is None and self._counts_principals:
                principal = limits.of_principal(self._identified(exchange))
            line.follow((address, principal))
        self._handle(exchange)

    def _principal(self, exchange: Exchange) -> Principal | None:
        """Whom the request is done for, as far as that is known without verifying anything: a credential that nobody
        has seen here yet is judged by the routes, and counts from its next request on."""
        guard, request = self._guard, exchange.request
        known = request.known
        if known is not None and known.epoch == guard.epoch and isinstance(known.principal, Principal):
            return known.principal
        raw = request.headers.get(b"authorization")
        return exchange.connection.identity.admitted if raw is None else guard.remembered(raw)

    def _identified(self, exchange: Exchange) -> Principal | None:
        """The same, with a credential that is seen for the first time verified."""
        try:
            return self._access.identify(exchange)
        except Failure:
            return None  # the routes refuse it, or do not ask


def demand(exchange: Exchange, size_bytes: int) -> None:
    """What comes on a connection that does not speak HTTP any more counts as a request too. Raises RateLimited."""
    line = exchange.connection
    if isinstance(line, LimitedConnection) and line.accounts is not None:
        refused = line.limits.begin(*line.accounts, size_bytes)
        if refused is not None:
            line.hold()
            raise refused


def is_live(request: Request) -> bool:
    """It may wait for what is written later. Parameters are told by what they mean, however they are spelt."""
    path, _, query = request.target.partition(b"?")
    if query:
        query = unquote_to_bytes(query) if b"%" in query else query
        if b"live=" in query or b"wait_ms=" in query:
            return True
    if path.startswith(b"/v0/"):
        return path.rstrip(b"/").endswith(_LIVE_BY_PATH)
    return path.startswith(_TAIL)


def _is_probe(request: Request) -> bool:
    return request.target.partition(b"?")[0] in PROBES
