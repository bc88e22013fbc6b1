"""Several groups on real files, in one process or in several that ask each other, and admin calls to them.
It owns files, event loop and wiring; the processes are parts of this one, and what they ask each other is encoded."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headwater import config, errors
from headwater.catalog.catalog_copy import copy_catalog
from headwater.catalog.lake_files import LakeFiles
from headwater.catalog.scrub import scrub
from headwater.catalog.sqlite import SqliteCatalog
from headwater.data_directory import DataDirectory
from headwater.doors.http.admin.administration import Administration
from headwater.doors.http.admin.backup import BackupDoor
from headwater.doors.http.admin.erasures import Erasures
from headwater.doors.http.admin.groups import PREFIX, GroupCalls
from headwater.doors.http.admin.lake import LakeCalls
from headwater.doors.http.admin.matches import matches
from headwater.doors.http.admin.pipeline import Pipeline
from headwater.doors.http.admin.plan import Plans
from headwater.doors.http.admin.usage import Usage
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.respond import Responder
from headwater.doors.http.routes import Routes
from headwater.doors.http.wire import Request
from headwater.engine.engine import Engine
from headwater.engine.fork_placement import ForkPlacement
from headwater.engine.group import Group
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.owned_group import GroupOptions, OwnedGroup
from headwater.engine.questions import Answer as QuestionAnswer
from headwater.errors import Failure
from headwater.lake.feed import encode_feed
from headwater.lake.info import describe
from headwater.lake.lake import DeltaLake, StoreBlobs
from headwater.lake.open_store import open_store
from headwater.log.wal import Wal
from headwater.model.commands import Append, Command, Create, Delete
from headwater.model.stream import Limits
from headwater.ports import CatalogCopy, SystemClock, SystemRng
from headwater.security.name_hash import NameHash

NEVER_MS = 3_600_000
WITHIN_S = 60.0
_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.decode


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        found: str = self.json()["error"]["code"]
        return found


class Asking:
    """Questions between processes, encoded as between real ones, without sockets."""

    def __init__(self, me: int, everyone: list[Asking]) -> None:
        self.me = me
        self._everyone = everyone
        self._answers: dict[str, QuestionAnswer] = {}
        self.away = False
        """As if the process had ended."""
        everyone.append(self)

    @property
    def count(self) -> int:
        return len(self._everyone)

    def owner(self, group: int) -> int:
        return group % self.count

    def register(self, name: str, answer: QuestionAnswer) -> None:
        self._answers[name] = answer

    async def ask(self, member: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        other = self._everyone[member]
        if other.away:
            raise errors.MemberUnavailable(member)
        try:
            answered = _encode(await other._answers[name](*_decode(_encode(arguments))))
        except Failure as failure:
            again: Any = type(failure).__new__(type(failure))
            vars(again).update(_decode(_encode(vars(failure))))
            raise again from None
        return _decode(answered, type=into)

    async def ask_owner(self, group: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        return await self.ask(self.owner(group), name, *arguments, into=into)

    async def ask_all(self, name: str, *arguments: Any, into: Any = Any) -> list[Any]:
        everyone = range(self.count)
        return list(await asyncio.gather(*(self.ask(member, name, *arguments, into=into) for member in everyone)))


class Files:
    """A group's catalog, as worker threads use it."""

    def __init__(self, directory: DataDirectory, group: int) -> None:
        self._path = directory.catalog(group)
        self.held_directory = directory.held(group)

    def open(self) -> LakeFiles:
        return LakeFiles(self._path)

    def open_to_read(self) -> LakeFiles:
        return LakeFiles(self._path, read_only=True)

    def copy(self, to: Path) -> CatalogCopy:
        return copy_catalog(self._path, to)

    def scrub(self, name: str) -> bool:
        return scrub(self._path, name)


class _Line:
    """As much of a client's connection as one request needs."""

    def __init__(self, responder: Responder) -> None:
        self.responder = responder
        self.exchanges: deque[Exchange] = deque()
        self.waiting: deque[Any] = deque()
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def send(self, data: bytes, keep_alive: bool) -> None:
        self.answered.set_result(data)

    def drop_streamer(self) -> None: ...


