"""Erasures over HTTP: what deleted streams of a name left in the node's own files goes.

Owns `/__headwater/erase` and `/__headwater/erase/known`. Never deletes a stream, and never answers with a name.

    POST /__headwater/erase          {"stream": "users/4711"} -> the same, and log_position, table_version, ...
    POST /__headwater/erase/known    {"stream": "users/4711"} -> stream_hash, subscriptions; changes nothing
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headwater.config import Settings
from headwater.doors.http import headers as parse
from headwater.doors.http.connection import Exchange
from headwater.engine.erasure import Eraser
from headwater.errors import BadBody, BadQuery, NoSuchRoute


class Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stream: str


_decode = msgspec.json.Decoder(Wish).decode


class Erasures:
    def __init__(
        self,
        eraser: Eraser | None,
        hash_name: Callable[[str], str] | None,
        subscriptions_of: Callable[[str], list[str]],
        settings: Settings,
    ) -> None:
        self._eraser = eraser
        self._hash_name = hash_name
        self._subscriptions_of = subscriptions_of
        """Ids of the subscriptions that name a stream, by its key."""
        self._settings = settings

    def handle(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        exchange.only(b"POST")
        if self._eraser is None or self._hash_name is None:
            raise BadQuery("erase", "this node keeps nothing that could be erased")
        if rest not in (b"", b"/", b"/known"):
            raise NoSuchRoute
        try:
            asked = _decode(exchange.request.body).stream
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadBody(f'expected {{"stream": "bucket/name"}} ({error})') from None
        key = parse.stream_key(parse.FLAT_PREFIX + asked, self._settings.stream_name_bytes_max)
        if rest == b"/known":
            exchange.json(200, self._known(key, self._hash_name))
        else:
            exchange.run(self._erase(exchange, key, self._eraser, self._hash_name))

    def _known(self, key: str, hash_name: Callable[[str], str]) -> dict[str, object]:
        return {"stream_hash": hash_name(key), "subscriptions": self._subscriptions_of(key)}

    async def _erase(self, exchange: Exchange, key: str, eraser: Eraser, hash_name: Callable[[str], str]) -> None:
        erased = await eraser.erase(key)
        exchange.json(200, {**self._known(key, hash_name), **msgspec.to_builtins(erased)})
