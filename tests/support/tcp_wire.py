"""A wire between a client and a server on loopback that can be cut, and whose way back can be held.
Owns its listening socket and copies bytes; it knows no protocol."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class TcpWire:
    """Runs on the event loop that opened it."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.answering = asyncio.Event()
        """While it is not set, nothing comes back from the server."""
        self.answering.set()

    async def listen(self) -> None:
        """At the port that it had before, if any."""
        self._server = await asyncio.start_server(self._join, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        self._writers |= {writer, to_writer}
        there = asyncio.create_task(self._copy(reader, to_writer, None))
        back = asyncio.create_task(self._copy(to_reader, writer, self.answering))
        self._tasks |= {there, back}
        await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
        for one in (writer, to_writer):
            one.close()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event | None
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if gate is not None:
                    await gate.wait()
                writer.write(data)
                await writer.drain()

    def cut(self) -> None:
        """Ends every connection that there is."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def close(self) -> None:
        """Refuses connections from now on, and ends those that there are."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
