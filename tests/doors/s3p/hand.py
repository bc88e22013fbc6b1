"""An S3P server without sockets: connections on hand-made transports, a log that a test moves, a clock it sets.
Nothing here decides what is right; it only holds still until asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from headwater.config import Settings
from headwater.doors.s3p.connection import Connection
from headwater.doors.s3p.server import S3pServer
from headwater.ports import Lake
from tests.engine import Bench, engine_on


class HandTransport:
    """Remembers what was written. `takes` False: the client does not read, and nothing leaves."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.reading = True
        self.eof = False
        self.closed = False
        self.aborted = False

    def get_extra_info(self, name: str) -> object:
        return None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def write(self, data: bytes) -> None:
        assert not self.closed and not self.eof, "written to after the end"
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


class Peer:
    """A client of the hand-made server."""

    def __init__(self, server: S3pServer) -> None:
        self.transport = HandTransport()
        self.connection = Connection(server)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def send(self, data: bytes) -> None:
        if self.transport.reading:
            self.connection.data_received(data)

    def taken(self) -> bytes:
        """What arrived since the last look."""
        data = bytes(self.transport.written)
        self.transport.written.clear()
        return data


class Door(Bench):
    """A group and its S3P door. `settle` ends a turn of the event loop, as often as somebody asks for another."""

    def __init__(self, settings: Settings | None = None, lake: Lake | None = None) -> None:
        super().__init__()
        self.server = S3pServer(settings or Settings(), engine_on(self.group, lake))

    def peer(self) -> Peer:
        return Peer(self.server)

    async def settle(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)

    async def synced(self) -> None:
        """Everything submitted so far is durable, and its replies have left."""
        self.sync()
        await self.settle()


def played(play: Callable[[], Coroutine[None, None, None]]) -> None:
    """Runs a test that needs an event loop to its end."""
    asyncio.run(play())
