"""A front of the product's own parts that sends every request on, and owners whose answers a test writes itself."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from headwater.cluster.forwarding import Forwarder, Upstream
from headwater.cluster.members import Members
from headwater.config import Settings
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.respond import Responder
from headwater.doors.http.server import HttpServer
from headwater.doors.http.wire import Budget

PATIENCE_S = 60.0
DONE = b"HTTP/1.1 204 No Content\r\nStream-Next-Offset: 5\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def found(body: bytes, extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (extra, len(body), body)


def post(member: int, body: bytes, extra: bytes = b"") -> bytes:
    head = b"POST /%d HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n"
    return head % (member, extra, len(body)) + body


def get(member: int, version: bytes = b"1.1", extra: bytes = b"", method: bytes = b"GET") -> bytes:
    return b"%b /%d HTTP/%b\r\nHost: a\r\n%b\r\n" % (method, member, version, extra)


async def within(waited: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(waited, PATIENCE_S)


async def until(holds: Callable[[], bool]) -> None:
    """Waits for what has no event of its own."""

    async def look() -> None:
        while not holds():
            await asyncio.sleep(0.005)

    await within(look())


class Asked:
    """A request as an owner got it."""

    def __init__(self, head: bytes, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = head
        self.body = body
        self.reader = reader
        self.writer = writer

    def answer(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)


class Owner:
    """Another member: its requests in `asked`, in the order of their coming. The test answers them."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[Asked] = asyncio.Queue()
        self.connections: list[asyncio.StreamWriter] = []

    async def open(self, path: str) -> None:
        self._server = await asyncio.start_unix_server(self._connected, path)

    async def close(self) -> None:
        self._server.close()
        for writer in self.connections:
            writer.transport.abort()

    async def next(self) -> Asked:
        return await within(self.asked.get())

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                _, mark, rest = head.partition(b"content-length: ")
                body = await reader.readexactly(int(rest.partition(b"\r\n")[0]) if mark else 0)
                self.asked.put_nowait(Asked(head, body, reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass


class ByTarget:
    """Sends a request for /N to member N. /placed goes to member 1 with a mark, /here is answered at once."""

    def __init__(self, forwarder: Forwarder) -> None:
        self.forwarder = forwarder

    def handle(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.target == b"/here":
            exchange.empty(204, [])
        elif request.target == b"/placed":
            self.forwarder.forward(exchange, 1, b"3/7")
        elif request.known is None or not self.forwarder.forward_again(exchange, request.known.memo):
            self.forwarder.forward(exchange, int(request.target[1:]))


class World:
    """Member 0, which clients are connected to, and owners 1 and 2."""

    async def open(self, folder: Path) -> None:
        self.members = members = Members(0, 3, 3, folder)
        self.path_of = members.http_path
        self.forwarder = Forwarder(members)
        responder, bodies = Responder("*", keeps_nothing=True), Budget(1 << 30)
        settings = Settings(write_buffer_bytes_max=64 * 1024)
        self.front = HttpServer(settings, ByTarget(self.forwarder), responder, bodies)  # type: ignore[arg-type]
        await self.front.listen_unix(members.http_path(0))
        self.owners = {1: Owner(), 2: Owner()}
        for member, owner in self.owners.items():
            await owner.open(members.http_path(member))
        self._writers: list[asyncio.StreamWriter] = []

    async def client(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(self.path_of(0), limit=1 << 20)
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await self.front.close(0)
        for owner in self.owners.values():
            await owner.close()

    @property
    def upstream(self) -> Upstream:
        """The one connection to member 1 that the one client has."""
        (connection,) = self.front.connections
        assert connection.upstreams is not None
        return connection.upstreams[1]  # type: ignore[return-value]


def in_a_world(body: Callable[[World], Awaitable[None]]) -> None:
    async def run(folder: Path) -> None:
        world = World()
        await world.open(folder)
        try:
            await body(world)
        finally:
            await world.close()

    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(Path(folder)))


async def refusal(reader: asyncio.StreamReader, head_only: bool = False) -> tuple[bytes, bytes]:
    """The head and the body of a refusal."""
    head = await within(reader.readuntil(b"\r\n\r\n"))
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head, b"" if head_only else await within(reader.readexactly(length))
