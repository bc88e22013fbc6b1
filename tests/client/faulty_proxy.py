"""A proxy in front of any server that loses answers, refuses requests or answers 503, in an order that a test gives.

Owns what becomes of each request; it knows HTTP only as far as one request and one answer with their lengths.
"""

from __future__ import annotations

import http.client
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.client.serving import Asked, Told, serving


@dataclass(frozen=True)
class LoseAnswer:
    """The server gets the request and answers; the client's connection ends before the answer."""


@dataclass(frozen=True)
class LoseRequest:
    """The client's connection ends, and the server never hears of it."""


Fault = LoseAnswer | LoseRequest | Told
"""A `Told` is what the proxy answers itself, without asking the server."""


@dataclass
class Proxy:
    url: str = ""
    faults: deque[Fault] = field(default_factory=deque)
    """For the next requests that `meant` holds for, one each; then all is passed on."""
    meant: Callable[[str, str], bool] = lambda method, path: True
    seen: list[str] = field(default_factory=list)

    def next(self, method: str, path: str) -> Fault | None:
        self.seen.append(f"{method} {path}")
        return self.faults.popleft() if self.faults and self.meant(method, path) else None


@contextmanager
def faulty_proxy(upstream: str) -> Iterator[Proxy]:
    proxy, parts = Proxy(), urlsplit(upstream)

    def answer(asked: Asked) -> Told | None:
        fault = proxy.next(asked.method, asked.target)
        if isinstance(fault, LoseRequest):
            return None
        if isinstance(fault, Told):
            return fault
        server = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        try:
            server.request(asked.method, asked.target, asked.body, asked.headers)
            got = server.getresponse()
            body = got.read()
        finally:
            server.close()
        if isinstance(fault, LoseAnswer):
            return None
        return Told(got.status, [(name, value) for name, value in got.getheaders() if name.lower() not in OWN], body)

    with serving(answer) as proxy.url:
        yield proxy


OWN = {"content-length", "transfer-encoding", "connection", "keep-alive"}
"""Headers that belong to one connection."""
