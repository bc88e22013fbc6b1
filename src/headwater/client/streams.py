"""A stream as programs see it: `Stream` blocks, `AsyncStream` is awaited. What they do is in `stream_plans`.

Owns the signatures and their documentation; never builds a request and never decides whether to send again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import datetime
from typing import Any

from headwater.client.async_transport import AsyncTransport
from headwater.client.stream_plans import JSON, StreamPlans
from headwater.client.sync_transport import SyncTransport
from headwater.client.values import Appended, Chunk, Durability, StreamHead


class Stream:
    """One stream of a server; made by `Headwater.stream`. For any number of threads.

    log = hw.stream("shop/orders")
    log.create()
    log.append({"id": 1})
    for chunk in log.read():
        for message in chunk:
            print(message)
    """

    def __init__(self, transport: SyncTransport, plans: StreamPlans) -> None:
        self._transport, self._plans = transport, plans

    @property
    def name(self) -> str:
        return self._plans.name

    def create(
        self,
        content_type: str = JSON,
        *,
        data: Any = None,
        ttl_s: int | None = None,
        expires_at: datetime | None = None,
        retention_age_s: int | None = None,
        retention_bytes: int | None = None,
        retention_records: int | None = None,
        durability: Durability | None = None,
        closed: bool = False,
    ) -> bool:
        """Creates the stream, with `data` as its first record. False: it was there, with the same configuration.

        `ttl_s` is its life without use, `expires_at` a fixed end, the retentions bound what it keeps. Raises Conflict
        when it exists with another configuration.

            hw.stream("notes").create("text/plain", ttl_s=3600)
        """
        return self._transport.run(
            self._plans.create(
                content_type,
                data,
                ttl_s,
                expires_at,
                retention_age_s,
                retention_bytes,
                retention_records,
                durability,
                closed,
            )
        )

    def append(self, data: Any, *, close: bool = False) -> Appended:
        """Appends one record and returns when the server has it; sent again after a lost connection, stored once.

        On a JSON stream `data` is any JSON value, also a list, a dataclass or a datetime, or bytes that are JSON
        already; on any other bytes or text. `close` closes the stream with it. Raises Closed, NotFound, TooLarge,
        and Unavailable or Throttled when patience is over: `outcome_unknown` then says whether it may be stored.

            log.append({"id": 1})
            log.append(b"raw", close=True)
        """
        return self._transport.run(self._plans.append([data], close), self._plans.producer)

    def append_many(self, items: Iterable[Any]) -> Appended | None:
        """Appends records in order, on a JSON stream many in a request. None when there are none.

        A request is taken whole or not at all. When a later one fails, a note of the exception says how many records
        were appended before.
        """
        return self._transport.run(self._plans.append_many(items), self._plans.producer)

    def read(self, offset: str = "-1") -> Iterator[Chunk]:
        """What the stream holds from `offset` on, up to its present end. Raises Gone, NotFound.

        Keep `chunk.next_offset` to go on there another time.
        """
        return self._transport.walk(self._plans.read(offset))

    def tail(self, offset: str = "now") -> Iterator[Chunk]:
        """What the stream holds from `offset` on and what is appended later, until it is closed.

        Goes on by itself after a lost connection, without repeating or leaving out anything. Raises Unavailable when
        the server stays away for longer than the client's `retries` allow, Gone when retention was faster.

            for chunk in log.tail(offset=last_known):
                handle(chunk.messages)
                last_known = chunk.next_offset
        """
        return self._transport.walk(self._plans.tail(offset))

    def head(self) -> StreamHead:
        """What the stream is. Raises NotFound."""
        return self._transport.run(self._plans.head())

    def close(self) -> str:
        """Closes it for everybody: it takes no more data, and its followers end. Returns its final offset."""
        return self._transport.run(self._plans.close())

    def delete(self) -> None:
        """Deletes it with all its data. Raises NotFound."""
        self._transport.run(self._plans.delete())


class AsyncStream:
    """One stream of a server; made by `AsyncHeadwater.stream`. Its methods are those of `Stream`, awaited.

    async for chunk in hw.stream("orders").tail():
        print(chunk.messages)
    """

    def __init__(self, transport: AsyncTransport, plans: StreamPlans) -> None:
        self._transport, self._plans = transport, plans

    @property
    def name(self) -> str:
        return self._plans.name

    async def create(
        self,
        content_type: str = JSON,
        *,
        data: Any = None,
        ttl_s: int | None = None,
        expires_at: datetime | None = None,
        retention_age_s: int | None = None,
        retention_bytes: int | None = None,
        retention_records: int | None = None,
        durability: Durability | None = None,
        closed: bool = False,
    ) -> bool:
        """As `Stream.create`."""
        return await self._transport.run(
            self._plans.create(
                content_type,
                data,
                ttl_s,
                expires_at,
                retention_age_s,
                retention_bytes,
                retention_records,
                durability,
                closed,
            )
        )

    async def append(self, data: Any, *, close: bool = False) -> Appended:
        """As `Stream.append`. Appends that run at once are sent one after the other."""
        return await self._transport.run(self._plans.append([data], close), self._plans.producer)

    async def append_many(self, items: Iterable[Any]) -> Appended | None:
        """As `Stream.append_many`."""
        return await self._transport.run(self._plans.append_many(items), self._plans.producer)

    def read(self, offset: str = "-1") -> AsyncIterator[Chunk]:
        """As `Stream.read`, for `async for`."""
        return self._transport.walk(self._plans.read(offset))

    def tail(self, offset: str = "now") -> AsyncIterator[Chunk]:
        """As `Stream.tail`, for `async for`."""
        return self._transport.walk(self._plans.tail(offset))

    async def head(self) -> StreamHead:
        """As `Stream.head`."""
        return await self._transport.run(self._plans.head())

    async def close(self) -> str:
        """As `Stream.close`: closes the stream for everybody."""
        return await self._transport.run(self._plans.close())

    async def delete(self) -> None:
        """As `Stream.delete`."""
        await self._transport.run(self._plans.delete())
