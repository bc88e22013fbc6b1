"""The streams with most records just now: `GET /__headwater/hottest`, for `headwater top`.

Owns its page. Never looks at a stream itself (`engine.hottest` does), and tells of no more than a hundred.

    GET /__headwater/hottest?limit=<streams>
    {"window_s": 2.0, "streams": [{"stream": "orders/17", "records_per_s": 812.5, "bytes_per_s": 40625.0}]}

Rates are those between the last question and this one. `window_s` is 0 when nobody has asked for a minute: ask again. A
node of a cluster tells of the groups that it owns.
"""

from __future__ import annotations

import asyncio
from heapq import nlargest

from headwater.doors.http import headers as parse
from headwater.doors.http.exchange import Exchange
from headwater.engine.engine import Engine
from headwater.engine.hottest import TOLD_MAX, Hot, Hottest, Look
from headwater.errors import Failure

LIMIT_DEFAULT = 20
WITHIN_S = 5.0


class HottestCall:
    def __init__(self, engine: Engine, in_cluster: bool) -> None:
        self._hottest = Hottest(engine)
        self._questions = engine.questions
        self._is_whole = engine.questions.alone or in_cluster
        engine.questions.register("hottest", self._answer)

    def handle(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        exchange.only(b"GET", rest)
        wanted = parse.query(query, ("limit",))
        limit = min(parse.whole(wanted, "limit", LIMIT_DEFAULT, 1 << 40), TOLD_MAX)
        exchange.run(self._show(exchange, limit))

    async def _answer(self) -> Look:
        return self._hottest.look()

    async def _show(self, exchange: Exchange, limit: int) -> None:
        if self._is_whole:
            looks = [self._hottest.look()]
        else:
            looks = [one for one in await asyncio.gather(*map(self._of, self._questions.everyone)) if one is not None]
        found: list[Hot] = [hot for look in looks for hot in look.streams]
        streams = [hot._asdict() for hot in nlargest(limit, found, key=lambda one: one[1:])]
        exchange.json(200, {"window_s": max((look.window_s for look in looks), default=0.0), "streams": streams})

    async def _of(self, member: int) -> Look | None:
        try:
            found: Look = await asyncio.wait_for(self._questions.ask(member, "hottest", into=Look), WITHIN_S)
            return found
        except (Failure, TimeoutError):
            return None
