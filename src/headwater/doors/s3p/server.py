"""The S3P listener: what its connections share, and the pass that sends their replies.

Owns the keys of names and the order of that pass. Never looks at a command: `connection` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from headwater.cluster.membership import Membership
from headwater.config import Settings
from headwater.doors.listener import BACKLOG, Listener
from headwater.doors.s3p import names
from headwater.doors.s3p.commands import Limits
from headwater.doors.s3p.connection import Connection
from headwater.doors.s3p.routed import MemberConnection, RoutedConnection
from headwater.engine.engine import Engine
from headwater.engine.fork_placement import ForkPlacement
from headwater.security.guard import Guard
from headwater.security.limits import Limits as UseLimits
from headwater.security.principals import Principal, Trail

_KEYS_MAX = 65_536
_KEPT_NAME_BYTES_MAX = 128


class S3pServer(Listener[Connection]):
    """`members` are the processes that serve groups, None when this is the only one. `placing`: None with one group.
    Without `guard` nobody is asked who they are; without `use_limits` nobody is told to wait."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        members: Membership | None = None,
        placing: ForkPlacement | None = None,
        guard: Guard | None = None,
        audit: Trail | None = None,
        use_limits: UseLimits | None = None,
    ) -> None:
        self.audit = audit
        self.use_limits = use_limits
        self.guard = Guard(engine.clock) if guard is None else guard
        self.admitted: Callable[[bytes | None], Principal | None] | None = None
        super().__init__(settings.s3p_connections_max)
        self._members = members
        self.placing = placing
        self.from_members: set[Connection] = set()
        """Connections on which other members forward. They take no client's place and have no time limits: those of
        the client are kept where it is connected, and they end with its connection."""
        self.settings = settings
        self.engine = engine
        self.submit = engine.submit
        self.limits = Limits(
            name_bytes_max=settings.s3p_name_bytes_max,
            count_default=settings.s3p_count_default,
            count_max=settings.s3p_count_max,
            block_ms_max=settings.s3p_block_ms_max,
            records_max=settings.s3p_records_max,
            record_bytes_max=settings.s3p_record_bytes_max,
            append_bytes_max=settings.s3p_append_bytes_max,
            auth=self.guard.on,
        )
        self.blocked_count = 0
        """READs that wait for records."""
        self.keys: dict[bytes, str] = {}
        """Keys of the names that were used lately."""
        self._due: list[Connection] = []

    def accept(self) -> Connection:
        """The protocol object of a client's connection."""
        return Connection(self) if self._members is None else RoutedConnection(self, self._members)

    def accept_member(self) -> MemberConnection:
        """The protocol object of another member's connection, on which it forwards."""
        if self._members is None:
            raise RuntimeError("there is no other process to connect")
        return MemberConnection(self, self._members)

    async def listen_unix(self, path: str) -> None:
        """Starts to accept connections of other members, on which they forward. Raises OSError."""
        with suppress(FileNotFoundError):
            os.unlink(path)
        self.begin(await self._loop.create_unix_server(self.accept_member, path, backlog=BACKLOG))

    async def close(self, grace_s: float) -> None:
        self.connections |= self.from_members
        await super().close(grace_s)

    def admit(self, connection: Connection) -> bool:
        if isinstance(connection, MemberConnection) and not self.closing:
            self.from_members.add(connection)
            return True
        return super().admit(connection)

    def forget(self, connection: Connection) -> None:
        super().forget(connection)
        self.from_members.discard(connection)

    def key(self, name: bytes) -> str:
        """Clients repeat their names: the keys of short ones are kept. Overflow: all are forgotten."""
        key = self.keys.get(name)
        if key is None:
            key = names.key_of(name)
            if len(name) <= _KEPT_NAME_BYTES_MAX:
                if len(self.keys) >= _KEYS_MAX:
                    self.keys.clear()
                self.keys[name] = key
        return key

    def soon(self, connection: Connection) -> None:
        """Has `connection.advance` called in the next turn, together with all others that ask until then."""
        if not self._due:
            self._loop.call_soon(self._pass)
        self._due.append(connection)

    def _pass(self) -> None:
        due, self._due = self._due, []
        for connection in due:
            try:
                connection.advance()
            except Exception:
                connection.broke()
