"""Nodes of a cluster, as far as membership and forwarding go, in one event loop over real sockets. Each has its view,
its gate, both doors and an engine; a group is moved by hand from one engine to another. Rounds of pings begin when a
test says so, so nothing depends on time."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvloop

from headwater import config
from headwater.catalog.sqlite import SqliteCatalog
from headwater.cluster.calls import PREFIX, Calls
from headwater.cluster.forwarding import Forwarder
from headwater.cluster.gate import Gate
from headwater.cluster.membership import HTTP, S3P
from headwater.cluster.nodes import Node, Registry
from headwater.cluster.peers import Peers
from headwater.cluster.pings import Pings
from headwater.cluster.view import View
from headwater.doors.http.buckets import Buckets as BucketDoor
from headwater.doors.http.bulk_append import Batches
from headwater.doors.http.durable_streams import DurableStreams
from headwater.doors.http.elsewhere import Elsewhere
from headwater.doors.http.many_streams_tail import Tails
from headwater.doors.http.respond import Responder
from headwater.doors.http.routes import Routes
from headwater.doors.http.server import HttpServer
from headwater.doors.http.wire import Budget
from headwater.doors.s3p.server import S3pServer
from headwater.engine.buckets import Buckets
from headwater.engine.engine import Engine
from headwater.engine.fork_placement import ForkPlacement
from headwater.engine.group import Group
from headwater.engine.placements import Placements
from headwater.engine.reads import Reads
from headwater.engine.reads_by_id import ReadsById
from headwater.engine.record_reads import RecordReads
from headwater.log.null import NullLog
from headwater.log.object_places import DirectoryPlace
from headwater.model.names import DEFAULT_BUCKET
from headwater.model.stream import Limits
from headwater.node import _answer
from headwater.ports import SystemClock, SystemRng
from headwater.security import policy
from tests.support.http import Connection, Headers, Response

HOST = "127.0.0.1"
WITHIN_S = 60.0
GROUPS = 4
SECRET = b"a secret of this cluster"


class HandClock(SystemClock):
    """Pauses end when the test says so."""

    def __init__(self) -> None:
        self.paused: list[asyncio.Future[None]] = []

    def sleep(self, delay_s: float) -> asyncio.Future[None]:
        self.paused.append(asyncio.get_running_loop().create_future())
        return self.paused[-1]

    def go_on(self) -> None:
        paused, self.paused = self.paused, []
        for one in paused:
            if not one.done():
                one.set_result(None)


def made_group(number: int) -> Any:
    """What a node owns of a group. It can be moved to another node's engine, as if that had followed its log."""
    schedule = asyncio.get_running_loop().call_soon
    group = Group(NullLog(), SqliteCatalog(None), SystemClock(), schedule, Limits(), 1 << 30, number, GROUPS)
    reads = Reads(group, None)
    placements = group.domains[Placements.name] = Placements(group.catalog)
    by_id, by_number = ReadsById(group, reads), RecordReads(group, reads)
    return SimpleNamespace(
        group=group, reads=reads, by_id=by_id, by_number=by_number, number=number, placements=placements
    )


