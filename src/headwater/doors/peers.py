"""The address at the other end of a connection, in one spelling. Of every door.

Never looks at what the other end says of itself: `http/client_address` does.
"""

from __future__ import annotations

import asyncio
import ipaddress

HERE = "127.0.0.1"
"""What a Unix socket counts as: another process of this machine."""


def peer_of(peername: object) -> str:
    """The address at the other end of a socket, as text without a port."""
    if isinstance(peername, tuple) and peername:
        return plain(str(peername[0])) or HERE
    return HERE


def plain(text: str) -> str | None:
    """An address in one spelling: without a zone, and IPv4 as such."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def certificate_of(transport: asyncio.BaseTransport) -> bytes | None:
    """The certificate that the client showed and the handshake found good, in DER."""
    secured = transport.get_extra_info("ssl_object")
    if secured is None:
        return None
    found: bytes | None = secured.getpeercert(binary_form=True)
    return found
