"""What every door does with its sockets: accept up to a limit, look at the clock, and shut down in order.

Owns admission, the sweep and the shutdown of one listener. Never knows a protocol: connections do.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

SWEEP_S = 0.5
BACKLOG = 4096


class Served(Protocol):
    """A connection, as far as its listener is concerned."""

    def tick(self, now_s: float) -> None:
        """About twice a second: time limits and keep-alives."""
        ...

    def shut_down(self) -> None:
        """Take no more work; close once what is under way was answered."""
        ...

    def broke(self) -> None:
        """Called while an exception is handled that came out of `tick` or `shut_down`."""
        ...

    def abort(self) -> None: ...


class Closable(Protocol):
    """What accepts connections."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Served)


class Listener(Generic[C]):
    """Base of a door's server. Subclasses say how a connection is made."""

    def __init__(self, connections_max: int) -> None:
        self.closing = False
        self.winding_down = False
        """The next answer of each connection is its last one."""
        self.connections: set[C] = set()
        self.refused_count = 0
        self._connections_max = connections_max
        self._loop = asyncio.get_running_loop()
        self._accepting: list[Closable] = []
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def now_s(self) -> float:
        return self._loop.time()

    def accept(self) -> asyncio.Protocol:
        """The protocol object of a new connection."""
        raise NotImplementedError

    async def listen(self, host: str, port: int) -> int:
        """Starts to accept; returns the port, which the system chose when `port` is 0. Raises OSError."""
        server = await self._loop.create_server(self.accept, host, port, backlog=BACKLOG)
        self.begin(server)
        return int(server.sockets[0].getsockname()[1])

    async def listen_unix(self, path: str) -> None:
        """The same on a Unix socket, which takes the place of one that an earlier process left. Raises OSError."""
        with suppress(FileNotFoundError):
            os.unlink(path)
        self.begin(await self._loop.create_unix_server(self.accept, path, backlog=BACKLOG))

    def begin(self, *accepting: Closable) -> None:
        """Connections come from `accepting` from now on, which are closed when no more are taken."""
        self._accepting += accepting
        self._sweeping = self._sweeping or self._loop.create_task(self._sweep())

    def admit(self, connection: C) -> bool:
        """False when there are too many connections, or none are taken any more. The overflow is cut, not queued."""
        if self.closing or len(self.connections) >= self._connections_max:
            self.refused_count += 1
            return False
        self.connections.add(connection)
        return True

    def forget(self, connection: C) -> None:
        self.connections.discard(connection)

    def swept(self) -> None:
        """Called before each sweep."""

    async def _sweep(self) -> None:
        """Costs about 0.2 µs per open connection and half second."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.swept()
            now_s = self._loop.time()
            for connection in list(self.connections):
                try:
                    connection.tick(now_s)
                except Exception:
                    connection.broke()  # the others have their turn

    def wind_down(self) -> None:
        """Has clients go elsewhere by and by: a connection that is closed while nobody expects it may meet a request
        that is on its way, and nobody would know what became of it. `close` comes later."""
        self.winding_down = True

    async def close(self, grace_s: float) -> None:
        """Stops accepting, lets connections finish what is under way, and cuts what is left after `grace_s`."""
        self.closing = self.winding_down = True
        for accepting in self._accepting:
            accepting.close()
        for connection in list(self.connections):
            try:
                connection.shut_down()
            except Exception:
                connection.broke()
        deadline_s = self._loop.time() + grace_s
        while self.connections and self._loop.time() < deadline_s:
            await asyncio.sleep(0.02)
        for connection in list(self.connections):
            connection.abort()
        if self._sweeping is not None:
            self._sweeping.cancel()
        await asyncio.sleep(0)
