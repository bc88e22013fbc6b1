"""What subscriptions and routers ask of a client: those that a body describes, and those that are known by a name.

Owns what they need, and the question of what an existing one is about, which only the process that has it can tell.
Whoever could have made one may look at it, change it and delete it; for anybody else it is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from headwater.doors.http.access import Access, demand, refusal
from headwater.doors.http.exchange import Exchange
from headwater.engine.buckets import DIRECTORY
from headwater.engine.engine import Engine
from headwater.errors import Failure, RouterCycle, RouterNotFound, SubscriptionNotFound
from headwater.model import glob
from headwater.model.names import DEFAULT_BUCKET, SUBSCRIPTIONS
from headwater.model.subscriptions import key_of
from headwater.security import policy
from headwater.security.principals import Action, Need
from headwater.subscriptions.manager import Manager
from headwater.topics.routers import Routers

_SUBSCRIPTION, _ROUTER, _CYCLE = "subscription_about", "router_about", "router_cycle"
About = tuple[str | None, list[str], str | None]
"""Of a subscription: its pattern, the paths that it names, and its wake stream."""


def pattern_needs(pattern: str) -> list[Need]:
    """Reading all that a pattern can ever match: what is before its first wildcard has to lie within the scope."""
    start, whole = glob.literal_prefix(pattern)
    if whole:
        return [Need(Action.READ, key_of(start))]
    if not start:
        alone = glob.parse(pattern) == (glob.ONE,)
        return [Need(Action.READ, f"{DEFAULT_BUCKET}/" if alone else "", True)]
    needs = [Need(Action.READ, f"{start}/", True)]
    if glob.matches(pattern, start):
        needs.append(Need(Action.READ, key_of(start)))  # `a/**` is `a` too
    return needs


def subscription_needs(pattern: str | None, paths: Sequence[str], wake_stream: str | None) -> list[Need]:
    needs = [] if pattern is None else pattern_needs(pattern)
    needs += [Need(Action.READ, key_of(path)) for path in paths]
    if wake_stream is not None:
        needs.append(Need(Action.APPEND, key_of(wake_stream)))
    return needs


def router_needs(source: str, dest: str) -> list[Need]:
    return [Need(Action.READ, source), Need(Action.APPEND | Action.CREATE, dest)]


class SubscriptionAccess:
    def __init__(self, access: Access, engine: Engine, manager: Manager) -> None:
        self.access = access
        self._engine = engine
        self._manager = manager
        engine.questions.register(_SUBSCRIPTION, self._answer)

    async def known(self, exchange: Exchange, name: str, action: str) -> None:
        """An existing one, by its id. Raises SubscriptionNotFound."""
        if exchange.principal.everything:
            return
        home = self._engine.home(f"{SUBSCRIPTIONS}/{name}")
        about: About | None = await self._engine.questions.ask_owner(home, _SUBSCRIPTION, name, into=About | None)
        if about is None:
            raise SubscriptionNotFound
        pattern, paths, wake_stream = about
        looks = action in ("GET", "claim")
        _demand(exchange, subscription_needs(pattern, paths, None if looks else wake_stream), SubscriptionNotFound())

    async def _answer(self, name: str) -> About | None:
        try:
            sub = self._manager.find(name)
        except SubscriptionNotFound:
            return None
        named = [path for path, link in sub.links.items() if link.explicit]
        return sub.config.pattern, named, sub.config.wake_stream


class RouterAccess:
    def __init__(self, access: Access, engine: Engine, routers: Routers) -> None:
        self.access = access
        self._engine = engine
        self._routers = routers
        state = access.policy.state
        state("/v0/routers", policy.ROUTERS)
        state("/v0/routers/{router}", policy.ROUTER)
        engine.questions.register(_ROUTER, self._answer)
        engine.questions.register(_CYCLE, self._answer_cycle)

    async def known(self, exchange: Exchange, name: str) -> None:
        """An existing one, by its name. Raises RouterNotFound."""
        if exchange.principal.everything:
            return
        ask = self._engine.questions.ask_owner
        about: tuple[str, str] | None = await ask(DIRECTORY, _ROUTER, name, into=tuple[str, str] | None)
        if about is None:
            raise RouterNotFound
        _demand(exchange, router_needs(*about), RouterNotFound())

    async def new(self, exchange: Exchange, name: str, source: str, dest: str) -> None:
        """One that is to be, between topics by their keys. Raises RouterCycle, without the names that this client may
        not read: whoever defines routers, where the request is sent next, does not know the client, and would tell."""
        ask = self._engine.questions.ask_owner
        found: list[str] = await ask(DIRECTORY, _CYCLE, name, source, dest, into=list[str])
        may, own = exchange.principal.may, (source, dest)
        shown = [path if key_of(path) in own or may(Action.READ, key_of(path)) else None for path in found]
        if None in shown:
            raise RouterCycle([path for path, _ in groupby(shown)])  # nor how many they are

    async def _answer(self, name: str) -> tuple[str, str] | None:
        return self._routers.about(name)

    async def _answer_cycle(self, name: str, source: str, dest: str) -> list[str]:
        found = self._routers.cycle(name, source, dest)
        if found:
            await self._routers.durable()
        return found


def _demand(exchange: Exchange, needs: list[Need], otherwise: Failure) -> None:
    principal = exchange.principal
    for need in needs:
        if not principal.meets(need):
            refusal(exchange, need)  # for the audit log: to the client it is not there
            raise otherwise
    demand(exchange, *needs)
