"""Requests that another process of this node has to answer, and where forks are placed.

Owns who answers a request: the process that serves the group of a stream, a bucket or a call. Never sends anything
itself: `cluster.forwarding` does.

A request is sent on once: from where the client is connected to the process that serves the home of its stream's name.
That one may send it on once more, marked (`PLACED`), to where a fork lives. Nothing else is sent on: a process that
gets what it does not serve refuses it, and the client tries again.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from headwater.cluster.forwarding import PLACED, Forwarder
from headwater.doors.http.exchange import Exchange
from headwater.engine.engine import Engine
from headwater.engine.fork_placement import ForkPlacement
from headwater.errors import MemberUnavailable, NoOwner, NotServedHere
from headwater.model.names import SUBSCRIPTIONS

_MARK = re.compile(rb"([0-9]{1,9})/([0-9]{1,19})")


class Elsewhere:
    """Of a node with several groups."""

    def __init__(self, engine: Engine, placing: ForkPlacement, forwarder: Forwarder) -> None:
        self._engine = engine
        self._placing = placing
        self._forwarder = forwarder
        self._owned = engine.owned
        self.again = forwarder.forward_again
        """See `Forwarder.forward_again`."""

    def stream(self, exchange: Exchange, key: str, source: str | None, act: Callable[[], None]) -> None:
        """Calls `act` when the stream lives here, and sends the request on otherwise. `source`: it creates a fork."""
        engine = self._engine
        home = engine.home(key)
        if home not in self._owned:
            mark = exchange.request.headers.get(PLACED) if exchange.internal else None
            if mark is None:
                self.group(exchange, home, act)
                return
            found = _MARK.fullmatch(mark)
            if found is None:
                raise NotServedHere(home)
            group, version, creates = int(found[1]), int(found[2]), exchange.request.method == b"PUT"
            if creates and self._placing.is_doubtful(group):
                self._hold(exchange)
                exchange.run(self._confirmed(exchange, key, group, version, act))
            else:
                engine.admit(key, group, version, creates)
                act()
        elif source is not None or (exchange.request.method == b"PUT" and self._placing.is_deciding(key)):
            self._hold(exchange)
            exchange.run(self._created(exchange, key, source, act))
        else:
            self._where_placed(exchange, key, act)

    def _hold(self, exchange: Exchange) -> None:
        """What came after it on its connection may be about the same stream, and waits. Called before anything does."""
        exchange.connection.unjudged = exchange

    async def _confirmed(self, exchange: Exchange, key: str, group: int, version: int, act: Callable[[], None]) -> None:
        connection = exchange.connection
        try:
            await self._placing.confirm(key, group)
        finally:
            connection.unjudged = None
        self._engine.admit(key, group, version, creates=True)
        act()
        connection.advance()

    async def _created(self, exchange: Exchange, key: str, source: str | None, act: Callable[[], None]) -> None:
        connection = exchange.connection
        try:
            await (self._placing.decided(key) if source is None else self._placing.place(key, source))
        finally:
            connection.unjudged = None
        self._where_placed(exchange, key, act)
        connection.advance()

    def _where_placed(self, exchange: Exchange, key: str, act: Callable[[], None]) -> None:
        placed = self._engine.placement(key)
        if placed is None or placed.group in self._owned:
            act()
        else:
            mark = b"%d/%d" % (placed.group, placed.version)
            member = self._engine.questions.owner(placed.group)
            answered = self._placing.sent(key) if exchange.request.method == b"PUT" else None
            self._forwarder.forward(exchange, member, mark, answered)

    def group(self, exchange: Exchange, group: int, act: Callable[[], None]) -> None:
        """Calls `act` when this process serves the group, and sends the request on otherwise."""
        if group in self._owned or group >= self._engine.groups_count:
            act()
        elif exchange.internal:
            raise MemberUnavailable(self._engine.questions.owner(group))
        else:
            try:
                member = self._engine.questions.owner(group)
            except NoOwner:
                self._hold(exchange)
                exchange.run(self._when_owned(exchange, group, act))
            else:
                self._send(exchange, member)

    async def _when_owned(self, exchange: Exchange, group: int, act: Callable[[], None]) -> None:
        """The group changes hands: its next owner answers."""
        connection = exchange.connection
        try:
            member = await self._engine.questions.wait_for_owner(group)
        finally:
            connection.unjudged = None
        if group in self._owned:
            act()
        else:
            self._send(exchange, member)
        connection.advance()

    def _send(self, exchange: Exchange, member: int) -> None:
        location = self._forwarder.location(exchange, member)
        if location is None:
            self._forwarder.forward(exchange, member)
        else:
            headers = [("Location", location), ("Cache-Control", "no-store")]
            exchange.reply(exchange.responder.full(307, headers, b"", exchange.request.keep_alive))

    def subscription(self, exchange: Exchange, name: str, act: Callable[[], None]) -> None:
        """The same for the group that a subscription lives in."""
        self.group(exchange, self._engine.home(f"{SUBSCRIPTIONS}/{name}"), act)
