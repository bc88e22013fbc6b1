"""Which addresses a webhook may reach: the guard against requests forged through this server.

Owns the reading of webhook URLs and the table of addresses that are never called. Never connects: it names the checked
addresses, and whoever connects uses exactly those, so that a name which resolves differently later changes nothing.

https to public addresses only. With `allow_local`, for development, also http to `localhost` and 127.0.0.x.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

URL_BYTES_MAX = 2_048
ADDRESSES_MAX = 16
"""Addresses of one name that are looked at; a name with more is refused."""

Resolver = Callable[[str, int], Awaitable[list[str]]]
"""(host, port) -> its addresses. Raises OSError when there are none."""


class TargetRefused(Exception):
    """This server does not call that address. The message says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """A webhook URL in parts. `host` is a name in lower case or an address without brackets."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """As the Host header has it: the port only when it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"[!-~]+")
_LABEL = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PLAIN_IPV4 = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}")
_NETLOC = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_DEVELOPMENT = re.compile(r"localhost|127\.0\.0\.(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])")

# IANA's special-purpose registry, and the addresses at which clouds hand out credentials.
_NEVER_V4 = {
    IPv4Network(net): why
    for net, why in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "cloud metadata"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "protocol assignments"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
}
_GLOBAL_V6 = IPv6Network("2000::/3")
_NEVER_V6 = {
    IPv6Network(net): why
    for net, why in (
        ("2001::/23", "protocol assignments"),  # Teredo among them
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4"),
        ("3fff::/20", "documentation"),
    )
}


def parse(url: str, allow_local: bool) -> Target:
    """The parts of a webhook URL. Raises TargetRefused for everything that can be told without resolving a name."""
    if len(url) > URL_BYTES_MAX or _URL.fullmatch(url) is None or "\\" in url:
        raise TargetRefused(f"expected at most {URL_BYTES_MAX} printable ASCII characters without spaces")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise TargetRefused("it is not a valid URL") from None
    scheme = parts.scheme
    if scheme not in _PORTS:
        raise TargetRefused("it must use https")
    if "@" in parts.netloc or "#" in url:
        raise TargetRefused("a user name or a fragment does not belong in it")
    if _NETLOC.fullmatch(parts.netloc) is None or port == 0:
        raise TargetRefused("its host or port is malformed (an international name is written in punycode)")
    host = (parts.hostname or "").removesuffix(".")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    target = Target(scheme, host, port or _PORTS[scheme], path)
    if allow_local and is_development(target):
        return target
    if scheme != "https":
        raise TargetRefused("it must use https")
    _check_host(host, "[" in parts.netloc)
    return target


def is_development(target: Target) -> bool:
    """The one exception: http to this very machine, spelt plainly."""
    return target.scheme == "http" and _DEVELOPMENT.fullmatch(target.host) is not None


def _check_host(host: str, bracketed: bool) -> None:
    if bracketed:
        try:
            address = IPv6Address(host)
        except ValueError:
            raise TargetRefused("its IPv6 address is malformed") from None
        _demand_public(address)
    elif _NUMBER.fullmatch(host.rpartition(".")[2]) is not None:
        # What ends in a number is an IPv4 address to some resolver: octal, hexadecimal and short forms included.
        if _PLAIN_IPV4.fullmatch(host) is None:
            raise TargetRefused("an IPv4 address is written as four decimal numbers")
        try:
            _demand_public(IPv4Address(host))
        except ValueError:
            raise TargetRefused("its IPv4 address is malformed") from None
    elif _NAME.fullmatch(host) is None or len(host) > 253:
        raise TargetRefused("its host is not a valid name")
    elif host == "localhost" or host.endswith(".localhost"):
        raise TargetRefused("its host is this machine")


def why_never(address: IPv4Address | IPv6Address) -> str | None:
    """What kind of address it is when it is never called; None for a public one."""
    if isinstance(address, IPv4Address):
        return next((why for net, why in _NEVER_V4.items() if address in net), None)
    if address not in _GLOBAL_V6:
        # Loopback, link-local, private, multicast, IPv4 in IPv6 (mapped, compatible, NAT64): none lies in 2000::/3.
        return "not a global IPv6 address"
    if int(address) >> 32 & 0xFFFF_FFFF in (0x5EFE, 0x0200_5EFE):
        return "an IPv4 address in disguise (ISATAP)"
    return next((why for net, why in _NEVER_V6.items() if address in net), None)


def _demand_public(address: IPv4Address | IPv6Address) -> None:
    why = why_never(address)
    if why is not None:
        raise TargetRefused(f"its address is not public ({why})")


async def resolve(target: Target, resolver: Resolver, allow_local: bool) -> list[str]:
    """The addresses to connect to, each of them checked. One that is not allowed refuses them all.

    Raises TargetRefused, and OSError when the name does not resolve.
    """
    local = allow_local and is_development(target)
    found = await resolver(target.host, target.port)
    if not found:
        raise OSError(f"{target.host} has no address")
    if len(found) > ADDRESSES_MAX:
        raise TargetRefused(f"its name has more than {ADDRESSES_MAX} addresses")
    for text in found:
        address = ip_address(text)
        if not local:
            _demand_public(address)
        elif not address.is_loopback:
            raise TargetRefused("its name does not mean this machine")
    return found


async def system_resolver(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))
