"""Calls about one group: `/__headwater/groups/{g}/...`, and `/__headwater/groups`, which tells of all of them.

Owns the number in the path, and what is expected of a group's log. Never forwards a request: one about a group that
another process serves has been sent there before.

Positions are those of one log. `groups` says which, and `groups/{g}/incarnations` all that it has gone through (see
`model/lineage.py`); whoever goes on from a position says so with every call below `/__headwater/groups/{g}`:

    Headwater-Expected-Log: <log>/<incarnation>/<position>

and with a call that is not about one group, of as many groups as the caller knows:

    Headwater-Expected-Log: <group>:<log>/<incarnation>/<position>,<group>:<log>/<incarnation>/<position>
"""

from __future__ import annotations

import re
from collections.abc import Callable

from headwater.doors.http.exchange import Exchange
from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.owned_group import OwnedGroup
from headwater.errors import BadHeader, MemberUnavailable, NoSuchGroup, NoSuchRoute

PREFIX = "/__headwater/groups"
GroupCall = Callable[[Exchange, OwnedGroup, bytes, bytes], None]
"""A handler for everything below a name: (exchange, the group, rest of the path, query)."""
EXPECTED_LOG = "Headwater-Expected-Log"
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,8}")
_BELOW = re.compile(rb"/(0|[1-9][0-9]{0,8})/(.*)", re.DOTALL)
_EXPECTED = re.compile(rb"([0-9a-f]{1,64})/([0-9a-f]{1,64})/([0-9]{1,18})")
_EXPECTED_FORM = "LOG/INCARNATION/POSITION"


class GroupCalls:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._calls: dict[bytes, GroupCall] = {}

    def call(self, name: str, call: GroupCall) -> None:
        """Hands everything below `/__headwater/groups/{g}/<name>` to `call`. No name begins another."""
        self._calls[name.encode()] = call

    def handle(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """Everything below PREFIX."""
        if rest in (b"", b"/"):
            exchange.only(b"GET")
            exchange.json(200, {"groups": self._engine.states()})
            return
        found = _BELOW.fullmatch(rest)
        if found is None:
            raise NoSuchRoute
        owned = self.owned(int(found[1]))
        below: bytes = found[2]
        for name, call in self._calls.items():
            if below.startswith(name) and below[len(name) : len(name) + 1] in (b"", b"/"):
                call(exchange, owned, below[len(name) :], query)
                return
        raise NoSuchRoute

    def owned(self, number: int) -> OwnedGroup:
        """Raises NoSuchGroup, MemberUnavailable."""
        engine = self._engine
        if number >= engine.groups_count:
            raise NoSuchGroup(number, engine.groups_count)
        found = engine.owned.get(number)
        if found is None:
            raise MemberUnavailable(engine.questions.owner(number))
        return found

    def expect(self, path: bytes, expected: bytes) -> None:
        """Raises AnotherLog or LogSetBack unless the logs hold what the header says of them."""
        below = _BELOW.fullmatch(path[len(PREFIX) :]) if path.startswith(PREFIX.encode()) else None
        of_path = None if below is None else int(below[1])
        if of_path is not None:
            check_log(self.owned(of_path).group, expected)
            return
        for part in expected.split(b","):
            number, mark, of_group = part.strip(b" ").partition(b":")
            if not mark or _NUMBER.fullmatch(number) is None:
                raise BadHeader(
                    EXPECTED_LOG, f"expected GROUP:{_EXPECTED_FORM}, or several with commas, as {PREFIX} has them"
                )
            check_log(self.owned(int(number)).group, of_group)


def check_log(group: Group, expected: bytes) -> None:
    """Raises AnotherLog or LogSetBack unless the log holds what is said of it, BadHeader when that is not a log's."""
    found = _EXPECTED.fullmatch(expected)
    if found is None:
        raise BadHeader(EXPECTED_LOG, f"expected {_EXPECTED_FORM}, as {PREFIX} has them")
    group.lineage.check(found[1].decode(), found[2].decode(), int(found[3]), group.log.synced)
