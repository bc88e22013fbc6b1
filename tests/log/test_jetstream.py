"""What is particular to the log in JetStream: entries of several messages, what a claim covers, connections that are
lost at the wrong moment, streams that are not what they were, and servers that are refused."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from headwater.log import jetstream_connection
from headwater.log.jetstream import WINDOW, JetStream, JetStreamEntries, JetStreamSettings
from headwater.log.jetstream_servers import (
    Refused,
    stream_config,
)
from headwater.log.medium import Gone, Lost, Taken, Unavailable, Unsure
from tests.log import WAIT_S_MAX
from tests.support.nats import Nats, nats_servers
from tests.support.tcp_wire import TcpWire

GROUPS = itertools.count()
MESSAGE_BYTES_MAX = 32 << 10


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    with nats_servers(tmp_path_factory.mktemp("nats"), 1, max_payload_bytes=MESSAGE_BYTES_MAX) as running:
        yield running


class World:
    """Processes that share a group's log."""

    def __init__(self, servers: Nats) -> None:
        self.servers = servers
        self.group = next(GROUPS)
        self.opened: list[JetStream] = []
        self.client = Client()

    @property
    def stream(self) -> str:
        return f"headwater-{self.group}"

    async def process(self, urls: list[str] | None = None) -> JetStreamEntries:
        settings = JetStreamSettings(urls or self.servers.urls, replicas=1, monitors=self.servers.monitors)
        process = JetStream(settings)
        self.opened.append(process)
        await process.open()
        return await process.entries(self.group)

    async def ask(self, call: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        """Asks the server itself."""
        answer = await self.client.request(f"$JS.API.{call}", json.dumps(request or {}).encode())
        found: dict[str, Any] = json.loads(answer.data)
        return found

    async def last(self) -> int:
        return int((await self.ask(f"STREAM.INFO.{self.stream}"))["state"]["last_seq"])

    def run(self, body: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(WAIT_S_MAX):
                self.client = await nats.connect(self.servers.urls)
                try:
                    await body(self)
                finally:
                    await self.client.close()
                    for process in self.opened:
                        await process.close()

        asyncio.run(bounded())


@pytest.fixture
def world(servers: Nats) -> World:
    return World(servers)


async def until_done(call: Callable[[], Awaitable[None]]) -> None:
    """Tries again as a log does."""
    while True:
        try:
            return await call()
        except (Unavailable, Unsure):
            await asyncio.sleep(0.02)


async def read_all(entries: JetStreamEntries, first: int = 1) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while some := await entries.read(first, 100_000):
        found |= dict(some)
        first = some[-1][0] + 1
    return found


# ---- entries and messages -----------------------------------------------------------------------------------------


def test_an_entry_larger_than_a_message_is_one_entry_and_every_number_is_found(world: World) -> None:
    async def body(world: World) -> None:
        writer = await world.process()
        large = bytes(range(256)) * 2_000
        given = {1: b"claim"}
        await writer.claim(1, given[1])
        for number in range(2, 40):
            given[number] = large + b"%d" % number if number % 9 == 0 else b"entry %d" % number
        for start in range(2, 40, 4):
            await asyncio.gather(*(writer.put(n, given[n]) for n in range(start, min(40, start + 4))))
        given[40] = b"another claim"
        other = await world.process()
        await other.claim(40, given[40])
        assert await read_all(await world.process()) == given
        for number in given:
            reader = await world.process()
            assert (await reader.read(number, 1))[0] == (number, given[number])
            await world.opened.pop().close()

    world.run(body)


def test_a_purge_keeps_whole_entries_and_the_newest_one(world: World) -> None:
    async def body(world: World) -> None:
        writer = await world.process()
        await writer.claim(1, b"claim")
        for number in range(2, 6):
            await writer.put(number, bytes(3 * MESSAGE_BYTES_MAX) + b"%d" % number)
        await writer.purge(4)
        assert await writer.head() == 4
        reader = await world.process()
        with pytest.raises(Gone):
            await reader.read(3, 1)
        assert list(await read_all(reader, 4)) == [4, 5]
        await writer.purge(99)
        assert await writer.head() == 5
        await writer.put(6, b"on")
        assert list(await read_all(await world.process(), 5)) == [5, 6]

    world.run(body)


def test_a_reader_that_waits_is_woken_by_what_is_stored(world: World) -> None:
    async def body(world: World) -> None:
        writer, reader = await world.process(), await world.process()
        await writer.claim(1, b"claim")
        assert list(await read_all(reader)) == [1]
        for number in range(2, 20):
            waiting = asyncio.create_task(reader.wait(number))
            await asyncio.sleep(0)
            await writer.put(number, b"%d" % number)
            await waiting
            while not (found := await reader.read(number, 100)):
                await reader.wait(number)
            assert found == [(number, b"%d" % number)]

    world.run(body)


@pytest.mark.parametrize("times", [1, 2, 1_000])
def test_a_log_that_no_server_is_known_to_answer_for_is_read_as_soon_as_one_is(world: World, times: int) -> None:
    """Servers tell each other who answers for a stream a moment after it was made or its leader moved. Where that
    takes longer the leader itself is asked."""

    async def body(world: World) -> None:
        writer = await world.process()
        await writer.claim(1, b"claim")
        await writer.put(2, b"two")
        reader = await world.process()
        real, asked = reader._connection.ask_for_many, itertools.count(1)

        async def nobody(subject: str, data: bytes, within_s: float) -> Any:
            """A subject that no server has heard of: the answer is the server's own."""
            return await real("nowhere" if next(asked) <= times else subject, data, within_s)

        reader._connection.ask_for_many = nobody  # type: ignore[method-assign]
        assert await read_all(reader) == {1: b"claim", 2: b"two"}

    world.run(body)


def test_a_log_is_read_to_its_end_from_a_server_that_has_nothing_of_it_yet(world: World) -> None:
    async def body(world: World) -> None:
        writer = await world.process()
        await writer.claim(1, b"claim")
        for number in range(2, 5):
            await writer.put(number, b"%d" % number)
        reader = await world.process()
        real = reader._connection.ask_for_many

        async def behind(subject: str, data: bytes, within_s: float) -> Any:
            """What a server answers that has nothing at that sequence or after it."""
            return await real(subject, json.dumps(json.loads(data) | {"seq": 1_000}).encode(), within_s)

        reader._connection.ask_for_many = behind  # type: ignore[method-assign]
        assert await read_all(reader) == {1: b"claim", 2: b"2", 3: b"3", 4: b"4"}
        waiting = asyncio.create_task(reader.wait(5))
        await asyncio.sleep(0)
        assert not waiting.done()
        await writer.put(5, b"5")
        await waiting
        assert await reader.read(5, 100) == [(5, b"5")]

    world.run(body)


def test_reading_a_stream_that_was_deleted_says_so_and_without_a_connection_that_nobody_answers(world: World) -> None:
    async def body(world: World) -> None:
        writer, reader = await world.process(), await world.process()
        await writer.claim(1, b"claim")
        assert list(await read_all(reader)) == [1]
        await world.ask(f"STREAM.DELETE.{world.stream}")
        with pytest.raises(Lost, match="was deleted"):
            await reader.read(2, 100)
        await reader._connection.close()
        with pytest.raises(Unavailable, match="cannot be read"):
            await reader.read(2, 100)

    world.run(body)


# ---- fencing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arriving", [(1, 2, 3), (3, 2, 1), (2, 3), (3,)])
def test_nothing_that_was_sent_before_a_claim_is_stored_after_it(world: World, arriving: tuple[int, ...]) -> None:
    """The first entry of several in flight is lost on its way. Those behind it ask for a last message that has the
    sequence of the claim."""

    async def body(world: World) -> None:
        old, new = await world.process(), await world.process()
        await old.claim(1, b"old")
        held: dict[int, asyncio.Event] = {}
        real = old._connection.ask

        async def ask(subject: str, data: bytes, within_s: float, headers: dict[str, str] | None = None) -> Any:
            if subject.endswith(".log"):
                await held.setdefault(len(held), asyncio.Event()).wait()
            return await real(subject, data, within_s, headers)

        old._connection.ask = ask  # type: ignore[method-assign]
        old._order = _Unordered()  # type: ignore[assignment]
        puts = [asyncio.create_task(old.put(number, b"late %d" % number)) for number in range(2, 6)]
        while len(held) < 4:
            await asyncio.sleep(0)
        assert list(await read_all(new)) == [1]
        await new.claim(2, b"new")
        last = await world.last()
        for index in arriving:
            held[index].set()
            outcome = (await asyncio.gather(puts[index], return_exceptions=True))[0]
            assert isinstance(outcome, Taken), outcome
        assert await world.last() == last == 2 * WINDOW
        await new.put(3, b"on")
        assert await read_all(await world.process()) == {1: b"old", 2: b"new", 3: b"on"}
        for put in puts:
            put.cancel()

    world.run(body)


class _Unordered:
    """In place of the lock that keeps what is sent in order: the test decides what arrives when."""

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


def test_an_owner_sends_no_further_ahead_than_a_claim_covers(world: World) -> None:
    async def body(world: World) -> None:
        writer = await world.process()
        await writer.claim(1, b"claim")
        real = writer._publish
        arriving = asyncio.Event()
        sent: list[int] = []

        async def publish(place: Any, data: bytes) -> Any:
            sent.append(place.number)
            await arriving.wait()
            return await real(place, data)

        writer._publish = publish  # type: ignore[method-assign]
        writer._order = _Unordered()  # type: ignore[assignment]
        puts = [asyncio.create_task(writer.put(number, b"%d" % number)) for number in range(2, 4 + WINDOW)]
        await asyncio.sleep(0.01)
        assert sent == list(range(2, 2 + WINDOW))
        arriving.set()
        await asyncio.gather(*puts)
        assert len(await read_all(await world.process())) == 3 + WINDOW

    world.run(body)


# ---- connections --------------------------------------------------------------------------------------------------


def test_a_put_whose_answer_is_lost_with_the_connection_is_unsure_and_the_same_call_finds_it(world: World) -> None:
    async def body(world: World) -> None:
        wire = TcpWire(world.servers.servers[0].port)
        await wire.listen()
        writer = await world.process([f"nats://127.0.0.1:{wire.port}"])
        await writer.claim(1, b"claim")
        before = await world.last()
        wire.answering.clear()
        puts = [asyncio.create_task(writer.put(number, b"%d" % number)) for number in (2, 3)]
        while await world.last() < before + 2:
            await asyncio.sleep(0.01)
        wire.cut()
        outcomes = await asyncio.gather(*puts, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Unsure, Unsure]
        wire.answering.set()
        await until_done(lambda: writer.put(2, b"2"))
        await until_done(lambda: writer.put(3, b"3"))
        await writer.put(4, b"4")
        assert await world.last() == before + 3
        assert await read_all(await world.process()) == {1: b"claim", 2: b"2", 3: b"3", 4: b"4"}
        await wire.close()

    world.run(body)


def test_what_is_put_without_a_connection_is_not_sent_when_there_is_one_again(world: World) -> None:
    async def body(world: World) -> None:
        wire = TcpWire(world.servers.servers[0].port)
        await wire.listen()
        writer = await world.process([f"nats://127.0.0.1:{wire.port}"])
        await writer.claim(1, b"claim")
        before = await world.last()
        await wire.close()
        while writer._connection.connected:
            await asyncio.sleep(0.01)
        with pytest.raises(Unavailable):
            await writer.put(2, b"2")
        with pytest.raises(Unavailable):
            await writer.read(2, 1)
        await wire.listen()
        while not writer._connection.connected:
            await asyncio.sleep(0.01)
        assert (await writer.read(1, 100))[0] == (1, b"claim")
        assert await world.last() == before
        await writer.put(2, b"2")
        await wire.close()

    world.run(body)


def test_no_server_at_the_address_is_said_with_the_address(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream_connection, "CONNECT_S_MAX", 0.5)

    async def body(world: World) -> None:
        wire = TcpWire(0)
        await wire.listen()
        port = wire.port
        await wire.close()
        with pytest.raises(Unavailable, match=f"127.0.0.1:{port}"):
            await world.process([f"nats://127.0.0.1:{port}"])

    world.run(body)


# ---- streams that are not what they were ----------------------------------------------------------------------------


def test_a_stream_that_is_deleted_and_made_again_takes_nothing_of_the_one_before(world: World) -> None:
    async def body(world: World) -> None:
        old, reader = await world.process(), await world.process()
        await old.claim(1, b"claim")
        await old.put(2, b"2")
        assert list(await read_all(reader)) == [1, 2]
        await world.ask(f"STREAM.DELETE.{world.stream}")
        with pytest.raises(Lost, match="deleted"):
            await old.put(3, b"3")
        new = await world.process()
        assert new.incarnation != old.incarnation
        await new.claim(1, b"claim")
        for number in range(2, 5):
            await new.put(number, b"another %d" % number)
        before = await world.last()
        with pytest.raises(Lost, match="made again"):
            await old.put(3, b"3")
        with pytest.raises(Lost, match="made again"):
            await reader.read(3, 100)
        assert await world.last() == before

    world.run(body)


def test_a_stream_that_lost_its_middle_is_not_read_beyond_it(world: World) -> None:
    async def body(world: World) -> None:
        config = stream_config(
            world.stream, f"headwater.{world.group}.abc.log", f"headwater.{world.group}.abc.stored", 1
        )
        await world.ask(f"STREAM.CREATE.{world.stream}", config | {"deny_delete": False})
        writer = await world.process()
        await writer.claim(1, b"claim")
        for number in range(2, 8):
            await writer.put(number, b"%d" % number)
        await world.ask(f"STREAM.MSG.DELETE.{world.stream}", {"seq": WINDOW + 3})
        reader = await world.process()
        assert [number for number, _ in await reader.read(1, 100_000)] == [1, 2, 3]
        with pytest.raises(Lost, match="lost entry 4"):
            await reader.read(4, 100_000)

    world.run(body)


def test_a_stream_that_somebody_else_writes_to_is_not_read_beyond_that(world: World) -> None:
    async def body(world: World) -> None:
        writer = await world.process()
        await writer.claim(1, b"claim")
        await world.client.request(f"headwater.{world.group}.{writer.incarnation}.log", b"not ours")
        reader = await world.process()
        with pytest.raises(Lost, match="no part of a log"):
            await reader.read(1, 100_000)
        with pytest.raises(Lost, match="no part of a log"):
            await writer.put(2, b"2")

    world.run(body)


def test_a_stream_with_a_limit_is_refused_with_what_to_change(world: World) -> None:
    async def body(world: World) -> None:
        await world.process()
        config = (await world.ask(f"STREAM.INFO.{world.stream}"))["config"]
        await world.ask(f"STREAM.UPDATE.{world.stream}", config | {"max_msgs": 1000})
        with pytest.raises(Refused, match=r"max_msgs: 1000\): take it away with nats stream edit"):
            await world.process()

    world.run(body)


# ---- servers that are refused ----------------------------------------------------------------------------------------


def test_three_copies_on_one_server_are_refused(world: World) -> None:
    async def body(world: World) -> None:
        process = JetStream(JetStreamSettings(world.servers.urls, monitors=world.servers.monitors))
        world.opened.append(process)
        await process.open()
        with pytest.raises(Refused, match="needs as many NATS servers in one cluster"):
            await process.entries(world.group)

    world.run(body)


def test_a_server_that_does_not_sync_each_write_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    with nats_servers(tmp_path_factory.mktemp("nats"), 1, sync_interval="1m") as lazy:

        async def body(world: World) -> None:
            with pytest.raises(Refused, match=r"n1 .* set jetstream \{ sync_interval: always \}"):
                await world.process()

        World(lazy).run(body)


@pytest.mark.parametrize(("silent_count", "refused"), [(1, False), (2, True)])
def test_servers_that_cannot_be_asked_may_not_be_a_quorum(world: World, silent_count: int, refused: bool) -> None:
    async def body(world: World) -> None:
        wire = TcpWire(0)
        await wire.listen()
        silent = f"http://127.0.0.1:{wire.port}"
        await wire.close()
        monitors = [silent] * silent_count + world.servers.monitors * (3 - silent_count)
        process = JetStream(JetStreamSettings(world.servers.urls, replicas=1, monitors=monitors))
        world.opened.append(process)
        if refused:
            with pytest.raises(Refused, match="monitoring"):
                await process.open()
        else:
            await process.open()

    world.run(body)
