"""Two processes of a node (or so many as a test says), as far as requests about many streams go, in one event loop.
Each has its groups, its HTTP door and a Unix socket for the other; questions between them are packed and unpacked."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headwater import config
from headwater.catalog.sqlite import SqliteCatalog
from headwater.doors.http.admin.bulk_snapshots import BulkSnapshots
from headwater.doors.http.buckets import Buckets as BucketDoor
from headwater.doors.http.bulk_append import Batches
from headwater.doors.http.durable_streams import DurableStreams
from headwater.doors.http.many_streams_tail import Tails
from headwater.doors.http.respond import Responder
from headwater.doors.http.routes import Routes
from headwater.doors.http.server import HttpServer
from headwater.doors.http.wire import Budget
from headwater.engine.buckets import Buckets
from headwater.log.null import NullLog
from headwater.ports import SystemClock, SystemRng
from headwater.security import policy
from tests.engine import owned_on
from tests.support.http import Connection, Headers, Response
from tests.support.processes import WITHIN_S, Process, Processes

HOST = "127.0.0.1"
GROUPS = 4


class KeptBlobs:
    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def put(self, key: str, data: bytes) -> None:
        self.kept[key] = data

    def get(self, key: str) -> bytes:
        return self.kept[key]

    def delete(self, key: str) -> None:
        self.kept.pop(key, None)


class Member:
    """The HTTP door of one process."""

    def __init__(self, process: Process[Member], blobs: KeptBlobs) -> None:
        settings = config.resolve({"memory": True, "listen": f"{HOST}:0"}, {}, None).settings
        rng = SystemRng()
        self.members, self.questions, self.placing = process.members, process.questions, process.placing
        self.engine = engine = process.engine
        buckets = Buckets(engine, self.questions)
        responder = Responder(settings.cors_origin, settings.memory)
        streams = DurableStreams(engine, settings, responder, engine.clock, rng)
        nothing: Any = None
        batches = Batches(engine, buckets, settings, self.placing)
        routes = Routes(settings, streams, BucketDoor(buckets), nothing, batches)
        self.snapshots = BulkSnapshots(engine, blobs, settings, rng)
        routes.call("/__headwater/snapshots", self.snapshots.handle, policy.BULK_SNAPSHOTS)
        self.tails = Tails(engine, settings, self.members)
        routes.call("/__headwater/tail", self.tails.handle, policy.MANY_TAIL)
        self._bodies = Budget(settings.bodies_bytes_max)
        self.http = HttpServer(settings, routes, responder, self._bodies)
        self._settings, self._routes, self._responder = settings, routes, responder
        self.port = 0

    async def start(self) -> None:
        self.port = await self.http.listen(HOST, 0)
        await self.join()

    async def join(self) -> None:
        """Opens the socket for the other member."""
        self.internal = HttpServer(self._settings, self._routes, self._responder, self._bodies, internal=True)
        await self.internal.listen_unix(self.members.http_path(self.members.me))

    async def leave(self) -> None:
        """The other member sees this one die: what is connected is cut."""
        for connection in list(self.internal.connections):
            connection.abort()
        await self.internal.close(0.0)

    async def stop(self) -> None:
        await self.leave()
        await self.http.close(0.0)
        self.snapshots.close()


class Members(Processes[Member]):
    """Processes that keep nothing and answer at once."""

    def own(self, number: int) -> Any:
        return owned_on(self.group_on(NullLog(), SqliteCatalog(None), number))


class TwoMembers:
    def __init__(self, count: int, directory: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.blobs = KeptBlobs()
        self._processes = Members(lambda process: Member(process, self.blobs), count, GROUPS, directory, SystemClock())
        self.run(self._start())

    async def _start(self) -> None:
        for number in range(self._processes.count):
            await self._processes.start(number).part.start()
        self.members = self._processes.parts

    def run(self, work: Any) -> Any:
        """Runs a coroutine, or calls a function, in the event loop of the members."""

        async def called() -> Any:
            return work() if callable(work) else await work

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(WITHIN_S)

    def stop(self) -> None:
        for member in self.members:
            self.run(member.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WITHIN_S)
        self._loop.close()

    def connect(self, member: int, **how: Any) -> Connection:
        return Connection(HOST, self.members[member].port, **how)

    def request(self, member: int, method: str, path: str, headers: Headers = (), body: bytes = b"") -> Response:
        with self.connect(member) as connection:
            return connection.request(method, path, headers, body)

    def home(self, key: str) -> int:
        return self.members[0].engine.home(key)

    def names(self, group: int, count: int, bucket: str = "town") -> list[str]:
        """Streams of a bucket whose home is that group."""
        return self._processes.names(group, count, f"{bucket}/s")

    def read(self, name: str) -> Response:
        """From the process that serves the name's home."""
        return self.request(self.home(name) % len(self.members), "GET", f"/v1/stream/{name}")


@contextmanager
def two_members(count: int = 2) -> Iterator[TwoMembers]:
    # Not below pytest's directory: the path of a Unix socket is short.
    with tempfile.TemporaryDirectory(prefix="headwater-") as directory:
        both = TwoMembers(count, Path(directory))
        try:
            yield both
        finally:
            both.stop()
