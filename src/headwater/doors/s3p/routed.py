"""A client's connection where several processes serve groups: a command goes to the one that owns its stream.

Owns which commands are forwarded, and their places in the order of replies. Never carries a connection of another
member: what was forwarded is answered where it arrives, or refused.

A forwarded write takes its place among the replies like one that is done here. A forwarded READ holds its connection
like one that is done here, and its reply is handed on piece by piece, as fast as the client takes it.
"""

from __future__ import annotations

from headwater.cluster.members import Members
from headwater.doors.s3p import outcomes
from headwater.doors.s3p.commands import Append, Command, Read
from headwater.doors.s3p.connection import ALONE, Connection, Pending
from headwater.doors.s3p.exclusive import Alone
from headwater.doors.s3p.forwarding import Upstream
from headwater.doors.s3p.replies import Failure as Refusal
from headwater.doors.s3p.shared import Line, Server
from headwater.errors import MemberUnavailable, OutcomeUnknown


class Forwarded(Pending, gc=False, eq=False):
    """A write that another member does. A Waiting of `forwarding`."""

    begun: bytes = b""
    """The reply as far as it came, before it is complete."""

    def piece(self, data: bytes, is_last: bool) -> None:
        if not is_last:
            self.begun += data
            return
        self.replies = self.begun + data if self.begun else data
        if not self.connection.due:
            self.connection.later()

    def lost(self, member: int, sent: bool) -> None:
        self.resolve(OutcomeUnknown(member) if sent else MemberUnavailable(member))


class ForwardedReading(Alone):
    """A READ that another member does. While it lasts, its connection's `alone` is this. A Waiting of `forwarding`."""

    __slots__ = ("_begun", "_upstream")

    _command: Read

    def __init__(self, connection: Line, command: Read, key: str, upstream: Upstream) -> None:
        super().__init__(connection, command, key)
        self._upstream = upstream
        self._begun = False

    def begin(self) -> None:
        command = self._command
        if self._connection.ended and command.block_ms:
            command = Read(command.name, command.count, 0, command.min_ms, command.min_n)
        self._upstream.send(command, self)

    @property
    def begun(self) -> bool:
        return self._begun

    def piece(self, data: bytes, is_last: bool) -> None:
        self.guard(self._hand_on, data, is_last)

    def _hand_on(self, data: bytes, is_last: bool) -> None:
        connection = self._connection
        if connection.alone is not self:
            return
        self._begun = True
        connection.write(data)
        if is_last:
            connection.finish(self)
        elif connection.paused:
            self._upstream.pause()

    def lost(self, member: int, sent: bool) -> None:
        connection = self._connection
        if connection.alone is not self:
            return
        if self._begun:
            connection.abort()
        else:
            connection.write(outcomes.failed(self._command.name, MemberUnavailable(member)))
            connection.finish(self)

    def drained(self) -> None:
        self._upstream.resume()

    def stop(self) -> None:
        if self._command.block_ms and not self._begun:
            self._upstream.end()

    def leave(self) -> None:
        self._upstream.close()


class RoutedConnection(Connection):
    __slots__ = ("_members", "_upstreams")

    def __init__(self, server: Server, members: Members) -> None:
        super().__init__(server)
        self._members = members
        self._upstreams: dict[int, Upstream] = {}
        """Connections to other members: made when first needed, closed with this one."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for upstream in self._upstreams.values():
            upstream.close()
        self._upstreams.clear()

    def _append(self, command: Append, more_max: int = 0) -> int:
        member = self._elsewhere(command.name)
        if member is None:
            return super()._append(command, more_max)
        self._forward(member, command)
        return 0

    def _start(self, command: Command | Refusal) -> bool:
        member = None if isinstance(command, Refusal) else self._elsewhere(command.name)
        if member is None or isinstance(command, Refusal):
            return super()._start(command)
        if not isinstance(command, Read):
            self._forward(member, command)
            return True
        self._send_ready()
        if self.pending:
            return False
        key = self.server.key(command.name)
        self.alone = reading = ForwardedReading(self, command, key, self._upstream(member))
        reading.guard(reading.begin)
        return True

    def _elsewhere(self, name: bytes) -> int | None:
        """The member that a command about this stream is for; None when it is this one."""
        engine, members = self.server.engine, self._members
        key = self.server.key(name)
        member = members.owner(engine.home(key))
        if member == members.me:
            member = members.owner(engine.place(key))
        return None if member == members.me else member

    def _forward(self, member: int, command: Command) -> None:
        waiter = Forwarded(self, command.name, ALONE)
        self.pending.append(waiter)
        try:
            self._upstream(member).send(command, waiter)
        except Exception:
            waiter.broke()
            self.later()

    def _upstream(self, member: int) -> Upstream:
        found = self._upstreams.get(member)
        if found is None or found.over:
            found = self._upstreams[member] = Upstream(member, self._members.s3p_path(member))
        return found
