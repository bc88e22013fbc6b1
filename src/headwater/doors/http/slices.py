"""Requests whose bodies take long to read: their work is done in slices, one each turn of the event loop.

Owns the order of slices and the memory of the bodies that wait for theirs. Never knows what the work is: a generator
that yields between slices. However many such requests there are, others wait for one slice at most.

    handler -> exchange.in_slices(work) -> a slice a turn, request by request -> work submits, or a Failure is answered

Requests that come after one that is not judged yet wait: what a connection brought is judged in the order it came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import Any, Protocol

from headwater.doors.http.wire import Budget, Request
from headwater.errors import Failure

Work = Generator[None, None, None]


class Sliced(Protocol):
    """An exchange, as far as its work is done here. See `exchange`."""

    connection: Any
    request: Request

    def fail(self, failure: Failure) -> None: ...

    def broke(self) -> None: ...



class Slicer:
    """Bound: one request of each connection. Their bodies count as still arriving; overflow: others' are refused."""

    def __init__(self, bodies: Budget) -> None:
        self._bodies = bodies
        self._queue: deque[tuple[Sliced, Work]] = deque()
        self._due = False

    def add(self, exchange: Sliced, work: Work) -> None:
        """Has `work` done, and the requests after `exchange` wait for it. A client that goes away ends it early."""
        exchange.connection.unjudged = exchange
        self._bodies.held += len(exchange.request.body)
        self._queue.append((exchange, work))
        self._later()

    def _later(self) -> None:
        if not self._due and self._queue:
            self._due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._due = False
        exchange, work = self._queue.popleft()
        connection = exchange.connection
        failure: Failure | None = None
        done = connection.closing
        if done:
            work.close()
        else:
            try:
                next(work)
            except StopIteration:
                done = True
            except Failure as refused:
                failure, done = refused, True
            except Exception:
                exchange.broke()
                done = True
        if not done:
            self._queue.append((exchange, work))
        else:
            self._bodies.held -= len(exchange.request.body)
            connection.unjudged = None
            if failure is not None:
                exchange.fail(failure)
            if connection.waiting:
                connection.advance()
        self._later()
