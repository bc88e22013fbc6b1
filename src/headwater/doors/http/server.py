"""The HTTP listener: its connections, its routes and its slow clock.

Owns admission, dispatch and shutdown. Never handles a stream itself: `durable_streams` does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from headwater.config import Settings
from headwater.doors.http import headers as parse
from headwater.doors.http.connection import Connection, Exchange
from headwater.doors.http.durable_streams import DurableStreams
from headwater.doors.http.respond import Responder
from headwater.doors.http.wire import Heads
from headwater.errors import Failure, MethodNotAllowed, NoSuchRoute
from headwater.model import names

FLAT = b"/v1/stream/"
SWEEP_S = 0.5
_KEYS_MAX = 65_536

Page = Callable[[], tuple[int, str, bytes]]
"""A small fixed page: (status, content type, body)."""

log = structlog.get_logger("headwater.http")


class HttpServer:
    def __init__(self, settings: Settings, streams: DurableStreams, responder: Responder) -> None:
        self.settings = settings
        self.responder = responder
        self.closing = False
        self.connections: set[Connection] = set()
        self.heads = Heads()
        self.refused_count = 0
        self._streams = streams
        self._pages: dict[bytes, Page] = {}
        self._keys: dict[bytes, str] = {}
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def now_s(self) -> float:
        return self._loop.time()

    def page(self, path: str, page: Page) -> None:
        """Serves a small page, such as /healthz, at a fixed path."""
        self._pages[path.encode()] = page

    async def listen(self, host: str, port: int) -> int:
        """Starts to accept; returns the port, which the system chose when `port` is 0. Raises OSError."""
        self._server = await self._loop.create_server(lambda: Connection(self), host, port, backlog=4096)
        self._sweeper = self._loop.create_task(self._sweep())
        return int(self._server.sockets[0].getsockname()[1])

    def admit(self, connection: Connection) -> bool:
        """False when there are too many connections, or none are taken any more. The overflow is cut, not queued."""
        if self.closing or len(self.connections) >= self.settings.connections_max:
            self.refused_count += 1
            return False
        self.connections.add(connection)
        return True

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)

    # ---- requests -----------------------------------------------------------------------------------------------

    def handle(self, exchange: Exchange) -> None:
        try:
            target = exchange.request.target
            key = self._keys.get(target)
            if key is not None:
                self._streams.handle(exchange, key, b"")
            else:
                self._route(exchange, target)
        except Failure as failure:
            exchange.fail(failure)
        except Exception:
            # An impossible state must not pass for an answer: it is logged with its trace and the client is cut off.
            log.exception("request failed", method=exchange.request.method, target=exchange.request.target[:200])
            exchange.connection.abort()

    def _route(self, exchange: Exchange, target: bytes) -> None:
        path, mark, query = target.partition(b"?")
        if exchange.request.method == b"OPTIONS":
            exchange.reply(self.responder.preflight(exchange.request.keep_alive))
        elif path.startswith(FLAT):
            key = names.flat_key(parse.path_text(path[len(FLAT) :]), self.settings.stream_name_bytes_max)
            if not mark:
                # Writers repeat their targets: the decoded and checked key is kept. Overflow: all are forgotten.
                if len(self._keys) >= _KEYS_MAX:
                    self._keys.clear()
                self._keys[target] = key
            self._streams.handle(exchange, key, query)
        elif (page := self._pages.get(path)) is not None:
            self._show(exchange, page)
        else:
            raise NoSuchRoute

    def _show(self, exchange: Exchange, page: Page) -> None:
        request = exchange.request
        if request.method not in (b"GET", b"HEAD"):
            raise MethodNotAllowed("GET, HEAD, OPTIONS")
        status, content_type, body = page()
        headers = [("Content-Type", content_type), ("Cache-Control", "no-store")]
        head = self.responder.head(status, headers, len(body), request.keep_alive)
        exchange.reply(head if request.method == b"HEAD" else head + body)

    # ---- time and shutdown --------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Time limits, keep-alives and the Date header. Costs about 0.2 µs per open connection and half second."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.responder.renew(int(time.time()))
            now_s = self._loop.time()
            for connection in list(self.connections):
                connection.tick(now_s)

    async def close(self, grace_s: float) -> None:
        """Stops accepting, ends streams with their last event, waits for answers under way; cuts what is left."""
        self.closing = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.shut_down()
        deadline_s = self._loop.time() + grace_s
        while self.connections and self._loop.time() < deadline_s:
            await asyncio.sleep(0.02)
        for connection in list(self.connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.sleep(0)
