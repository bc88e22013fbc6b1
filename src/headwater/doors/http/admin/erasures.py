"""Erasures over HTTP: what deleted streams of a name left in the node's own files goes.

Owns `/__headwater/erase` and `/__headwater/erase/known`. Never deletes a stream, and never answers with a name.

    POST /__headwater/erase          {"stream": "users/4711"} -> the same, and log_positions, table_version, ...
    POST /__headwater/erase/known    {"stream": "users/4711"} -> stream_hash, subscriptions, routers; changes nothing

Every group is cleared: which one held a stream that is gone is known to nobody, as a fork lives with its source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from headwater.config import Settings
from headwater.doors.http import headers as parse
from headwater.doors.http.exchange import Exchange
from headwater.engine.engine import Engine
from headwater.engine.erasure import Erased
from headwater.errors import BadBody, BadQuery, NoSuchRoute


class Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stream: str


_decode = msgspec.json.Decoder(Wish).decode


class Erasures:
    def __init__(
        self,
        engine: Engine,
        hash_name: Callable[[str], str] | None,
        subscriptions_of: Callable[[str], Awaitable[list[str]]],
        settings: Settings,
        routers_of: Callable[[str], Awaitable[list[str]]] | None = None,
    ) -> None:
        """`hash_name` is None for a node that keeps nothing."""
        self._engine = engine
        self._hash_name = hash_name
        self._subscriptions_of = subscriptions_of
        """Ids of the subscriptions that name a stream, by its key."""
        self._routers_of = routers_of
        """The same for routers."""
        self._settings = settings
        engine.questions.register("erase", self._answer_erase)

    def handle(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        exchange.only(b"POST")
        if self._hash_name is None:
            raise BadQuery("erase", "this node keeps nothing that could be erased")
        if rest not in (b"", b"/", b"/known"):
            raise NoSuchRoute
        try:
            asked = _decode(exchange.request.body).stream
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadBody(f'expected {{"stream": "bucket/name"}} ({error})') from None
        key = parse.stream_key(parse.FLAT_PREFIX + asked, self._settings.stream_name_bytes_max)
        exchange.run(self._answer(exchange, key, self._hash_name(key), erasing=rest != b"/known"))

    async def _answer(self, exchange: Exchange, key: str, name_hash: str, erasing: bool) -> None:
        questions = self._engine.questions
        facts: dict[str, object] = {"stream_hash": name_hash, "subscriptions": await self._subscriptions_of(key)}
        if self._routers_of is not None:
            facts["routers"] = await self._routers_of(key)
        if erasing:
            exchange.is_about(name_hash)  # the log is to be told of it for years: not by the name
            numbers = range(self._engine.groups_count)
            asked = (questions.ask_owner(number, "erase", number, key, into=Erased) for number in numbers)
            facts |= _summed(dict(zip(numbers, await asyncio.gather(*asked), strict=True)))
        exchange.json(200, facts)

    async def _answer_erase(self, number: int, key: str) -> Erased:
        owned = self._engine.serving(number)
        eraser = owned.eraser
        if eraser is None:
            raise BadQuery("erase", "this node keeps nothing that could be erased")
        return await eraser.erase(key)


def _summed(erased: dict[int, Erased]) -> dict[str, object]:
    of_groups = erased.values()
    return {
        "log_positions": {str(number): one.log_position for number, one in erased.items()},
        "catalog_rewritten": any(one.catalog_rewritten for one in of_groups),
        "table_version": max(one.table_version for one in of_groups),
        # A backup has a hold on each group: those of the group with most of them are as many as there are backups.
        "backups_held": max(one.backups_held for one in of_groups),
    }