class Process:
    """The groups of one process, and its admin calls."""

    def __init__(self, directory: DataDirectory, groups_count: int, asking: Asking, members_count: int) -> None:
        clock, rng = SystemClock(), SystemRng()
        store = open_store(str(directory.path / "lake"))
        lake = DeltaLake(store, 1 << 20, clock, rng)
        options = GroupOptions(NEVER_MS, 10_000, 1 << 30, NEVER_MS, 1 << 20, NEVER_MS, NEVER_MS)
        schedule = asyncio.get_running_loop().call_soon
        owned = {}
        for number in range(asking.me, groups_count, members_count):
            wal, catalog = Wal(directory.wal(number), 1 << 20, 0), SqliteCatalog(directory.catalog(number))
            group = Group(wal, catalog, clock, schedule, Limits(), 1 << 30, number, groups_count)
            files = Files(directory, number)
            owned[number] = OwnedGroup(group, wal, StoreBlobs(store), lake, files, options, rng, _broken)
        self.questions = asking
        self.engine = Engine(owned, groups_count, clock, asking)
        ForkPlacement(self.engine)
        self.settings = config.resolve({"data": str(directory.path)}, {}, None).settings
        self._responder = Responder("*", False)
        nothing: Any = None
        routes = self._routes = Routes(self.settings, nothing, nothing, nothing, nothing)
        groups = GroupCalls(self.engine, routes.handle)
        routes.call(PREFIX, groups.handle)
        routes.expect = groups.expect
        place: dict[str, str | None] = {"url": store.uri, "endpoint": None, "region": None}
        pipeline = Pipeline(self.engine, encode_feed, partial(describe, store))
        pipeline.register(groups)
        routes.call("/__headwater/lake", pipeline.lake)
        routes.call("/__headwater/flush", pipeline.flush)
        self._lake_calls = LakeCalls(lake.files, place, 0)
        self._lake_calls.register(groups)
        routes.call("/__headwater/plan", Plans(self.engine, groups, self._lake_calls).handle)
        usage = Usage(self.engine)
        routes.call("/__headwater/usage", usage.handle)
        groups.call("usage", usage.of_group)
        Administration(self.engine, self.settings, lambda: "127.0.0.1:1").register(groups)
        groups.call("matches", matches)
        groups.call("backup", BackupDoor(groups_count, place).handle)
        subscribed = self.subscribed = dict[str, list[str]]()
        """Ids of subscriptions that name a stream, by its key."""
        names = NameHash.kept(directory.path, rng)

        async def named_by(key: str) -> list[str]:
            return subscribed.get(key, [])

        erasures = Erasures(self.engine, names.of, named_by, self.settings)
        routes.call("/__headwater/erase", erasures.handle)

    def start(self) -> None:
        for owned in self.engine.owned.values():
            owned.recover()
            owned.start()

    async def stop(self) -> None:
        self._lake_calls.close()
        for owned in self.engine.owned.values():
            await owned.stop()

    async def request(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        given = {name.lower().encode(): value.encode() for name, value in (headers or {}).items()}
        request = Request(method.encode(), path.encode(), given, "1.1")
        request.body = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        line: Any = _Line(self._responder)
        exchange = Exchange(line, request)
        line.exchanges.append(exchange)
        try:
            self._routes.handle(exchange)
        except Failure as failure:
            exchange.fail(failure)
        async with asyncio.timeout(WITHIN_S):
            head, _, answered = (await line.answered).partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        pairs = (one.partition(": ") for one in lines)
        return Answer(int(status.split(" ")[1]), {name.lower(): value for name, _, value in pairs}, answered)

    async def submit(self, key: str, command: Command) -> None:
        """On return the command is durable. Its name's group must be of this process."""
        future = OutcomeFuture()
        self.engine.submit(key, command, future)
        await future.success()


class Town:
    """A node of some groups, served by some processes."""

    def __init__(self, path: Path, groups_count: int, members_count: int) -> None:
        directory = DataDirectory(path)
        path.mkdir(exist_ok=True)
        directory.prepare(groups_count, groups_count)
        everyone: list[Asking] = []
        asking = [Asking(me, everyone) for me in range(members_count)]
        self.processes = [Process(directory, groups_count, one, members_count) for one in asking]
        self.groups_count = groups_count

    def key(self, group: int, bucket: str = "town", number: int = 0) -> str:
        """The name of a stream that lives in that group."""
        home = self.processes[0].engine.home
        return [key for n in range(1_000) if home(key := f"{bucket}/s{n}") == group][number]

    def process_of(self, group: int) -> Process:
        return self.processes[group % len(self.processes)]

    def group(self, number: int) -> Group:
        return self.process_of(number).engine.owned[number].group

    async def write(self, key: str, *payloads: bytes) -> None:
        """Makes the stream and appends to it."""
        process = self.process_of(self.processes[0].engine.home(key))
        if process.engine.look(key) is None:
            await process.submit(key, Create(key, "text/plain", []))
        for payload in payloads:
            await process.submit(key, Append([payload], None, None))

    async def delete(self, key: str) -> None:
        await self.process_of(self.processes[0].engine.home(key)).submit(key, Delete())


def town(path: Path, body: Callable[[Town], Awaitable[None]], groups_count: int = 2, members_count: int = 1) -> None:
    """Runs `body` in a node of that shape, and stops it."""

    async def main() -> None:
        built = Town(path, groups_count, members_count)
        try:
            for process in built.processes:
                process.start()
            await body(built)
        finally:
            for process in built.processes:
                await process.stop()

    asyncio.run(main())


def _broken(what: str, why: str) -> None:
    raise AssertionError(f"{what}: {why}")
