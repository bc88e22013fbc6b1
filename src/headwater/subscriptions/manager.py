"""Subscriptions at work: streams that grow wake them, workers claim and acknowledge, leases pass with the clock.

Owns when a decision is taken and what follows from it once it is durable. Never sends a webhook, hands out a token or
answers a request before the log holds what it rests on.

    stream grows -> pending -> Woken (logged) -> webhook delivered, or wake event appended -> leased -> Ended (logged)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush

import msgspec
import structlog

from headwater.engine.group import Group
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.pending_answers import Outcome
from headwater.engine.read_plan import plan
from headwater.errors import (
    BadAck,
    BadQuery,
    Failure,
    LogUnavailable,
    OffsetGone,
    SubscriptionExists,
    SubscriptionNotFound,
    TooManySubscriptions,
    WebhookRefused,
)
from headwater.model import offsets
from headwater.model import subscriptions as model
from headwater.model.subscriptions import WEBHOOK, Config, LinkRow, Shown, Subscription
from headwater.ports import Rng
from headwater.subscriptions.delivery import Client, Deliveries
from headwater.subscriptions.keys import Keys
from headwater.subscriptions.registry import Registry, encode
from headwater.subscriptions.streams import Streams
from headwater.subscriptions.targets import TargetRefused

SUBSCRIPTIONS_MAX = 100_000
SHOWN_STREAMS_MAX = 10_000
SHOWN_BYTES_MAX = 512 * 1024
"""Streams named to one worker at once; what is left out stays pending and is told of with the next wake."""
MEMBERS_KEPT_MAX = 100_000
SLICE_SUBSCRIPTIONS = 500
_TIMER_S_MAX = 60.0
"""The wall clock may be set: it is looked at again after this long, whatever it said."""

log = structlog.get_logger("headwater.subscriptions")


class StreamInfo(msgspec.Struct, frozen=True):
    """A linked stream as workers and receivers are told of it."""

    path: str
    link_type: str
    acked_offset: str
    tail_offset: str
    has_pending: bool


class Claim(msgspec.Struct, frozen=True):
    wake_id: str
    generation: int
    token: str
    streams: list[StreamInfo]
    lease_ttl_ms: int


class Bearer(msgspec.Struct, frozen=True):
    """What a worker sent to show that a wake is its own."""

    token: str
    wake_id: str | None
    generation: int | None


async def _read_nothing(stream: LoadedStream, offset: int) -> None:
    plan(stream, offset, 1)


class _Then:
    """A waiter that goes on with something unless the log failed."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def resolve(self, outcome: Outcome) -> None:
        if not isinstance(outcome, Failure):
            self._act()


