"""One router at work: what its source gets is copied to its destination, in order, each record once.

Owns the cursor and one append at a time. Never loses its place: that is the destination's `stream_seq`, which is as
durable as the copies, and every append demands that it is still the one that the worker knows.

    place of dest -> cursor -> read source -> filter -> append to dest (after that place) -> cursor -> ...

Whatever fails, the worker begins again with the destination's place. An append whose outcome is not known, one of a
worker that another process has replaced, and copies that the destination lost are all the same to it: the place tells.

What the filter passes over moves no place. The router notes its cursor every `NOTED_RECORDS` of those, and when the
node stops: a restart after a kill filters at most that many, and one batch, again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from headwater.engine.router_definitions import Router
from headwater.errors import Failure, StreamSeqConflict
from headwater.model import routers as model
from headwater.model.routers import PassedOver
from headwater.model.subscriptions import path_of
from headwater.ports import Clock
from headwater.topics.access import Diff, TopicAccess, Written

BATCH_RECORDS = 1_000
BATCH_BYTES = 1 << 20
NOTED_RECORDS = 10_000
LOST_NOTED_S = 1.0
"""Losses are noted no more often."""
FINISH_S = 5.0
LOOK_MS = 10_000
"""A router that has nothing to copy looks so often whether its destination still has the copies."""
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 10.0

log = structlog.get_logger("headwater")


class RouterWorker:
    def __init__(self, router: Router, access: TopicAccess, clock: Clock, note: Callable[[PassedOver], None]) -> None:
        """`note` keeps what was passed over. Raises when it cannot."""
        self.router = router
        self._config = router.config
        self._access = access
        self._clock = clock
        self._note = note
        self.epoch = router.passed.epoch
        self.cursor = router.passed.cursor
        self.source_head = router.passed.cursor
        """As far as it is known here."""
        self.lost_count = router.passed.lost_count
        self.copied_count = 0
        self.lost_here_count = 0
        """Both since this worker began."""
        self.trouble: str | None = None
        """Why nothing is forwarded just now."""
        self._reads = False
        """What it does now, or did when it failed: it reads its source, or writes to its destination."""
        self._place: str | None = None
        self._writing: asyncio.Task[Written] | None = None
        self._noted_s = clock.monotonic_s()
        self._pause_s = PAUSE_S_MIN

    async def run(self) -> None:
        """Forwards until it is cancelled."""
        while True:
            try:
                await self._forward()
            except StreamSeqConflict as conflict:
                # Somebody else wrote with a place: a worker before this one, or a client of its own accord.
                moved = model.parse_place(conflict.last) is not None
                self.trouble = None if moved else self._told(conflict)
            except Failure as failure:
                self.trouble = self._told(failure)
            except Exception as error:
                self.trouble = "this server made a mistake; its log says which"
                log.exception("router", router=self.router.name, error=str(error))
            await self._clock.sleep(self._pause_s)
            self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)

    def _told(self, failure: Failure) -> str:
        doing, key = ("read", self._config.source) if self._reads else ("written to", self._config.dest)
        return f"{path_of(key)} cannot be {doing}: {failure.message()}"

    async def _forward(self) -> None:
        config = self._config
        self._reads = False
        self._place = await self._access.stream_seq(config.dest)
        self.cursor = model.cursor_at(self._place, self.epoch, self.router.passed)
        while True:
            self._reads = True
            diff = await self._access.read(
                config.source,
                self.cursor,
                BATCH_RECORDS,
                BATCH_BYTES,
                wait_ms=LOOK_MS,
                epoch=self.epoch,
                certain=True,
            )
            if diff is None:
                self.trouble = f"there is no topic {path_of(config.source)} yet"
                continue
            self.source_head = diff.head_seq
            if diff.epoch != self.epoch:
                self.epoch = diff.epoch
                self.cursor = model.cursor_at(self._place, self.epoch, self.router.passed)
            elif diff.head_seq < self.cursor:
                # A source of a laxer class lost its end with its process, and gives those numbers out again.
                self.cursor = diff.head_seq
            else:
                idle = diff.next_seq == self.cursor
                await self._copy(diff)
                self.trouble = None
                if idle:
                    await self._look_at_dest()
            self._pause_s = PAUSE_S_MIN
            await asyncio.sleep(0)  # a source and a destination in memory never pause

    async def _look_at_dest(self) -> None:
        """A destination that was deleted, or lost copies, gets them again without a new record of the source."""
        self._reads = False
        place = await self._access.stream_seq(self._config.dest)
        if place != self._place:
            self._place, self.cursor = place, model.cursor_at(place, self.epoch, self.router.passed)

    async def _copy(self, diff: Diff) -> None:
        config = self._config
        self._reads = False
        first_seq = diff.records[0].seq if diff.records else diff.next_seq + 1
        lost_count = max(0, min(diff.evict_floor, first_seq) - 1 - self.cursor)
        chosen = [record for record in diff.records if model.takes(config, record.labels)]
        if chosen:
            place = model.next_place(self._place, diff.epoch, diff.next_seq)
            if place is None:
                raise StreamSeqConflict(self._place or "", "a router's place")
            labels = [model.copied_labels(config, record.labels) for record in chosen]
            write = self._access.write(
                config.dest,
                [record.payload for record in chosen],
                labels if any(labels) else None,
                stream_seq=place,
                after=self._place or "",
                content_type=diff.content_type,
            )
            # Not cancelled with the worker: whoever ends that can wait for it, and knows that nothing follows.
            self._writing = asyncio.get_running_loop().create_task(write)
            self._writing.add_done_callback(_seen)
            await asyncio.shield(self._writing)
            self._place = place
            self.copied_count += len(chosen)
        self.cursor = diff.next_seq
        self.lost_count += lost_count
        self.lost_here_count += lost_count
        self._note_sometimes()

    async def finish(self) -> None:
        """Returns when the append that was under way when the worker ended is over, or has taken long."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=FINISH_S)

    def _note_sometimes(self) -> None:
        lost = self.lost_count != self.router.passed.lost_count
        due = lost and self._clock.monotonic_s() - self._noted_s >= LOST_NOTED_S
        if due or self.cursor - self._kept_cursor() >= NOTED_RECORDS:
            self._noted_s = self._clock.monotonic_s()
            self._note(self._passed())

    def note_rest(self) -> None:
        """Has noted what a restart would have to find out again. Raises when it cannot."""
        if self.epoch and (self.cursor != self._kept_cursor() or self.lost_count != self.router.passed.lost_count):
            self._note(self._passed())

    def _kept_cursor(self) -> int:
        return model.cursor_at(self._place, self.epoch, self.router.passed)

    def _passed(self) -> PassedOver:
        return PassedOver(self.epoch, self._place or "", self.cursor, self.lost_count)


def _seen(task: asyncio.Task[Written]) -> None:
    """How an append failed that nobody waits for any more is told by the destination's place."""
    if not task.cancelled():
        task.exception()
