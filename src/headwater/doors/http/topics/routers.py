"""Routers over HTTP: define them, look at them, delete them.

Owns `/v0/routers` and the shape of its requests. Never judges a router: `topics.routers` does, where the directory
group is served, which is where these requests are sent.

    /v0/routers             GET                 all of them
    /v0/routers/{name}      PUT, GET, DELETE    one
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec

from headwater.doors.http import headers as parse
from headwater.doors.http.access import demand
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.named_access import RouterAccess, router_needs
from headwater.doors.http.topics.answers import Timing, reply_value
from headwater.doors.http.topics.deletes import match_of
from headwater.doors.http.topics.paths import topic_key
from headwater.errors import BadBody, BodyTooLarge, Failure, MethodNotAllowed, NoSuchRoute
from headwater.model import json_mode
from headwater.model import routers as model
from headwater.model.routers import RouterConfig, TagFilter
from headwater.model.subscriptions import key_of
from headwater.security import policy
from headwater.security.principals import Need
from headwater.topics.routers import Routers

PREFIX = "/v0/routers"
BODY_BYTES_MAX = 64 * 1024
_TOPICS = ("source", "dest")
_FLAGS = ("preserve_tag", "preserve_node", "preserve_meta", "allow_cycle")
_FIELDS = (*_TOPICS, "filter", *_FLAGS)


class RouterCalls:
    def __init__(self, routers: Routers, name_bytes_max: int, access: RouterAccess) -> None:
        """`name_bytes_max`: of a topic's name."""
        self._routers = routers
        self._access = access
        self._name_bytes_max = name_bytes_max

    def handle(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """A request on `PREFIX` + `rest`. Raises Failure when it is refused at once."""
        timing, method = Timing(), exchange.request.method
        if rest == b"":
            if method != b"GET":
                raise MethodNotAllowed("GET, OPTIONS")
            exchange.run(self._all(exchange, timing))  # served in any process
            return
        if not rest.startswith(b"/") or b"/" in rest[1:]:
            raise NoSuchRoute
        name = model.check_name(parse.path_text(rest[1:]))
        if method == b"PUT":
            self._run(exchange, self._put(exchange, name, self._config(exchange), timing))
        elif method == b"GET":
            self._run(exchange, self._show(exchange, name, timing))
        elif method == b"DELETE":
            self._run(exchange, self._remove(exchange, name, timing))
        else:
            raise MethodNotAllowed("PUT, GET, DELETE, OPTIONS")

    def judge(self, exchange: Exchange, rest: bytes, query: bytes) -> Coroutine[None, None, None] | None:
        """See `access.Judge`. The way of `handle`."""
        access, method = self._access.access, exchange.request.method
        if rest == b"":
            access.ruled(exchange, policy.ROUTERS)
            return None
        access.ruled(exchange, policy.ROUTER)
        if not rest.startswith(b"/") or b"/" in rest[1:]:
            raise NoSuchRoute
        name = model.check_name(parse.path_text(rest[1:]))
        if method == b"PUT":
            config = self._config(exchange)
            demand(exchange, *router_needs(config.source, config.dest))
            if config.allow_cycle or exchange.principal.everything:
                return None
            return self._access.new(exchange, name, config.source, config.dest)
        return self._access.known(exchange, name)

    def _run(self, exchange: Exchange, work: Coroutine[None, None, None]) -> None:
        async def refused_when_durable() -> None:
            try:
                await work
            except Failure:
                # A refusal may rest on something that is not durable yet.
                await self._routers.durable()
                raise

        exchange.run(refused_when_durable())

    async def _all(self, exchange: Exchange, timing: Timing) -> None:
        principal, found = exchange.principal, await self._routers.everywhere()
        if not principal.everything:
            about = [(router, router["config"]) for router in found]
            found = [router for router, it in about if all(map(principal.meets, _needs(it["source"], it["dest"])))]
        reply_value(exchange, 200, {"routers": found}, timing)

    async def _put(self, exchange: Exchange, name: str, config: RouterConfig, timing: Timing) -> None:
        timing.judged()
        shown, new = await self._routers.put(name, config)
        reply_value(exchange, 201 if new else 200, {"router": name, "created": new, **shown}, timing)

    async def _show(self, exchange: Exchange, name: str, timing: Timing) -> None:
        timing.waits_for_log = False
        reply_value(exchange, 200, await self._routers.show(name), timing)

    async def _remove(self, exchange: Exchange, name: str, timing: Timing) -> None:
        timing.judged()
        await self._routers.remove(name)
        reply_value(exchange, 200, {"router": name, "deleted": True}, timing)

    # ---- requests -----------------------------------------------------------------------------------------------

    def _config(self, exchange: Exchange) -> RouterConfig:
        body = _object(exchange.request.body)
        unknown = sorted(set(body) - set(_FIELDS))
        if unknown:
            raise BadBody(f"unknown fields: {', '.join(name[:100] for name in unknown[:10])}")
        keys = []
        for field in _TOPICS:
            name = body.get(field)
            if not isinstance(name, str):
                raise BadBody(f"{field} must be the name of a topic")
            keys.append(topic_key(name, self._name_bytes_max))
        flags: dict[str, Any] = {field: body[field] for field in _FLAGS if field in body}
        for field, value in flags.items():
            if not isinstance(value, bool):
                raise BadBody(f"{field} must be true or false")
        return RouterConfig(keys[0], keys[1], _filter(body.get("filter")), **flags)


def _needs(source: str, dest: str) -> list[Need]:
    """Of a router as it is shown."""
    return router_needs(key_of(source), key_of(dest))


def _filter(value: object) -> TagFilter | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 3 or value[0] != "tag" or value[1] not in ("Eq", "Glob"):
        raise BadBody('filter must be null, ["tag","Eq",text] or ["tag","Glob","text*"]')
    if not isinstance(value[2], str):
        raise BadBody("the tag of a filter must be text")
    try:
        how, text = match_of(value[1], value[2])
    except BadBody as bad:
        raise BadBody(bad.reason.replace("match", "filter", 1)) from None
    return TagFilter(text, how == "Glob")


def _object(raw: bytes) -> dict[str, Any]:
    if len(raw) > BODY_BYTES_MAX:
        raise BodyTooLarge(BODY_BYTES_MAX)
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadBody(f"it is not valid JSON ({json_mode.fault(error, raw)})") from None
    if not isinstance(body, dict):
        raise BadBody("it must be a JSON object")
    return body
