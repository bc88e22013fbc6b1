"""Two members of one node in one event loop, each with one of two groups, and real Unix sockets between them.
Nothing here decides what is right: it makes members and their clients."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from headwater.catalog.sqlite import SqliteCatalog
from headwater.cluster.calls import Calls
from headwater.cluster.members import Members
from headwater.config import Settings
from headwater.doors.s3p.connection import Connection
from headwater.doors.s3p.names import key_of
from headwater.doors.s3p.server import S3pServer
from headwater.engine.engine import Engine
from headwater.engine.fork_placement import ForkPlacement
from headwater.engine.group import Group
from headwater.engine.placements import Placed, Placements, encode
from headwater.log.null import NullLog
from headwater.model.stream import Limits
from headwater.ports import Log
from tests.doors.s3p import request
from tests.engine import HandClock, HandLog, owned_on

HOST = "127.0.0.1"
MS = 1_000_000
"""Where the clock of every group stands."""
WITHIN_S = 60.0


def create(name: bytes) -> bytes:
    return request(b"CREATE", name, [])


class Member:
    """One process of the node: a group, its engine and its S3P door."""

    def __init__(self, number: int, directory: Path, settings: Settings, log: Log | None) -> None:
        self.members = Members(number, 2, 2, directory)
        self.log = NullLog() if log is None else log
        self.clock = HandClock(MS)
        self.group = Group(
            self.log, SqliteCatalog(None), self.clock, lambda act: act(), Limits(), 1 << 30, number, groups_count=2
        )
        self.engine = Engine({number: owned_on(self.group)}, 2, self.clock, Calls(self.members))
        self.placing = ForkPlacement(self.engine)
        self.server = S3pServer(settings, self.engine, self.members, self.placing)
        self.port = 0

    async def open(self) -> None:
        await self.server.listen_unix(self.members.s3p_path(self.members.me))
        self.port = await self.server.listen(HOST, 0)

    def place(self, name: bytes, group: int) -> None:
        """Has the stream of that name, whose home is here, live in another group."""
        self.group.note(Placements.name, encode(Placed(key_of(name), group)))

    def sync(self) -> None:
        """Has what a hand-made log was given become durable."""
        assert isinstance(self.log, HandLog)
        self.log.synced = self.log.written = self.log.tail
        self.group.progress()

    async def close(self) -> None:
        await self.server.close(0.0)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def reply(self) -> bytes:
        """The bytes of the next reply."""
        line = await self.reader.readuntil(b"\r\n")
        if line[:1] == b"$":
            return line + await self.reader.readexactly(int(line[1:]) + 2)
        if line[:1] == b"*":
            return line + b"".join([await self.reply() for _ in range(int(line[1:]))])
        return line

    async def call(self, data: bytes) -> bytes:
        self.send(data)
        return await self.reply()


class Node:
    def __init__(self, members: list[Member], directory: Path) -> None:
        self.members = members
        self.directory = directory
        self.here, self.there = members
        self._clients: list[Client] = []

    def name(self, group: int, at: int = 0) -> bytes:
        """A name whose home is that group."""
        names = (b"s%d" % n for n in range(10_000))
        return [name for name in names if self.here.engine.home(key_of(name)) == group][at]

    async def client(self, member: int = 0) -> Client:
        return self._kept(*await asyncio.open_connection(HOST, self.members[member].port))

    async def forwarding_client(self, member: int) -> Client:
        """A client that another member could be."""
        return self._kept(*await asyncio.open_unix_connection(self.here.members.s3p_path(member)))

    async def slow_client(self) -> Client:
        """One that holds very little of what it does not read."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (HOST, self.here.port))
        return self._kept(*await asyncio.open_connection(sock=sock, limit=1))

    async def stuck(self) -> Connection:
        """Waits until the reply to a slow client stops on its way, here and at the owner."""
        while True:
            stuck = [connection for connection in self.here.server.connections if connection.paused]
            if stuck and any(connection.paused for connection in self.there.server.from_members):
                return stuck[0]
            await asyncio.sleep(0.001)

    def _kept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Client:
        self._clients.append(Client(reader, writer))
        return self._clients[-1]

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        for client in self._clients:
            client.writer.close()
        for member in self.members:
            await member.close()


def played(
    play: Callable[[Node], Awaitable[None]],
    settings: Settings | None = None,
    logs: Callable[[], Log] | None = None,
) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder)
            made = [
                Member(number, directory, settings or Settings(), None if logs is None else logs())
                for number in range(2)
            ]
            node = Node(made, directory)
            for member in made:
                await member.open()
            try:
                await asyncio.wait_for(play(node), WITHIN_S)
            finally:
                await node.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
