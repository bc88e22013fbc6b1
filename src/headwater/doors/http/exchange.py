"""One request and its answer: what a handler is given.

Owns how an answer is begun, given or refused, and what becomes of a fault in a handler. Never writes to a socket:
`connection` does, in the order of the requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from headwater.doors import faults
from headwater.doors.http import audited, request_ids
from headwater.doors.http.respond import Responder
from headwater.doors.http.slices import Slicer, Work
from headwater.doors.http.wire import Request
from headwater.engine.pending_answers import Outcome
from headwater.errors import Failure, InternalError, MethodNotAllowed, NoSuchRoute, Overloaded, row
from headwater.ports import BlobsUnavailable
from headwater.security.principals import EVERYONE, NOBODY, Asked, Identity, Need, Principal

T = TypeVar("T")
_running: set[asyncio.Task[None]] = set()
"""Tasks of exchanges under way: the event loop itself holds them only weakly."""


class Streamer(Protocol):
    """An answer that is written over time. The connection calls these; `Connection.finish` ends it."""

    def drained(self) -> None:
        """The socket takes data again."""
        ...

    def tick(self, now_s: float) -> None:
        """About twice a second."""
        ...

    def stop(self) -> None:
        """Nothing more is to be waited for: the client sends no more, or the server is shutting down.

        An answer that waits for what is written later ends now; any other goes on to its end.
        """
        ...

    def lost(self) -> None:
        """The client is gone."""
        ...


class Receiver(Streamer, Protocol):
    """An answer after which the connection speaks another protocol; `Connection.hang_up` ends it.

    A client that ends its half of the connection has `lost` called.
    """

    @property
    def is_full(self) -> bool:
        """True while no more is to be read: `Line.read_on` is called when that changes, except within `drained`."""
        ...

    def received(self, data: bytes) -> None: ...


class Upstream(Protocol):
    """A connection to another member on behalf of a client's."""

    over: bool

    def close(self) -> None: ...


class Line(Protocol):
    """The client's connection, as far as exchanges and their answers use it. See `connection`."""

    responder: Responder
    slicer: Slicer
    internal: bool
    """Another process of this node is the client."""
    identity: Identity
    """Whom its requests are for."""
    exchanges: deque[Exchange]
    waiting: deque[Any]
    streamer: Streamer | None
    receiver: Receiver | None
    unjudged: Exchange | None
    upstreams: dict[int, Any] | None
    paused: bool
    peer: str

    @property
    def closing(self) -> bool: ...

    def client_address(self, headers: dict[bytes, bytes]) -> str: ...

    def send(self, data: bytes, keep_alive: bool) -> None:
        """A whole answer."""
        ...

    def write(self, data: bytes | memoryview) -> None:
        """A part of one."""
        ...

    def after_others(self, act: Callable[[], None]) -> None: ...

    def stream(self, streamer: Streamer) -> None: ...

    def take_over(self, receiver: Receiver) -> bytes: ...

    def hang_up(self, exchange: Exchange) -> None: ...

    def read_no_more(self) -> None: ...

    def read_on(self) -> None: ...

    def drop_streamer(self) -> None: ...

    def finish(self, exchange: Exchange) -> None: ...

    def advance(self) -> None: ...

    def broke(self) -> None: ...

    def abort(self) -> None: ...


class Repeated:
    """Kept with a head that was judged before: what to do with every request that begins like it (`wire.KnownHead`)."""

    __slots__ = ("act", "in_passes")

    def __init__(self, act: Callable[[Exchange], None], in_passes: bool = False) -> None:
        self.act = act
        self.in_passes = in_passes
        """Many such requests are one step of the server, whose time is measured as a whole."""


