"""Linking what exists when a subscription with a pattern is created: a walk over the streams of every process.

Owns the walks under way. Never links a stream that grew meanwhile: whoever tells of growth has done so already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import structlog

from headwater.engine.outcome_future import OutcomeFuture
from headwater.errors import GroupMoved, LogUnavailable
from headwater.model import subscriptions as model
from headwater.model.subscriptions import LinkRow, Subscription
from headwater.subscriptions.all_streams import AWAY, AllStreams
from headwater.subscriptions.local_streams import Row
from headwater.subscriptions.neighbours import PAUSE_S_FIRST, PAUSE_S_MAX, Neighbours
from headwater.subscriptions.wakes import Wakes

SLICE_BYTES = 256 * 1024
"""Names in one event that links streams."""

log = structlog.get_logger("headwater.subscriptions")


class Linking:
    def __init__(self, me: int, wakes: Wakes, streams: AllStreams, neighbours: Neighbours) -> None:
        self._me = me
        self._wakes = wakes
        self._streams = streams
        self._neighbours = neighbours
        self._walks: dict[str, asyncio.Task[None]] = {}

    def begin(self, sub: Subscription) -> None:
        task = asyncio.get_running_loop().create_task(self._link_existing(sub))
        self._walks[sub.uid] = task
        task.add_done_callback(lambda task: self._ended(sub.uid, task))

    def _ended(self, uid: str, task: asyncio.Task[None]) -> None:
        self._walks.pop(uid, None)
        if not task.cancelled() and isinstance(task.exception(), LogUnavailable | GroupMoved):
            log.warning("linking existing streams stopped; it goes on after a restart", reason=str(task.exception()))

    async def finished(self, sub: Subscription) -> None:
        """Returns when what existed before the subscription is linked."""
        task = self._walks.get(sub.uid)
        if task is not None:
            await asyncio.shield(task)

    async def stop(self) -> None:
        for task in self._walks.values():
            task.cancel()
        await asyncio.gather(*self._walks.values(), return_exceptions=True)

    async def _link_existing(self, sub: Subscription) -> None:
        await self._walk(self._me, sub)
        for member in self._neighbours.members:
            await self._walk_other(member, sub)
        if self._exists(sub):
            future = OutcomeFuture()
            self._wakes.note(model.Linked(sub.uid, [], complete=True), future)
            await future.success()

    async def _walk_other(self, member: int, sub: Subscription) -> None:
        """Begins again when the process was away: what is linked already is passed over."""
        pause_s = PAUSE_S_FIRST
        while self._exists(sub):
            try:
                # From here on it tells of growth, so that nothing falls between this walk and the next hint.
                await self._neighbours.watch(member, [(True, sub.config.pattern or "")])
                await self._walk(member, sub)
                return
            except AWAY:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _walk(self, member: int, sub: Subscription) -> None:
        async for rows in self._streams.matching(member, [sub.config.pattern or ""]):
            if not self._exists(sub):
                return
            for part in _parts(sub, rows):
                self._wakes.note(model.Linked(sub.uid, part))

    def _exists(self, sub: Subscription) -> bool:
        return sub.uid in self._wakes.index.by_uid


def _parts(sub: Subscription, rows: list[Row]) -> Iterator[list[LinkRow]]:
    part: list[LinkRow] = []
    size = 0
    for path, sid, tail, _ in rows:
        if path in sub.links or path == sub.config.wake_stream:
            continue
        part.append((path, sid, tail))
        size += len(path)
        if size >= SLICE_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
