"""Connections go to the member that owns their first bytes, with every byte that they have sent."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from pathlib import Path

import uvloop

from headwater.cluster import handover
from headwater.cluster.handover import Acceptor, Door, Handover
from headwater.cluster.members import Members
from headwater.cluster.supervisor import listen

COUNT = 40


class Echo(asyncio.Protocol):
    """Says which member it is of, and what it was sent."""

    def __init__(self, member: int) -> None:
        self._member = member

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(b"%d:%b" % (self._member, data))  # type: ignore[attr-defined]


def owner(first: bytes) -> int | None:
    """`1 …` is for member 1, `0 …` for 0; any may serve the rest."""
    return int(first[:1]) if first[:1] in (b"0", b"1") else None


async def ask(port: int, data: bytes, pause: bool) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if pause:
        await asyncio.sleep(0.05)
    writer.write(data)
    answer = await reader.readexactly(len(data) + 2)
    writer.close()
    return answer


def test_connections_reach_the_owner_of_their_first_bytes_whoever_accepts_them() -> None:
    async def body(folder: Path) -> None:
        held, port = listen("127.0.0.1", 0)
        parts = []
        for me in (0, 1):
            members = Members(me, 2, 2, folder)
            over = Handover(members)
            over.open({"echo": lambda me=me: Echo(me)})  # type: ignore[misc]
            listening = held[0].dup()
            parts.append((Acceptor(listening, "echo", Door(owner, lambda me=me: Echo(me)), over), over))  # type: ignore[misc]
        wanted = [(b"%d hello %d" % (index % 2, index), index % 3 == 0) for index in range(COUNT)]
        answers = await asyncio.gather(*(ask(port, data, pause) for data, pause in wanted))
        assert answers == [b"%b:%b" % (data[:1], data) for data, _ in wanted]
        assert sum(over.sent_count for _, over in parts) == sum(over.received_count for _, over in parts)
        for acceptor, over in parts:
            acceptor.close()
            over.close()
        for sock in held:
            sock.close()

    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(body(Path(folder)))


def test_more_connections_at_once_than_may_wait_for_their_owner_reach_it_all_the_same() -> None:
    assert asyncio.run(burst(owner_takes_them=True)) == [b"1"] * COUNT


def test_connections_whose_owner_takes_none_for_long_are_served_where_they_came_in(monkeypatch) -> None:
    monkeypatch.setattr(handover, "FULL_TRIES_MAX", 3)
    answered = asyncio.run(burst(owner_takes_them=False))
    assert answered == [b"0"] * len(answered)


async def burst(owner_takes_them: bool) -> list[bytes]:
    """Which member answered, of connections that had all sent their first bytes when the first was accepted."""
    with tempfile.TemporaryDirectory() as folder:
        mine, other = (Handover(Members(me, 2, 2, Path(folder))) for me in (0, 1))
        other.open({"echo": lambda: Echo(1)})
        if not owner_takes_them:
            asyncio.get_running_loop().remove_reader(other._channel.fileno())
        listening = socket.create_server(("127.0.0.1", 0), backlog=2 * COUNT)
        clients = [socket.create_connection(listening.getsockname()) for _ in range(COUNT)]
        for client in clients:
            client.sendall(b"1 hello")
            client.setblocking(False)
        acceptor = Acceptor(listening, "echo", Door(owner, lambda: Echo(0)), mine)
        while not mine.sent_count or not acceptor.is_idle:
            await asyncio.sleep(0.01)
        answered = []
        for client in clients if owner_takes_them else clients[mine.sent_count :]:
            answered.append((await asyncio.get_running_loop().sock_recv(client, 100))[:1])
        for client in clients:
            client.close()
        acceptor.close()
        for one in (mine, other):
            one.close()
        return answered


def test_a_connection_whose_owner_is_away_is_served_where_it_came_in() -> None:
    async def body(folder: Path) -> None:
        over = Handover(Members(0, 2, 2, folder))
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        acceptor = Acceptor(listening, "echo", Door(owner, lambda: Echo(0)), over)
        assert await ask(port, b"1 hello", False) == b"0:1 hello"
        acceptor.close()
        over.close()

    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(body(Path(folder)))


def test_a_silent_connection_is_served_where_it_came_in_after_a_while(monkeypatch) -> None:
    monkeypatch.setattr(handover, "WAIT_S", 0.01)

    async def body(folder: Path) -> None:
        over = Handover(Members(0, 2, 2, folder))
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        acceptor = Acceptor(listening, "echo", Door(owner, lambda: Echo(0)), over)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while not acceptor.is_idle:
            await asyncio.sleep(0.01)
        writer.write(b"late")
        assert await reader.readexactly(6) == b"0:late"
        writer.close()
        acceptor.close()
        over.close()

    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(body(Path(folder)))
