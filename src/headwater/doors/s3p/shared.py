"""What a command may use of its connection, and a connection of its listener, as Protocols.

Owns no code: `connection` and `server` are what stands behind them. Never imports either, so that none of them needs
the other to be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headwater.config import Settings
from headwater.doors.s3p.commands import Create, Limits
from headwater.engine.engine import Engine
from headwater.engine.fork_placement import ForkPlacement
from headwater.engine.pending_answers import Waiter
from headwater.model import commands as model
from headwater.security.guard import Guard
from headwater.security.limits import Limits as UseLimits
from headwater.security.principals import Principal, Trail


class Server(Protocol):
    """What the connections of one listener share. See `server`."""

    settings: Settings
    engine: Engine
    limits: Limits
    guard: Guard
    use_limits: UseLimits | None
    """How much clients may use; None: nobody is told to wait."""
    audit: Trail | None
    """Where it is told who was refused, and what was deleted; None: nowhere."""
    keys: dict[bytes, str]
    submit: Callable[[str, model.Command, Waiter], None]
    placing: ForkPlacement | None
    """None with one group."""
    admitted: Callable[[bytes | None], Principal | None] | None
    """Whom a client's certificate is for; None where none is asked for, or none means anything."""
    blocked_count: int
    closing: bool

    @property
    def now_s(self) -> float: ...

    def key(self, name: bytes) -> str: ...

    def soon(self, connection: Any) -> None: ...

    def admit(self, connection: Any) -> bool: ...

    def forget(self, connection: Any) -> None: ...


class Line(Protocol):
    """The connection that a command holds. See `connection`."""

    server: Server
    alone: Any
    paused: bool

    @property
    def ended(self) -> bool: ...

    def write(self, data: bytes) -> None: ...

    def finish(self, alone: Any) -> None: ...

    def create(self, command: Create, key: str) -> None: ...

    def submit(self, name: bytes, key: str, command: model.Command) -> None: ...

    def later(self) -> None: ...

    def abort(self) -> None: ...
