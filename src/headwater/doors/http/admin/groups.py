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

import asyncio
import re
from collections.abc import Callable
from typing import Any

from headwater.doors.http.access import Access
from headwater.doors.http.exchange import Exchange
from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.owned_group import OwnedGroup
from headwater.errors import BadHeader, MemberUnavailable, NoSuchGroup, NoSuchRoute
from headwater.security import policy
from headwater.security.policy import Rule

PREFIX = "/__headwater/groups"
GroupCall = Callable[[Exchange, OwnedGroup, bytes, bytes], None]
"""A handler for everything below a name: (exchange, the group, rest of the path, query)."""
EXPECTED_LOG = "Headwater-Expected-Log"
_EXPECTED_NAME = EXPECTED_LOG.lower().encode()
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,8}")
_BELOW = re.compile(rb"/(0|[1-9][0-9]{0,8})/(.*)", re.DOTALL)
_EXPECTED = re.compile(rb"([0-9a-f]{1,64})/([0-9a-f]{1,64})/([0-9]{1,18})")
_EXPECTED_FORM = "LOG/INCARNATION/POSITION"


class GroupCalls:
    def __init__(self, engine: Engine, again: Callable[[Exchange], None], access: Access | None = None) -> None:
        """`again` handles a request once more, from the beginning."""
        self.access = Access() if access is None else access
        self._rules: dict[bytes, Rule] = {}
        self.access.policy.state(PREFIX, policy.READ_ALL)
        self._engine = engine
        self._again = again
        engine.questions.register("group_states", self._answer_states)
        engine.questions.register("check_log", self._answer_check)
        self._calls: dict[bytes, GroupCall] = {}

    def call(self, name: str, call: GroupCall, rule: Rule) -> None:
        """Hands everything below `/__headwater/groups/{g}/<name>` to `call`. No name begins another."""
        self._rules[name.encode()] = self.access.policy.state(f"{PREFIX}/{{g}}/{name}", rule)
        self._calls[name.encode()] = call

    def handle(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """Everything below PREFIX."""
        if rest in (b"", b"/"):
            exchange.only(b"GET")
            exchange.run(self._states(exchange))
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

    def judge(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """See `access.Judge`. The way of `handle`."""
        if rest in (b"", b"/"):
            self.access.ruled(exchange, policy.READ_ALL)
            return
        found = _BELOW.fullmatch(rest)
        below: bytes = b"" if found is None else found[2]
        for name, rule in self._rules.items():
            if below.startswith(name) and below[len(name) : len(name) + 1] in (b"", b"/"):
                self.access.ruled(exchange, rule)
                return
        raise NoSuchRoute

    async def _states(self, exchange: Exchange) -> None:
        found = await self._engine.questions.ask_all("group_states", into=list[dict[str, Any]])
        states = [state for answer in found for state in answer]
        exchange.json(200, {"groups": sorted(states, key=lambda state: int(state["group"]))})

    async def _answer_states(self) -> list[dict[str, Any]]:
        return self._engine.states()

    def owned(self, number: int) -> OwnedGroup:
        """Raises NoSuchGroup, MemberUnavailable."""
        engine = self._engine
        if number >= engine.groups_count:
            raise NoSuchGroup(number, engine.groups_count)
        found = engine.owned.get(number)
        if found is None:
            raise MemberUnavailable(engine.questions.owner(number))
        return found

    # ---- what is expected of logs ---------------------------------------------------------------------------------

    def expect(self, exchange: Exchange, path: bytes, expected: bytes) -> bool:
        """Raises AnotherLog or LogSetBack unless the logs hold what the header says of them.

        True when others have to be asked: then the request is refused, or handled again, once they have answered.
        """
        below = _BELOW.fullmatch(path[len(PREFIX) :]) if path.startswith(PREFIX.encode()) else None
        of_path = None if below is None else int(below[1])
        if of_path is not None:
            if of_path in self._engine.owned:  # otherwise whoever it is sent on to checks it
                check_log(self._engine.owned[of_path].group, expected)
            return False
        elsewhere: list[tuple[int, bytes]] = []
        for part in expected.split(b","):
            number, mark, of_group = part.strip(b" ").partition(b":")
            if not mark or _NUMBER.fullmatch(number) is None:
                raise BadHeader(
                    EXPECTED_LOG, f"expected GROUP:{_EXPECTED_FORM}, or several with commas, as {PREFIX} has them"
                )
            if int(number) in self._engine.owned:
                check_log(self._engine.owned[int(number)].group, of_group)
            elif int(number) < self._engine.groups_count:
                elsewhere.append((int(number), of_group))
            else:
                raise NoSuchGroup(int(number), self._engine.groups_count)
        if elsewhere:
            exchange.run(self._expect_elsewhere(exchange, elsewhere))
        return bool(elsewhere)

    async def _expect_elsewhere(self, exchange: Exchange, expected: list[tuple[int, bytes]]) -> None:
        ask = self._engine.questions.ask_owner
        await asyncio.gather(*(ask(number, "check_log", number, of_group) for number, of_group in expected))
        request = exchange.request
        # What the parser remembers of the header block is shared with other requests, so it is not changed.
        request.headers = {name: value for name, value in request.headers.items() if name != _EXPECTED_NAME}
        self._again(exchange)

    async def _answer_check(self, number: int, expected: bytes) -> None:
        check_log(self.owned(number).group, expected)


def check_log(group: Group, expected: bytes) -> None:
    """Raises AnotherLog or LogSetBack unless the log holds what is said of it, BadHeader when that is not a log's."""
    found = _EXPECTED.fullmatch(expected)
    if found is None:
        raise BadHeader(EXPECTED_LOG, f"expected {_EXPECTED_FORM}, as {PREFIX} has them")
    group.lineage.check(found[1].decode(), found[2].decode(), int(found[3]), group.log.synced)
