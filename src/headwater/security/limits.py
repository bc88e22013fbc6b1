"""How much one client may use: rates, connections and live reads of principals and addresses.

Owns the accounts of this process, and what is counted of refusals. Never looks at a request or a socket: doors say who
asks, and for how much. Pure but for the clock that it is given.

    account = what one principal, or one address, has used lately
        a rate: the moment at which all that was taken is paid for at the rate; whoever is ahead of the clock by more
        than the burst waits. What a request takes is added once it may begin, and what is sent to it afterwards:
        one that is larger than the burst is taken too, and those after it wait for longer.
        connections, followers: how many there are now

An IPv6 address counts as its /64: whoever has one address of it has all of them.

Bounds: ACCOUNTS_MAX accounts of each kind that nobody uses just now, and those in use, of which there are no more than
connections. Overflow: the oldest that is not in use is forgotten, and with it what it has used lately.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

from headwater.errors import Failure, RateLimited, TooManyFollowers
from headwater.limit_settings import LimitSettings
from headwater.ports import Clock
from headwater.security.principals import CERTIFICATE, JWT, KEY, Principal

PRINCIPAL, ADDRESS = "principal", "address"
REQUESTS, BYTES, CONNECTIONS, FOLLOWERS = "requests", "bytes", "connections", "followers"
ACCOUNTS_MAX = 100_000
TOLD_CONNECTIONS_MAX = 16
"""Connections of one address beyond its limit that are told so; any more are cut without a word."""
WAIT_S_MAX = 3_600.0
"""Nobody waits longer, whatever was sent to it."""
_LOOKED_AT = 8
"""Old accounts that are looked at for each new one: so that the table cannot grow while some are in use."""
_KINDS = (KEY, JWT, CERTIFICATE)
"""Principals with an account. A signed URL is used by many, and nobody in particular is everybody: their addresses
count."""


class Caps(NamedTuple):
    """Of each account of one kind; 0 is no limit."""

    whose: str
    requests_per_s: int
    bytes_per_s: int
    followers_max: int
    connections_max: int
    burst_s: float


class Account:
    """Of one principal or address."""

    __slots__ = (
        "_burst_s", "_byte_s", "_bytes_paid_s", "_request_s", "_requests_paid_s", "caps", "connections", "followers",
    )  # fmt: skip

    def __init__(self, caps: Caps) -> None:
        self.caps = caps
        self.connections = 0
        self.followers = 0
        self._burst_s = caps.burst_s
        self._request_s = 1 / caps.requests_per_s if caps.requests_per_s else 0.0
        self._byte_s = 1 / caps.bytes_per_s if caps.bytes_per_s else 0.0
        self._requests_paid_s = self._bytes_paid_s = 0.0

    @property
    def in_use(self) -> bool:
        return bool(self.connections or self.followers)

    def has_room(self, now_s: float) -> bool:
        """Something more may begin now."""
        soon_s = now_s + self._burst_s
        return self._requests_paid_s < soon_s and self._bytes_paid_s < soon_s

    def refusal(self, now_s: float) -> RateLimited:
        """Why nothing may, when there is no room."""
        caps, soon_s = self.caps, now_s + self._burst_s
        if self._requests_paid_s >= soon_s:
            return _limited(caps, REQUESTS, caps.requests_per_s, self._requests_paid_s - soon_s)
        return _limited(caps, BYTES, caps.bytes_per_s, self._bytes_paid_s - soon_s)

    def take(self, now_s: float, requests_count: int, size_bytes: int) -> None:
        """What has begun, or was sent, is to be paid for."""
        if requests_count and self._request_s:
            before_s = self._requests_paid_s
            self._requests_paid_s = (before_s if before_s > now_s else now_s) + requests_count * self._request_s
        if size_bytes and self._byte_s:
            paid_s = max(self._bytes_paid_s, now_s) + size_bytes * self._byte_s
            self._bytes_paid_s = min(paid_s, now_s + WAIT_S_MAX)


def _limited(caps: Caps, what: str, limit: int, wait_s: float) -> RateLimited:
    return RateLimited(caps.whose, what, limit, max(1, ceil(wait_s)))


class Limits:
    """Of one process."""

    def __init__(self, settings: LimitSettings, clock: Clock) -> None:
        burst_s = settings.limit_burst_ms / 1000
        of_principals = settings.principal_requests_per_s, settings.principal_bytes_per_s
        of_addresses = settings.address_requests_per_s, settings.address_bytes_per_s
        self.principal_caps = Caps(PRINCIPAL, *of_principals, settings.principal_followers_max, 0, burst_s)
        self.address_caps = Caps(
            ADDRESS, *of_addresses, settings.address_followers_max, settings.address_connections_max, burst_s
        )
        self._now_s = clock.monotonic_s
        self._principals: dict[str, Account] = {}
        self._addresses: dict[str, Account] = {}
        self.counts_principals = any(self.principal_caps[1:-1])
        self.on = self.counts_principals or any(self.address_caps[1:-1])
        """False: there is no limit at all, and nobody needs to ask."""
        self.meters_bytes = bool(self.principal_caps.bytes_per_s or self.address_caps.bytes_per_s)
        self.counts_followers = bool(self.principal_caps.followers_max or self.address_caps.followers_max)
        self.refused = {
            f"{caps.whose}_{what}": 0
            for caps, kinds in (
                (self.principal_caps, (REQUESTS, BYTES, FOLLOWERS)),
                (self.address_caps, (REQUESTS, BYTES, FOLLOWERS, CONNECTIONS)),
            )
            for what in kinds
        }
        """Refusals since the start, by limit."""
        self.held_count = 0
        """Connections that were held after one, since the start."""

    # ---- whose --------------------------------------------------------------------------------------------------

    @property
    def accounts_count(self) -> int:
        return len(self._principals) + len(self._addresses)

    def of_address(self, address: str) -> Account:
        return self._account(self._addresses, counted_as(address), self.address_caps)

    def of_principal(self, principal: Principal | None) -> Account | None:
        """None: those have no account of their own."""
        if not self.counts_principals or principal is None or principal.kind not in _KINDS:
            return None
        return self._account(self._principals, f"{principal.kind}:{principal.id}", self.principal_caps)

    def _account(self, accounts: dict[str, Account], name: str, caps: Caps) -> Account:
        found = accounts.get(name)
        if found is None:
            if len(accounts) >= ACCOUNTS_MAX:
                _forget_some(accounts)
            found = accounts[name] = Account(caps)
        return found

    # ---- rates --------------------------------------------------------------------------------------------------

    def begin(self, address: Account, principal: Account | None, size_bytes: int) -> RateLimited | None:
        """A request with a body of that size may begin, and is taken from both; or from none, and why."""
        now_s = self._now_s()
        if not address.has_room(now_s):
            return self._refused(address, now_s)
        if principal is not None:
            if not principal.has_room(now_s):
                return self._refused(principal, now_s)
            principal.take(now_s, 1, size_bytes)
        address.take(now_s, 1, size_bytes)
        return None

    def _refused(self, account: Account, now_s: float) -> RateLimited:
        refused = account.refusal(now_s)
        self.refused[f"{refused.whose}_{refused.what}"] += 1
        return refused

    def take(self, accounts: Iterable[Account | None], requests_count: int, size_bytes: int) -> None:
        """What cannot be refused any more."""
        now_s = self._now_s()
        for account in accounts:
            if account is not None:
                account.take(now_s, requests_count, size_bytes)

    # ---- what there is at a time --------------------------------------------------------------------------------

    def connected(self, address: Account) -> bool:
        """One more connection of that address; False, and not counted, when it is to be cut."""
        limit = self.address_caps.connections_max
        if limit and address.connections >= limit:
            self.refused[f"{ADDRESS}_{CONNECTIONS}"] += 1
            if address.connections >= limit + TOLD_CONNECTIONS_MAX:
                return False
        address.connections += 1
        return True

    def has_too_many(self, address: Account) -> bool:
        """Asked when a connection has been counted: it is one too many."""
        limit = self.address_caps.connections_max
        return bool(limit) and address.connections > limit

    def follow(self, accounts: Iterable[Account | None]) -> Failure | None:
        """One more live read of all of them, until `followed`; or of none, and why."""
        for account in accounts:
            if account is not None and 0 < account.caps.followers_max <= account.followers:
                self.refused[f"{account.caps.whose}_{FOLLOWERS}"] += 1
                return TooManyFollowers(account.caps.whose, account.caps.followers_max)
        for account in accounts:
            if account is not None:
                account.followers += 1
        return None

    def followed(self, accounts: Iterable[Account | None]) -> None:
        """A live read that was counted has ended."""
        for account in accounts:
            if account is not None:
                account.followers -= 1


def new_limits(settings: LimitSettings, clock: Clock) -> Limits | None:
    """None when there is none: nothing is counted then."""
    found = Limits(settings, clock)
    return found if found.on else None


def counted_as(address: str) -> str:
    """The name of its account: an IPv4 address as it is, of an IPv6 one the network that its owner has."""
    if ":" not in address:
        return address
    return str(ipaddress.ip_network((address, 64), strict=False))


def _forget_some(accounts: dict[str, Account]) -> None:
    for name in [name for name, _ in zip(accounts, range(_LOOKED_AT), strict=False)]:
        account = accounts.pop(name)
        if account.in_use:
            accounts[name] = account  # looked at again after all others
