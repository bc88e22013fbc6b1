"""Subscriptions of this process's groups at work: what the door asks of them, and the parts that do it.

Owns the decisions that clients ask for, and the order in which the parts start and stop. Never answers a request, nor
hands out a token, before the log holds what it rests on.

    stream grows -> pending -> Woken (logged) -> webhook delivered, or wake event appended -> leased -> Ended (logged)

A subscription lives in the group of its id; streams of all groups and processes wake it.
"""

from __future__ import annotations

import msgspec

from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.owned_group import OwnedGroup
from headwater.errors import (
    SubscriptionExists,
    SubscriptionNotFound,
    TooManySubscriptions,
    WebhookRefused,
)
from headwater.model import subscriptions as model
from headwater.model.subscriptions import Config, Link, LinkRow, Shown, Subscription
from headwater.ports import Rng
from headwater.subscriptions.all_streams import AllStreams
from headwater.subscriptions.delivery import Client, Deliveries
from headwater.subscriptions.growth import Growth
from headwater.subscriptions.hints import Hints
from headwater.subscriptions.keys import Keys
from headwater.subscriptions.linking import Linking
from headwater.subscriptions.neighbours import Neighbours
from headwater.subscriptions.registry import Index, Interest, Registry
from headwater.subscriptions.targets import TargetRefused
from headwater.subscriptions.telling import StreamInfo, chosen, tell
from headwater.subscriptions.wakes import Wakes

SUBSCRIPTIONS_MAX = 100_000


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


