"""Who a request comes from: the address of its client, and what proxies that are trusted say of how it came.

Owns which forwarding headers are believed. Headers of anybody else never get this far: the parser of a connection that
is not a trusted proxy's leaves them out (`wire.FORWARDING`), so that they are neither read here nor sent on.

A chain of proxies is walked from the near end: each trusted one names whoever it was connected with, and the first that
is not trusted is the client. What stands further left was written by the client.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from headwater.doors.http.headers import Headers
from headwater.doors.peers import plain
from headwater.setting_values import networks
from headwater.web_settings import NONE, X_FORWARDED, WebSettings

_PAIR = re.compile(r"""\s*([A-Za-z]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;,"]*)\s*""")
_HOPS_MAX = 32
"""Proxies in a row that are looked at; what is behind them is taken for the client."""


class Proxies:
    """The networks of the setting `trusted_proxies`, and the headers that are read."""

    __slots__ = ("_networks", "_reads_x")

    def __init__(self, settings: WebSettings) -> None:
        self._networks = () if settings.trusted_proxies == NONE else tuple(networks(settings.trusted_proxies))
        self._reads_x = settings.trusted_proxy_headers == X_FORWARDED

    def trusts(self, address: str) -> bool:
        if not self._networks:
            return False
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._networks)

    def client(self, peer: str, headers: Headers) -> str:
        """The address of the client of a request that came from `peer`."""
        return self._walk(peer, headers)[0] if self.trusts(peer) else peer

    def reached_by(self, headers: Headers) -> tuple[str, str]:
        """Scheme and host that the client used, as the outermost trusted proxy says; each empty when none does.

        The headers are those of a trusted proxy, or were sent on by a process that had them from one.
        """
        if not self._networks:
            return "", ""
        _, hops_count = self._walk("", headers)
        if self._reads_x:
            protos = _listed(headers.get(b"x-forwarded-proto", b""))
            hosts = _listed(headers.get(b"x-forwarded-host", b""))
            return _of_hop(protos, hops_count).lower(), _of_hop(hosts, hops_count)
        elements = _elements(headers.get(b"forwarded", b""))
        element = elements[-hops_count] if 0 < hops_count <= len(elements) else {}
        return element.get("proto", "").lower(), element.get("host", "")

    def _walk(self, peer: str, headers: Headers) -> tuple[str, int]:
        """The client, and how many trusted proxies in a row said something of it."""
        if self._reads_x:
            named = _listed(headers.get(b"x-forwarded-for", b""))
        else:
            named = [element.get("for", "") for element in _elements(headers.get(b"forwarded", b""))]
        client, hops_count = peer, 0
        for text in reversed(named[-_HOPS_MAX:]):
            found = _address(text)
            hops_count += 1
            if found is None:
                break  # a proxy that hides it, or that names nobody: the proxy itself is all that is known
            client = found
            if not self.trusts(found):
                break
        return client, max(hops_count, 1)


def _listed(value: bytes) -> list[str]:
    return [part.strip() for part in value.decode("latin-1").split(",")] if value else []


def _of_hop(values: list[str], hops_count: int) -> str:
    """A proxy adds to a list, or puts one value in its place."""
    if not values:
        return ""
    return values[-hops_count] if hops_count <= len(values) else values[0]


def _elements(value: bytes) -> list[dict[str, str]]:
    """The elements of Forwarded (RFC 7239, 4); none when it cannot be read."""
    found = []
    for element in _split(value.decode("latin-1"), ","):
        pairs: dict[str, str] = {}
        for part in _split(element, ";"):
            pair = _PAIR.fullmatch(part)
            if pair is None:
                if part.strip():
                    return []
                continue
            text = pair[2]
            pairs[pair[1].lower()] = re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text
        if pairs:
            found.append(pairs)
    return found


def _split(text: str, by: str) -> Iterable[str]:
    """Splits where no quoted text is."""
    start, quoted, escaped = 0, False, False
    for at, char in enumerate(text):
        if escaped:
            escaped = False
        elif quoted and char == "\\":
            escaped = True
        elif char == '"':
            quoted = not quoted
        elif char == by and not quoted:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _address(text: str) -> str | None:
    """The address of `ADDRESS`, `ADDRESS:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`; None of anything else."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    return plain(text)
