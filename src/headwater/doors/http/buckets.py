"""Buckets over HTTP: create, look at, list and delete them.

Owns `/{bucket}` and `/ds/{bucket}` themselves, and `/__headwater/buckets`, which names any bucket.
Never touches the streams inside.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from headwater.doors.http import headers as parse
from headwater.doors.http.access import refusal
from headwater.doors.http.exchange import Exchange
from headwater.engine import buckets as engine
from headwater.engine.listing import Page
from headwater.errors import BadQuery, BucketExists, MethodNotAllowed, NoSuchRoute
from headwater.model.names import check_bucket, stream_of
from headwater.security.principals import Action, Need, Scope

LIMIT_DEFAULT = LIMIT_MAX = 1000
_LIST_QUERY = ("prefix", "after", "limit")
_LIMIT = re.compile("[1-9][0-9]{0,3}")


class Buckets:
    def __init__(self, buckets: engine.Buckets) -> None:
        self._buckets = buckets

    def with_bucket(self, exchange: Exchange, name: str, act: Callable[[], None]) -> None:
        """Calls `act` when there is such a bucket, at once where that is known. Otherwise says that there is none."""
        if self._buckets.exists(name):
            act()
        else:
            exchange.run(self._once_required(name, act))

    async def _once_required(self, name: str, act: Callable[[], None]) -> None:
        await self._buckets.require(name)
        act()

    def handle(self, exchange: Exchange, name: str, strict: bool) -> None:
        """A request on a bucket. `strict`: creating it again is a conflict, as the extension spec says of /ds/."""
        method = exchange.request.method
        check_bucket(name)
        if method == b"PUT":
            exchange.run(self._create(exchange, name, strict))
        elif method == b"DELETE":
            exchange.run(self._delete(exchange, name))
        elif method in (b"GET", b"HEAD"):
            exchange.run(self._show(exchange, name))
        else:
            raise MethodNotAllowed("GET, HEAD, PUT, DELETE, OPTIONS")

    def by_any_name(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """`GET /__headwater/buckets/{bucket}` and `.../streams`: also those that only /v1/stream/ can name."""
        parts = [parse.path_text(part) for part in rest.split(b"/")]
        if exchange.request.method not in (b"GET", b"HEAD"):
            raise MethodNotAllowed("GET, HEAD, OPTIONS")
        match parts:
            case ["", name] if name:
                exchange.run(self._show(exchange, name))
            case ["", name, "streams"] if name:
                self._page(exchange, name, query)
            case _:
                raise NoSuchRoute

    def list(self, exchange: Exchange, name: str, query: bytes) -> None:
        if exchange.request.method not in (b"GET", b"HEAD"):
            raise MethodNotAllowed("GET, HEAD, OPTIONS")
        check_bucket(name)
        self._page(exchange, name, query)

    def _page(self, exchange: Exchange, name: str, query: bytes) -> None:
        wanted = parse.query(query, _LIST_QUERY)
        limit_text = wanted.get("limit", str(LIMIT_DEFAULT))
        if _LIMIT.fullmatch(limit_text) is None or int(limit_text) > LIMIT_MAX:
            raise BadQuery("limit", f"expected 1 to {LIMIT_MAX}")
        prefix, after, limit = wanted.get("prefix", ""), wanted.get("after", ""), int(limit_text)
        exchange.run(self._list(exchange, name, prefix, after, limit))

    async def _create(self, exchange: Exchange, name: str, strict: bool) -> None:
        try:
            await self._buckets.create(name)
        except BucketExists:
            if strict:
                raise
            exchange.empty(200, [])
        else:
            exchange.empty(201, [])

    async def _delete(self, exchange: Exchange, name: str) -> None:
        await self._buckets.delete(name)
        exchange.empty(204, [])

    async def _show(self, exchange: Exchange, name: str) -> None:
        count, created_ms = await self._buckets.describe(name)
        exchange.json(200, {"bucket_id": name, "streams": count, "created_at_ms": created_ms})

    async def _part(self, name: str, scope: Scope, after: str, limit: int) -> Page:
        """What one scope lets be seen."""
        start = stream_of(scope.start)
        if not scope.exact:
            return await self._buckets.page(name, start, after, limit)
        # One stream is the first of those that begin with its name.
        found = (await self._buckets.page(name, start, "", 1)).streams
        return Page([one for one in found if one.stream_id == start and start > after], False)

    async def _list(self, exchange: Exchange, name: str, prefix: str, after: str, limit: int) -> None:
        principal, everything_below = exchange.principal, f"{name}/{prefix}"
        narrow = principal.within(Action.READ, everything_below)
        if narrow == []:
            raise refusal(exchange, Need(Action.READ, everything_below, True))
        await self._buckets.require(name)
        count = None  # of those it may not read nothing is told, not even how many there are
        if principal.may_all(Action.READ, f"{name}/"):
            count = await self._buckets.count(name)
        if narrow is None:
            found = await self._buckets.page(name, prefix, after, limit)
        else:
            found = engine.merged([await self._part(name, scope, after, limit) for scope in narrow], limit)
        answer = {
            "bucket_id": name,
            "prefix": prefix,
            "stream_count": len(found.streams),
            "streams": found.streams,
            "next_cursor": found.streams[-1].stream_id if found.has_more else None,
            "has_more": found.has_more,
            "bucket_streams": count,
        }
        exchange.json(200, answer)
