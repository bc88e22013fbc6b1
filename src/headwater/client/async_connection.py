"""One kept-alive HTTP/1.1 connection on an event loop: the counterpart of `connection.Connection`.

Sends a request and reads its complete answer, with httptools as the parser. Never sends a request twice: a failure
says whether the server can have seen it. One request at a time; whatever goes wrong, cancelling included, ends it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import httptools

from headwater.client.connection import (
    Address,
    Answer,
    CannotBeSent,
    Lost,
    NobodyListens,
    NotConnected,
    NotHttp,
    NoTls,
)

READ_BYTES = 256 * 1024
SENT_AT_ONCE_BYTES = 64 * 1024
"""A longer body is sent while the answer is already awaited: a server may refuse it before it has all."""


class AsyncConnection:
    """Connects with its first request."""

    def __init__(self, server: Address) -> None:
        self._server = server
        host = f"[{server.host}]" if ":" in server.host else server.host
        self._authority = f"{host}:{server.port}"
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def usable(self) -> bool:
        """Whether another request can be sent: the server has not ended it, and no answer is left half read."""
        reader, writer = self._reader, self._writer
        return reader is not None and writer is not None and not reader.at_eof() and not writer.is_closing()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    async def ended(self) -> None:
        """Returns when a connection that was closed is gone."""
        if self._writer is not None:
            try:
                await self._writer.wait_closed()
            except OSError:
                pass

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
    ) -> Answer:
        """The answer, whatever its status. Raises Failed. `timeout_s` is that of connecting and of every read."""
        head = self._head(method, path, headers, body)
        reader, writer = await self._connected(timeout_s)
        done = False
        try:
            if len(body or b"") <= SENT_AT_ONCE_BYTES:
                writer.write(head + (body or b""))
                answer = await self._answer(reader, method, timeout_s)
            else:
                answer = await self._while_sending(reader, writer, head, body or b"", method, timeout_s)
            done = True
            return answer
        except TimeoutError:
            raise Lost(f"no answer within {timeout_s:g} s") from None
        except OSError as why:
            raise Lost(type(why).__name__) from why
        finally:
            if not done:
                writer.transport.abort()

    async def _connected(self, timeout_s: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is not None and self._writer is not None:
            return self._reader, self._writer
        server = self._server
        context = ssl.create_default_context() if server.secure else None
        try:
            async with asyncio.timeout(timeout_s):
                self._reader, self._writer = await asyncio.open_connection(server.host, server.port, ssl=context)
        except ConnectionRefusedError as why:
            raise NobodyListens(why.strerror or "connection refused") from why
        except ssl.SSLError as why:
            raise NoTls(str(why.reason or why)) from why
        except TimeoutError as why:
            raise NotConnected("timed out") from why
        except (OSError, UnicodeError) as why:
            raise NotConnected(getattr(why, "strerror", None) or str(why)) from why
        return self._reader, self._writer

    async def _while_sending(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        head: bytes,
        body: bytes,
        method: str,
        timeout_s: float,
    ) -> Answer:
        sending = asyncio.ensure_future(_send(writer, head, body))
        try:
            answer = await self._answer(reader, method, timeout_s, sending)
            if not sending.done() or sending.exception() is not None:
                if answer.status < 400:
                    raise Lost("an answer came before the request was sent")  # What was not sent is not done.
                self.close()
            return answer
        finally:
            sending.cancel()
            # Its failure is that of the connection, which reading has told of.
            await asyncio.gather(sending, return_exceptions=True)

    async def _answer(
        self,
        reader: asyncio.StreamReader,
        method: str,
        timeout_s: float,
        sending: asyncio.Future[None] | None = None,
    ) -> Answer:
        if sending is not None:
            # The time for the answer begins when the request is out, or when an answer comes before.
            first = asyncio.ensure_future(reader.read(READ_BYTES))
            try:
                await asyncio.wait((first, sending), return_when=asyncio.FIRST_COMPLETED)
                async with asyncio.timeout(timeout_s):
                    received = await first
            finally:
                first.cancel()
        else:
            async with asyncio.timeout(timeout_s):
                received = await reader.read(READ_BYTES)
        parsed = _Parsed(method == "HEAD")
        while True:
            if not received:
                parsed.at_end()
            else:
                parsed.feed(received)
            if parsed.complete:
                break
            async with asyncio.timeout(timeout_s):
                received = await reader.read(READ_BYTES)
        if not parsed.keeps_alive:
            self.close()
        return Answer(parsed.status, parsed.headers, b"".join(parsed.body))

    def _head(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        """Raises CannotBeSent."""
        lines = [f"{method} {self._server.prefix}{path} HTTP/1.1", f"Host: {self._authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None or method in ("PUT", "POST", "PATCH"):
            lines.append(f"Content-Length: {len(body or b'')}")
        if not all(line.isprintable() for line in lines) or " " in path:
            raise CannotBeSent("a path or header has a control character")
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


async def _send(writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
    writer.write(head)
    view = memoryview(body)
    for start in range(0, len(body), READ_BYTES):
        writer.write(view[start : start + READ_BYTES])
        await writer.drain()


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

    def at_end(self) -> None:
        """The server ended the connection. Raises Lost unless that is how the answer ends."""
        framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        if not self._head_complete or framed:
            raise Lost("the connection ended before the answer was complete")
        self.complete, self.keeps_alive = True, False

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