class Manager:
    """What the door calls. Made before the groups are recovered."""

    def __init__(self, engine: Engine, keys: Keys, client: Client, rng: Rng) -> None:
        self.keys = keys
        self.streams = AllStreams(engine)
        self.wakes = Wakes(engine, rng)
        self.deliveries = Deliveries(self.wakes, self.streams, keys, client, rng)
        self._engine = engine
        self._index = self.wakes.index
        self._rng = rng
        self._client = client
        self._hints = Hints(engine)
        self._growth = Growth(self.wakes, engine.groups_count)
        self._neighbours = Neighbours(engine, self._index, self.streams, self._growth, rng)
        self._linking = Linking(engine, self.wakes, self.streams, self._neighbours)
        self.wakes.on_issued = self.deliveries.issued
        self.wakes.on_retry = self.deliveries.retry
        engine.observe(self._growth)
        engine.questions.register("subscriptions_named_by", self._answer_named_by)

    # ---- start and stop -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Takes up what was under way. Called once, when the logs are open and before any request."""
        self._engine.listeners.append(self)
        if not self._index.by_uid:
            return
        for owned in self._engine.owned.values():
            self._recall(owned)
        for sub in self._index.by_uid.values():
            self._take_up(sub)
        self._neighbours.start()

    def follow(self, group: Group) -> None:
        """The group is another process's and its log is followed here: its subscriptions do nothing yet."""
        group.domains[Registry.name] = Registry()

    def entered(self, owned: OwnedGroup) -> None:
        """Its subscriptions are at work here from now on."""
        registry = owned.group.domains[Registry.name]
        if not isinstance(registry, Registry):
            raise TypeError(f"the domain {Registry.name} is another one's")
        registry.move(self._index)
        self.wakes.registries[owned.number] = registry
        self._recall(owned)
        subs = list(registry.by_id.values())
        for sub in subs:
            self._take_up(sub)
        self._hints.entered(owned.number, owned.group.epoch)
        self._neighbours.entered(owned.number, owned.group.epoch, subs)

    def left(self, owned: OwnedGroup) -> None:
        """Its subscriptions are at work elsewhere: what is under way for them here has no effect any more."""
        registry = self.wakes.registries.pop(owned.number)
        interests: set[Interest] = set()
        for sub in registry.by_id.values():
            self.deliveries.forget(sub)
            self._linking.forget(sub)
            interests.update(_interests(sub))
        registry.move(Index())
        self._neighbours.unwatch(interests)

    def _recall(self, owned: OwnedGroup) -> None:
        """What became of a stream may have been durable before the end, and what it meant for subscriptions not."""
        if not self._index.by_uid:
            return
        loaded = owned.group.loaded
        for sid, key in list(loaded.removed.items()):
            self._growth.lost(model.path_of(key), sid)
        for stream in list(loaded.by_key.values()):
            path = model.path_of(stream.key)
            if stream.soft_deleted:
                self._growth.lost(path, stream.sid)
            else:
                self._growth.recall((path, stream.sid, stream.visible, stream.fork_at))

    def _take_up(self, sub: Subscription) -> None:
        for path in list(sub.pending):
            if self._gone(path, sub.links[path]):
                self.wakes.try_note(model.Lost(sub.uid, path))
        self.wakes.try_note(model.abandon(sub))
        if not sub.complete:
            self._linking.begin(sub)
        if sub.wake is not None:
            self.deliveries.issued(sub, sub.wake.wake_id)
        self.wakes.follow(sub)

    def _gone(self, path: str, link: Link) -> bool:
        """Whether a stream of this process is not there any more. What others have is compared with them later."""
        group = self.streams.group_of(link.sid)
        found = self.streams.local.look(path, group) if group in self._engine.owned else None
        return group in self._engine.owned and (found is None or found[0] != link.sid)

    def close(self) -> None:
        """Ends what other processes wait for here, so that the doors can close. Called before they do."""
        self._hints.close()

    async def stop(self) -> None:
        self.close()
        self.wakes.stop()
        await self._neighbours.stop()
        await self._linking.stop()
        await self.deliveries.stop()

    # ---- what the door asks -------------------------------------------------------------------------------------

    @property
    def subscriptions_count(self) -> int:
        return len(self._index.by_uid)

    def find(self, name: str) -> Subscription:
        sub = self._registry(name).by_id.get(name)
        if sub is None:
            raise SubscriptionNotFound
        return sub

    def _registry(self, name: str) -> Registry:
        return self.wakes.registry(name)

    async def durable(self, name: str) -> None:
        """Returns once all that was decided about the subscription is durable: answers that rest on it may leave."""
        future = OutcomeFuture()
        self.wakes.group(name).after_pending(future)
        await future.success()

    async def show(self, name: str) -> tuple[Subscription, list[tuple[str, Link]]]:
        """The subscription and the links to show, those with work first. All of it is durable."""
        self.find(name)
        await self._neighbours.refresh()
        await self.durable(name)
        sub = self.find(name)
        return sub, chosen(sub)

    async def create(self, name: str, config: Config, streams: list[str], base_url: str) -> tuple[Subscription, bool]:
        """The subscription and whether it is new. On return what existed before is linked, and all of it durable."""
        if name not in self._registry(name).by_id and config.url is not None:
            try:
                await self._client.check(config.url)
            except TargetRefused as refused:
                raise WebhookRefused(str(refused)) from None
        # Looked up anew after each pause: the group may have left and come back with another registry.
        sub, new = self._registry(name).by_id.get(name), False
        if sub is None:
            interests: list[Interest] = [(False, path) for path in streams]
            if config.pattern is not None:
                interests.append((True, config.pattern))
            async with self._neighbours.watching(interests):
                rows = await self._link_rows(streams)
                sub = self._registry(name).by_id.get(name)
                new = sub is None
                if sub is None:
                    sub = await self._create(name, config, rows, base_url)
        if sub.config.digest != config.digest:
            raise SubscriptionExists
        await self._linking.finished(sub)
        await self.durable(name)
        return sub, new

    async def _create(self, name: str, config: Config, rows: list[LinkRow], base_url: str) -> Subscription:
        if self.subscriptions_count >= SUBSCRIPTIONS_MAX:
            raise TooManySubscriptions(SUBSCRIPTIONS_MAX)
        uid = self._rng.token(8).hex()
        future = OutcomeFuture()
        generation = self._registry(name).generation(name)
        self.wakes.note(model.Created(uid, name, config, base_url, generation, rows), future)
        sub = self._index.by_uid[uid]
        if not sub.complete:
            self._linking.begin(sub)
        await future.success()
        return sub

    async def _link_rows(self, paths: list[str]) -> list[LinkRow]:
        """Each path with its stream's sid and tail as they are on return; 0 and 0 where there is no stream."""
        looked = await self.streams.look({path: self.streams.place(path) for path in paths})
        looked.demand()
        return [(path, *looked.found.get(path, (0, 0))[:2]) for path in paths]

    async def remove(self, name: str) -> None:
        sub = self._registry(name).by_id.get(name)
        if sub is None:
            await self.durable(name)
            return
        future = OutcomeFuture()
        self.wakes.note(model.Removed(sub.uid), future)
        self.deliveries.forget(sub)
        self._neighbours.unwatch(_interests(sub))
        await future.success()

    async def add_streams(self, name: str, paths: list[str]) -> None:
        self.find(name)
        async with self._neighbours.watching([(False, path) for path in paths]):
            rows = await self._link_rows(paths)
            sub = self.find(name)
            rows = [row for row in rows if (link := sub.links.get(row[0])) is None or not link.explicit]
            if rows:
                future = OutcomeFuture()
                self.wakes.note(model.Linked(sub.uid, rows, explicit=True), future)
                await future.success()
        await self.durable(name)

    async def remove_stream(self, name: str, path: str) -> None:
        sub = self.find(name)
        event = model.unlink(sub, path)
        if event is not None:
            future = OutcomeFuture()
            self.wakes.note(event, future)
            self.wakes.try_note(model.abandon(sub))
            self._neighbours.unwatch([(False, path)])
            await future.success()
        await self.durable(name)

    async def claim(self, name: str, worker: str) -> Claim:
        """Sees every append that was acknowledged before the call, unless the stream's process is away."""
        self.find(name)
        await self._neighbours.refresh()
        sub = self.find(name)
        events = model.claim(sub, worker, self.wakes.fresh_id(), self.wakes.now_ms())
        future = OutcomeFuture()
        for event in events[:-1]:
            self.wakes.note(event)
        self.wakes.note(events[-1], future)
        current = sub.wake
        if current is None:
            raise RuntimeError(f"subscription {name} was claimed without a wake")
        self.wakes.count += len(events) > 1
        generation = sub.generation
        told = await tell(sub, self.streams)
        await future.success()
        token = self.keys.token(sub.uid, generation, current.wake_id)
        return Claim(current.wake_id, generation, token, told.infos, sub.config.lease_ms)

    async def acknowledge(self, name: str, bearer: Bearer, acks: list[tuple[str, int]], done: bool) -> bool:
        """Moves cursors and renews the lease, or ends it when `done`. Returns whether another wake follows at once."""
        # Judged first, so that whoever may not acknowledge is told that and not what the streams hold.
        sub = self.demand_wake(name, bearer)
        links = {path: link for path, _ in acks if (link := sub.links.get(path)) is not None}
        places = {path: self.streams.group_of(link.sid) for path, link in links.items()}
        looked = await self.streams.look(places)
        looked.demand()
        between = [
            (path, links[path].sid, offset)
            for path, offset in acks
            if path in links and links[path].acked < offset < looked.tail(path, links[path].sid)
        ]
        if between:
            await self.streams.check_edges(between)
            looked = await self.streams.look(places)
            looked.demand()
        sub = self.find(name)
        event = model.acknowledge(sub, self._shown(sub, bearer), acks, done, looked.tail, self.wakes.now_ms())
        future = OutcomeFuture()
        self.wakes.note(event, future)
        following = done and self.wakes.wake(sub)
        await future.success()
        return following

    async def release(self, name: str, bearer: Bearer) -> None:
        sub = self.find(name)
        event = model.release(sub, self._shown(sub, bearer), self.wakes.now_ms())
        future = OutcomeFuture()
        self.wakes.note(event, future)
        self.wakes.wake(sub)
        await future.success()

    def demand_wake(self, name: str, bearer: Bearer) -> Subscription:
        """Raises Fenced unless the wake is the bearer's own and its lease runs."""
        sub = self.find(name)
        model.fence(sub, self._shown(sub, bearer), self.wakes.now_ms())
        return sub

    def _shown(self, sub: Subscription, bearer: Bearer) -> Shown:
        current = sub.wake
        holds = current is not None and self.keys.holds(bearer.token, sub.uid, sub.generation, current.wake_id)
        return Shown(holds, bearer.wake_id, bearer.generation)

    # ---- all processes ------------------------------------------------------------------------------------------

    async def named_by(self, path: str) -> list[str]:
        """Ids of the subscriptions that name a stream, whether or not it is there, in all processes."""
        found = await self._engine.questions.ask_all("subscriptions_named_by", path, into=list[str])
        return sorted(name for part in found for name in part)

    def named_here(self, path: str) -> list[str]:
        return sorted(name for registry in self.wakes.registries.values() for name in registry.named_by(path))

    async def _answer_named_by(self, path: str) -> list[str]:
        return self.named_here(path)


def _interests(sub: Subscription) -> list[Interest]:
    """What it wants to hear of."""
    found: list[Interest] = [(False, path) for path, link in sub.links.items() if link.explicit]
    if sub.config.pattern is not None:
        found.append((True, sub.config.pattern))
    return found
