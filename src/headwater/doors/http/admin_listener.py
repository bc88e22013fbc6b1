"""The node's own calls on an address of their own: what clients' listener does not serve then.

Owns which calls those are. Never serves anything: `routes` does, for both listeners.

    kept from clients' listener     /metrics, and everything below /__headwater but for
    served there as ever            /__headwater/append, /buckets, /sign, /snapshots, /tail: they are about streams

The listener of the setting `admin_listen` serves all of it, streams too: a job of the pipeline has one address.
"""

from __future__ import annotations

from typing import Protocol

from headwater.doors.http.exchange import Exchange
from headwater.errors import NoSuchRoute

OWN, METRICS = b"/__headwater", b"/metrics"
DATA_CALLS = tuple(b"/__headwater/" + name for name in (b"append", b"buckets", b"sign", b"snapshots", b"tail"))


class Handles(Protocol):
    def handle(self, exchange: Exchange) -> None: ...


class ClientRoutes:
    """Routes as clients' listener has them, beside a listener for the node's own calls."""

    def __init__(self, routes: Handles) -> None:
        self._handle = routes.handle

    def handle(self, exchange: Exchange) -> None:
        """Raises NoSuchRoute, as for any path that is not there."""
        target = exchange.request.target
        if target.startswith((OWN, METRICS)) and is_own(target.partition(b"?")[0]):
            raise NoSuchRoute
        self._handle(exchange)


def is_own(path: bytes) -> bool:
    """Whether the path is one of the node's own calls. Paths count as they are written, as they do in `routes`: one
    that is written otherwise is no route at all."""
    if not path.startswith(OWN):
        return path == METRICS
    return not any(path == call or path.startswith(call + b"/") for call in DATA_CALLS)
