"""One kept-alive HTTP/1.1 connection on an event loop: the counterpart of `connection.Connection`.

Sends a request and reads its complete answer, with httptools as the parser. Never sends a request twice: a failure
says whether the server can have seen it. One request at a time; whatever goes wrong, cancelling included, ends it.

It is an asyncio.Protocol of its own and not a StreamReader, because an answer that a server gave before it ended the
connection under a body that is still being sent (413) has to be read, and a StreamReader drops it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Mapping
from typing import cast

import httptools

from headwater.client.connection import (
    Address,
    Answer,
    CannotBeSent,
    Failed,
    Lost,
    NobodyListens,
    NotConnected,
    NotHttp,
    NoTls,
)
from headwater.client.tls_files import explained, wants_certificate

PIECE_BYTES = 256 * 1024


class AsyncConnection(asyncio.Protocol):
    """Connects with its first request."""

    def __init__(self, server: Address) -> None:
        self._server = server
        host = f"[{server.host}]" if ":" in server.host else server.host
        self._authority = f"{host}:{server.port}"
        self._transport: asyncio.Transport | None = None
        self._parsed: _Parsed | None = None
        """The answer that is awaited, while one is."""
        self._answered: asyncio.Future[None] | None = None
        self._timeout: asyncio.Timeout | None = None
        self._timeout_s = 0.0
        self._writable = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def usable(self) -> bool:
        """Whether another request can be sent: the server has not ended it, and no answer is left half read."""
        return self._transport is not None and not self._transport.is_closing() and self._parsed is None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def ended(self) -> None:
        """Returns when a connection that was closed is gone."""
        if self._transport is not None:
            await self._ended.wait()

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
    ) -> Answer:
        """The answer, whatever its status. Raises Failed.

        `timeout_s` is that of connecting, and how long nothing may move in either direction.
        """
        head = self._head(method, path, headers, body)
        if self._transport is None:
            await self._connect(timeout_s)
        transport = self._transport
        if transport is None:
            raise NotConnected("the connection ended as it came about")
        self._parsed = parsed = _Parsed(method == "HEAD")
        self._answered = answered = asyncio.get_running_loop().create_future()
        self._timeout_s = timeout_s
        try:
            async with asyncio.timeout(timeout_s) as self._timeout:
                sent_all = await self._send(transport, head, body or b"", answered)
                await answered
        except TimeoutError:
            raise Lost(f"no answer within {timeout_s:g} s") from None
        finally:
            self._timeout = self._answered = None
            if not parsed.complete:
                transport.abort()
        self._parsed = None
        if not sent_all and parsed.status < 400:
            transport.abort()
            raise Lost("an answer came before the request was sent")  # What was not sent is not done.
        if not parsed.keeps_alive or not sent_all:
            self.close()
        return Answer(parsed.status, parsed.headers, b"".join(parsed.body))

    async def _connect(self, timeout_s: float) -> None:
        server = self._server
        loop = asyncio.get_running_loop()
        try:
            context = server.tls.context() if server.secure else None
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(lambda: self, server.host, server.port, ssl=context)
        except ConnectionRefusedError as why:
            raise NobodyListens(why.strerror or "connection refused") from why
        except ssl.SSLError as why:
            raise NoTls(explained(why, server.host)) from why
        except TimeoutError as why:
            raise NotConnected("timed out") from why
        except (OSError, UnicodeError) as why:
            raise NotConnected(getattr(why, "strerror", None) or str(why)) from why

    async def _send(
        self, transport: asyncio.Transport, head: bytes, body: bytes, answered: asyncio.Future[None]
    ) -> bool:
        """Whether all was sent: an answer before the end of the body ends the sending."""
        if len(body) <= PIECE_BYTES:
            transport.write(head + body)
            return True
        transport.write(head)
        view = memoryview(body)
        for start in range(0, len(body), PIECE_BYTES):
            writable = asyncio.ensure_future(self._writable.wait())
            try:
                await asyncio.wait((writable, answered), return_when=asyncio.FIRST_COMPLETED)
            finally:
                writable.cancel()
            if answered.done():
                return False
            transport.write(view[start : start + PIECE_BYTES])
            self._moved()
        return True

    def _moved(self) -> None:
        """Something was sent or came: the time of the request begins anew."""
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._timeout_s)

    # --- what the event loop calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are those of asyncio by their methods only, not by their class.
        self._transport = cast(asyncio.Transport, transport)
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        self._moved()

    def data_received(self, data: bytes) -> None:
        if self._parsed is None or self._parsed.complete:
            self.close()  # Nothing was asked.
            return
        self._moved()
        try:
            self._parsed.feed(data)
        except Lost as why:
            self._finish(why)
        if self._parsed.complete:
            self._finish(None)

    def eof_received(self) -> None:
        self._end("the connection ended before the answer was complete")

    def connection_lost(self, why: Exception | None) -> None:
        if why is not None:
            self._take_the_rest()
        if why is not None and wants_certificate(why):
            self._finish(NoTls(explained(why, self._server.host)))  # type: ignore[arg-type]
        self._end(type(why).__name__ if why is not None else "the connection ended before the answer was complete")
        self._ended.set()

    def _take_the_rest(self) -> None:
        """A write that fails ends a transport, with an answer perhaps unread in the socket: why the write failed."""
        if self._server.secure or self._transport is None or self._parsed is None or self._parsed.complete:
            return
        try:
            number = os.dup(self._transport.get_extra_info("socket").fileno())
            with socket.socket(fileno=number) as copy:
                copy.setblocking(False)
                while data := copy.recv(PIECE_BYTES):
                    self.data_received(data)
        except OSError:
            pass

    def _end(self, why: str) -> None:
        if self._parsed is not None and not self._parsed.complete:
            self._finish(None if self._parsed.ends_with_the_connection() else Lost(why))

    def _finish(self, why: Failed | None) -> None:
        if self._answered is not None and not self._answered.done():
            if why is None:
                self._answered.set_result(None)
            else:
                self._answered.set_exception(why)

    def _head(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        """Raises CannotBeSent."""
        lines = [f"{method} {self._server.prefix}{path} HTTP/1.1", f"Host: {self._authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None or method in ("PUT", "POST", "PATCH"):
            lines.append(f"Content-Length: {len(body or b'')}")
        if not all(line.isprintable() for line in lines) or " " in path:
            raise CannotBeSent("a path or header has a control character")
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


class _Parsed:
    """One answer as it is put together; the callbacks are httptools'."""

    def __init__(self, without_body: bool) -> None:
        self._without_body = without_body
        self._parser = httptools.HttpResponseParser(self)
        self._head_complete = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body: list[bytes] = []
        self.complete = self.keeps_alive = False

    def feed(self, received: bytes) -> None:
        """Raises Lost for what is not HTTP."""
        try:
            self._parser.feed_data(received)
        except httptools.HttpParserError as why:
            if not self.complete:
                kind = Lost if self._head_complete else NotHttp
                raise kind(f"the answer is not HTTP: {why}") from None
            self.keeps_alive = False  # Something follows an answer, and nothing was asked.

    def ends_with_the_connection(self) -> bool:
        """Whether the answer is complete when the server ends the connection, because nothing tells its length."""
        framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        self.complete = self._head_complete and not framed
        self.keeps_alive = False
        return self.complete

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("utf-8", "surrogateescape")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self._head_complete = True
            self.keeps_alive = self._parser.should_keep_alive()
            # The headers of an answer to HEAD speak of a body that does not come.
            self.complete = self._without_body

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        if self.status < 200:
            self.headers.clear()
        else:
            self.complete = True