class Exchange:
    """A request and the place of its answer in the order of answers."""

    __slots__ = ("_name", "_needs", "_principal", "answer", "begun", "connection", "request", "then")

    def __init__(self, connection: Line, request: Request) -> None:
        self.connection = connection
        self.request = request
        self.answer: bytes | None = None
        self.begun = False
        """True once a part of the answer has been written: it cannot become another one any more."""
        self.then: Callable[[Exchange, Outcome], None] | None = None
        """What to do with the outcome of a submitted command."""

    @property
    def internal(self) -> bool:
        """True when another process of this node sent the request, or sent it on."""
        return self.connection.internal

    @property
    def client_address(self) -> str:
        """The address of the client, as text: what limits, the audit log and log lines know it by.

        Through a trusted proxy it is the one that the proxy names. Of an internal request it is the other process's.
        """
        return self.connection.client_address(self.request.headers)

    @property
    def principal(self) -> Principal:
        """Whom it is done for. Somebody who may do nothing, as long as that was not found out."""
        try:
            return self._principal
        except AttributeError:
            pass  # no slot is filled on the quick way, where the head was judged before
        known = self.request.known
        if known is not None and isinstance(known.principal, Principal):
            return known.principal
        return EVERYONE if self.connection.identity.unguarded else NOBODY

    def set_principal(self, principal: Principal, needs: tuple[Need, ...] = ()) -> None:
        self._principal = principal
        self._needs = needs

    def is_about(self, subject: str) -> None:
        """What the audit log is to say that it is about, where that is not in its path. Never a secret."""

    def denied(self, failure: Failure, needs: str = "", principal: Principal | None = None) -> None:
        """The client was refused for want of rights, all of the request or a part of it: for the audit log."""
        audit = self.connection.identity.audit
        if audit is not None:
            request = self.request
            self._name = self.name
            path = request.target.partition(b"?")[0]
            found = audited.action_of(request.method, path)
            action = found[0] if found is not None else request.method.decode("latin-1").lower()
            asked = Asked("http", self.client_address, principal, self._name)
            audit.denied(asked, action, audited.shown(path), row(failure).code, needs)

    @property
    def name(self) -> str:
        """What a refusal of it is called."""
        try:
            return self._name
        except AttributeError:
            return request_ids.of(self.request)

    @property
    def needs(self) -> tuple[Need, ...]:
        """What was asked for so far: an answer that goes on for long is judged by it again."""
        try:
            return self._needs
        except AttributeError:
            known = self.request.known
            return () if known is None else known.needs

    def add_needs(self, needs: tuple[Need, ...]) -> None:
        if not self.connection.identity.unguarded:
            self._needs = self.needs + needs

    def hold_needs(self, needs: tuple[Need, ...]) -> None:
        """From now on it is judged by these."""
        if not self.connection.identity.unguarded:
            self._needs = needs

    def only(self, method: bytes, rest: bytes = b"") -> None:
        """Refuses any other method, and a path that goes on."""
        if rest not in (b"", b"/"):
            raise NoSuchRoute
        if self.request.method != method:
            raise MethodNotAllowed(f"{method.decode()}, OPTIONS")

    def resolve(self, outcome: Outcome) -> None:
        if self.then is not None:
            try:
                self.then(self, outcome)
            except Failure as failure:
                self.fail(failure)
            except Exception:
                self.broke()

    def when(self, act: Callable[[Outcome], None]) -> None:
        """Once the outcome is there: a failure is answered, anything else is given to `act`, which may raise one."""

        def then(exchange: Exchange, outcome: Outcome) -> None:
            if isinstance(outcome, Failure):
                raise outcome
            act(outcome)

        self.then = then

    def told(self, act: Callable[[T], None]) -> Callable[[T | Failure], None]:
        """A callback that answers a failure, its own or one that it is given, and hands anything else to `act`."""

        def done(found: T | Failure) -> None:
            try:
                if isinstance(found, Failure):
                    self.fail(found)
                else:
                    act(found)
            except Failure as failure:
                self.fail(failure)
            except Exception:
                self.broke()

        return done

    def run(self, work: Coroutine[None, None, None]) -> None:
        """Answers from a coroutine: for what takes a worker thread. Failures it raises are answered too."""
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        _running.add(task)
        task.add_done_callback(_running.discard)

    def in_slices(self, work: Work, waits_for: asyncio.Future[Any] | None = None) -> None:
        """Has a long body read by `work`, with others' turns in between. Failures it raises are answered."""
        self.connection.slicer.add(self, work, waits_for)

    async def _guarded(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except BlobsUnavailable as error:
            self.fail(Overloaded(f"the object store does not answer ({error})"))
        except Failure as failure:
            self.fail(failure)
        except Exception:
            self.broke()

    def broke(self) -> None:
        """Called while an exception is handled that is a fault of this server: it is logged, and the client is told.

        An answer that has begun cannot tell it: its connection ends.
        """
        connection, request = self.connection, self.request
        path = request_ids.path_of(request)
        failure = faults.report("http", request_ids.of(request), method=request.method.decode("latin-1"), path=path)
        if self not in connection.exchanges:
            return  # answered, or the client is gone
        if connection.exchanges[0] is self:
            connection.drop_streamer()  # at once: what wrote it is not to try again
        if self.begun:
            connection.abort()
        elif self.answer is None:
            self.fail(failure)

    @property
    def responder(self) -> Responder:
        return self.connection.responder

    def reply(self, data: bytes) -> None:
        """The whole answer. It leaves when every answer in front of it has left."""
        connection = self.connection
        if connection.responder.origins is not None:
            data = connection.responder.for_origin(data, self.request.headers)
        exchanges = connection.exchanges
        if exchanges and exchanges[0] is self:
            exchanges.popleft()
            connection.send(data, self.request.keep_alive)
            if exchanges or connection.waiting:
                connection.advance()
        else:
            self.answer = data

    def begin(self, head: bytes) -> None:
        """Writes the header block of an answer that follows part by part."""
        self.begun = True
        responder = self.connection.responder
        self.connection.write(head if responder.origins is None else responder.for_origin(head, self.request.headers))

    def empty(self, status: int, headers: list[tuple[str, str]]) -> None:
        """An answer without a body."""
        length = None if status in (204, 304) else 0
        self.reply(self.responder.head(status, headers, length, self.request.keep_alive))

    def json(self, status: int, value: object) -> None:
        data = self.responder.json(status, value, self.request.keep_alive)
        self.reply(data[: data.index(b"\r\n\r\n") + 4] if self.request.method == b"HEAD" else data)

    def fail(self, failure: Failure) -> None:
        request = self.request
        head_only = request.method == b"HEAD"
        named = request_ids.HEADER in request.headers
        name = failure.request_id if isinstance(failure, InternalError) else self.name
        try:
            data = self.responder.failure(failure, request.keep_alive, head_only, request.target, name, named)
        except Exception:
            failure = faults.report("http", name)
            data = self.responder.failure(failure, request.keep_alive, head_only, request.target, name, named)
        self.reply(data)
