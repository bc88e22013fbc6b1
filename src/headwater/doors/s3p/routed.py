"""Connections where several processes serve groups: a command goes to the one that owns its stream.

Owns which commands are forwarded, and their places in the order of replies. Never forwards in a circle: a command goes
to the member with the home of its stream's name, and from there at most once more, to where the stream is placed.

A forwarded write takes its place among the replies like one that is done here. A forwarded READ holds its connection
like one that is done here, and its reply is handed on piece by piece, as fast as the client takes it.
"""

from __future__ import annotations

import asyncio

from headwater.cluster.membership import Membership
from headwater.doors.s3p import outcomes
from headwater.doors.s3p.commands import Append, Auth, Command, Create, Placed, Read
from headwater.doors.s3p.connection import ALONE, Connection, Pending
from headwater.doors.s3p.exclusive import Alone
from headwater.doors.s3p.forwarding import Upstream
from headwater.doors.s3p.replies import Failure as Refusal
from headwater.doors.s3p.shared import Line, Server
from headwater.doors.s3p.wire import Parser, Taken
from headwater.engine.placements import Placement
from headwater.errors import Failure, MemberUnavailable, NotServedHere, OutcomeUnknown


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

    __slots__ = ("_begun", "_placement", "_upstream")

    _command: Read

    def __init__(
        self, connection: Line, command: Read, key: str, upstream: Upstream, placement: Placement | None
    ) -> None:
        super().__init__(connection, command, key)
        self._upstream = upstream
        self._placement = placement
        self._begun = False

    def begin(self) -> None:
        command = self._command
        if self._connection.ended and command.block_ms:
            command = Read(command.name, command.count, 0, command.min_ms, command.min_n)
        self._upstream.send(command, self._placement, self)

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


class Unconfirmed(Alone):
    """A CREATE that another member sent by a placement (see `ForkPlacement.confirm`). While it lasts, its connection's
    `alone` is this."""

    __slots__ = ("_placed", "_task")

    _connection: MemberConnection
    _command: Create

    def __init__(self, connection: MemberConnection, command: Create, key: str, placed: Placed) -> None:
        super().__init__(connection, command, key)
        self._placed = placed

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._confirm())

    async def _confirm(self) -> None:
        placing = self._connection.server.placing
        try:
            if placing is not None:
                await placing.confirm(self._key, self._placed.group)
        except Failure:
            self.guard(self._end, False)
        else:
            self.guard(self._end, True)

    def _end(self, is_confirmed: bool) -> None:
        # Now, not in a later turn of the event loop: it might be placed elsewhere by then.
        connection = self._connection
        if connection.alone is self:
            connection.alone = None
            connection.create_placed(self._command, self._key, self._placed if is_confirmed else None)
            connection.later()

    def leave(self) -> None:
        self._task.cancel()


