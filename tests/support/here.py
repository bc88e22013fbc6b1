"""A node inside the test's own process, on a thread of its own: for tests that have to change how it works.
It owns the thread and the event loop; all else is like `tests.support.node.Node`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headwater import config
from headwater.cluster.members import Members
from headwater.data_directory import DataDirectory
from headwater.local_groups import LocalGroups
from headwater.node import Node
from tests.support.http import Connection, Headers, Response

HOST = "127.0.0.1"
WITHIN_S = 60.0


class Here:
    def __init__(self, **flags: object) -> None:
        given = {"listen": f"{HOST}:0", "s3p": f"{HOST}:0", **flags}
        settings = config.resolve(given, {}, None).settings
        directory = DataDirectory(Path(settings.data))
        groups_count = 1
        if not settings.memory:
            directory.path.mkdir(parents=True, exist_ok=True)
            groups_count = directory.prepare(settings.groups_wanted, 1)
        self.node = Node(settings, LocalGroups(settings, directory, Members(0, 1, groups_count, Path())))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        starting = self.node.start(settings.listen_address, settings.s3p_address)
        address = asyncio.run_coroutine_threadsafe(starting, self._loop).result(WITHIN_S)
        self.port = int(address.rpartition(":")[2])
        s3p: Any = self.node._s3p
        self.s3p_port: int = s3p._accepting[0].sockets[0].getsockname()[1]

    @classmethod
    @contextmanager
    def started(cls, **flags: object) -> Iterator[Here]:
        node = cls(**flags)
        try:
            yield node
        finally:
            node.stop()

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.node.stop(), self._loop).result(WITHIN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WITHIN_S)
        self._loop.close()

    def connect(self) -> Connection:
        return Connection(HOST, self.port)

    def request(self, method: str, path: str, headers: Headers = (), body: bytes = b"") -> Response:
        with self.connect() as connection:
            return connection.request(method, path, headers, body)
