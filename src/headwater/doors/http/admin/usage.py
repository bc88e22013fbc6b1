"""How much was read: `GET /__headwater/usage`, and `/__headwater/groups/{g}/usage`, a line for each bucket and day.

Owns its pages. Never counts anything itself: the answer is what the last checkpoint wrote, a few seconds old.

    GET /__headwater/usage?after=<next of the page before>&limit=<lines>
    {"days": [{"day": "2026-11-15", "bucket": "orders", "reads": 12, "bytes": 90112}], "next": "2026-11-15/orders"}

`reads` are answers that had records in them, through any door; a connection that is followed (SSE) is one, and counts
on the day it ends. `next` is null on the last page.
"""

from __future__ import annotations

from datetime import date, timedelta

from headwater.doors.http import headers as parse
from headwater.doors.http.exchange import Exchange
from headwater.engine.engine import Engine
from headwater.engine.owned_group import OwnedGroup
from headwater.errors import BadQuery

LINES_MAX = 1_000
_EPOCH = date(1970, 1, 1)


class Usage:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def handle(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        self.of_group(exchange, self._engine.owned[0], rest, query)

    def of_group(self, exchange: Exchange, owned: OwnedGroup, rest: bytes, query: bytes) -> None:
        exchange.only(b"GET", rest)
        wanted = parse.query(query, ("after", "limit"))
        limit = parse.whole(wanted, "limit", LINES_MAX, 1 << 40)
        if not limit:
            raise BadQuery("limit", "expected at least 1")
        limit = min(limit, LINES_MAX)
        day, bucket = _place(wanted.get("after"))
        found = owned.group.catalog.reads(day, bucket, limit)
        lines = [
            {"day": _shown(count.day), "bucket": count.bucket, "reads": count.reads, "bytes": count.bytes}
            for count in found
        ]
        following = f"{_shown(found[-1].day)}/{found[-1].bucket}" if len(found) == limit else None
        exchange.json(200, {"days": lines, "next": following})


def _place(token: str | None) -> tuple[int, str]:
    if token is None:
        return -1, ""
    day, _, bucket = token.partition("/")
    try:
        return (date.fromisoformat(day) - _EPOCH).days, bucket
    except ValueError:
        raise BadQuery("after", "expected `next` of the page before, or a day such as 2026-11-15") from None


def _shown(day: int) -> str:
    return (_EPOCH + timedelta(days=day)).isoformat()
