"""Nodes ask each other, twice a second, whether they are there, and tell what they own.

Owns the rounds, and the look at who is registered. Never decides who is alive: `view` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import structlog

from headwater.cluster.calls import Calls
from headwater.cluster.nodes import Node
from headwater.cluster.view import State, View
from headwater.errors import Failure
from headwater.log.medium import MediumError
from headwater.ports import SYSTEM_CLOCK, Clock

PING = "ping"
PING_INTERVAL_MS = 500
PING_MS_MAX = 2_000
ROUNDS_PER_LOOK = 10
LEAVE_S_MAX = 1.0

log = structlog.get_logger("headwater.cluster")


class Pings:
    """`registered` tells who is registered (`nodes.Registry.nodes`)."""

    def __init__(
        self,
        view: View,
        calls: Calls,
        registered: Callable[[], Awaitable[Sequence[Node]]],
        interval_ms: int = PING_INTERVAL_MS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._view = view
        self._calls = calls
        self._registered = registered
        self._interval_s = interval_ms / 1000
        self._clock = clock
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._again: set[int] = set()
        """Members whose ping under way tells of a state that has changed since."""
        self._look: asyncio.Task[None] | None = None
        self._rounds: asyncio.Task[None] | None = None
        self._displaced = False
        self.on_displaced: Callable[[], None] = lambda: None
        """Called when this node finds that it is not registered any more: it should own nothing."""
        self._stopped = False
        calls.register(PING, self._answer)
        view.on_told.append(self._tell)

    async def start(self) -> None:
        """On return the view knows who is registered; pings go on from now. Raises MediumError."""
        self._view.registered(await self._registered())
        self._rounds = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Tells the others that this node leaves, as far as they can be reached, and ends."""
        if self._rounds is not None:
            self._rounds.cancel()
        self._view.leave()
        try:
            async with asyncio.timeout(LEAVE_S_MAX):
                while self._under_way:
                    await asyncio.wait(self._under_way.values())
        except TimeoutError:
            pass
        self._stopped = True
        left = [task for task in (self._rounds, self._look, *self._under_way.values()) if task is not None]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _run(self) -> None:
        rounds_count = 0
        while True:
            if rounds_count % ROUNDS_PER_LOOK == 0 and self._look is None:
                self._look = asyncio.get_running_loop().create_task(self._look_again())
            rounds_count += 1
            self._view.round()
            for member in self._view.others:
                self._ping(member)
            await self._clock.sleep(self._interval_s)

    def _tell(self) -> None:
        """Has all others hear of this node's state now."""
        for member in self._view.others:
            self._ping_now(member)

    def _ping_now(self, member: int) -> None:
        if member in self._under_way:
            self._again.add(member)
        else:
            self._ping(member)

    def _ping(self, member: int) -> None:
        if member not in self._under_way and not self._stopped:
            self._under_way[member] = asyncio.get_running_loop().create_task(self._pinged(member))

    async def _pinged(self, member: int) -> None:
        try:
            async with asyncio.timeout(PING_MS_MAX / 1000):
                state = await self._calls.ask(member, PING, self._view.state, into=State)
            self._view.heard(state, answered=True)
        except (Failure, TimeoutError):
            pass  # the round counts it
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            log.warning("a node's answer is not understood", node=member, reason=str(error))
        finally:
            del self._under_way[member]
            if member in self._again:
                self._again.discard(member)
                self._ping(member)

    async def _answer(self, told: Any) -> State:
        state = msgspec.convert(told, State)
        member = state.node.number
        self._view.heard(state, answered=False)
        if member in self._view.others and member not in self._view.alive:
            self._ping_now(member)  # it is new, or back: it can be of use before the next round
        return self._view.state

    async def _look_again(self) -> None:
        try:
            nodes = await self._registered()
        except MediumError as error:
            log.warning("who is registered cannot be seen", reason=error.reason)
        else:
            self._view.registered(nodes)
            mine = self._view.node
            displaced = all(node.run != mine.run for node in nodes)
            if displaced and not self._displaced:
                log.error(
                    "this node is not registered any more: another one has its id, or it was removed. It hands its "
                    "groups over; restart it with a data directory of its own"
                )
                self.on_displaced()
            self._displaced = displaced
        finally:
            self._look = None
