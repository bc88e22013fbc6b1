"""A topic as programs see it, and routers: `Topic` and `Routers` block, `AsyncTopic` and `AsyncRouters` are awaited.

Owns the signatures and their documentation; what they do is in `topic_plans`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Unpack

from headwater.client.async_transport import AsyncTransport
from headwater.client.sync_transport import SyncTransport
from headwater.client.topic_plans import RouterPlans, TopicPlans, drafts_of, matching
from headwater.client.values import (
    Deleted,
    Diff,
    Draft,
    Match,
    Record,
    RouterInfo,
    Tombstone,
    TopicInfo,
    TopicOptions,
    Written,
)


class Topic:
    """One topic of a server; made by `Headwater.topic`. For any number of threads.

    prices = hw.topic("shop/prices")
    prices.ensure(cap_records=100_000)
    prices.write({"sku": 7, "cents": 1999}, tag="sku-7")
    for record in prices.records(from_seq=last_seen):
        if isinstance(record, Tombstone):
            start_over()      # the cap took what this reader had not seen
        else:
            print(record.seq, record.data)
    """

    def __init__(self, transport: SyncTransport, plans: TopicPlans) -> None:
        self._transport, self._plans = transport, plans

    @property
    def name(self) -> str:
        return self._plans.name

    def create(self, **config: Unpack[TopicOptions]) -> TopicInfo:
        """Creates the topic, or finds it with the same configuration (`created` is False then).

        Raises Conflict when it exists with another one.
        """
        return self._transport.run(self._plans.create(config))

    def ensure(self, **config: Unpack[TopicOptions]) -> TopicInfo:
        """Creates the topic, or changes what is there where it differs from `config`.

        Raises Conflict for a difference that cannot be changed: content type and durability.
        """
        return self._transport.run(self._plans.ensure(config))

    def config(self) -> TopicInfo:
        """Configuration and state. Raises NotFound."""
        return self._transport.run(self._plans.info())

    def update(self, **config: Unpack[TopicOptions]) -> TopicInfo:
        """Changes the options that are named. Raises NotFound, Conflict."""
        return self._transport.run(self._plans.update(config))

    def delete(self) -> None:
        """Deletes the topic with all its records. Raises NotFound."""
        self._transport.run(self._plans.delete())

    def write(
        self,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: dict[str, Any] | None = None,
        key: str | None = None,
        deliver_at: datetime | int | None = None,
        delay: float | timedelta | None = None,
        disable_backpressure: bool = False,
    ) -> Written:
        """Writes one record and returns when the server has it; sent again after a lost connection, stored once.

        `tag` is what records are deleted and routed by. `node` names the writer, who can leave its own records out
        when it reads. `disable_backpressure`: the server does not slow this write down. Raises NotFound, Full,
        Throttled, Unavailable.

            written = topic.write({"id": 1}, tag="new")
            print(written.seq)
        """
        draft = Draft(data, tag, node, meta, key, deliver_at, delay)
        return self._transport.run(self._plans.write([draft], None, disable_backpressure), self._plans.producer)

    def write_many(
        self, items: Iterable[Any], *, node: str | None = None, disable_backpressure: bool = False
    ) -> Written:
        """Writes records in order, many in a request: data, or `Draft(data, tag=…)` for one with labels.

        A request is taken whole or not at all; `detail["written"]` of an exception says how many records were written
        before the request that failed. `node` is that of all drafts that name none.

            topic.write_many([{"id": 1}, Draft({"id": 2}, tag="new")])
        """
        plan = self._plans.write(drafts_of(items), node, disable_backpressure)
        return self._transport.run(plan, self._plans.producer)

    def diff(self, from_seq: int = 0, limit: int = 100, *, node: str | None = None, wait: float = 0.0) -> Diff:
        """Up to `limit` records behind `from_seq`, the last seq that was seen.

        `wait`: seconds that the server may hold the answer back until there is something. `node` leaves out the records
        of these nodes (`"a,b"`).
        """
        return self._transport.run(self._plans.diff(from_seq, limit, node, wait))

    def records(self, from_seq: int = 0, *, node: str | None = None) -> Iterator[Record | Tombstone]:
        """Every record behind `from_seq`, up to the present end; a Tombstone where the topic's bounds took some.

        Raises EpochChanged when the topic is deleted and created again meanwhile.
        """
        return self._transport.walk(self._plans.records(from_seq, node, live=False))

    def tail(self, from_seq: int | None = None, *, node: str | None = None) -> Iterator[Record | Tombstone]:
        """Every record behind `from_seq` (None: behind the present end) and every later one, without end.

        Goes on by itself after a lost connection. Raises Unavailable when the server stays away for longer than the
        client's `retries` allow, NotFound when the topic is deleted.
        """
        return self._transport.walk(self._plans.records(from_seq, node, live=True))

    def delete_before(self, seq: int) -> Deleted:
        """Deletes every record in front of `seq`; readers see no gap."""
        return self._transport.run(self._plans.delete_records(seq, None))

    def delete_where(
        self, *, tag: str | None = None, tag_prefix: str | None = None, before_seq: int | None = None
    ) -> Deleted:
        """Deletes the records with this tag, or with tags that begin so; with `before_seq` only those before it."""
        return self._transport.run(self._plans.delete_records(before_seq, _match(tag, tag_prefix)))


class AsyncTopic:
    """One topic of a server; made by `AsyncHeadwater.topic`. Its methods are those of `Topic`, awaited.

    async for record in hw.topic("prices").tail():
        print(record)
    """

    def __init__(self, transport: AsyncTransport, plans: TopicPlans) -> None:
        self._transport, self._plans = transport, plans

    @property
    def name(self) -> str:
        return self._plans.name

    async def create(self, **config: Unpack[TopicOptions]) -> TopicInfo:
        """As `Topic.create`."""
        return await self._transport.run(self._plans.create(config))

    async def ensure(self, **config: Unpack[TopicOptions]) -> TopicInfo:
        """As `Topic.ensure`."""
        return await self._transport.run(self._plans.ensure(config))

    async def config(self) -> TopicInfo:
        """As `Topic.config`."""
        return await self._transport.run(self._plans.info())

    async def update(self, **config: Unpack[TopicOptions]) -> TopicInfo:
        """As `Topic.update`."""
        return await self._transport.run(self._plans.update(config))

    async def delete(self) -> None:
        """As `Topic.delete`."""
        await self._transport.run(self._plans.delete())

    async def write(
        self,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: dict[str, Any] | None = None,
        key: str | None = None,
        deliver_at: datetime | int | None = None,
        delay: float | timedelta | None = None,
        disable_backpressure: bool = False,
    ) -> Written:
        """As `Topic.write`. Writes that run at once are sent one after the other."""
        draft = Draft(data, tag, node, meta, key, deliver_at, delay)
        return await self._transport.run(self._plans.write([draft], None, disable_backpressure), self._plans.producer)

    async def write_many(
        self, items: Iterable[Any], *, node: str | None = None, disable_backpressure: bool = False
    ) -> Written:
        """As `Topic.write_many`."""
        plan = self._plans.write(drafts_of(items), node, disable_backpressure)
        return await self._transport.run(plan, self._plans.producer)

    async def diff(self, from_seq: int = 0, limit: int = 100, *, node: str | None = None, wait: float = 0.0) -> Diff:
        """As `Topic.diff`."""
        return await self._transport.run(self._plans.diff(from_seq, limit, node, wait))

    def records(self, from_seq: int = 0, *, node: str | None = None) -> AsyncIterator[Record | Tombstone]:
        """As `Topic.records`, for `async for`."""
        return self._transport.walk(self._plans.records(from_seq, node, live=False))

    def tail(self, from_seq: int | None = None, *, node: str | None = None) -> AsyncIterator[Record | Tombstone]:
        """As `Topic.tail`, for `async for`."""
        return self._transport.walk(self._plans.records(from_seq, node, live=True))

    async def delete_before(self, seq: int) -> Deleted:
        """As `Topic.delete_before`."""
        return await self._transport.run(self._plans.delete_records(seq, None))

    async def delete_where(
        self, *, tag: str | None = None, tag_prefix: str | None = None, before_seq: int | None = None
    ) -> Deleted:
        """As `Topic.delete_where`."""
        return await self._transport.run(self._plans.delete_records(before_seq, _match(tag, tag_prefix)))


class Routers:
    """The routers of a server: each copies the records of one topic into another as they come. `Headwater.routers`.

    hw.routers.create("alerts", "events", "alerts", tag_prefix="alert-")
    print(hw.routers.get("alerts").lag)
    """

    def __init__(self, transport: SyncTransport, plans: RouterPlans) -> None:
        self._transport, self._plans = transport, plans

    def create(
        self,
        name: str,
        source: str,
        dest: str,
        *,
        tag: str | None = None,
        tag_prefix: str | None = None,
        preserve_tag: bool = True,
        preserve_node: bool = True,
        preserve_meta: bool = True,
        allow_cycle: bool = False,
    ) -> RouterInfo:
        """Makes a router, or finds it as it should be. `tag` or `tag_prefix` choose the records that are copied.

        Raises Conflict for a cycle of routers, for a second source of `dest`, and when another router has the name.
        """
        config = _router(source, dest, tag, tag_prefix, preserve_tag, preserve_node, preserve_meta, allow_cycle)
        return self._transport.run(self._plans.create(name, config))

    def get(self, name: str) -> RouterInfo:
        """What it does and how far it is. Raises NotFound."""
        return self._transport.run(self._plans.get(name))

    def list(self) -> list[RouterInfo]:
        """Every router."""
        return self._transport.run(self._plans.list())

    def delete(self, name: str) -> None:
        """Ends it; what it copied stays. Raises NotFound."""
        self._transport.run(self._plans.delete(name))


class AsyncRouters:
    """The routers of a server, awaited. `AsyncHeadwater.routers`; the methods are those of `Routers`."""

    def __init__(self, transport: AsyncTransport, plans: RouterPlans) -> None:
        self._transport, self._plans = transport, plans

    async def create(
        self,
        name: str,
        source: str,
        dest: str,
        *,
        tag: str | None = None,
        tag_prefix: str | None = None,
        preserve_tag: bool = True,
        preserve_node: bool = True,
        preserve_meta: bool = True,
        allow_cycle: bool = False,
    ) -> RouterInfo:
        """As `Routers.create`."""
        config = _router(source, dest, tag, tag_prefix, preserve_tag, preserve_node, preserve_meta, allow_cycle)
        return await self._transport.run(self._plans.create(name, config))

    async def get(self, name: str) -> RouterInfo:
        """As `Routers.get`."""
        return await self._transport.run(self._plans.get(name))

    async def list(self) -> list[RouterInfo]:
        """As `Routers.list`."""
        return await self._transport.run(self._plans.list())

    async def delete(self, name: str) -> None:
        """As `Routers.delete`."""
        await self._transport.run(self._plans.delete(name))


def _match(tag: str | None, tag_prefix: str | None) -> Match:
    found = matching(tag, tag_prefix)
    if found is None:
        raise ValueError("give tag or tag_prefix; delete_before(seq) deletes whatever the tag is")
    return found


def _router(
    source: str,
    dest: str,
    tag: str | None,
    tag_prefix: str | None,
    preserve_tag: bool,
    preserve_node: bool,
    preserve_meta: bool,
    allow_cycle: bool,
) -> dict[str, Any]:
    return {
        "source": source,
        "dest": dest,
        "filter": matching(tag, tag_prefix),
        "preserve_tag": preserve_tag,
        "preserve_node": preserve_node,
        "preserve_meta": preserve_meta,
        "allow_cycle": allow_cycle,
    }
