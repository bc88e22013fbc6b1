"""Carries plans out over blocking sockets. For any number of threads: each request has a connection to itself.

Owns the connections that are kept between requests. Never decides whether to send again; `plans` does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TypeVar

from headwater.client.connection import Connection, Failed
from headwater.client.forks import tell_after_fork
from headwater.client.plans import Give, Plan, Reply, Send, Step, Walk
from headwater.client.producers import Producer
from headwater.client.settings import Settings

T = TypeVar("T")
IDLE_MAX = 8
"""Connections that are kept while nobody needs them; more are closed."""


class SyncTransport:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False
        tell_after_fork(self)

    def forked(self) -> None:
        self._lock = threading.Lock()
        kept, self._idle = self._idle, []
        for connection in kept:
            connection.close()  # Closes this process's end alone: nothing is sent.

    def run(self, plan: Plan[T], producer: Producer | None = None) -> T:
        """The plan's result. With a producer, while no other write of it is under way. Raises HeadwaterError."""
        if producer is None:
            return self._run(plan)
        with producer.lock:
            return self._run(plan)

    def _run(self, plan: Plan[T]) -> T:
        reply: Reply = None
        try:
            while True:
                reply = self._act(plan.send(reply))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            plan.close()  # An interrupt has to reach a write under way.

    def walk(self, walk: Walk[T]) -> Iterator[T]:
        """The walk's results, as they are asked for. Raises HeadwaterError."""
        reply: Reply = None
        try:
            while True:
                step = walk.send(reply)
                if isinstance(step, Give):
                    reply = None
                    yield step.item
                else:
                    reply = self._act(step)
        except StopIteration:
            return
        finally:
            walk.close()

    def close(self) -> None:
        """Ends the connections that are kept; one that is in use ends with its request."""
        with self._lock:
            self._closed = True
            kept, self._idle = self._idle, []
        for connection in kept:
            connection.close()

    def _act(self, step: Step) -> Reply:
        if isinstance(step, Send):
            return self._send(step)
        time.sleep(step.seconds)
        return None

    def _send(self, request: Send) -> Reply:
        connection = self._taken()
        connection.wait_for(self._settings.timeout_s + request.wait_s)
        headers = {**self._settings.headers, **request.headers}
        try:
            answer = connection.request(request.method, request.path, headers, request.body, fresh=request.fresh)
        except Failed as why:
            connection.close()
            return why
        except BaseException:
            connection.close()  # It holds half an answer.
            raise
        self._keep(connection)
        return answer

    def _taken(self) -> Connection:
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed")
            return self._idle.pop() if self._idle else Connection(self._settings.address, self._settings.timeout_s)

    def _keep(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()
