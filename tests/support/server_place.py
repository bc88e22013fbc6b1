"""Where a server is that is killed and started again, shared by clients that live through it.
Clients wait here while there is none; it neither kills nor starts anything."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Stopped(Exception):
    """The test asked the clients to end."""


class ServerPlace:
    def __init__(self, clients_count: int, all_wait: Callable[[], None] = lambda: None) -> None:
        self._changed = threading.Condition()
        self._clients_count = clients_count
        self._waiting_count = 0
        self._generation = 0
        self._port = 0
        self._all_wait = all_wait
        """Called when every client has lost its server."""
        self.stopping = False

    def moved(self, port: int) -> None:
        with self._changed:
            self._port, self._generation, self._waiting_count = port, self._generation + 1, 0
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    def after(self, generation: int) -> tuple[int, int]:
        """The (port, generation) of a server newer than `generation`; blocks until there is one. Raises Stopped."""
        with self._changed:
            if self._generation <= generation:
                self._waiting_count += 1
                self._changed.notify_all()
                if self._waiting_count == self._clients_count:
                    self._all_wait()
                self._changed.wait_for(lambda: self._generation > generation or self.stopping)
            if self._generation <= generation:
                raise Stopped
            return self._port, self._generation

    def wait_until_all_wait(self, within_s: float) -> None:
        with self._changed:
            arrived = self._changed.wait_for(lambda: self._waiting_count == self._clients_count, within_s)
        assert arrived, "a client is stuck or gone"
