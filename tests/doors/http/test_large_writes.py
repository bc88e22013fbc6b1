"""Large writes go past the transport: nothing is lost, repeated or out of order, and endings are the transport's."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import uvloop

from headwater.doors.http import large_writes
from headwater.doors.http.large_writes import LARGE_BYTES

pytestmark = pytest.mark.timeout(60)

READ_BYTES = 64 * 1024


class Server(asyncio.Protocol):
    """Remembers its transport, whether it may write, and that it ended."""

    def __init__(self) -> None:
        self.made: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()
        self.lost = asyncio.Event()
        self.may_write = asyncio.Event()
        self.may_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.set_write_buffer_limits(high=LARGE_BYTES)  # type: ignore[attr-defined]
        self.made.set_result(transport)  # type: ignore[arg-type]  # uvloop's transports are not asyncio's by class

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def pause_writing(self) -> None:
        self.may_write.clear()

    def resume_writing(self) -> None:
        self.may_write.set()


def with_client(act: Callable[[Server, asyncio.Transport, socket.socket], Awaitable[None]]) -> None:
    """Runs `act` with one connection, on the loop that the node runs on."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = Server()
        listening = await loop.create_server(lambda: server, "127.0.0.1", 0)
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        client.setblocking(False)
        try:
            await loop.sock_connect(client, listening.sockets[0].getsockname())
            await act(server, await server.made, client)
        finally:
            client.close()
            (await server.made).abort()
            listening.close()
            await asyncio.wait_for(server.lost.wait(), 60)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def all_of(client: socket.socket) -> bytes:
    """What arrives until the server closes."""
    loop = asyncio.get_running_loop()
    found = bytearray()
    while part := await loop.sock_recv(client, READ_BYTES):
        found += part
    return bytes(found)


@pytest.mark.parametrize("seed", range(4))
def test_parts_of_any_size_arrive_whole_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice((1, 200, LARGE_BYTES - 1, LARGE_BYTES, 3 * LARGE_BYTES, 2 << 20)) for _ in range(40)]
    parts = [chance.randbytes(size) for size in sizes]

    async def act(server: Server, transport: asyncio.Transport, client: socket.socket) -> None:
        reading = asyncio.ensure_future(all_of(client))
        for part in parts:
            await server.may_write.wait()
            large_writes.put(transport, memoryview(part) if chance.random() < 0.5 else part)
            if chance.random() < 0.3:
                await asyncio.sleep(0)  # the transport sends what it holds
        transport.close()
        assert await reading == b"".join(parts)

    with_client(act)


def test_what_the_socket_does_not_take_is_held_and_told() -> None:
    async def act(server: Server, transport: asyncio.Transport, client: socket.socket) -> None:
        data = bytes(32 << 20)
        large_writes.put(transport, data)
        assert 0 < transport.get_write_buffer_size() < len(data)
        assert not server.may_write.is_set()
        transport.close()
        assert len(await all_of(client)) == len(data)

    with_client(act)


def test_a_part_waits_behind_what_is_held_though_the_socket_has_room_again() -> None:
    async def act(server: Server, transport: asyncio.Transport, client: socket.socket) -> None:
        first, second = b"1" * (16 << 20), b"2" * LARGE_BYTES
        large_writes.put(transport, first)
        assert transport.get_write_buffer_size()
        found = b""
        # Read without giving the event loop a turn: what it holds stays where it is.
        client.setblocking(True)
        client.settimeout(0.2)
        with suppress(TimeoutError):
            while True:
                found += client.recv(READ_BYTES)
        client.setblocking(False)
        assert found
        large_writes.put(transport, second)
        transport.close()
        assert found + await all_of(client) == first + second

    with_client(act)


def test_a_client_that_is_gone_ends_the_connection() -> None:
    async def act(server: Server, transport: asyncio.Transport, client: socket.socket) -> None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()  # with a reset
        large_writes.put(transport, bytes(LARGE_BYTES))
        await asyncio.wait_for(server.lost.wait(), 60)

    with_client(act)


def test_nothing_goes_out_behind_the_end() -> None:
    async def act(server: Server, transport: asyncio.Transport, client: socket.socket) -> None:
        large_writes.put(transport, b"first")
        transport.close()
        large_writes.put(transport, bytes(LARGE_BYTES))
        assert await all_of(client) == b"first"

    with_client(act)


class Encrypted:
    """A transport as far as `put` looks at it; a real one needs a certificate and shows no more."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> object:
        assert name == "sslcontext", "its socket is not for our bytes"
        return object()

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))


def test_an_encrypted_connection_is_written_by_its_transport_alone() -> None:
    transport = Encrypted()
    large_writes.put(transport, bytes(LARGE_BYTES))  # type: ignore[arg-type]
    assert transport.written == [bytes(LARGE_BYTES)]
