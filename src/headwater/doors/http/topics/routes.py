"""Everything below /v0/: which handler a request belongs to.

Owns the map, and what is remembered of paths that come again. Never handles anything itself.

    /v0/topics                      GET             the topics of a bucket
    /v0/topics/{topic}              PUT, GET, PATCH, DELETE    a topic
    /v0/topics/{topic}/{verb}                       what a verb names; each family of them registers its own
    /v0/{page}                                      what is about several topics, or about none
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from headwater.doors.http.access import Access, demand
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.topics.answers import Timing
from headwater.doors.http.topics.paths import TopicPath, topic_path
from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.outcome_future import OutcomeFuture
from headwater.errors import MethodNotAllowed, NoSuchRoute
from headwater.security.policy import Rule, of_stream
from headwater.security.principals import Action, Need

PREFIX = "/v0/"
_PATHS_MAX = 65_536

Of = Callable[[Exchange, str, bytes, Timing], None]
"""Handles a request about one topic, where it lives: (exchange, its key, query, what time goes to)."""
Page = Callable[[Exchange, bytes, bytes, Timing], None]
"""Handles any other: (exchange, rest of the path, query, what time goes to)."""
Where = Callable[[Exchange, str, Callable[[], None]], None]
"""Calls something in the process where a stream lives. See `Routes.where`."""
Also = Callable[[bytes], list[Need]]
"""What a request's body needs. Raises Failure when it cannot be read."""
Handler = TypeVar("Handler")


class TopicRoutes:
    def __init__(self, name_bytes_max: int, where: Where, access: Access | None = None) -> None:
        self.access = Access() if access is None else access
        self._rules: dict[str, Rule] = {}
        self._also: dict[tuple[str, bytes], Also] = {}
        self._page_rules: dict[bytes, Rule] = {}
        self._name_bytes_max = name_bytes_max
        self._where = where
        self._verbs: dict[str, dict[bytes, Of]] = {}
        self._anywhere: set[str] = set()
        self._pages: dict[bytes, dict[bytes, Page]] = {}
        self._paths: dict[bytes, TopicPath] = {}

    def verb(
        self, name: str, method: str, of: Of, needs: Action, anywhere: bool = False, also: Also | None = None
    ) -> None:
        """Serves /v0/topics/{topic}/{name}; the empty name is the topic itself. `needs`: what a client must be allowed;
        `also`: what the body asks for beside that.

        `anywhere`: it is served in the process that the request came to, wherever the topic lives.
        """
        route = f"{PREFIX}topics/{{topic}}" + (f"/{name}" if name else "")
        self.access.policy.state(route, of_stream(method, needs))
        self._rules[name] = self.access.policy.rule(route)
        if also is not None:
            self._also[name, method.encode()] = also
        self._verbs.setdefault(name, {})[method.encode()] = of
        if anywhere:
            self._anywhere.add(name)

    def page(self, name: str, method: str, page: Page, rule: Rule) -> None:
        """Serves /v0/{name}, and everything below it."""
        self._page_rules[name.encode()] = self.access.policy.state(PREFIX + name, rule)
        self._pages.setdefault(name.encode(), {})[method.encode()] = page

    def handle(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """`rest` is what follows /v0/. Raises Failure when it is refused at once."""
        timing = Timing()
        name, slash, below = rest.partition(b"/")
        if name == b"topics" and slash:
            path = self._paths.get(below) or self._parsed(below)
            of = _served(self._verbs.get(path.verb), exchange)
            if path.verb in self._anywhere:
                of(exchange, path.key, query, timing)
            else:
                self._where(exchange, path.key, partial(of, exchange, path.key, query, timing))
        else:
            _served(self._pages.get(name), exchange)(exchange, below, query, timing)

    def judge(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """See `access.Judge`. The way of `handle`."""
        name, slash, below = rest.partition(b"/")
        if name == b"topics" and slash:
            path = self._paths.get(below) or self._parsed(below)
            rule = self._rules.get(path.verb)
            if rule is None:
                raise NoSuchRoute
            also = self._also.get((path.verb, exchange.request.method))
            if also is None:
                self.access.stream(exchange, rule, path.key)
            else:
                action = self.access.action(exchange, rule)
                self.access.identify(exchange)
                demand(exchange, Need(action, path.key))
                demand(exchange, *also(exchange.request.body))
        elif (rule := self._page_rules.get(name)) is not None:
            self.access.ruled(exchange, rule)
        else:
            raise NoSuchRoute

    def _parsed(self, below: bytes) -> TopicPath:
        path = topic_path(below, self._name_bytes_max)
        # Clients repeat their paths. Overflow: all are forgotten.
        if len(self._paths) >= _PATHS_MAX:
            self._paths.clear()
        self._paths[below] = path
        return path


def _served(by_method: dict[bytes, Handler] | None, exchange: Exchange) -> Handler:
    if by_method is None:
        raise NoSuchRoute
    found = by_method.get(exchange.request.method)
    if found is None:
        methods = ", ".join(method.decode() for method in by_method)
        raise MethodNotAllowed(f"{methods}, OPTIONS")
    return found


def once_published(engine: Engine, exchange: Exchange, key: str, act: Callable[[], None]) -> None:
    """Calls `act` once no creation or deletion of the topic is under way."""
    if engine.unpublished(key):
        exchange.when(lambda _: act())
        engine.after_published(key, exchange)
    else:
        act()


async def published(engine: Engine, group: int, key: str) -> LoadedStream:
    """A topic of this process as readers see it, once no creation or deletion of it is under way.

    Raises StreamNotFound, StreamSoftDeleted, GroupMoved.
    """
    owned = engine.serving(group)
    if owned.group.unpublished(key):
        future = OutcomeFuture()
        owned.group.after_published(key, future)
        await future.success()
        owned = engine.serving(group)
    if engine.home(key) == group:
        return engine.find(key, True)
    return owned.group.find(key, True)
