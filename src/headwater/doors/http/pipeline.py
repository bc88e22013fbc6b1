"""What the data pipeline asks of a node: the records that are not in the lake yet, and a push to settle them.

Owns `/__headwater/groups/{g}/feed`, `/__headwater/groups`, `/__headwater/flush/...` and `/__headwater/lake`, which
says what the lake holds. Never reads records from it.

The feed answers with Arrow IPC, rows as in the lake, in the order of the log:

    GET /__headwater/groups/0/feed?from=<position>&max_bytes=<n>
    Headwater-Position: 81236          complete up to here: the next `from`
    Headwater-Lake-Position: 70412     everything at or below this is in the lake
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headwater.doors.http import headers as parse
from headwater.doors.http.connection import Exchange
from headwater.engine.feed import Batch, Feed
from headwater.engine.flush import Flusher
from headwater.engine.group import Group
from headwater.engine.signal import synced
from headwater.errors import BadQuery, MethodNotAllowed, NoSuchRoute, OffsetGone

FEED_BYTES_DEFAULT = 16 * 1024 * 1024
FEED_BYTES_MAX = 64 * 1024 * 1024
ARROW = "application/vnd.apache.arrow.stream"

Encode = Callable[[list[Batch], int], bytes]
"""Batches and the group's number into Arrow IPC. Runs in a worker thread."""


class Pipeline:
    def __init__(
        self, group: Group, flusher: Flusher | None, encode: Encode, describe: Callable[[], dict[str, Any]] | None
    ) -> None:
        self._group = group
        self._flusher = flusher
        self._encode = encode
        self._describe = describe
        """Says what is in the lake. Runs in a worker thread."""

    def groups(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """`/__headwater/groups` and what is below it."""
        if rest in (b"", b"/"):
            _only(exchange, b"GET")
            exchange.json(200, {"groups": [self._state()]})
        elif rest == b"/0/feed":
            _only(exchange, b"GET")
            self._feed(exchange, query)
        else:
            raise NoSuchRoute

    def _state(self) -> dict[str, object]:
        group = self._group
        return {
            "group": 0,
            "position": group.log.synced,
            "lake_position": group.lake_position(),
            "hot_bytes": group.shelf.hot_bytes,
            "streams_loaded": len(group.shelf.streams),
        }

    def _feed(self, exchange: Exchange, query: bytes) -> None:
        wanted = parse.query(query, ("from", "max_bytes"))
        start = _number(wanted, "from", 0, 1 << 63)
        bytes_max = min(_number(wanted, "max_bytes", FEED_BYTES_DEFAULT, 1 << 40), FEED_BYTES_MAX)
        group = self._group
        lake_position = group.lake_position()
        if start < lake_position:
            # What lies between is in the lake: an answer without it would pass for the whole.
            raise OffsetGone(lake_position)
        feed = Feed(group, start, lambda key: True, lambda: None)
        batches: list[Batch] = []
        size = 0
        complete = group.log.synced
        try:
            feed.include(iter(list(group.shelf.holding.values())))
            for batch in feed.take():
                batches.append(batch)
                size += sum(map(len, batch.payloads)) + 64 * len(batch.payloads)
                if size >= bytes_max:
                    complete = batch.position
                    break
        finally:
            feed.close()
        exchange.run(self._answer_feed(exchange, batches, complete, lake_position))

    async def _answer_feed(self, exchange: Exchange, batches: list[Batch], complete: int, lake: int) -> None:
        body = await asyncio.to_thread(self._encode, batches, 0)
        headers = [
            ("Content-Type", ARROW),
            ("Headwater-Position", str(complete)),
            ("Headwater-Lake-Position", str(lake)),
            ("Cache-Control", "no-store"),
        ]
        exchange.reply(exchange.responder.full(200, headers, body, exchange.request.keep_alive))

    def lake(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """`GET /__headwater/lake`: files, rows and bytes of the lake, as of the last checkpoint."""
        if rest not in (b"", b"/"):
            raise NoSuchRoute
        _only(exchange, b"GET")
        if self._describe is None:
            raise BadQuery("lake", "this node has no lake")
        exchange.run(self._answer_lake(exchange, self._describe))

    async def _answer_lake(self, exchange: Exchange, describe: Callable[[], dict[str, Any]]) -> None:
        exchange.json(200, await asyncio.to_thread(describe))

    def flush(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """`POST /__headwater/flush` or `.../flush/{bucket}/{stream}`: settles what is synced by now."""
        _only(exchange, b"POST")
        if self._flusher is None:
            raise BadQuery("flush", "this node has no lake")
        if rest not in (b"", b"/"):
            self._group.find(parse.stream_key(parse.path_text(rest), 1024), touch=False)
        exchange.run(self._flush(exchange, self._flusher))

    async def _flush(self, exchange: Exchange, flusher: Flusher) -> None:
        flushed = await flusher.flush_all()
        await synced(self._group)  # a position that was told never goes back
        exchange.json(200, {"flushed_bytes": flushed, "lake_position": self._group.lake_position()})


def _only(exchange: Exchange, method: bytes) -> None:
    if exchange.request.method != method:
        raise MethodNotAllowed(f"{method.decode()}, OPTIONS")


def _number(wanted: dict[str, str], name: str, default: int, high: int) -> int:
    text = wanted.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 19) or int(text) > high:
        raise BadQuery(name, "expected a whole number")
    return int(text)
