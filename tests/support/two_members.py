"""Two processes of a node (or so many as a test says), as far as requests about many streams go, in one event loop.
Each has its groups, its HTTP door and a Unix socket for the other; questions between them are packed and unpacked."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from headwater import config
from headwater.catalog.sqlite import SqliteCatalog
from headwater.cluster.calls import _failure
from headwater.cluster.members import Members
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
from headwater.engine.engine import Engine
from headwater.engine.fork_placement import ForkPlacement
from headwater.engine.group import Group
from headwater.engine.placements import Placements
from headwater.engine.reads import Reads
from headwater.engine.reads_by_id import ReadsById
from headwater.errors import Failure, MemberUnavailable, OutcomeUnknown
from headwater.log.null import NullLog
from headwater.model.stream import Limits
from headwater.ports import SystemClock, SystemRng
from tests.support.http import Connection, Headers, Response

HOST = "127.0.0.1"
WITHIN_S = 60.0
GROUPS = 4


class Routed:
    """Questions of one member, through everything that they become on their way."""

    def __init__(self, me: int, count: int, everyone: dict[int, Routed]) -> None:
        self.me = me
        self.count = count
        self.away: dict[int, type[Failure]] = {}
        """Members that cannot be reached from here, and how that shows."""
        self.asked: list[str] = []
        self._everyone = everyone
        self._answers: dict[str, Callable[..., Any]] = {}
        everyone[me] = self

    def owner(self, group: int) -> int:
        return group % self.count

    def register(self, name: str, answer: Callable[..., Any]) -> None:
        self._answers[name] = answer

    async def ask(self, member: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        if member == self.me:
            return await self._answers[name](*arguments)
        self.asked.append(name)
        away = self.away.get(member)
        if away is MemberUnavailable:
            raise MemberUnavailable(member)
        packed = msgspec.msgpack.encode(arguments)
        try:
            answer = msgspec.msgpack.encode(
                await self._everyone[member]._answers[name](*msgspec.msgpack.decode(packed))
            )
        except Failure as refused:
            raise _failure(type(refused).__name__, vars(refused)) from None
        if away is OutcomeUnknown:
            raise OutcomeUnknown(member)
        return msgspec.msgpack.decode(answer, type=into)

    async def ask_owner(self, group: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        return await self.ask(self.owner(group), name, *arguments, into=into)

    async def ask_all(self, name: str, *arguments: Any, into: Any = Any) -> list[Any]:
        return [await self.ask(member, name, *arguments, into=into) for member in range(self.count)]


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
    def __init__(self, members: Members, everyone: dict[int, Routed], blobs: KeptBlobs) -> None:
        settings = config.resolve({"memory": True, "listen": f"{HOST}:0"}, {}, None).settings
        clock, rng = SystemClock(), SystemRng()
        self.members = members
        owned: dict[int, Any] = {}
        schedule = asyncio.get_running_loop().call_soon
        for number in members.groups_of(members.me):
            group = Group(NullLog(), SqliteCatalog(None), clock, schedule, Limits(), 1 << 30, number, GROUPS)
            reads = Reads(group, None)
            placements = group.domains[Placements.name] = Placements(group.catalog)
            by_id = ReadsById(group, reads)
            owned[number] = SimpleNamespace(group=group, reads=reads, by_id=by_id, number=number, placements=placements)
        self.questions = Routed(members.me, members.count, everyone)
        self.engine = engine = Engine(owned, GROUPS, clock, self.questions)
        buckets = Buckets(engine, self.questions)
        responder = Responder(settings.cors_origin, settings.memory)
        streams = DurableStreams(engine, settings, responder, clock, rng)
        nothing: Any = None
        self.placing = ForkPlacement(engine)
        batches = Batches(engine, buckets, settings, self.placing)
        routes = Routes(settings, streams, BucketDoor(buckets), nothing, batches)
        self.snapshots = BulkSnapshots(engine, blobs, settings, rng)
        routes.call("/__headwater/snapshots", self.snapshots.handle)
        self.tails = Tails(engine, settings, self.members)
        routes.call("/__headwater/tail", self.tails.handle)
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


class TwoMembers:
    def __init__(self, count: int, directory: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.blobs = KeptBlobs()
        self.members: list[Member] = []
        self.run(self._start(count, directory))

    async def _start(self, count: int, directory: Path) -> None:
        everyone: dict[int, Routed] = {}
        self.members = [Member(Members(me, count, GROUPS, directory), everyone, self.blobs) for me in range(count)]
        for member in self.members:
            await member.start()

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
        found = (f"{bucket}/s{n}" for n in range(10_000))
        return [name for name in found if self.home(name) == group][:count]

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
