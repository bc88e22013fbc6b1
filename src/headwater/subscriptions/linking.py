"""Linking what exists when a subscription with a pattern is created: a walk over the streams of every process.

Owns the walks under way. Never links a stream that grew meanwhile: whoever tells of growth has done so already.

A walk is over when it has been through every group, each at a process that served it all the while. A group that
changes hands is walked through again: what is linked already is passed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import structlog

from headwater.engine.engine import Engine
from headwater.engine.outcome_future import OutcomeFuture
from headwater.errors import GroupMoved, LogUnavailable, MemberUnavailable
from headwater.model import subscriptions as model
from headwater.model.subscriptions import LinkRow, Subscription
from headwater.subscriptions.all_streams import AWAY, AllStreams
from headwater.subscriptions.comparing import PAUSE_S_FIRST, PAUSE_S_MAX
from headwater.subscriptions.local_streams import Row
from headwater.subscriptions.neighbours import Neighbours
from headwater.subscriptions.wakes import Wakes

SLICE_BYTES = 256 * 1024
"""Names in one event that links streams."""

log = structlog.get_logger("headwater.subscriptions")


class Linking:
    def __init__(self, engine: Engine, wakes: Wakes, streams: AllStreams, neighbours: Neighbours) -> None:
        self._engine = engine
        self._wakes = wakes
        self._streams = streams
        self._neighbours = neighbours
        self._walks: dict[str, asyncio.Task[None]] = {}

    def begin(self, sub: Subscription) -> None:
        task = asyncio.get_running_loop().create_task(self._link_existing(sub))
        self._walks[sub.uid] = task
        task.add_done_callback(lambda task: self._ended(sub.uid, task))

    def forget(self, sub: Subscription) -> None:
        """Its group is served by another process, which goes on with it."""
        task = self._walks.pop(sub.uid, None)
        if task is not None:
            task.cancel()

    def _ended(self, uid: str, task: asyncio.Task[None]) -> None:
        if self._walks.get(uid) is task:
            del self._walks[uid]
        if not task.cancelled() and isinstance(task.exception(), LogUnavailable | GroupMoved):
            log.warning("linking existing streams stopped; it goes on after a restart", reason=str(task.exception()))

    async def finished(self, sub: Subscription) -> None:
        """Returns when what existed before the subscription is linked. Raises GroupMoved when another process goes on
        with that."""
        task = self._walks.get(sub.uid)
        if task is not None:
            await asyncio.wait([task])
            if task.cancelled():
                raise GroupMoved(self._engine.home(model.RESERVED + "/" + sub.id))
            task.result()

    async def stop(self) -> None:
        for task in self._walks.values():
            task.cancel()
        await asyncio.gather(*self._walks.values(), return_exceptions=True)

    async def _link_existing(self, sub: Subscription) -> None:
        gaps_count = self._neighbours.gaps_count
        left = set(range(self._engine.groups_count))
        pause_s = PAUSE_S_FIRST
        while left and self._exists(sub):
            for member, groups in self._owners(left).items():
                try:
                    await self._walk(member, sub, groups)
                    left.difference_update(groups)
                except AWAY:
                    pass  # it is away, or a group left it: that is tried again
            if left:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
        if self._exists(sub):
            future = OutcomeFuture()
            self._wakes.note(model.Linked(sub.uid, [], complete=True), future)
            if self._neighbours.gaps_count != gaps_count:
                # A stream that came after the walk had passed its name, and that nobody told of, was left to the walk.
                self._neighbours.need({sub.uid})
            await future.success()

    def _owners(self, groups: set[int]) -> dict[int, list[int]]:
        """The groups that have one, by their owners: this process first."""
        found: dict[int, list[int]] = {}
        questions, owned = self._engine.questions, self._engine.owned
        for group in sorted(groups, key=lambda group: (group not in owned, group)):
            try:
                member = questions.me if group in owned else questions.owner(group)
            except MemberUnavailable:
                continue
            found.setdefault(member, []).append(group)
        return found

    async def _walk(self, member: int, sub: Subscription, groups: list[int]) -> None:
        """Raises what AWAY says, also when one of the groups leaves the process meanwhile."""
        pattern = sub.config.pattern or ""
        if member != self._engine.questions.me:
            # From here on it tells of growth, so that nothing falls between this walk and the next hint.
            await self._neighbours.watch(member, [(True, pattern)])
        async for rows in self._streams.matching(member, [pattern], groups):
            if not self._exists(sub):
                return
            for part in _parts(sub, rows):
                self._wakes.note(model.Linked(sub.uid, part))

    def _exists(self, sub: Subscription) -> bool:
        return self._wakes.index.holds(sub)


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
