"""Carries plans out on an event loop: each request has a connection to itself, and many may be under way.

Owns the connections that are kept between requests. Never decides whether to send again; `plans` does. A cancelled
request ends its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from headwater.client.async_connection import AsyncConnection
from headwater.client.connection import Failed
from headwater.client.forks import tell_after_fork
from headwater.client.plans import Give, Plan, Reply, Send, Step, Walk
from headwater.client.producers import Producer
from headwater.client.settings import Settings

T = TypeVar("T")
IDLE_MAX = 32
"""Connections that are kept while nobody needs them; more are closed."""


class AsyncTransport:
    """For one event loop at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._idle: list[AsyncConnection] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        """That of the connections that are kept."""
        self._closed = False
        tell_after_fork(self)

    def forked(self) -> None:
        self._idle = []

    async def run(self, plan: Plan[T], producer: Producer | None = None) -> T:
        """The plan's result. With a producer, while no other write of it is under way. Raises HeadwaterError."""
        if producer is None:
            return await self._run(plan)
        async with producer.async_lock:
            return await self._run(plan)

    async def _run(self, plan: Plan[T]) -> T:
        reply: Reply = None
        try:
            while True:
                try:
                    step = plan.send(reply)
                except StopIteration as end:
                    result: T = end.value
                    return result
                reply = await self._act(step)
        finally:
            plan.close()  # A cancellation has to reach a write under way.

    async def walk(self, walk: Walk[T]) -> AsyncIterator[T]:
        """The walk's results, as they are asked for. Raises HeadwaterError."""
        reply: Reply = None
        try:
            while True:
                try:
                    step = walk.send(reply)
                except StopIteration:
                    return
                if isinstance(step, Give):
                    reply = None
                    yield step.item
                else:
                    reply = await self._act(step)
        finally:
            walk.close()

    async def close(self) -> None:
        """Ends the connections that are kept; one that is in use ends with its request."""
        self._closed = True
        self._meet_loop()
        kept, self._idle = self._idle, []
        for connection in kept:
            connection.close()
        await asyncio.gather(*(connection.ended() for connection in kept))

    def _meet_loop(self) -> None:
        """Connections of a loop that has ended have ended with it."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._idle = loop, []

    async def _act(self, step: Step) -> Reply:
        if isinstance(step, Send):
            return await self._send(step)
        await asyncio.sleep(step.seconds)
        return None

    async def _send(self, request: Send) -> Reply:
        if self._closed:
            raise RuntimeError("the client is closed")
        self._meet_loop()
        connection = None if request.fresh else self._taken()
        if connection is None:
            connection = AsyncConnection(self._settings.address)
        headers = {**self._settings.headers, **request.headers}
        timeout_s = self._settings.timeout_s + request.wait_s
        try:
            answer = await connection.request(request.method, request.path, headers, request.body, timeout_s)
        except Failed as why:
            return why
        if connection.usable and not self._closed and len(self._idle) < IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _taken(self) -> AsyncConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.close()
        return None
