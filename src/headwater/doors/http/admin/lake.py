"""What the data pipeline asks about the lake's files and what streams let go of, and the swap of files for others.

Owns `lake/files`, `lake/extents`, `lake/streams`, `lake/swap` and `losses` below `/__headwater/groups/{g}/`. Never
reads records, and never works on the event loop: catalog, table and Arrow are for two threads of its own, so that
flushes and checkpoints wait for none of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import chain
from typing import Any, Protocol, TypeVar

import msgspec

from headwater.doors.http import headers as parse
from headwater.doors.http.admin.feed import ARROW
from headwater.doors.http.admin.groups import GroupCalls
from headwater.doors.http.exchange import Exchange
from headwater.engine.checkpoint import checkpoint
from headwater.engine.group import Group
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.owned_group import OwnedGroup
from headwater.errors import BadBody, BadQuery, Overloaded
from headwater.model import json_mode, offsets
from headwater.model.choices import Chosen
from headwater.model.deletions import Part
from headwater.model.names import bucket_of, stream_of
from headwater.model.row import StreamRow
from headwater.ports import RowCounts
from headwater.security import policy

ALWAYS, IF_NEEDED = "always", "if-needed"
"""When a list of files takes a checkpoint."""
THREADS = 2
WAITING_MAX = 16
"""Calls at work or waiting for a thread; more are answered 503."""
SWAPS_WAITING_MAX = 8
"""Of a group, at work or waiting: one is done at a time. More are answered 503."""
FILES_MAX = 1_000
EXTENTS_MAX = 2_000_000
"""Of one answer: about 60 MB."""
EXTENTS_COUNTED_MAX = 50_000
"""Looked at to say how many rows of files are those of chosen streams: about 0.1 s. Of further files nobody says."""
ROWS_COUNTED_MAX = 5_000_000
"""Of files that SQLite counts by bucket: they have as many extents at most. Of more only some files are counted."""
STREAMS_DEFAULT, STREAMS_MAX = 10_000, 100_000
STREAMS_BYTES_MAX = 64 << 20
"""Of the rows of one answer: a stream with many holes takes a megabyte or two."""
LOSSES_DEFAULT, LOSSES_MAX = 1_000, 10_000
LOSSES_SLICE = 5_000
SID_MAX = (1 << 63) - 1

T = TypeVar("T")


class Files(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    files: list[str]


class Swap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    remove: list[str]
    add: list[str]


_swap_asked = msgspec.json.Decoder(Swap).decode
_files_asked = msgspec.json.Decoder(Files).decode


class Loss(msgspec.Struct, frozen=True):
    bucket: str
    stream: str
    incarnation: int
    position: int
    """Log position of the newest record that the stream let go of."""
    at: int
    """Log position at which it did, at the latest."""
    earliest: str
    """Offset of the oldest record it has left."""

    @classmethod
    def of(cls, stream: StreamRow | LoadedStream) -> Loss:
        key = stream.key
        at = stream.lost_at or stream.position
        return cls(bucket_of(key), stream_of(key), stream.sid, stream.lost_position, at, offsets.show(stream.earliest))


class Book(Protocol):
    """The catalog as it is read here (see `catalog.lake_files`)."""

    def row_counts(self) -> dict[str, RowCounts]: ...
    def row_counts_from(self, first: str, prefix: str) -> dict[str, RowCounts]: ...
    def rows_in(self, files: Iterable[str], bucket: str | None, but: tuple[str, ...]) -> dict[str, int]: ...
    def rows_of(
        self, files: list[str], after: int, keys: tuple[str, ...] | None, takes: Callable[[str], bool], count_max: int
    ) -> dict[str, int]: ...
    def extents_count(self, files: list[str]) -> int: ...
    def live_parts(self, file: str) -> Iterator[Part]: ...
    def streams_after(self, sid: int, count_max: int, bytes_max: int) -> tuple[list[StreamRow], bool]: ...
    def losses(self, after: int, count_max: int) -> list[StreamRow]: ...
    def close(self) -> None: ...


class LakeCalls:
    def __init__(
        self,
        table: Callable[[], dict[str, Any]],
        infos: Callable[[Iterable[str]], dict[str, Any]],
        place: dict[str, str | None],
        unused_ms_max: int,
    ) -> None:
        self._table = table
        """The table's files (see `lake.layout.FileInfo`). Called in a thread."""
        self._infos = infos
        """The same of some of them, as far as they are there."""
        self._place = place
        self._unused_ms_max = unused_ms_max
        """How long an object that nothing refers to may still be there, while the node runs."""
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="lake-call")
        self._waiting = 0
        self._swaps_waiting: dict[int, int] = {}

    def register(self, groups: GroupCalls) -> None:
        groups.call("lake/files", self._files, policy.READ_ALL)
        groups.call("lake/extents", self._extents, policy.ASK_ALL)
        groups.call("lake/streams", self._streams, policy.READ_ALL)
        groups.call("lake/swap", self._swap, policy.ADMIN_DO)
        groups.call("losses", self._losses, policy.READ_ALL)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ---- files --------------------------------------------------------------------------------------------------

    def _files(self, exchange: Exchange, owned: OwnedGroup, rest: bytes, query: bytes) -> None:
        """`GET …/files`: takes a checkpoint, then tells of every file that holds settled records."""
        exchange.only(b"GET", rest)
        asked = parse.query(query, ("checkpoint",)).get("checkpoint", ALWAYS)
        if asked not in (ALWAYS, IF_NEEDED):
            raise BadQuery("checkpoint", f"expected {ALWAYS} or {IF_NEEDED}")
        exchange.run(self._answer_files(exchange, owned, asked == ALWAYS))

    async def _answer_files(self, exchange: Exchange, owned: OwnedGroup, always: bool) -> None:
        exchange.reply(await self.files(owned, _json(exchange), always))

    async def files(self, owned: OwnedGroup, told: Callable[[dict[str, Any]], T], always: bool = True) -> T:
        """Takes a checkpoint; what is told of every file that holds settled records. `told` runs in a thread.

        Unless `always`, only when the catalog needs one to tell of them.
        """
        flusher = _kept(owned.flusher)
        await flusher.follow()
        async with owned.group.locks.relocating:  # between catalog and table of a swap they say different things
            # Before the checkpoint: what is settled by now is in the catalog after it.
            position = owned.group.lake_position()
            await (_checkpoint if always else _know_files)(owned.group)
            return await self._thread(lambda: told(self._list(owned, position)))

    async def files_after(
        self, owned: OwnedGroup, after: int, chosen: Chosen, known: tuple[int, str] | None
    ) -> dict[str, Any]:
        """What is told of files with records behind a position. Takes a checkpoint only when the catalog needs one.

        Of a caller who knows those up to some position, and no records in them were deleted since, only of later ones.
        """
        group, flusher = owned.group, _kept(owned.flusher)
        await flusher.follow()
        async with group.locks.relocating:
            position = group.lake_position()
            await _know_files(group)
            seen = f"{group.lineage.newest.id}/{group.loaded.masks_count}"
            if known is not None and known[1] == seen:
                after = max(after, known[0])
            told = await self._thread(lambda: self._list_after(owned, position, after, chosen))
        return told | {"files_from": after, "seen": seen}

    def _list(self, owned: OwnedGroup, position: int) -> dict[str, Any]:
        with closing(_book(owned)) as book:
            live = book.row_counts()
        return self._listed(owned.group, position, live, self._table() if live else {})

    def _list_after(self, owned: OwnedGroup, position: int, after: int, chosen: Chosen) -> dict[str, Any]:
        from headwater.lake.names import data_key, data_prefix

        number = owned.number
        with closing(_book(owned)) as book:
            # A file is named by the position of its newest record.
            live = book.row_counts_from(data_key(number, after + 1, "").removesuffix(".parquet"), data_prefix(number))
            infos = self._infos(live) if live else {}
            whole: list[str] = []
            if chosen.buckets is not None:
                # A file that lies behind the position whole is counted without a look at its extents.
                whole = [name for name in live if name in infos and (infos[name].position_min or 0) > after]
                rows = sum(live[name].live + live[name].deleted for name in whole)
                del whole[len(whole) if rows <= ROWS_COUNTED_MAX else FILES_MAX :]
            mine = {} if chosen.buckets is None else book.rows_in(whole, *chosen.buckets)
            rest = sorted(live.keys() - mine.keys())
            mine |= book.rows_of(rest, after, chosen.keys, chosen.takes, EXTENTS_COUNTED_MAX)
        told = self._listed(owned.group, position, live, infos)
        for file in told["files"]:
            file["matched_rows"] = mine.get(file["path"])
        return told

    def _listed(self, group: Group, position: int, live: dict[str, RowCounts], table: dict[str, Any]) -> dict[str, Any]:
        from headwater.lake.listing import list_files

        try:
            files = list_files(table, live)
        except KeyError as missing:
            group.catalog.table_behind = True  # whoever took it out: the next call finds it back
            raise Overloaded(f"the table does not hold {missing}; headwater lake verify tells more") from None
        return {
            "group": group.number,
            "log": group.lineage.log,
            "incarnation": group.lineage.newest.id,
            "epoch": group.epoch,
            "lake_position": position,
            "lake": self._place,
            "unused_ms_max": self._unused_ms_max,
            "files": files,
        }

    # ---- extents and streams ------------------------------------------------------------------------------------

    def _extents(self, exchange: Exchange, owned: OwnedGroup, rest: bytes, query: bytes) -> None:
        """`POST …/extents`: which rows of the named files are live, as Arrow IPC."""
        exchange.only(b"POST", rest)
        try:
            files = _files_asked(exchange.request.body).files
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            why = json_mode.fault(error, exchange.request.body)
            raise BadBody(f'expected {{"files": […]}} ({why})') from None
        if len(files) > FILES_MAX:
            raise BadBody(f"at most {FILES_MAX} files in one request")
        exchange.run(self._answer_extents(exchange, owned, sorted(set(files))))

    async def _answer_extents(self, exchange: Exchange, owned: OwnedGroup, files: list[str]) -> None:
        await catch_up(owned.group)

        def tell() -> bytes:
            from headwater.lake.listing import encode_extents

            with closing(_book(owned)) as book:
                count = book.extents_count(files)
                if count > EXTENTS_MAX:
                    raise _too_many(count)
                body = encode_extents(_bounded(chain.from_iterable(_in_order(book, files))))
            return _arrow(exchange, body)

        exchange.reply(await self._thread(tell))

    def _streams(self, exchange: Exchange, owned: OwnedGroup, rest: bytes, query: bytes) -> None:
        """`GET …/streams?after=SID&limit=N`: every stream in pages, as Arrow IPC."""
        exchange.only(b"GET", rest)
        wanted = parse.query(query, ("after", "limit"))
        after = -1 if wanted.get("after", "-1") == "-1" else parse.whole(wanted, "after", 0, SID_MAX)
        limit = min(parse.whole(wanted, "limit", STREAMS_DEFAULT, SID_MAX), STREAMS_MAX)
        if not limit:
            raise BadQuery("limit", "expected at least 1")
        exchange.run(self._answer_streams(exchange, owned, after, limit))

    async def _answer_streams(self, exchange: Exchange, owned: OwnedGroup, after: int, limit: int) -> None:
        await catch_up(owned.group)

        def tell() -> bytes:
            from headwater.lake.listing import encode_streams

            with closing(_book(owned)) as book:
                rows, more = book.streams_after(after, limit, STREAMS_BYTES_MAX)
            following = [("Headwater-Next", str(rows[-1].sid))] if more else []
            return _arrow(exchange, encode_streams(rows), following)

        exchange.reply(await self._thread(tell))

    # ---- losses -------------------------------------------------------------------------------------------------

    def _losses(self, exchange: Exchange, owned: OwnedGroup, rest: bytes, query: bytes) -> None:
        """`GET …/losses?after=P&limit=N`: streams that let go of records after a position, by trim or retention."""
        exchange.only(b"GET", rest)
        wanted = parse.query(query, ("after", "limit"))
        after = parse.whole(wanted, "after", 0, SID_MAX)
        limit = min(parse.whole(wanted, "limit", LOSSES_DEFAULT, SID_MAX), LOSSES_MAX)
        if not limit:
            raise BadQuery("limit", "expected at least 1")
        exchange.run(self._answer_losses(exchange, owned, after, limit))

    async def _answer_losses(self, exchange: Exchange, owned: OwnedGroup, after: int, limit: int) -> None:
        exchange.reply(await self.losses(owned, after, limit, _json(exchange)))

    async def losses(self, owned: OwnedGroup, after: int, limit: int, told: Callable[[dict[str, Any]], T]) -> T:
        """Up to `limit` streams that let go of records after a position. `told` runs in a thread."""
        # Memory before the catalog: what a checkpoint moves from one to the other is seen in at least one of them.
        fresh: dict[int, Loss] = {}
        loaded = owned.group.loaded
        removed = set(loaded.removed)
        streams = [*loaded.losing.values(), *loaded.lost.values()]
        for at in range(0, len(streams), LOSSES_SLICE):
            for stream in streams[at : at + LOSSES_SLICE]:
                if stream.lost_position > after and not stream.soft_deleted:
                    fresh[stream.sid] = Loss.of(stream)
            await asyncio.sleep(0)

        def tell() -> T:
            with closing(_book(owned)) as book:
                # As many more as memory may know better.
                rows = book.losses(after, limit + 1 + len(fresh) + len(removed))
            found = {row.sid: Loss.of(row) for row in rows if row.sid not in removed} | fresh
            losses = sorted(found.values(), key=lambda loss: loss.position)
            return told({"losses": losses[:limit], "more": len(losses) > limit})

        return await self._thread(tell)

    # ---- swaps --------------------------------------------------------------------------------------------------

    def _swap(self, exchange: Exchange, owned: OwnedGroup, rest: bytes, query: bytes) -> None:
        """`POST …/swap`: files with the same live rows take the place of others."""
        exchange.only(b"POST", rest)
        try:
            asked = _swap_asked(exchange.request.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            why = json_mode.fault(error, exchange.request.body)
            raise BadBody(f'expected {{"remove": […], "add": […]}} ({why})') from None
        if not asked.remove:
            raise BadBody("a swap removes at least one file")
        if len(asked.remove) > FILES_MAX or len(asked.add) > FILES_MAX:
            raise BadBody(f"at most {FILES_MAX} files of each kind in one swap")
        if len({*asked.remove, *asked.add}) != len(asked.remove) + len(asked.add):
            raise BadBody("a file is named twice")
        exchange.run(self._answer_swap(exchange, owned, asked))

    async def _answer_swap(self, exchange: Exchange, owned: OwnedGroup, asked: Swap) -> None:
        waiting = self._swaps_waiting
        if waiting.get(owned.number, 0) >= SWAPS_WAITING_MAX:
            raise Overloaded("too many swaps wait")
        waiting[owned.number] = waiting.get(owned.number, 0) + 1
        try:
            exchange.json(200, await _kept(owned.swapper).swap(asked.remove, asked.add))
        finally:
            waiting[owned.number] -= 1

    async def _thread(self, work: Callable[[], T]) -> T:
        if self._waiting >= WAITING_MAX:
            raise Overloaded("too many calls about the lake wait")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._waiting -= 1


def _kept(part: T | None) -> T:
    if part is None:
        raise BadQuery("lake", "this node has no lake")
    return part


def _book(owned: OwnedGroup) -> Book:
    """The catalog, opened for reading. Called in a thread."""
    book: Book = _kept(owned.files).open_to_read()
    return book


async def catch_up(group: Group) -> None:
    """On return the catalog has everything that an owner before this one can have told of files and streams.

    Such an owner takes a checkpoint before it does, but in a catalog of its own.
    """
    if group.catalog.position < group.lineage.newest.position:
        await _checkpoint(group)


async def _know_files(group: Group) -> None:
    """On return the catalog knows of all files and what is live in them. Takes a checkpoint only when it does not."""
    async with group.locks.checkpointing:
        pass  # what one under way writes is in the catalog after it
    if group.loaded.lake_changed or group.catalog.position < group.lineage.newest.position:
        await _checkpoint(group)


async def _checkpoint(group: Group) -> None:
    if group.closed:
        raise group.unavailable()
    try:
        await checkpoint(group)
    except Exception as error:
        raise Overloaded(f"the checkpoint failed ({error})") from error


def _in_order(book: Book, files: list[str]) -> Iterator[list[Part]]:
    for file in files:
        yield sorted(book.live_parts(file), key=lambda part: (part.extent.row_group, part.extent.row_start))


def _bounded(parts: Iterable[Part]) -> Iterator[Part]:
    """Deleted records may cut an extent into many."""
    for count, part in enumerate(parts, 1):
        if count > EXTENTS_MAX:
            raise _too_many(count)
        yield part


def _too_many(count: int) -> BadBody:
    return BadBody(f"these files have at least {count} extents, more than {EXTENTS_MAX} in one answer; name fewer")


def _json(exchange: Exchange) -> Callable[[dict[str, Any]], bytes]:
    return lambda facts: exchange.responder.json(200, facts, exchange.request.keep_alive)


def _arrow(exchange: Exchange, body: bytes, more: list[tuple[str, str]] | None = None) -> bytes:
    headers = [("Content-Type", ARROW), ("Cache-Control", "no-store"), *(more or ())]
    return exchange.responder.full(200, headers, body, exchange.request.keep_alive)
