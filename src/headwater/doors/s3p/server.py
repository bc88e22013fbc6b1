"""The S3P listener: its connections, the pass that sends their replies, and its slow clock.

Owns admission, time limits and shutdown. Never looks at a command: `connection` does.
"""

from __future__ import annotations

import asyncio

from headwater.config import Settings
from headwater.doors.s3p import names
from headwater.doors.s3p.commands import Limits
from headwater.doors.s3p.connection import Connection
from headwater.engine.by_id import ById
from headwater.engine.group import Group

SWEEP_S = 0.5
_KEYS_MAX = 65_536


class S3pServer:
    def __init__(self, settings: Settings, group: Group, by_id: ById) -> None:
        self.settings = settings
        self.group = group
        self.by_id = by_id
        self.limits = Limits(
            name_bytes_max=settings.s3p_name_bytes_max,
            count_default=settings.s3p_count_default,
            count_max=settings.s3p_count_max,
            block_ms_max=settings.s3p_block_ms_max,
            records_max=settings.s3p_records_max,
            record_bytes_max=settings.s3p_record_bytes_max,
            append_bytes_max=settings.s3p_append_bytes_max,
        )
        self.closing = False
        self.connections: set[Connection] = set()
        self.refused_count = 0
        self.blocked_count = 0
        """READs that wait for records."""
        self.keys: dict[bytes, str] = {}
        """Keys of the names that were used lately."""
        self._due: list[Connection] = []
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def now_s(self) -> float:
        return self._loop.time()

    async def listen(self, host: str, port: int) -> int:
        """Starts to accept; returns the port, which the system chose when `port` is 0. Raises OSError."""
        self._server = await self._loop.create_server(lambda: Connection(self), host, port, backlog=4096)
        self._sweeper = self._loop.create_task(self._sweep())
        return int(self._server.sockets[0].getsockname()[1])

    def admit(self, connection: Connection) -> bool:
        """False when there are too many connections, or none are taken any more. The overflow is cut, not queued."""
        if self.closing or len(self.connections) >= self.settings.s3p_connections_max:
            self.refused_count += 1
            return False
        self.connections.add(connection)
        return True

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def key(self, name: bytes) -> str:
        """Clients repeat their names: the checked key is kept. Overflow: all are forgotten."""
        key = self.keys.get(name)
        if key is None:
            if len(self.keys) >= _KEYS_MAX:
                self.keys.clear()
            key = self.keys[name] = names.key_of(name)
        return key

    def soon(self, connection: Connection) -> None:
        """Has `connection.advance` called in the next turn, together with all others that ask until then."""
        if not self._due:
            self._loop.call_soon(self._pass)
        self._due.append(connection)

    def _pass(self) -> None:
        due, self._due = self._due, []
        for connection in due:
            connection.advance()

    # ---- time and shutdown --------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Time limits. Costs about 0.2 µs per open connection and half second."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = self._loop.time()
            for connection in list(self.connections):
                connection.tick(now_s)

    async def close(self, grace_s: float) -> None:
        """Stops accepting, ends blocked READs, waits for replies under way; cuts what is left."""
        self.closing = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.shut_down()
        deadline_s = self._loop.time() + grace_s
        while self.connections and self._loop.time() < deadline_s:
            await asyncio.sleep(0.02)
        for connection in list(self.connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.sleep(0)
