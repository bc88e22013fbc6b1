"""Deleting records of a topic: `POST /v0/topics/{topic}/delete`.

Owns the shape of the wish. Never looks for records: the engine does, by an index of their tags.

    {"before_seq": 100}                         all with a smaller number
    {"match": ["tag", "Eq", "order-7"]}         those with that tag
    {"match": ["tag", "Glob", "order-*"]}       those whose tag begins so
    both                                        those that both are true of
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headwater.doors.http.exchange import Exchange
from headwater.doors.http.topics.answers import Timing, reply_value
from headwater.doors.http.topics.config import NUMBER_MAX, decoded
from headwater.doors.http.topics.records import LABEL_BYTES_MAX
from headwater.doors.http.topics.routes import TopicRoutes, once_published
from headwater.engine.engine import Engine
from headwater.engine.topic_deletes import Match, RecordsGone
from headwater.errors import BadBody
from headwater.security.principals import Action


class _Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    before_seq: int | None = None
    match: tuple[Literal["tag"], Literal["Eq", "Glob"], str] | None = None


_decode = msgspec.json.Decoder(_Wish).decode


class Deletes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def register(self, routes: TopicRoutes) -> None:
        routes.verb("delete", "POST", self._post, Action.MANAGE)

    def _post(self, exchange: Exchange, key: str, query: bytes, timing: Timing) -> None:
        wish: _Wish = decoded(_decode, exchange.request.body)
        before_seq = wish.before_seq
        if before_seq is None and wish.match is None:
            raise BadBody("give before_seq, match or both; to delete everything, delete the topic")
        if before_seq is not None and not 0 <= before_seq <= NUMBER_MAX:
            raise BadBody(f"before_seq: expected a whole number from 0 to {NUMBER_MAX}")
        match = None if wish.match is None else match_of(wish.match[1], wish.match[2])

        def deleted(gone: RecordsGone) -> None:
            reply_value(exchange, 200, gone, timing)

        def delete() -> None:
            # What a cap or its age has taken is lost, and not deleted.
            self._engine.apply_retention(self._engine.find(key, False))
            timing.judged()
            self._engine.delete_records(key, match, before_seq, exchange.told(deleted))

        once_published(self._engine, exchange, key, delete)


def match_of(how: str, value: str) -> Match:
    """A match as the engine has it; also that of a router's filter. Raises BadBody."""
    if not value or len(value.encode()) > LABEL_BYTES_MAX:
        raise BadBody(f"match: a tag is 1 to {LABEL_BYTES_MAX} bytes")
    if how == "Eq":
        return "Eq", value
    start, star, rest = value.partition("*")
    if rest:
        raise BadBody("match: the only * of a Glob is its last character")
    return ("Glob", start) if star else ("Eq", value)
