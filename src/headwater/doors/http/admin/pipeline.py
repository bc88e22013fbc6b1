"""What the data pipeline asks of a node beside its records: how far they reach, and a push to settle them.

Owns `cut`, `incarnations` and `flush` below `/__headwater/groups/{g}/`, `/__headwater/flush/...` and
`/__headwater/lake`, which says what the lake holds. Never reads records from it: `feed` is another module.

`cut` tells how far a number of records or bytes after a position reaches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any

from headwater.doors.http import headers as parse
from headwater.doors.http.admin.feed import FAR, check_start
from headwater.doors.http.admin.groups import GroupCalls
from headwater.doors.http.exchange import Exchange
from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.hot_records import walk
from headwater.engine.outcome_future import synced
from headwater.engine.owned_group import OwnedGroup
from headwater.errors import BadQuery
from headwater.model.choices import Chosen
from headwater.security import policy

_NAME_BYTES_MAX = 16_384
"""A stream that exists was named within the limit of its time."""
Describe = Callable[[dict[int, dict[str, int]]], dict[str, Any]]


class Pipeline:
    def __init__(self, engine: Engine, describe: Describe | None) -> None:
        self._engine = engine
        self._describe = describe
        """Says what is in the lake, by what each group's catalog counts. Runs in a worker thread."""
        engine.questions.register("flush", self._answer_flush)
        engine.questions.register("lake_counts", self._answer_counts)

    def register(self, groups: GroupCalls) -> None:
        groups.call("cut", self._cut, policy.READ_ALL)
        groups.call("incarnations", self._incarnations, policy.READ_ALL)
        groups.call("flush", self._flush, policy.FLUSH)

    def _incarnations(self, exchange: Exchange, owned: OwnedGroup, rest: bytes, query: bytes) -> None:
        exchange.only(b"GET", rest)
        lineage = owned.group.lineage
        facts = {"log": lineage.log, "position": owned.group.log.synced, "incarnations": lineage.incarnations}
        exchange.json(200, facts)

    def _cut(self, exchange: Exchange, owned: OwnedGroup, rest: bytes, query: bytes) -> None:
        exchange.only(b"GET", rest)
        wanted = parse.query(query, ("from", "to", "max_rows", "max_bytes"))
        start, until = parse.whole(wanted, "from", 0, FAR), parse.whole(wanted, "to", FAR, FAR)
        rows_max = parse.whole(wanted, "max_rows", FAR, FAR)
        bytes_max = parse.whole(wanted, "max_bytes", FAR, FAR)
        exchange.run(_answer_cut(exchange, owned.group, start, until, rows_max, bytes_max))

    def lake(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """`GET /__headwater/lake`: files, rows and bytes of the lake, as of the last checkpoint."""
        exchange.only(b"GET", rest)
        if self._describe is None:
            raise BadQuery("lake", "this node has no lake")
        exchange.run(self._answer_lake(exchange, self._describe))

    async def _answer_lake(self, exchange: Exchange, describe: Describe) -> None:
        found = await self._engine.questions.ask_all("lake_counts", into=dict[int, dict[str, int]])
        counts = {group: of_group for answer in found for group, of_group in answer.items()}
        exchange.json(200, await asyncio.to_thread(describe, counts))

    async def _answer_counts(self) -> dict[int, dict[str, int]]:
        """What the catalogs of this process's groups count, by group."""
        owned = list(self._engine.owned.values())
        return await asyncio.to_thread(lambda: {one.number: _counts(one) for one in owned})

    def flush(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """`POST /__headwater/flush` or `.../flush/{bucket}/{stream}`: settles what is synced, of all or of one."""
        exchange.only(b"POST")
        key = None
        if rest not in (b"", b"/"):
            key = parse.stream_key(parse.path_text(rest), _NAME_BYTES_MAX)
        exchange.run(self._flush_anywhere(exchange, key))

    async def _flush_anywhere(self, exchange: Exchange, key: str | None) -> None:
        engine = self._engine
        ask = engine.questions.ask_owner
        numbers = range(engine.groups_count) if key is None else [await engine.locate(key)]
        # Each group by itself: none is kept waiting for another's records.
        found = await asyncio.gather(*(ask(number, "flush", number, key, into=dict[str, int]) for number in numbers))
        exchange.json(200, {"flushed_bytes": sum(one["flushed_bytes"] for one in found), "groups": found})

    def _flush(self, exchange: Exchange, owned: OwnedGroup, rest: bytes, query: bytes) -> None:
        """`POST /__headwater/groups/{g}/flush`: settles what is synced of one group."""
        exchange.only(b"POST", rest)
        exchange.run(self._flush_one(exchange, owned))

    async def _flush_one(self, exchange: Exchange, owned: OwnedGroup) -> None:
        exchange.json(200, await flush(owned, None))

    async def _answer_flush(self, number: int, key: str | None) -> dict[str, int]:
        return await flush(self._engine.serving(number), key)


async def flush(owned: OwnedGroup, key: str | None) -> dict[str, int]:
    """On return what was synced is in the lake, of the group or of one stream; tells how many bytes that were."""
    group = owned.group
    if owned.flusher is None:
        raise BadQuery("flush", "this node has no lake")
    if key is None:
        flushed = await owned.flusher.flush_all()
    else:
        flushed = await owned.flusher.flush_stream(group.find(key, touch=False))
    await synced(group)  # a position that was told never goes back
    return {"group": group.number, "flushed_bytes": flushed, "lake_position": group.lake_position()}


def _counts(owned: OwnedGroup) -> dict[str, int]:
    if owned.files is None:
        raise BadQuery("lake", "this node has no lake")
    with closing(owned.files.open_to_read()) as catalog:
        found: dict[str, int] = catalog.counts()
        return found


async def cut(
    group: Group, start: int, until: int, rows_max: int, bytes_max: int, chosen: Chosen | None = None
) -> dict[str, int]:
    """How far some records after `start` reach that are not in the lake yet. Raises OffsetGone."""
    check_start(group, start)
    walked = await walk(group, start, until, rows_max, bytes_max, payload_only=True, chosen=chosen)
    return {"position": walked.position, "rows": walked.rows_count, "bytes": walked.payload_bytes}


async def _answer_cut(exchange: Exchange, group: Group, start: int, until: int, rows_max: int, bytes_max: int) -> None:
    exchange.json(200, await cut(group, start, until, rows_max, bytes_max))
