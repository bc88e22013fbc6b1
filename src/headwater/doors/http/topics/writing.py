"""Writes to topics that are no requests of their own, such as messages over a WebSocket, wherever the topic lives.

Owns the way to the topic's process. Never tries again, and keeps no order: whoever writes knows what has to wait.

    topic_records(group, key, body of POST records) -> the fields of its answer
"""

from __future__ import annotations

import asyncio

from headwater.doors.http.topics.records import Records, Told
from headwater.engine.engine import Engine
from headwater.errors import Failure

QUESTION = "topic_records"


class Writing:
    def __init__(self, engine: Engine, records: Records) -> None:
        self._engine = engine
        self._records = records
        engine.questions.register(QUESTION, self._answer)

    def group_here(self, key: str) -> int | None:
        """The group of this process that a topic lives in, or would be made in; None: another process may have it."""
        engine = self._engine
        if engine.home(key) not in engine.owned:
            return None
        group = engine.place(key)
        return group if group in engine.owned else None

    def write_here(self, group: int, key: str, body: bytes, told: Told) -> None:
        """Judges a write now: what comes first is written first. `told` is called once, perhaps before this returns."""
        try:
            self._records.write(self._engine.serving(group).group, key, body, told)
        except Failure as failure:
            told(failure)

    async def write(self, key: str, body: bytes) -> bytes:
        """The fields of the answer. Raises what the topic's process refused, or that it cannot be reached."""
        group = await self._engine.locate(key)
        if group in self._engine.owned:
            return await self._answer(group, key, body)
        found: bytes = await self._engine.questions.ask_owner(group, QUESTION, group, key, body, into=bytes)
        return found

    async def _answer(self, group: int, key: str, body: bytes) -> bytes:
        answer: asyncio.Future[bytes | Failure] = asyncio.get_running_loop().create_future()
        self.write_here(group, key, body, lambda told: None if answer.done() else answer.set_result(told))
        found = await answer
        if isinstance(found, Failure):
            raise found
        return found
