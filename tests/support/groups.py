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

from headwater import config
from headwater.catalog.catalog_files import SqliteCatalogFiles
from headwater.catalog.sqlite import SqliteCatalog
from headwater.data_directory import DataDirectory
from headwater.doors.http.admin.administration import Administration
from headwater.doors.http.admin.backup import BackupDoor
from headwater.doors.http.admin.erasures import Erasures
from headwater.doors.http.admin.feed import Encoding, FeedCalls
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
from headwater.engine.group import Group
from headwater.engine.owned_group import GroupOptions, OwnedGroup
from headwater.errors import Failure
from headwater.lake.feed import begin_feed, encode_feed, encode_part
from headwater.lake.info import describe
from headwater.lake.lake import DeltaLake, StoreBlobs
from headwater.lake.open_store import open_store
from headwater.lake.store import ObjectStore
from headwater.log.wal import Wal
from headwater.model.commands import Append, Create, Delete
from headwater.ports import SystemClock, SystemRng
from headwater.security import policy
from headwater.security.name_hash import NameHash
from tests.support.processes import WITHIN_S, Process, Processes

NEVER_MS = 3_600_000


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


class AdminCalls:
    """The admin calls of one process, and streams of its groups."""

    def __init__(
        self, process: Process[AdminCalls], directory: DataDirectory, store: ObjectStore, lake: DeltaLake
    ) -> None:
        self.engine, self.questions = process.engine, process.questions
        self.settings = config.resolve({"data": str(directory.path)}, {}, None).settings
        self._responder = Responder("*", False)
        nothing: Any = None
        routes = self._routes = Routes(self.settings, nothing, nothing, nothing, nothing)
        groups = GroupCalls(self.engine, routes.handle)
        routes.call(PREFIX, groups.handle, groups.judge)
        routes.expect = groups.expect
        place: dict[str, str | None] = {"url": store.uri, "endpoint": None, "region": None}
        pipeline = Pipeline(self.engine, partial(describe, store))
        pipeline.register(groups)
        FeedCalls(Encoding(encode_feed, begin_feed, encode_part)).register(groups)
        routes.call("/__headwater/lake", pipeline.lake, policy.READ_ALL)
        routes.call("/__headwater/flush", pipeline.flush, policy.ADMIN_DO)
        self._lake_calls = LakeCalls(lake.files, lake.infos, place, 0)
        self._lake_calls.register(groups)
        routes.call("/__headwater/plan", Plans(self.engine, groups, self._lake_calls).handle, policy.ASK_ALL)
        usage = Usage(self.engine)
        routes.call("/__headwater/usage", usage.handle, policy.READ_ALL)
        groups.call("usage", usage.of_group, policy.READ_ALL)
        Administration(self.engine, self.settings, lambda: "127.0.0.1:1").register(groups)
        groups.call("matches", matches, policy.ASK_ALL)
        groups.call("backup", BackupDoor(process.members.groups_count, place).handle, policy.ADMIN_ALL)
        subscribed = self.subscribed = dict[str, list[str]]()
        """Ids of subscriptions that name a stream, by its key."""
        names = NameHash.kept(directory.path, SystemRng())

        async def named_by(key: str) -> list[str]:
            return subscribed.get(key, [])

        erasures = Erasures(self.engine, names.of, named_by, self.settings)
        routes.call("/__headwater/erase", erasures.handle, policy.ADMIN_DO)

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


class Town(Processes[AdminCalls]):
    """A node of some groups on files, served by some processes."""

    def __init__(self, path: Path, groups_count: int, members_count: int) -> None:
        super().__init__(self._calls, members_count, groups_count, path, SystemClock())
        path.mkdir(exist_ok=True)
        self._files = DataDirectory(path)
        self._files.prepare(groups_count, groups_count)
        self._store = open_store(str(path / "lake"))
        self._lakes = [DeltaLake(self._store, 1 << 20, self.clock, SystemRng()) for _ in range(members_count)]

    def _calls(self, process: Process[AdminCalls]) -> AdminCalls:
        return AdminCalls(process, self._files, self._store, self._lakes[process.members.me])

    def own(self, number: int) -> OwnedGroup:
        options = GroupOptions(NEVER_MS, 10_000, 1 << 30, NEVER_MS, 1 << 20, NEVER_MS, NEVER_MS)
        wal = Wal(self._files.wal(number), 1 << 20, 0)
        group = self.group_on(wal, SqliteCatalog(self._files.catalog(number)), number)
        lake = self._lakes[number % self.count]
        files = SqliteCatalogFiles(self._files.catalog(number), self._files.held(number))
        return OwnedGroup(group, wal, StoreBlobs(self._store), lake, files, options, SystemRng(), _broken)

    @property
    def processes(self) -> list[AdminCalls]:
        return self.parts

    def key(self, group: int, bucket: str = "town", number: int = 0) -> str:
        """The name of a stream that lives in that group."""
        return self.names(group, number + 1, f"{bucket}/s")[number]

    def process_of(self, group: int) -> AdminCalls:
        return self.running[group % self.count].part

    def group(self, number: int) -> Group:
        return self.process_of(number).engine.owned[number].group

    async def write(self, key: str, *payloads: bytes) -> None:
        """Makes the stream and appends to it."""
        if self.process_of(self.engine.home(key)).engine.look(key) is None:
            await self.submit(key, Create(key, "text/plain", []))
        for payload in payloads:
            await self.submit(key, Append([payload], None, None))

    async def delete(self, key: str) -> None:
        await self.submit(key, Delete())


def town(path: Path, body: Callable[[Town], Awaitable[None]], groups_count: int = 2, members_count: int = 1) -> None:
    """Runs `body` in a node of that shape, and stops it."""

    async def main() -> None:
        built = Town(path, groups_count, members_count)
        try:
            for member in range(members_count):
                for owned in built.start(member).owned.values():
                    owned.start()
            await body(built)
        finally:
            for calls in built.parts:
                await calls.stop()

    asyncio.run(main())


def _broken(what: str, why: str) -> None:
    raise AssertionError(f"{what}: {why}")
