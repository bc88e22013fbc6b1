"""Servers of a log in JetStream that are killed and stopped while an owner appends: nothing that was acknowledged is
lost, nothing is there twice, and the order is kept. Faults come at counts of appends, never at times."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.log.jetstream_servers import Refused
from headwater.log.medium import Unavailable, Unsure
from headwater.log.quorum import Behind, QuorumLog
from headwater.log.quorum_entries import Claim
from headwater.model.events import Appended
from tests.log import appended
from tests.log.contract import Running
from tests.log.test_jetstream_contract import Place, open_entries
from tests.support.nats import Nats, NatsServer, nats_servers
from tests.support.waiting import until

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]
RUN_S_MAX = 180
UNDER_WAY_MAX = 4
STREAM = "headwater-0"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Nats]:
    with nats_servers(tmp_path, 3) as running:
        yield running


async def owner(place: Place, name: str) -> Running:
    """Tries as a node would while the servers have no leader. A log that counts as damaged ends the test."""
    while True:
        entries = None
        try:
            entries = await open_entries(place)
            log = QuorumLog(entries)
            await log.load()
            await log.claim(Claim(name, ""))
            return Running(log)
        except (Unavailable, Unsure, Refused, Behind):
            if entries is not None:
                await entries.close()
            await asyncio.sleep(0.2)


async def outcome(running: Running, position: int) -> None:
    """Returns when the position is acknowledged, or the log has failed."""
    while running.log.synced < position and running.log.failure is None:
        running._progress.clear()
        await running._progress.wait()


class History:
    """What one owner after another was given, and what it acknowledged."""

    def __init__(self) -> None:
        self.given: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.owners_count = 0

    async def take_over(self, place: Place) -> Running:
        self.owners_count += 1
        return await owner(place, f"owner {self.owners_count}")

    async def append(
        self, place: Place, count: int, faults: dict[int, Callable[[], None]], taken_at: Container[int] = ()
    ) -> None:
        """Appends with a few under way, and with a new owner whenever the log has failed. At some of them another node
        takes the group, while those before are on their way."""
        running = await self.take_over(place)
        waiting: deque[tuple[int, bytes]] = deque()
        n = 0
        while n < count or waiting:
            if n < count and len(waiting) < UNDER_WAY_MAX:
                if n in faults:
                    await asyncio.to_thread(faults[n])
                payload = b"%d of owner %d" % (n, self.owners_count)
                self.given.append(payload)
                waiting.append((running.log.add(appended(payload), True), payload))
                running.log.commit()
                if n in taken_at:
                    other = await owner(place, f"taker at {n}")
                    await other.log.closed()
                n += 1
                continue
            await outcome(running, waiting[0][0])
            while waiting and waiting[0][0] <= running.log.synced:
                self.acknowledged.append(waiting.popleft()[1])
            if running.log.failure is not None:
                waiting.clear()
                await running.log.closed()
                running = await self.take_over(place)
        await running.log.closed()

    async def check(self, place: Place) -> None:
        running = await self.take_over(place)
        found = [event.records[0] for event in running.events() if isinstance(event, Appended)]
        await running.log.closed()
        assert len(set(found)) == len(found)
        assert [one for one in found if one in set(self.acknowledged)] == self.acknowledged
        assert [one for one in self.given if one in set(found)] == found


def run(body: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(RUN_S_MAX):
            await body

    asyncio.run(bounded())


def leader(servers: Nats) -> NatsServer:
    found: NatsServer = until(lambda: servers.leader_of(STREAM), "a leader of the stream")
    return found


def test_the_streams_leader_is_killed_and_comes_back_while_an_owner_appends(servers: Nats) -> None:
    async def body() -> None:
        place, history = Place(servers, 0), History()
        killed: list[NatsServer] = []

        def kill() -> None:
            killed.append(leader(servers))
            killed[-1].kill()

        def back() -> None:
            killed[-1].start()
            servers.wait_ready()

        await history.append(place, 600, {100: kill, 250: back, 350: kill, 500: back})
        await history.check(place)

    run(body())


def test_the_streams_leader_is_stopped_and_wakes_as_a_zombie_while_an_owner_appends(servers: Nats) -> None:
    async def body() -> None:
        place, history = Place(servers, 0), History()
        stopped: list[NatsServer] = []

        def stop() -> None:
            stopped.append(leader(servers))
            stopped[-1].stop()

        def wake() -> None:
            stopped[-1].cont()
            servers.wait_ready()

        await history.append(place, 600, {100: stop, 250: wake, 350: stop, 500: wake})
        await history.check(place)

    run(body())


def test_every_server_is_killed_at_once_while_an_owner_appends(servers: Nats) -> None:
    async def body() -> None:
        place, history = Place(servers, 0), History()

        def kill_all_and_start() -> None:
            for server in servers.servers:
                server.kill()
            for server in servers.servers:
                server.start()
            servers.wait_ready()

        await history.append(place, 300, {100: kill_all_and_start, 200: kill_all_and_start})
        await history.check(place)

    run(body())


def test_a_group_that_is_taken_again_and_again_while_the_leader_is_killed_keeps_what_was_acknowledged(
    servers: Nats,
) -> None:
    async def body() -> None:
        place, history = Place(servers, 0), History()

        def kill_and_start() -> None:
            killed = leader(servers)
            killed.kill()
            killed.start()
            servers.wait_ready()

        await history.append(place, 200, {62: kill_and_start, 122: kill_and_start}, range(3, 200, 20))
        assert history.owners_count > 10
        await history.check(place)

    run(body())


def test_a_stopped_server_whose_socket_is_full_is_left_for_another_one(servers: Nats) -> None:
    """A client that closes a connection waits until what it has buffered is written, which a stopped server never
    reads."""

    async def body() -> None:
        place = Place(servers, 0)
        entries = await open_entries(place)
        await entries.claim(1, b"claim")
        port = entries._connection._client.connected_url.port
        near = next(server for server in servers.servers if server.port == port)
        await asyncio.to_thread(near.stop)
        large = bytes(32 << 20)
        while True:
            try:
                await entries.put(2, large)
                break
            except (Unavailable, Unsure):
                await asyncio.sleep(0.1)
        assert entries._connection._client.connected_url.port != port
        reader = await open_entries(place)
        assert [number for number, _ in await reader.read(1, 1 << 20)] == [1]
        assert await reader.read(2, 1 << 20) == [(2, large)]
        await asyncio.to_thread(near.cont)
        await entries.close()
        await reader.close()

    run(body())
