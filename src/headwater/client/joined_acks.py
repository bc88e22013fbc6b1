"""Acks of a worker's jobs: while one request is under way, those that come are the next one.

Owns which acks go together. Never sends a request itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from headwater.client.queue_plans import demand
from headwater.client.values import Acked, JobFacts

JOBS_MAX = 1_000
"""Of one request; a server takes more. What is beyond it is the request after."""


class JoinedAcks:
    def __init__(self, send: Callable[[Sequence[JobFacts]], Awaitable[Acked]]) -> None:
        self._send = send
        self._waiting: list[tuple[JobFacts, asyncio.Future[None]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def ack(self, job: JobFacts) -> None:
        """Raises LeaseLost, NotFound, and what sending raised. Cancelling it does not take the ack back."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, done))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all())
        await done

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                some, self._waiting = self._waiting[:JOBS_MAX], self._waiting[JOBS_MAX:]
                await self._send_some(some)
        finally:
            self._sending = None

    async def _send_some(self, some: list[tuple[JobFacts, asyncio.Future[None]]]) -> None:
        try:
            told = await self._send([job for job, _ in some])
        except Exception as why:
            for _, done in some:
                if not done.done():
                    done.set_exception(why)
            return
        for job, done in some:
            if done.done():
                continue
            try:
                demand(job, told.failed)
            except Exception as why:
                done.set_exception(why)
            else:
                done.set_result(None)
