"""Servers of a log in JetStream that are killed and stopped while an owner appends: nothing that was acknowledged is
lost, nothing is there twice, and the order is kept. Faults come at counts of appends, never at times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.log.quorum import QuorumLog
from headwater.log.quorum_entries import Claim
from headwater.model.events import Appended
from tests.log import appended
from tests.log.contract import Running
from tests.log.test_jetstream_contract import Place, open_entries
from tests.support.nats import Nats, NatsServer, nats_servers

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]
RUN_S_MAX = 180
STREAM = "headwater-0"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Nats]:
    with nats_servers(tmp_path, 3) as running:
        yield running


async def owner(place: Place, name: str) -> Running:
    while True:
        try:
            log = QuorumLog(await open_entries(place))
            await log.load()
            await log.claim(Claim(name, ""))
            return Running(log)
        except Exception as error:  # the servers may be without a leader: another try is what a node would do
            last = error
            await asyncio.sleep(0.2)
            del last


class History:
    """What one client after another asked for, and what it was told."""

    def __init__(self) -> None:
        self.given: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.owners_count = 0

    async def append(self, place: Place, counts: int, at: dict[int, Callable[[], None]], width: int = 4) -> None:
        """Appends one after another, `width` of them under way, under a new owner whenever the log has failed."""
        running = await self.take_over(place)
        waiting: list[tuple[int, bytes]] = []
        n = 0
        while n < counts or waiting:
            if n < counts and len(waiting) < width:
                if n in at:
                    await asyncio.to_thread(at[n])
                payload = b"%d of %d" % (n, self.owners_count)
                self.given.append(payload)
                waiting.append((running.log.add(appended(payload), True), payload))
                running.log.commit()
                n += 1
                continue
            log, position = running.log, waiting[0][0]
            await running.until_long(lambda log=log, position=position: log.synced >= position or log.failure)
            while waiting and waiting[0][0] <= log.synced:
                self.acknowledged.append(waiting.pop(0)[1])
            if log.failure is not None:
                waiting.clear()
                running = await self.take_over(place)
        await running.log.closed()

    async def take_over(self, place: Place) -> Running:
        self.owners_count += 1
        running = await owner(place, f"owner {self.owners_count}")

        async def until_long(holds: Callable[[], Any]) -> None:
            while not holds():
                running._progress.clear()
                await running._progress.wait()

        running.until_long = until_long  # type: ignore[attr-defined]
        return running

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
    while (found := servers.leader_of(STREAM)) is None:
        pass
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