class RoutedConnection(Connection):
    """A client's connection."""

    __slots__ = ("_members", "_upstreams")

    def __init__(self, server: Server, members: Membership) -> None:
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
        try:
            route = self._elsewhere(command.name)
        except MemberUnavailable as unowned:
            self._refuse(command.name, unowned)
            return 0
        if route is None:
            return super()._append(command, more_max)
        self._forward(command, *route)
        return 0

    def create(self, command: Create, key: str) -> None:
        try:
            route = self._elsewhere(command.name)
        except MemberUnavailable as unowned:
            self._refuse(command.name, unowned)
            return
        if route is None:
            super().create(command, key)
        else:
            self._forward(command, *route)

    def _start(self, command: Taken) -> bool:
        if isinstance(command, Auth | Create | Placed | Refusal):
            return super()._start(command)
        try:
            route = self._elsewhere(command.name)
        except MemberUnavailable as unowned:
            self._refuse(command.name, unowned)
            return True
        if route is None:
            return super()._start(command)
        if not isinstance(command, Read):
            self._forward(command, *route)
            return True
        self._send_ready()
        if self.pending:
            return False
        member, placement = route
        key = self.server.key(command.name)
        self.alone = reading = ForwardedReading(self, command, key, self._upstream(member), placement)
        reading.guard(reading.begin)
        return True

    def _elsewhere(self, name: bytes) -> tuple[int, Placement | None] | None:
        """The member that a command about this stream goes to; None when this one does it.

        That is the one with the home of its name. The home says where the stream is placed, if it is not there.
        Raises MemberUnavailable when no process serves that now.
        """
        engine = self.server.engine
        key = self.server.key(name)
        home = engine.home(key)
        if home not in engine.owned:
            return self._members.owner(home), None
        placement = engine.placement(key)
        if placement is None or placement.group in engine.owned:
            return None
        return self._members.owner(placement.group), placement

    def _forward(self, command: Command, member: int, placement: Placement | None) -> None:
        waiter = Forwarded(self, command.name, ALONE)
        self.pending.append(waiter)
        try:
            self._upstream(member).send(command, placement, waiter)
        except Exception:
            waiter.broke()
            self.later()

    def _refuse(self, name: bytes, failure: MemberUnavailable) -> None:
        waiter = Pending(self, name, ALONE)
        self.pending.append(waiter)
        waiter.resolve(failure)

    def _upstream(self, member: int) -> Upstream:
        found = self._upstreams.get(member)
        if found is None or found.over:
            found = self._upstreams[member] = Upstream(member, self._members)
        return found


class MemberConnection(RoutedConnection):
    """A connection of another member. What comes on it is done here, or goes to where its home says that it is placed.

    Anything else is refused, and the client tries again.
    """

    __slots__ = ()

    def __init__(self, server: Server, members: Membership) -> None:
        super().__init__(server, members)
        self._parser = Parser(server.limits, from_member=True)
        self.caller = self.limited = None
        self.asked = False

    def _append(self, command: Append, more_max: int = 0) -> int:
        if not self._is_home(command.name):
            self._refuse_here(command.name)
            return 0
        return super()._append(command, more_max)

    def _start(self, command: Taken) -> bool:
        if isinstance(command, Placed):
            return self._start_placed(command)
        if not isinstance(command, Refusal) and not self._is_home(command.name):
            self._refuse_here(command.name)
            return True
        return super()._start(command)

    def _start_placed(self, placed: Placed) -> bool:
        command = placed.command
        key = self.server.key(command.name)
        try:
            self.server.engine.admit(key, placed.group, placed.version, isinstance(command, Create))
        except (NotServedHere, MemberUnavailable):
            self._refuse_here(command.name)
            return True
        if isinstance(command, Append):
            Connection._append(self, command)
            return True
        placing = self.server.placing
        if isinstance(command, Create) and placing is not None and placing.is_doubtful(placed.group):
            self.alone = Unconfirmed(self, command, key, placed)
            self.alone.guard(self.alone.begin)
            return True
        if isinstance(command, Create):
            Connection.create(self, command, key)
            return True
        # One that has to wait is admitted again when its turn comes.
        return Connection._start(self, command)

    def create_placed(self, command: Create, key: str, confirmed: Placed | None) -> None:
        """`confirmed` is None when its placement is not true any more, or nobody could tell."""
        try:
            if confirmed is None:
                raise NotServedHere(self.server.engine.home(key))
            self.server.engine.admit(key, confirmed.group, confirmed.version, creates=True)
        except NotServedHere:
            self._refuse_here(command.name)
        else:
            Connection.create(self, command, key)

    def _is_home(self, name: bytes) -> bool:
        engine = self.server.engine
        return engine.home(self.server.key(name)) in engine.owned

    def _refuse_here(self, name: bytes) -> None:
        home = self.server.engine.home(self.server.key(name))
        self._refuse(name, outcomes.not_here(self.server.engine, NotServedHere(home)))
