"""Records of a group that are not in the lake yet, as rows: `GET` and `POST /__headwater/groups/{g}/feed`.

Owns both calls. Never decides what is read where: a program plans that (see `plan`). Answers are Arrow IPC, rows as in
the lake, in the order of the log:

    GET …/feed?from=<position>&to=<position>&max_bytes=<n>       all streams and columns
    POST …/feed  {"from": …, "to": …, "max_bytes": …, "choice": {"bucket": "orders"}, "columns": ["stream", "payload"]}
    Headwater-Log: 5b0c…/9d1e…           the log and its incarnation now
    Headwater-Position: 81236            complete up to here: the next `from`
    Headwater-Lake-Position: 70412       everything at or below this is in the lake
    Headwater-Settled-Position: 70398    nothing after this is in the lake

Where the last is above the one before, a flush has taken some streams further than others: records after `from` may be
in the lake and not here.

What is posted costs what is chosen: other streams are passed over before anything is copied. Where several programs
post the same wish, blocks of the log are encoded once for all of them (see `feed_blocks`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import msgspec

from headwater.doors.http import headers as parse
from headwater.doors.http.admin.feed_blocks import BLOCK, FeedBlocks, Wish
from headwater.doors.http.admin.groups import GroupCalls
from headwater.doors.http.admin.settled import settled_position
from headwater.doors.http.exchange import Exchange
from headwater.engine.feed import Batch
from headwater.engine.group import Group
from headwater.engine.hot_records import ROW_BYTES, settling, walk
from headwater.engine.owned_group import OwnedGroup
from headwater.errors import BadBody, BadName, MethodNotAllowed, OffsetGone, Overloaded
from headwater.lake.feed import COLUMNS, END
from headwater.model import json_mode
from headwater.model.choices import BadChoice, Choice, Chosen
from headwater.security import policy

FEED_BYTES_DEFAULT = 16 * 1024 * 1024
FEED_BYTES_MAX = 64 * 1024 * 1024
FAR = 1 << 62
TRIES_MAX = 10
CHOICES_MAX = 64
"""Remembered by a process: at most 10,000 names each."""
ARROW = "application/vnd.apache.arrow.stream"
Count = Annotated[int, msgspec.Meta(ge=0, le=FAR)]


class Encoding(NamedTuple):
    """How records become Arrow IPC (see `lake.feed`). All run in a worker thread."""

    whole: Callable[[list[Batch], int], bytes]
    begin: Callable[[Sequence[str]], bytes]
    part: Callable[[Sequence[Batch], int, Sequence[str]], bytes]


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    after: Count = msgspec.field(default=0, name="from")
    until: Count = msgspec.field(default=FAR, name="to")
    max_bytes: Count = FEED_BYTES_DEFAULT
    choice: Choice = Choice()
    columns: list[str] | None = None


_decode = msgspec.json.Decoder(Wanted).decode
_encode = msgspec.json.Encoder(order="deterministic").encode
_chosen: OrderedDict[bytes, Chosen] = OrderedDict()
"""By how they are spelled, the one that was asked for last at the end."""


class _Answer(NamedTuple):
    body: bytes
    position: int
    lake_position: int
    settled_position: int


def chosen_of(choice: Choice) -> Chosen:
    """Raises BadBody. The last ones are remembered: 10,000 names take 20 ms of the event loop to look at."""
    spelled = _encode(choice)
    known = _chosen.get(spelled)
    if known is None:
        try:
            known = Chosen(choice)
        except BadChoice as bad:
            raise BadBody(f"a choice of streams: {bad}") from None
        except BadName as bad:
            raise BadBody(f"a choice of streams: {bad.message()}") from None
        _chosen[spelled] = known
        if len(_chosen) > CHOICES_MAX:
            _chosen.popitem(last=False)
    else:
        _chosen.move_to_end(spelled)
    return known


def check_start(group: Group, start: int) -> None:
    """Raises OffsetGone."""
    lake_position = group.lake_position()
    if start < lake_position:
        # What lies between is in the lake: an answer without it would pass for the whole.
        raise OffsetGone(lake_position)


class FeedCalls:
    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self._blocks = FeedBlocks()

    def register(self, groups: GroupCalls) -> None:
        groups.call("feed", self._feed, policy.READ_OR_ASK_ALL)

    def _feed(self, exchange: Exchange, owned: OwnedGroup, rest: bytes, query: bytes) -> None:
        method = exchange.request.method
        if method == b"POST":
            exchange.only(b"POST", rest)
            body = exchange.request.body
            try:
                wanted = _decode(body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise BadBody(f'expected {{"from": …, "choice": {{…}}}} ({json_mode.fault(error, body)})') from None
            columns = tuple(COLUMNS if wanted.columns is None else dict.fromkeys(wanted.columns))
            if not columns or not set(columns) <= set(COLUMNS):
                raise BadBody(f"columns are some of {', '.join(COLUMNS)}")
            exchange.run(self._answer_chosen(exchange, owned.group, wanted, chosen_of(wanted.choice), columns))
            return
        if method not in (b"GET", b"HEAD"):
            raise MethodNotAllowed("GET, HEAD, POST, OPTIONS")
        exchange.only(b"GET", rest)
        asked = parse.query(query, ("from", "to", "max_bytes"))
        start, until = parse.whole(asked, "from", 0, FAR), parse.whole(asked, "to", FAR, FAR)
        bytes_max = min(parse.whole(asked, "max_bytes", FEED_BYTES_DEFAULT, 1 << 40), FEED_BYTES_MAX)
        exchange.run(self._answer_all(exchange, owned.group, start, until, bytes_max))

    async def _answer_all(self, exchange: Exchange, group: Group, start: int, until: int, bytes_max: int) -> None:
        check_start(group, start)
        settled = settled_position(group)
        walked = await walk(group, start, until, FAR, bytes_max, payload_only=False)
        body = await asyncio.to_thread(self._encoding.whole, walked.batches, group.number)
        _reply(exchange, group, _Answer(body, walked.position, walked.lake_position, settled))

    async def _answer_chosen(
        self, exchange: Exchange, group: Group, wanted: Wanted, chosen: Chosen, columns: tuple[str, ...]
    ) -> None:
        wish = Wish(group.number, _encode(wanted.choice), columns)
        for _ in range(TRIES_MAX):
            check_start(group, wanted.after)
            found = await self._read(group, wanted, chosen, wish)
            if found is not None:
                _reply(exchange, group, found)
                return
        raise Overloaded("records settle faster than they are read")

    async def _read(self, group: Group, wanted: Wanted, chosen: Chosen, wish: Wish) -> _Answer | None:
        """None when records settled before any were found."""
        blocks, before = self._blocks, settling(group)
        lake_position, settled = group.lake_position(), settled_position(group)
        bytes_max = min(wanted.max_bytes, FEED_BYTES_MAX)
        shared = blocks.share(wish, wanted.after, wanted.until)
        limit = max(wanted.after, min(wanted.until, group.log.synced))
        parts: list[bytes] = []
        at, size = wanted.after, 0
        while at < limit and not (parts and size >= bytes_max):
            kept = blocks.get(wish, group, at) if shared and at % BLOCK == 0 and at + BLOCK <= limit else None
            if kept is not None:
                if parts and size + kept.size_bytes > bytes_max:
                    break
                parts.append(kept.body)
                at, size = at + BLOCK, size + kept.size_bytes
                continue
            upto = blocks.next_known(wish, group, at, limit) if shared else limit
            shown = blocks.shown(group)
            walked = await walk(group, at, upto, FAR, max(bytes_max - size, 1), payload_only=False, chosen=chosen)
            if settling(group) != before:
                if not parts:
                    return None
                break
            parts += await self._encoded(group, wish, walked.batches, at, walked.position, shared, shown)
            at, size = walked.position, size + walked.payload_bytes + ROW_BYTES * walked.rows_count
            if walked.position < upto:
                break
        head = await asyncio.to_thread(self._encoding.begin, wish.columns)
        return _Answer(b"".join((head, *parts, END)), at, lake_position, settled)

    async def _encoded(
        self,
        group: Group,
        wish: Wish,
        batches: list[Batch],
        after: int,
        until: int,
        shared: bool,
        shown: tuple[int, int],
    ) -> list[bytes]:
        """The rows of a range, in parts; where the wish is shared, whole blocks of it are kept."""
        part, number = self._encoding.part, group.number
        if not shared:
            return [await asyncio.to_thread(part, batches, number, wish.columns)]
        pieces: list[tuple[int, int, list[Batch]]] = []
        index = 0
        while after < until:
            end = min((after // BLOCK + 1) * BLOCK, until)
            first = index
            while index < len(batches) and batches[index].position <= end:
                index += 1
            pieces.append((after, end, batches[first:index]))
            after = end

        def encode() -> list[bytes]:
            return [part(some, number, wish.columns) for _, _, some in pieces]

        bodies = await asyncio.to_thread(encode)
        for (begin, end, some), body in zip(pieces, bodies, strict=True):
            if end - begin == BLOCK:
                rows = sum(len(batch.payloads) for batch in some)
                size = sum(batch.ends[-1] - batch.start for batch in some) + ROW_BYTES * rows
                self._blocks.keep(wish, group, begin, body, size, shown)
        return bodies


def _reply(exchange: Exchange, group: Group, answer: _Answer) -> None:
    headers = [
        ("Content-Type", ARROW),
        ("Headwater-Log", f"{group.lineage.log}/{group.lineage.newest.id}"),
        ("Headwater-Position", str(answer.position)),
        ("Headwater-Lake-Position", str(answer.lake_position)),
        ("Headwater-Settled-Position", str(answer.settled_position)),
        ("Cache-Control", "no-store"),
    ]
    exchange.reply(exchange.responder.full(200, headers, answer.body, exchange.request.keep_alive))
