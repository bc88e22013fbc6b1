"""Webhooks on the wire: a small HTTP/1.1 client for one POST each, and the queue that bounds how many run at once.

Owns time limits, the size of a reply and the checked connection. Never follows a redirect, never keeps a connection,
and never decides what a reply means for a cursor.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass

import httptools
import msgspec

from headwater import __version__
from headwater.subscriptions import targets
from headwater.subscriptions.targets import Resolver, Target, TargetRefused

REPLY_BYTES_MAX = 64 * 1024
CONNECT_TIMEOUT_S = 5.0
DELIVERY_TIMEOUT_S = 30.0
ADDRESSES_TRIED_MAX = 3
DELIVERIES_MAX = 64
DELIVERIES_PER_HOST_MAX = 8
"""A receiver that hangs must not hold up the others."""
_READ_BYTES = 16 * 1024

Connect = Callable[[Target, str, ssl.SSLContext | None], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class DeliveryFailed(Exception):
    """The receiver did not take the webhook, or may not have. The message says what was seen."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes
    """Empty when it was longer than is read."""

    @property
    def done(self) -> bool:
        """Whether the receiver says that the work is finished already."""
        try:
            said = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return isinstance(said, dict) and said.get("done") is True


class WebhookClient:
    def __init__(
        self,
        allow_local: bool,
        resolver: Resolver = targets.system_resolver,
        connect: Connect | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allow_local = allow_local
        self._resolver = resolver
        self._connect = _connect if connect is None else connect
        self._tls = tls

    def host(self, url: str) -> str:
        """What deliveries are counted by; empty for a URL that is refused."""
        try:
            return targets.parse(url, self._allow_local).host
        except TargetRefused:
            return ""

    async def check(self, url: str) -> None:
        """Raises TargetRefused when the URL may not be called as things stand. A name that does not resolve may."""
        target = targets.parse(url, self._allow_local)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await targets.resolve(target, self._resolver, self._allow_local)
        except OSError:
            pass  # nothing answers there now; every delivery looks again

    async def post(self, url: str, headers: list[tuple[str, str]], body: bytes, timeout_s: float) -> Reply:
        """One POST to an address that was checked just now. Returns a 2xx reply; raises DeliveryFailed for all else."""
        return await self._call("POST", url, headers, body, timeout_s)

    async def get(self, url: str, headers: list[tuple[str, str]], timeout_s: float) -> Reply:
        """The same by GET."""
        return await self._call("GET", url, headers, b"", timeout_s)

    async def _call(
        self, method: str, url: str, headers: list[tuple[str, str]], body: bytes, timeout_s: float
    ) -> Reply:
        try:
            target = targets.parse(url, self._allow_local)
            async with asyncio.timeout(min(timeout_s, DELIVERY_TIMEOUT_S)):
                addresses = await targets.resolve(target, self._resolver, self._allow_local)
                reader, writer = await self._open(target, addresses)
                try:
                    writer.write(_encode(method, target, headers, body))
                    await writer.drain()
                    reply = await _read(reader)
                finally:
                    writer.transport.abort()
        except TargetRefused as refused:
            raise DeliveryFailed(f"the address is not allowed: {refused}") from None
        except TimeoutError:
            raise DeliveryFailed("no answer in time") from None
        except (OSError, ssl.SSLError, EOFError) as error:
            raise DeliveryFailed(str(error) or type(error).__name__) from None
        if 300 <= reply.status < 400:
            raise DeliveryFailed(f"answered {reply.status}; redirects are not followed")
        if not 200 <= reply.status < 300:
            raise DeliveryFailed(f"answered {reply.status}")
        return reply

    async def _open(self, target: Target, addresses: list[str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls = None
        if target.scheme == "https":
            if self._tls is None:
                self._tls = ssl.create_default_context()
            tls = self._tls
        failure: OSError | None = None
        for address in addresses[:ADDRESSES_TRIED_MAX]:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    return await self._connect(target, address, tls)
            except OSError as error:  # TimeoutError among them
                failure = error
        raise failure or OSError("no address")


async def _connect(
    target: Target, address: str, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects to the address, not to the name; certificate and SNI go by the name."""
    return await asyncio.open_connection(
        address, target.port, limit=_READ_BYTES, ssl=tls, server_hostname=None if tls is None else target.host
    )


def _encode(method: str, target: Target, headers: list[tuple[str, str]], body: bytes) -> bytes:
    lines = [f"{method} {target.path} HTTP/1.1", f"Host: {target.authority}"]
    lines += [f"{name}: {value}" for name, value in headers]
    lines += [f"User-Agent: headwater/{__version__}", f"Content-Length: {len(body)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode() + body


class _Incoming:
    """What httptools tells of a response. A 1xx in front of the answer is passed over."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.body = bytearray()
        self.headed = False
        self.complete = False
        self.framed = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self.framed = True

    def on_headers_complete(self) -> None:
        self.headed = self.parser.get_status_code() >= 200

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = self.headed


async def _read(reader: asyncio.StreamReader) -> Reply:
    incoming = _Incoming()
    received = 0
    while not incoming.complete:
        data = await reader.read(_READ_BYTES)
        if not data:
            if incoming.headed and not incoming.framed:
                break  # a body that ends with its connection
            raise EOFError("the connection ended before the answer did")
        received += len(data)
        try:
            incoming.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            raise OSError("the answer is not HTTP") from None
        if received > REPLY_BYTES_MAX and not incoming.complete:
            if not incoming.headed:
                raise OSError("the answer's head has no end")
            # The status was read: the receiver has the webhook. What it says beyond the bound is not listened to.
            return Reply(incoming.parser.get_status_code(), b"")
    return Reply(incoming.parser.get_status_code(), bytes(incoming.body))


Job = Callable[[], Coroutine[None, None, None]]


class DeliveryQueue:
    """Runs deliveries, so many at once and so many to one host. Bounded by its caller: one job per subscription."""

    def __init__(self, running_max: int = DELIVERIES_MAX, per_host_max: int = DELIVERIES_PER_HOST_MAX) -> None:
        self._running_max = running_max
        self._per_host_max = per_host_max
        self._waiting: dict[str, deque[Job]] = {}
        self._running: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def submit(self, host: str, job: Job) -> None:
        self._waiting.setdefault(host, deque()).append(job)
        self._pump()

    def _pump(self) -> None:
        """Starts what may start: hosts take turns."""
        for host in list(self._waiting):
            if len(self._tasks) >= self._running_max or self._stopped:
                return
            waiting = self._waiting.pop(host)
            while waiting and self._running.get(host, 0) < self._per_host_max and len(self._tasks) < self._running_max:
                self._start(host, waiting.popleft())
            if waiting:
                self._waiting[host] = waiting

    def _start(self, host: str, job: Job) -> None:
        self._running[host] = self._running.get(host, 0) + 1
        task = asyncio.get_running_loop().create_task(job())
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(host, task))

    def _ended(self, host: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._running[host] -= 1
        if not self._running[host]:
            del self._running[host]
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler({"message": "a delivery failed", "exception": error})
        self._pump()

    async def stop(self) -> None:
        """Cuts off what runs and forgets what waits: a delivery without an outcome is made again after a restart."""
        self._stopped = True
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
