"""Buckets over HTTP: create, look at, list and delete them.

Owns `/{bucket}` and `/ds/{bucket}` themselves, and `/__headwater/buckets`, which names any bucket.
Never touches the streams inside.
"""

from __future__ import annotations

import re

from headwater.doors.http import headers as parse
from headwater.doors.http.exchange import Exchange
from headwater.engine.group import Group, Outcome
from headwater.engine.listing import page
from headwater.errors import BadQuery, BucketExists, BucketNotFound, Failure, MethodNotAllowed, NoSuchRoute
from headwater.model.commands import CreateBucket, DeleteBucket
from headwater.model.names import DEFAULT_BUCKET, check_bucket

LIMIT_DEFAULT = LIMIT_MAX = 1000
_LIST_QUERY = ("prefix", "after", "limit")
_LIMIT = re.compile("[1-9][0-9]{0,3}")


class Buckets:
    def __init__(self, group: Group) -> None:
        self._group = group

    def require(self, name: str) -> None:
        """Raises BucketNotFound when there is no such bucket."""
        bucket = self._group.shelf.bucket(name)
        if (bucket is None or not bucket.exists) and name != DEFAULT_BUCKET:
            raise BucketNotFound

    def handle(self, exchange: Exchange, name: str, strict: bool) -> None:
        """A request on a bucket. `strict`: creating it again is a conflict, as the extension spec says of /ds/."""
        method = exchange.request.method
        check_bucket(name)
        if method == b"PUT":
            if strict:
                exchange.when(lambda _: exchange.empty(201, []))
            else:
                exchange.then = self._created
            self._group.submit_bucket(CreateBucket(name), exchange)
        elif method == b"DELETE":
            exchange.when(lambda _: exchange.empty(204, []))
            self._group.submit_bucket(DeleteBucket(name), exchange)
        elif method in (b"GET", b"HEAD"):
            exchange.when(lambda _: self._show(exchange, name))
            self._group.after_pending(exchange)
        else:
            raise MethodNotAllowed("GET, HEAD, PUT, DELETE, OPTIONS")

    def by_any_name(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """`GET /__headwater/buckets/{bucket}` and `.../streams`: also those that only /v1/stream/ can name."""
        parts = [parse.path_text(part) for part in rest.split(b"/")]
        if exchange.request.method not in (b"GET", b"HEAD"):
            raise MethodNotAllowed("GET, HEAD, OPTIONS")
        match parts:
            case ["", name] if name:
                exchange.when(lambda _: self._show(exchange, name))
                self._group.after_pending(exchange)
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
        exchange.when(lambda _: self._list(exchange, name, prefix, after, limit))
        self._group.after_pending(exchange)

    def _list(self, exchange: Exchange, name: str, prefix: str, after: str, limit: int) -> None:
        self.require(name)
        bucket = self._group.shelf.bucket(name)
        found = page(self._group.shelf, name, prefix, after, limit, self._group.clock.now_ms())
        answer = {
            "bucket_id": name,
            "prefix": prefix,
            "stream_count": len(found.streams),
            "streams": found.streams,
            "next_cursor": found.streams[-1].stream_id if found.has_more else None,
            "has_more": found.has_more,
            "bucket_streams": 0 if bucket is None else bucket.count,
        }
        exchange.json(200, answer)

    def _show(self, exchange: Exchange, name: str) -> None:
        self.require(name)
        bucket = self._group.shelf.bucket(name)
        count, created_ms = (0, 0) if bucket is None else (bucket.count, bucket.created_ms)
        exchange.json(200, {"bucket_id": name, "streams": count, "created_at_ms": created_ms})

    @staticmethod
    def _created(exchange: Exchange, outcome: Outcome) -> None:
        if isinstance(outcome, BucketExists):
            exchange.empty(200, [])
        elif isinstance(outcome, Failure):
            exchange.fail(outcome)
        else:
            exchange.empty(201, [])