class ClusterNode:
    def __init__(self, name: str, root: Path, secret: bytes, owned: dict[int, Any], clock: SystemClock) -> None:
        self.name = name
        self.registry = Registry(DirectoryPlace(root))
        self.secret = secret
        self.owned = owned
        self.clock = clock
        self.port = self.s3p_port = 0
        self.settings = config.resolve({"memory": True, "listen": f"{HOST}:0"}, {}, None).settings

    async def start(self) -> None:
        doors: dict[str, Any] = {}
        self.gate = Gate(self.name, self.secret, doors)
        address = f"{HOST}:{await self.gate.listen(HOST, 0)}"
        run = f"{self.name}-{SystemRng().token(4).hex()}"
        # Bound before it is opened, so that it can be registered.
        listening = socket.create_server((HOST, 0))
        self.port = listening.getsockname()[1]
        public = f"{HOST}:{self.port}"
        node = await self.registry.register(Node(-1, self.name, run, address, public, "1.0", "", 0, 1))
        self.view = View(node, GROUPS)
        self.peers = Peers(self.view, self.secret)
        self.calls = Calls(self.peers)
        self.pings = Pings(self.view, self.calls, self.registry.nodes, clock=self.clock)
        self._open(doors)
        self.http.begin(await asyncio.get_running_loop().create_server(self.http.accept, sock=listening))
        self.s3p_port = await self.s3p.listen(HOST, 0)
        self.internal.begin(self.gate)
        await self.pings.start()

    def _open(self, doors: dict[str, Any]) -> None:
        settings, clock, calls = self.settings, SystemClock(), self.calls
        self.engine = engine = Engine(self.owned, GROUPS, clock, calls)
        buckets = Buckets(engine, calls)
        responder = Responder(settings.cors_origin, settings.memory)
        streams = DurableStreams(engine, settings, responder, clock, SystemRng())
        placing = self.engine_placing = ForkPlacement(engine)
        nothing: Any = None
        batches = Batches(engine, buckets, settings, placing)
        self.forwarder = Forwarder(self.peers)
        elsewhere = Elsewhere(engine, placing, self.forwarder)
        routes = Routes(settings, streams, BucketDoor(buckets), nothing, batches, elsewhere)
        routes.call("/__headwater/tail", Tails(engine, settings, self.peers).handle, policy.MANY_TAIL)
        routes.call(PREFIX, lambda exchange, rest, query: _answer(calls, exchange, rest, query), policy.MEMBERS)
        bodies = Budget(settings.bodies_bytes_max)
        self.http = HttpServer(settings, routes, responder, bodies)
        self.internal = HttpServer(settings, routes, responder, bodies, internal=True)
        self.s3p = S3pServer(settings, engine, self.peers, placing)
        doors |= {HTTP: self.internal.accept, S3P: self.s3p.accept_member}

    def claim(self, group: int, epoch: int, owned: Any) -> None:
        self.owned[group] = owned
        self.view.claimed(group, epoch)

    def give_up(self, group: int) -> Any:
        self.view.gave_up(group)
        return self.owned.pop(group)

    async def die(self) -> None:
        """As if the process had been killed: nothing is said to anybody."""
        for task in (self.pings._rounds, *self.pings._under_way.values()):
            if task is not None:
                task.cancel()
        self.pings._stopped = True
        for server in (self.internal, self.s3p, self.http):
            for connection in list(server.connections):
                connection.abort()
            await server.close(0.0)
        self.calls.close()

    async def stop(self) -> None:
        await self.pings.stop()
        await self.registry.release()
        await self.die()


class Cluster:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.nodes: list[ClusterNode] = []

    def start(self, name: str, secret: bytes = SECRET) -> ClusterNode:
        """A node that owns a group of the same number as its own."""

        group = len(self.nodes)

        async def started() -> ClusterNode:
            made = ClusterNode(name, self.root, secret, {group: made_group(group)}, HandClock())
            await made.start()
            made.view.claimed(group, 1)
            return made

        self.nodes.append(self.run(started()))
        return self.nodes[-1]

    def run(self, work: Any) -> Any:
        """Runs a coroutine, or calls a function, in the event loop of the nodes."""

        async def called() -> Any:
            return work() if callable(work) else await work

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(WITHIN_S)

    def round(self, *some: ClusterNode) -> None:
        """A round of pings of each of these begins, and its answers arrive."""

        async def rounds() -> None:
            for node in some or self.nodes:
                assert isinstance(node.clock, HandClock)
                node.clock.go_on()
                await asyncio.sleep(0)
            for node in some or self.nodes:
                while node.pings._under_way:
                    await asyncio.sleep(0.001)

        self.run(rounds())

    def until(self, holds: Callable[[], bool]) -> None:
        async def waited() -> None:
            while not holds():
                await asyncio.sleep(0.001)

        self.run(asyncio.wait_for(waited(), WITHIN_S))

    def move(self, group: int, giver: ClusterNode, taker: ClusterNode, epoch: int) -> None:
        def moved() -> None:
            taker.claim(group, epoch, giver.give_up(group))

        self.run(moved)

    def request(self, node: ClusterNode, method: str, path: str, headers: Headers = (), body: bytes = b"") -> Response:
        with Connection(HOST, node.port) as connection:
            return connection.request(method, path, headers, body)

    def name(self, group: int, at: int = 0) -> str:
        """A stream whose home is that group."""
        engine = self.nodes[0].engine
        found = (f"s{n}" for n in range(10_000))
        return [name for name in found if engine.home(f"{DEFAULT_BUCKET}/{name}") == group][at]

    def close(self) -> None:
        for node in self.nodes:
            self.run(node.die())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WITHIN_S)
        self._loop.close()


@contextmanager
def cluster(root: Path, *names: str) -> Iterator[Cluster]:
    made = Cluster(root)
    try:
        for name in names:
            made.start(name)
        made.round()
        yield made
    finally:
        made.close()
