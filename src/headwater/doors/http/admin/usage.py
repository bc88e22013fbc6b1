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
from headwater.ports import ReadCount

LINES_MAX = 1_000
_EPOCH = date(1970, 1, 1)


class Usage:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        engine.questions.register("usage", self._answer)

    def handle(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """Of all groups."""
        exchange.only(b"GET", rest)
        exchange.run(self._gather(exchange, *_asked(query)))

    async def _gather(self, exchange: Exchange, day: int, bucket: str, limit: int) -> None:
        asked = self._engine.questions.ask_all("usage", day, bucket, limit, into=list[ReadCount])
        _show(exchange, merged(await asked, limit), limit)

    async def _answer(self, day: int, bucket: str, limit: int) -> list[ReadCount]:
        catalogs = [owned.group.catalog for owned in self._engine.owned.values()]
        return merged([catalog.reads(day, bucket, limit) for catalog in catalogs], limit)

    def of_group(self, exchange: Exchange, owned: OwnedGroup, rest: bytes, query: bytes) -> None:
        exchange.only(b"GET", rest)
        day, bucket, limit = _asked(query)
        _show(exchange, owned.group.catalog.reads(day, bucket, limit), limit)


def merged(pages: list[list[ReadCount]], limit: int) -> list[ReadCount]:
    """The first `limit` lines of several pages that begin at the same place; one line for each day and bucket."""
    if len(pages) == 1:
        return pages[0]
    sums: dict[tuple[int, str], ReadCount] = {}
    for count in (count for page in pages for count in page):
        place = count.day, count.bucket
        before = sums.get(place, ReadCount(*place, 0, 0))
        sums[place] = ReadCount(*place, before.reads + count.reads, before.bytes + count.bytes)
    return [sums[place] for place in sorted(sums)[:limit]]


def _asked(query: bytes) -> tuple[int, str, int]:
    """Day and bucket that the page begins after, and how many lines it has at most."""
    wanted = parse.query(query, ("after", "limit"))
    limit = parse.whole(wanted, "limit", LINES_MAX, 1 << 40)
    if not limit:
        raise BadQuery("limit", "expected at least 1")
    return *_place(wanted.get("after")), min(limit, LINES_MAX)


def _show(exchange: Exchange, found: list[ReadCount], limit: int) -> None:
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