class Manager:
    """The group's `Observer`, and what the door calls. Coroutines decide before their first wait on the log."""

    def __init__(self, group: Group, registry: Registry, keys: Keys, client: Client, rng: Rng) -> None:
        self.registry = registry
        self.keys = keys
        self.streams = Streams(group)
        self.group = group
        self.rng = rng
        self.wakes_count = 0
        self.read_at: Callable[[LoadedStream, int], Awaitable[object]] = _read_nothing
        """Reads a record from an offset on. Raises BadQuery when that lies inside one."""
        self._client = client
        self.deliveries = Deliveries(self, client)
        self._members: dict[int, tuple[int, str, list[Subscription]]] = {}
        """By sid: registry version, path, subscriptions. Overflow: all are forgotten."""
        self._due: dict[str, Subscription] = {}
        self._walks: dict[str, asyncio.Task[None]] = {}
        self._timers: list[tuple[int, str]] = []
        self._timer_at: dict[str, int] = {}
        """By uid: the one entry of `_timers` that counts."""
        self._alarm: asyncio.TimerHandle | None = None
        self._stopped = False

    # ---- start and stop -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Takes up what was under way. Called once, when the log is open and before any request."""
        if not self.registry.by_uid:
            return
        # What became of a stream may have been durable just before the end, and what it meant for subscriptions not.
        loaded = self.group.loaded
        for sid, key in list(loaded.removed.items()):
            self._lose(model.path_of(key), sid)
        for stream in list(loaded.by_key.values()):
            if stream.soft_deleted:
                self._lose(model.path_of(stream.key), stream.sid)
            elif stream.tail > stream.fork_at:
                self._recall(stream)
        for sub in self.registry.by_uid.values():
            for path in list(sub.pending):
                if self.streams.tail(path, sub.links[path].sid) < 0:
                    self.try_note(model.Lost(sub.uid, path))
            self.try_note(model.abandon(sub))
            if not sub.complete:
                self._walk(sub)
            if sub.wake is not None:
                self.deliveries.issued(sub, sub.wake.wake_id)
            self.follow(sub)

    def _recall(self, stream: LoadedStream) -> None:
        path = model.path_of(stream.key)
        for sub in self.registry.members(path):
            link = sub.links.get(path)
            if link is None and not sub.complete:
                continue  # the walk comes to it
            if link is None or link.sid != stream.sid or (stream.visible > link.acked and path not in sub.pending):
                self._grew(sub, path, stream, stream.fork_at)

    async def stop(self) -> None:
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()
        for task in self._walks.values():
            task.cancel()
        await asyncio.gather(*self._walks.values(), return_exceptions=True)
        await self.deliveries.stop()

    # ---- what the group tells -----------------------------------------------------------------------------------

    def grown(self, stream: LoadedStream, start: int) -> None:
        registry = self.registry
        if not registry.by_uid:
            return
        known = self._members.get(stream.sid)
        if known is None or known[0] != registry.version:
            path = model.path_of(stream.key)
            known = (registry.version, path, registry.members(path))
            if len(self._members) >= MEMBERS_KEPT_MAX:
                self._members.clear()
            self._members[stream.sid] = known
        for sub in known[2]:
            # One it is not linked to yet is older than the stream, unless the walk is still to come by.
            self._grew(sub, known[1], stream, stream.fork_at if sub.complete else start)

    def _grew(self, sub: Subscription, path: str, stream: LoadedStream, linked_at: int) -> None:
        try:
            link = sub.links.get(path)
            if link is None or link.sid != stream.sid:
                self.note(model.Linked(sub.uid, [(path, stream.sid, linked_at)]))
        except LogUnavailable:
            return
        if path not in sub.pending:
            self.registry.grew(sub, path)
        if sub.wake is None:
            self._look_later(sub)

    def deleted(self, stream: LoadedStream) -> None:
        self._members.pop(stream.sid, None)
        self._lose(model.path_of(stream.key), stream.sid)

    def _lose(self, path: str, sid: int) -> None:
        for sub in self.registry.members(path):
            link = sub.links.get(path)
            if link is not None and link.sid == sid:
                self.try_note(model.Lost(sub.uid, path))
                self.try_note(model.abandon(sub))

    def pass_ended(self) -> None:
        """Nothing waits for the end of a pass: `grown` has left its work to a turn of its own."""

    # ---- what the door asks -------------------------------------------------------------------------------------

    def find(self, name: str) -> Subscription:
        sub = self.registry.by_id.get(name)
        if sub is None:
            raise SubscriptionNotFound
        return sub

    async def durable(self) -> None:
        """Returns once everything decided so far is durable: answers that rest on it may leave."""
        future = OutcomeFuture()
        self.group.after_pending(future)
        await future.success()

    async def create(self, name: str, config: Config, streams: list[str], base_url: str) -> tuple[Subscription, bool]:
        """The subscription and whether it is new. On return what existed before is linked, and all of it durable."""
        if name not in self.registry.by_id and config.url is not None:
            try:
                await self._client.check(config.url)
            except TargetRefused as refused:
                raise WebhookRefused(str(refused)) from None
        rows = await self.streams.link_rows(streams)
        sub = self.registry.by_id.get(name)
        if sub is not None:
            if sub.config.digest != config.digest:
                raise SubscriptionExists
            await self._walked(sub)
            await self.durable()
            return sub, False
        if len(self.registry.by_id) >= SUBSCRIPTIONS_MAX:
            raise TooManySubscriptions(SUBSCRIPTIONS_MAX)
        uid = self.rng.token(8).hex()
        future = OutcomeFuture()
        self.note(model.Created(uid, name, config, base_url, self.registry.generation(name), rows), future)
        sub = self.registry.by_uid[uid]
        if not sub.complete:
            self._walk(sub)
        await future.success()
        await self._walked(sub)
        await self.durable()
        return sub, True

    async def remove(self, name: str) -> None:
        sub = self.registry.by_id.get(name)
        if sub is None:
            await self.durable()
            return
        future = OutcomeFuture()
        self.note(model.Removed(sub.uid), future)
        self.deliveries.forget(sub)
        await future.success()

    async def add_streams(self, name: str, paths: list[str]) -> None:
        self.find(name)
        rows = await self.streams.link_rows(paths)
        sub = self.find(name)
        rows = [row for row in rows if (link := sub.links.get(row[0])) is None or not link.explicit]
        if rows:
            future = OutcomeFuture()
            self.note(model.Linked(sub.uid, rows, explicit=True), future)
            await future.success()
        await self.durable()

    async def remove_stream(self, name: str, path: str) -> None:
        sub = self.find(name)
        event = model.unlink(sub, path)
        if event is not None:
            future = OutcomeFuture()
            self.note(event, future)
            self.try_note(model.abandon(sub))
            await future.success()
        await self.durable()

    async def claim(self, name: str, worker: str) -> Claim:
        sub = self.find(name)
        events = model.claim(sub, worker, self._wake_id(), self._now_ms())
        future = OutcomeFuture()
        for event in events[:-1]:
            self.note(event)
        self.note(events[-1], future)
        current = sub.wake
        if current is None:
            raise RuntimeError(f"subscription {name} was claimed without a wake")
        self.wakes_count += len(events) > 1
        generation = sub.generation
        infos, _, _ = self.infos(sub)
        await future.success()
        token = self.keys.token(sub.uid, generation, current.wake_id)
        return Claim(current.wake_id, generation, token, infos, sub.config.lease_ms)

    async def acknowledge(self, name: str, bearer: Bearer, acks: list[tuple[str, int]], done: bool) -> bool:
        """Moves cursors and renews the lease, or ends it when `done`. Returns whether another wake follows at once."""
        sub = self.find(name)
        # Judged twice: now, so that whoever may not acknowledge is told that, and again when offsets were looked up.
        model.acknowledge(sub, self._shown(sub, bearer), acks, done, self.streams.tail, self._now_ms())
        await self._check_edges(sub, acks)
        sub = self.find(name)
        event = model.acknowledge(sub, self._shown(sub, bearer), acks, done, self.streams.tail, self._now_ms())
        future = OutcomeFuture()
        self.note(event, future)
        following = done and self.wake(sub)
        await future.success()
        return following

    async def _check_edges(self, sub: Subscription, acks: list[tuple[str, int]]) -> None:
        """Raises BadAck for an offset inside a record: a worker could not read on from there."""
        for path, offset in acks:
            link = sub.links.get(path)
            stream = None if link is None else self.group.loaded.find(model.key_of(path))
            if link is None or stream is None or stream.sid != link.sid or not link.acked < offset < stream.visible:
                continue  # the model judges it
            try:
                await self.read_at(stream, offset)
            except BadQuery:
                raise BadAck(f"offset {offset} of {path!r} lies inside a message") from None
            except OffsetGone:
                continue  # retention took it since it was read

    async def release(self, name: str, bearer: Bearer) -> None:
        sub = self.find(name)
        event = model.release(sub, self._shown(sub, bearer), self._now_ms())
        future = OutcomeFuture()
        self.note(event, future)
        self.wake(sub)
        await future.success()

    def _shown(self, sub: Subscription, bearer: Bearer) -> Shown:
        current = sub.wake
        holds = current is not None and self.keys.holds(bearer.token, sub.uid, sub.generation, current.wake_id)
        return Shown(holds, bearer.wake_id, bearer.generation)

    def infos(self, sub: Subscription) -> tuple[list[StreamInfo], list[LinkRow], int]:
        """Linked streams, those with work first; those with work as (path, sid, tail); how many were left out."""
        found: list[StreamInfo] = []
        told: list[LinkRow] = []
        size = 0
        for pending, paths in ((True, sub.pending), (False, sub.links)):
            for path in paths:
                if not pending and path in sub.pending:
                    continue
                if len(found) >= SHOWN_STREAMS_MAX or size >= SHOWN_BYTES_MAX:
                    break
                link = sub.links[path]
                tail = max(self.streams.tail(path, link.sid), link.acked) if pending else link.acked
                if pending:
                    told.append((path, link.sid, tail))
                size += len(path)
                kind = "explicit" if link.explicit else "glob"
                acked_text, tail_text = offsets.show(link.acked), offsets.show(tail)
                found.append(StreamInfo(path, kind, acked_text, tail_text, tail > link.acked))
        return found, told, len(sub.links) - len(found)

    # ---- linking what exists ------------------------------------------------------------------------------------

    def _walk(self, sub: Subscription) -> None:
        task = asyncio.get_running_loop().create_task(self._link_existing(sub))
        self._walks[sub.uid] = task
        task.add_done_callback(lambda task: self._walk_ended(sub.uid, task))

    def _walk_ended(self, uid: str, task: asyncio.Task[None]) -> None:
        self._walks.pop(uid, None)
        if not task.cancelled() and isinstance(task.exception(), LogUnavailable):
            log.warning("linking existing streams stopped; it goes on after a restart", reason=str(task.exception()))

    async def _walked(self, sub: Subscription) -> None:
        task = self._walks.get(sub.uid)
        if task is not None:
            await asyncio.shield(task)

    async def _link_existing(self, sub: Subscription) -> None:
        async for rows in self.streams.matching(sub.config):
            if sub.uid not in self.registry.by_uid:
                return
            fresh = [row for row in rows if row[0] not in sub.links]
            if fresh:
                self.note(model.Linked(sub.uid, fresh))
        if sub.uid in self.registry.by_uid:
            future = OutcomeFuture()
            self.note(model.Linked(sub.uid, [], complete=True), future)
            await future.success()

    # ---- wakes --------------------------------------------------------------------------------------------------

    def note(self, event: model.Event, waiter: OutcomeFuture | _Then | None = None) -> None:
        """Logs an event and makes it true. Raises LogUnavailable, and then nothing has happened."""
        self.group.note(self.registry.name, encode(event), waiter)
        sub = self.registry.by_uid.get(event.uid)
        if sub is not None:
            self.follow(sub)

    def try_note(self, event: model.Event | None) -> None:
        """Notes an event that nobody waits for. A log that failed has been reported already."""
        if event is not None:
            try:
                self.note(event)
            except LogUnavailable:
                pass

    def wake(self, sub: Subscription) -> bool:
        """Calls for work if there is some and nobody was called yet; returns whether it did."""
        event = model.wake(sub, self._wake_id())
        if event is None or self._stopped:
            return False
        try:
            self.note(event, _Then(lambda: self.deliveries.issued(sub, event.wake_id)))
        except LogUnavailable:
            return False
        self.wakes_count += 1
        return True

    def follow(self, sub: Subscription) -> None:
        """Sees to what the subscription's state asks for next."""
        at_ms = model.next_at_ms(sub)
        if at_ms is not None:
            queued = self._timer_at.get(sub.uid)
            if queued is None or at_ms < queued:
                self._timer_at[sub.uid] = at_ms
                heappush(self._timers, (at_ms, sub.uid))
                if self._timers[0][0] == at_ms:
                    self._set_alarm()
        elif sub.wake is None and sub.pending:
            self._look_later(sub)

    def _look_later(self, sub: Subscription) -> None:
        """Wakes it in a turn of its own: the group is in the middle of answering writers, and more may grow."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._turn)
        self._due[sub.uid] = sub

    def _turn(self) -> None:
        count = 0
        while self._due and count < SLICE_SUBSCRIPTIONS:
            uid, sub = self._due.popitem()
            if uid in self.registry.by_uid:
                self.wake(sub)
            count += 1
        if self._due:
            asyncio.get_running_loop().call_soon(self._turn)

    # ---- time ---------------------------------------------------------------------------------------------------

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None
        if self._timers and not self._stopped:
            delay_s = (self._timers[0][0] - self._now_ms()) / 1000
            delay_s = min(max(delay_s, 0.0), _TIMER_S_MAX)
            self._alarm = asyncio.get_running_loop().call_later(delay_s, self.tick)

    def tick(self) -> None:
        """Leases that passed and retries that are due. Cost: logarithmic in those that are under way."""
        now_ms = self._now_ms()
        count = 0
        while self._timers and self._timers[0][0] <= now_ms and count < SLICE_SUBSCRIPTIONS:
            at_ms, uid = heappop(self._timers)
            count += 1
            sub = self.registry.by_uid.get(uid)
            if self._timer_at.get(uid) != at_ms:
                continue
            del self._timer_at[uid]
            if sub is None:
                continue
            ended = model.expire(sub, now_ms)
            if ended is not None:
                self.try_note(ended)
            elif sub.config.kind == WEBHOOK and sub.retry_at_ms and sub.retry_at_ms <= now_ms:
                self.deliveries.retry(sub)
            else:
                self.follow(sub)
        self._set_alarm()

    def _now_ms(self) -> int:
        return self.group.clock.now_ms()

    def _wake_id(self) -> str:
        return f"w_{self.rng.token(12).hex()}"
