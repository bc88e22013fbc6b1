"""What is known of a connection before its first request: whether a trusted proxy sends it, and whom it is for.

Owns which heads its requests share with those of others: only those whose same bytes mean the same. Never judges a
request.
"""

from __future__ import annotations

import asyncio

from headwater.doors.http.shared import Server
from headwater.doors.http.wire import Heads, RequestParser
from headwater.doors.peers import certificate_of
from headwater.security.principals import Identity

OWN_HEADS_MAX = 16
"""Heads that are remembered of a connection with a certificate that is somebody's."""


def arrived(
    server: Server, transport: asyncio.BaseTransport, peer: str, parser: RequestParser, identity: Identity
) -> bool:
    """Sets parser and identity for a connection from `peer`; True when that is a trusted proxy."""
    is_proxy = not server.internal and server.proxies.trusts(peer)
    if server.internal:
        parser.believe(server.heads)  # what others were not to say was left out where they are connected
    elif is_proxy:
        parser.believe(server.proxy_heads)
    if server.admitted is not None:
        identity.admitted = server.admitted(certificate_of(transport))
        if identity.admitted is not None:
            parser.heads = Heads(OWN_HEADS_MAX)
    return is_proxy
