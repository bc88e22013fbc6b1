"""The client itself: `Headwater` blocks, `AsyncHeadwater` is awaited. Each has its own connections and producers.

Owns the life of both; what is asked of the server is in `streams`, `topics` and `queues`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType

from headwater.client import topic_plans
from headwater.client.async_transport import AsyncTransport
from headwater.client.producers import Producer, Producers
from headwater.client.queue_plans import QueuePlans
from headwater.client.queues import AsyncQueue, Queue
from headwater.client.retries import Retries
from headwater.client.settings import TIMEOUT_S, Settings, settings
from headwater.client.stream_plans import StreamPlans
from headwater.client.streams import AsyncStream, Stream
from headwater.client.sync_transport import SyncTransport
from headwater.client.tls_files import TlsFiles
from headwater.client.topic_plans import RouterPlans, TopicPlans
from headwater.client.topics import AsyncRouters, AsyncTopic, Routers, Topic
from headwater.client.values import TopicSummary

RETRIES = Retries()


class _Plans:
    """The plans that both clients hand out, with the client's producers."""

    def __init__(self, told: Settings) -> None:
        self.settings = told
        self._producers = Producers()

    def stream(self, name: str, content_type: str | None, producer: Producer | None) -> StreamPlans:
        return StreamPlans(name, self._producer("stream", name, producer), self.settings.retries, content_type)

    def topic(self, name: str, producer: Producer | None) -> TopicPlans:
        return TopicPlans(name, self._producer("topic", name, producer), self.settings.retries)

    def queue(self, name: str, producer: Producer | None) -> QueuePlans:
        return QueuePlans(self.topic(name, producer), self.settings.retries)

    def _producer(self, door: str, name: str, given: Producer | None) -> Producer | None:
        if given is not None:
            return given
        return self._producers.of(door, name) if self.settings.idempotent else None


class Headwater:
    """A client of one server. For any number of threads; keep one for the life of the program.

        with Headwater("http://127.0.0.1:4437") as hw:
            hw.stream("orders").append({"id": 1})

    `token` is sent as `Authorization: Bearer`. `timeout_s` is how long connecting, and any single read or write, may
    take. `retries` says how long failed requests are tried again. Every write carries a producer, so that one that is
    sent again is stored once. Not `idempotent`: writes carry none, and one whose answer was lost is not sent again.
    That is for programs that write once and end, because a stream remembers only so many producers. `tls` names the
    files of authorities and of the client's own certificate for https; without it the variables HEADWATER_CA_FILE,
    HEADWATER_CLIENT_CERTIFICATE and HEADWATER_CLIENT_KEY do.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = TIMEOUT_S,
        retries: Retries = RETRIES,
        idempotent: bool = True,
        tls: TlsFiles | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._plans = _Plans(settings(url, token, timeout_s, retries, idempotent, tls))
        self._transport = SyncTransport(self._plans.settings)
        self.routers = Routers(self._transport, RouterPlans(retries))

    def stream(self, name: str, *, content_type: str | None = None, producer: Producer | None = None) -> Stream:
        """A stream, `NAME` or `BUCKET/NAME`; nothing is sent yet. A known `content_type` saves asking for it."""
        return Stream(self._transport, self._plans.stream(name, content_type, producer))

    def topic(self, name: str, *, producer: Producer | None = None) -> Topic:
        """A topic, `NAME` or `BUCKET/NAME`; nothing is sent yet."""
        return Topic(self._transport, self._plans.topic(name, producer))

    def queue(self, name: str, *, producer: Producer | None = None) -> Queue:
        """A queue, `NAME` or `BUCKET/NAME`; nothing is sent yet."""
        return Queue(self._transport, self._plans.queue(name, producer), self._plans.settings)

    def topics(self, *, bucket: str | None = None, prefix: str | None = None) -> Iterator[TopicSummary]:
        """The topics of a server, in the order of their names."""
        return self._transport.walk(topic_plans.topics(bucket, prefix, self._plans.settings.retries))

    def close(self) -> None:
        """Ends its connections."""
        self._transport.close()

    def __enter__(self) -> Headwater:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncHeadwater:
    """A client of one server for one event loop. Arguments and methods are those of `Headwater`.

    async with AsyncHeadwater("http://127.0.0.1:4437") as hw:
        await hw.stream("orders").append({"id": 1})
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = TIMEOUT_S,
        retries: Retries = RETRIES,
        idempotent: bool = True,
        tls: TlsFiles | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._plans = _Plans(settings(url, token, timeout_s, retries, idempotent, tls))
        self._transport = AsyncTransport(self._plans.settings)
        self.routers = AsyncRouters(self._transport, RouterPlans(retries))

    def stream(self, name: str, *, content_type: str | None = None, producer: Producer | None = None) -> AsyncStream:
        """As `Headwater.stream`."""
        return AsyncStream(self._transport, self._plans.stream(name, content_type, producer))

    def topic(self, name: str, *, producer: Producer | None = None) -> AsyncTopic:
        """As `Headwater.topic`."""
        return AsyncTopic(self._transport, self._plans.topic(name, producer))

    def queue(self, name: str, *, producer: Producer | None = None) -> AsyncQueue:
        """As `Headwater.queue`."""
        return AsyncQueue(self._transport, self._plans.queue(name, producer), self._plans.settings)

    def topics(self, *, bucket: str | None = None, prefix: str | None = None) -> AsyncIterator[TopicSummary]:
        """As `Headwater.topics`, for `async for`."""
        return self._transport.walk(topic_plans.topics(bucket, prefix, self._plans.settings.retries))

    async def close(self) -> None:
        """Ends its connections."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncHeadwater:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
