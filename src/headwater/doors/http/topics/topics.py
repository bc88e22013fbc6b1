"""Topics themselves: make them, look at them, configure, delete and list them.

Owns `/v0/topics` and `/v0/topics/{topic}`. Never touches their records.

    PUT     a creation: 201; 200 when the topic is there with that configuration, which is complete: what the body
            leaves out has its default
    PATCH   changes what the body names
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from headwater.doors.http import headers as parse
from headwater.doors.http.access import refusal
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.topics.answers import Timing, reply_value
from headwater.doors.http.topics.config import Configs
from headwater.doors.http.topics.paths import topic_name
from headwater.doors.http.topics.routes import TopicRoutes, once_published
from headwater.doors.http.topics.state import State, state_of
from headwater.engine import listing
from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.pending_answers import Outcome
from headwater.errors import BadQuery, NoSuchRoute, StreamExists, StreamNotFound
from headwater.model.commands import Create, Delete, Retention
from headwater.model.events import Created
from headwater.model.names import DEFAULT_BUCKET
from headwater.security import policy
from headwater.security.principals import Action, Need, Scope

LIMIT_DEFAULT = 100
LIMIT_MAX = 1_000
QUESTION = "topics_page"
_LIST_QUERY = ("bucket", "prefix", "limit", "after")


class _Listed(msgspec.Struct, frozen=True):
    topic: str
    state: State


_Page = tuple[list[tuple[str, State]], bool]
"""Topics by their keys, and whether there are more."""


class Topics:
    def __init__(self, engine: Engine, configs: Configs) -> None:
        self._engine = engine
        self._configs = configs
        self.more_state: Callable[[LoadedStream], dict[str, object]] = lambda stream: {}
        self.on_configured: Callable[[LoadedStream], None] = lambda stream: None
        """What else is told of a topic's state."""
        engine.questions.register(QUESTION, self._answer_page)

    def register(self, routes: TopicRoutes) -> None:
        routes.verb("", "PUT", self._put, Action.CREATE, also=self._writes_to)
        routes.verb("", "GET", self._get, Action.READ)
        routes.verb("", "PATCH", self._patch, Action.MANAGE, also=self._writes_to)
        routes.verb("", "DELETE", self._delete, Action.MANAGE)
        routes.page("topics", "GET", self._list, policy.TOPICS)

    def _writes_to(self, body: bytes) -> list[Need]:
        """What a configuration needs beside its topic: jobs that are dead are written to another one."""
        other = self._configs.writes_to(body)
        return [] if other is None else [Need(Action.APPEND | Action.CREATE, other)]

    def _put(self, exchange: Exchange, key: str, query: bytes, timing: Timing) -> None:
        command = self._configs.create(key, exchange.request.body)
        exchange.when(partial(self._created, exchange, key, command, timing))
        timing.judged()
        self._engine.submit(key, command, exchange)

    def _created(self, exchange: Exchange, key: str, command: Create, timing: Timing, outcome: Outcome) -> None:
        stream = self._engine.look(key)
        if stream is None:
            raise StreamNotFound  # somebody has deleted it since
        created = type(outcome) is Created
        if not created and (stream.retention or Retention()) != (command.retention or Retention()):
            raise StreamExists("ttl_ms, cap_records or cap_bytes")
        self._show(exchange, 201 if created else 200, stream, timing, created=created)

    def _get(self, exchange: Exchange, key: str, query: bytes, timing: Timing) -> None:
        once_published(self._engine, exchange, key, partial(self._found, exchange, key, timing))

    def _found(self, exchange: Exchange, key: str, timing: Timing) -> None:
        stream = self._engine.find(key, False)
        timing.waits_for_log = False

        def aged(_: None) -> None:
            self._show(exchange, 200, stream, timing)

        show = exchange.told(aged)
        # Without the lake what is known is shown.
        self._engine.when_aged(stream, lambda failure: show(None))

    def _patch(self, exchange: Exchange, key: str, query: bytes, timing: Timing) -> None:
        def configured(_: Outcome) -> None:
            stream = self._engine.find(key, False)
            self._engine.apply_retention(stream)
            self.on_configured(stream)
            self._show(exchange, 200, stream, timing)

        def configure() -> None:
            command = self._configs.change(self._engine.find(key, False), exchange.request.body)
            exchange.when(configured)
            timing.judged()
            self._engine.submit(key, command, exchange)

        once_published(self._engine, exchange, key, configure)

    def _delete(self, exchange: Exchange, key: str, query: bytes, timing: Timing) -> None:
        def deleted(_: Outcome) -> None:
            reply_value(exchange, 200, {"topic": topic_name(key), "deleted": True}, timing)

        exchange.when(deleted)
        timing.judged()
        self._engine.submit(key, Delete(), exchange)

    def _show(self, exchange: Exchange, status: int, stream: LoadedStream, timing: Timing, **more: object) -> None:
        shown = {
            "topic": topic_name(stream.key),
            **more,
            "config": self._configs.shown(stream),
            "state": {**msgspec.structs.asdict(state_of(stream)), **self.more_state(stream)},
        }
        reply_value(exchange, status, shown, timing)

    # ---- listing --------------------------------------------------------------------------------------------------

    def _list(self, exchange: Exchange, rest: bytes, query: bytes, timing: Timing) -> None:
        if rest:
            raise NoSuchRoute
        wanted = parse.query(query, _LIST_QUERY)
        bucket = wanted.get("bucket") or DEFAULT_BUCKET
        if "/" in bucket:
            raise BadQuery("bucket", "a bucket has a name without slashes")
        limit = parse.whole(wanted, "limit", LIMIT_DEFAULT, LIMIT_MAX)
        if limit == 0:
            raise BadQuery("limit", f"expected 1 to {LIMIT_MAX}")
        after = wanted.get("after", "").removeprefix(f"{bucket}/")
        timing.waits_for_log = False
        principal, below = exchange.principal, f"{bucket}/{wanted.get('prefix', '')}"
        narrow = principal.within(Action.READ, below)
        if narrow == []:
            raise refusal(exchange, Need(Action.READ, below, True))
        exchange.run(self._listed(exchange, [Scope(0, below)] if narrow is None else narrow, after, limit, timing))

    async def _listed(self, exchange: Exchange, parts: list[Scope], after: str, limit: int, timing: Timing) -> None:
        answers = [answer for part in parts for answer in await self._part(part, after, limit)]
        found = sorted((one for some, _ in answers for one in some), key=lambda one: one[0])
        has_more = len(found) > limit or any(more for _, more in answers)
        shown = [_Listed(topic_name(key), state) for key, state in found[:limit]]
        reply_value(exchange, 200, {"topics": shown, "next": shown[-1].topic if has_more else None}, timing)

    async def _part(self, part: Scope, after: str, limit: int) -> list[_Page]:
        """What one scope lets be seen."""
        bucket, _, start = part.start.partition("/")
        ask = self._engine.questions.ask_all
        if not part.exact:
            answers: list[_Page] = await ask(QUESTION, bucket, start, after, limit, into=_Page)
            return answers
        pages = await ask(QUESTION, bucket, start, "", 1, into=_Page)
        return [([one for one in some if one[0] == part.start and start > after], False) for some, _ in pages]

    async def _answer_page(self, bucket: str, prefix: str, after: str, limit: int) -> Any:
        found: list[tuple[str, State]] = []
        has_more = False
        for owned in list(self._engine.owned.values()):
            # An answer rests on nothing that could still be lost.
            pending = OutcomeFuture()
            owned.group.after_pending(pending)
            await pending.success()
            group, now_ms = owned.group, self._engine.clock.now_ms()
            some, more = listing.rows(group.loaded, bucket, prefix, after, limit, now_ms)
            has_more = has_more or more
            for one in some:
                stream = one if isinstance(one, LoadedStream) else LoadedStream(one)
                found.append((stream.key, state_of(stream)))
        found.sort(key=lambda one: one[0])
        return found[:limit], has_more or len(found) > limit
