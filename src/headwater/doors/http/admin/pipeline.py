"""What the data pipeline asks of a node: the records that are not in the lake yet, and a push to settle them.

Owns `/__headwater/groups/{g}/feed` and `/cut`, `/__headwater/groups`, `/__headwater/flush/...` and `/__headwater/lake`,
which says what the lake holds. Never reads records from it.

Positions are those of one log. `groups` says which, and `groups/0/incarnations` all that it has gone through (see
`model/lineage.py`); whoever goes on from a position says so with every call below `/__headwater`:

    Headwater-Expected-Log: <log>/<incarnation>/<position>

The feed answers with Arrow IPC, rows as in the lake, in the order of the log:

    GET /__headwater/groups/0/feed?from=<position>&to=<position>&max_bytes=<n>
    Headwater-Log: 5b0c…/9d1e…           the log and its incarnation now
    Headwater-Position: 81236            complete up to here: the next `from`
    Headwater-Lake-Position: 70412       everything at or below this is in the lake
    Headwater-Settled-Position: 70398    nothing after this is in the lake

Where the last is above the one before, a flush has taken some streams further than others: records after `from` may be
in the lake and not here. `cut` tells how far a number of records or bytes after a position reaches.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from headwater.doors.http import headers as parse
from headwater.doors.http.exchange import Exchange
from headwater.engine.feed import Batch
from headwater.engine.flush import Flusher
from headwater.engine.group import Group
from headwater.engine.hot_records import walk
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.outcome_future import synced
from headwater.errors import BadHeader, BadQuery, NoSuchRoute, OffsetGone

FEED_BYTES_DEFAULT = 16 * 1024 * 1024
FEED_BYTES_MAX = 64 * 1024 * 1024
_FAR = 1 << 62
_NAME_BYTES_MAX = 16_384
"""A stream that exists was named within the limit of its time."""
INCARNATIONS_TOLD = 8
"""The newest ones: enough for whoever comes back to find where two copies of a log part."""
ARROW = "application/vnd.apache.arrow.stream"

Encode = Callable[[list[Batch], int], bytes]
"""Batches and the group's number into Arrow IPC. Runs in a worker thread."""


_EXPECTED = re.compile(rb"([0-9a-f]{1,64})/([0-9a-f]{1,64})/([0-9]{1,18})")


def check_log(group: Group, expected: bytes) -> None:
    """Raises AnotherLog or LogSetBack unless the log holds what the header says of it."""
    found = _EXPECTED.fullmatch(expected)
    if found is None:
        raise BadHeader("Headwater-Expected-Log", "expected LOG/INCARNATION/POSITION, as /__headwater/groups has them")
    group.lineage.check(found[1].decode(), found[2].decode(), int(found[3]), group.log.synced)


