"""The log in JetStream keeps what every log at a quorum promises (see `quorum_contract`): on one server, and on three.
Every test has a stream of its own; the servers are shared by all tests of a class."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import nats
import pytest

from headwater.log.jetstream import JetStream, JetStreamSettings
from headwater.log.medium import Entries
from tests.log.quorum_contract import QuorumContract
from tests.support.nats import Nats, nats_servers

GROUPS = itertools.count()


class Place:
    def __init__(self, servers: Nats, group: int) -> None:
        self.servers = servers
        self.group = group

    @property
    def stream(self) -> str:
        return f"headwater-{self.group}"

    def settings(self) -> JetStreamSettings:
        count = len(self.servers.servers)
        return JetStreamSettings(self.servers.urls, replicas=count, monitors=self.servers.monitors)


async def open_entries(place: Place) -> Any:
    """The entries, with a connection of their own that ends with them: another process, as far as servers can tell."""
    process = JetStream(place.settings())
    try:
        await process.open()
        entries = await process.entries(place.group)
    except BaseException:
        await process.close()
        raise
    end = entries.close

    async def close() -> None:
        await end()
        await process.close()

    entries.close = close  # type: ignore[method-assign]
    return entries


class JetStreamContract(QuorumContract):
    servers_count: int

    @pytest.fixture(scope="class")
    @classmethod
    def servers(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
        with nats_servers(tmp_path_factory.mktemp("nats"), cls.servers_count) as servers:
            yield servers

    @pytest.fixture
    def place(self, servers: Nats) -> Place:
        return Place(servers, next(GROUPS))

    async def medium(self, place: Place) -> Entries:
        entries: Entries = await open_entries(place)
        return entries

    async def destroy(self, place: Place) -> None:
        client = await nats.connect(place.servers.urls)
        await client.jetstream().delete_stream(place.stream)
        await client.close()


class TestOneServer(JetStreamContract):
    servers_count = 1


@pytest.mark.full
class TestThreeServers(JetStreamContract):
    servers_count = 3