class Pipeline:
    def __init__(
        self, group: Group, flusher: Flusher | None, encode: Encode, describe: Callable[[], dict[str, Any]] | None
    ) -> None:
        self._group = group
        self._flusher = flusher
        self._encode = encode
        self._describe = describe
        """Says what is in the lake. Runs in a worker thread."""
        self._settled, self._settled_at = 0, (-1, -1)

    def groups(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """`/__headwater/groups` and what is below it."""
        if rest in (b"", b"/"):
            exchange.only(b"GET")
            exchange.json(200, {"groups": [self._state()]})
        elif rest == b"/0/feed":
            exchange.only(b"GET")
            self._feed(exchange, query)
        elif rest == b"/0/cut":
            exchange.only(b"GET")
            self._cut(exchange, query)
        elif rest == b"/0/incarnations":
            exchange.only(b"GET")
            lineage = self._group.lineage
            facts = {"log": lineage.log, "position": self._group.log.synced, "incarnations": lineage.incarnations}
            exchange.json(200, facts)
        else:
            raise NoSuchRoute

    def _state(self) -> dict[str, object]:
        group = self._group
        return {
            "group": 0,
            "log": group.lineage.log,
            "incarnations": group.lineage.incarnations[-INCARNATIONS_TOLD:],
            "position": group.log.synced,
            "lake_position": group.lake_position(),
            "hot_bytes": group.loaded.hot_bytes,
            "streams_loaded": len(group.loaded.by_key),
        }

    def _feed(self, exchange: Exchange, query: bytes) -> None:
        wanted = parse.query(query, ("from", "to", "max_bytes"))
        start, until = parse.whole(wanted, "from", 0, _FAR), parse.whole(wanted, "to", _FAR, _FAR)
        bytes_max = min(parse.whole(wanted, "max_bytes", FEED_BYTES_DEFAULT, 1 << 40), FEED_BYTES_MAX)
        exchange.run(self._answer_feed(exchange, start, until, bytes_max))

    def _cut(self, exchange: Exchange, query: bytes) -> None:
        wanted = parse.query(query, ("from", "to", "max_rows", "max_bytes"))
        start, until = parse.whole(wanted, "from", 0, _FAR), parse.whole(wanted, "to", _FAR, _FAR)
        rows_max = parse.whole(wanted, "max_rows", _FAR, _FAR)
        bytes_max = parse.whole(wanted, "max_bytes", _FAR, _FAR)
        exchange.run(self._answer_cut(exchange, start, until, rows_max, bytes_max))

    async def _answer_feed(self, exchange: Exchange, start: int, until: int, bytes_max: int) -> None:
        self._check(start)
        settled = self._settled_position()
        walked = await walk(self._group, start, until, _FAR, bytes_max, payload_only=False)
        body = await asyncio.to_thread(self._encode, walked.batches, 0)
        headers = [
            ("Content-Type", ARROW),
            ("Headwater-Log", f"{self._group.lineage.log}/{self._group.lineage.newest.id}"),
            ("Headwater-Position", str(walked.position)),
            ("Headwater-Lake-Position", str(walked.lake_position)),
            ("Headwater-Settled-Position", str(settled)),
            ("Cache-Control", "no-store"),
        ]
        exchange.reply(exchange.responder.full(200, headers, body, exchange.request.keep_alive))

    async def _answer_cut(self, exchange: Exchange, start: int, until: int, rows_max: int, bytes_max: int) -> None:
        self._check(start)
        walked = await walk(self._group, start, until, rows_max, bytes_max, payload_only=True)
        facts = {"position": walked.position, "rows": walked.rows_count, "bytes": walked.payload_bytes}
        exchange.json(200, facts)

    def _check(self, start: int) -> None:
        lake_position = self._group.lake_position()
        if start < lake_position:
            # What lies between is in the lake: an answer without it would pass for the whole.
            raise OffsetGone(lake_position)

    def _settled_position(self) -> int:
        """Nothing after it is in the lake. Costs a look at every file's name, once after each flush."""
        group = self._group
        place = group.lake_position(), group.settled_count
        if place != self._settled_at:
            # A file is named by the position of its newest record.
            names = group.catalog.files() | set(group.loaded.new_files)
            found = [name.rpartition("/")[2].partition("-")[0] for name in names]
            self._settled = max((int(digits) for digits in found if digits.isdigit()), default=0)
            self._settled_at = place
        return self._settled

    def lake(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """`GET /__headwater/lake`: files, rows and bytes of the lake, as of the last checkpoint."""
        exchange.only(b"GET", rest)
        if self._describe is None:
            raise BadQuery("lake", "this node has no lake")
        exchange.run(self._answer_lake(exchange, self._describe))

    async def _answer_lake(self, exchange: Exchange, describe: Callable[[], dict[str, Any]]) -> None:
        exchange.json(200, await asyncio.to_thread(describe))

    def flush(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """`POST /__headwater/flush` or `.../flush/{bucket}/{stream}`: settles what is synced, of all or of one."""
        exchange.only(b"POST")
        if self._flusher is None:
            raise BadQuery("flush", "this node has no lake")
        stream = None
        if rest not in (b"", b"/"):
            stream = self._group.find(parse.stream_key(parse.path_text(rest), _NAME_BYTES_MAX), touch=False)
        exchange.run(self._flush(exchange, self._flusher, stream))

    async def _flush(self, exchange: Exchange, flusher: Flusher, stream: LoadedStream | None) -> None:
        flushed = await (flusher.flush_all() if stream is None else flusher.flush_stream(stream))
        await synced(self._group)  # a position that was told never goes back
        exchange.json(200, {"flushed_bytes": flushed, "lake_position": self._group.lake_position()})
