"""Subscriptions over HTTP: everything below /v1/stream/__ds/.

Owns the shapes of requests and answers. Never decides about a wake and never answers before the manager says that what
the answer rests on is durable.

    jwks.json                                 GET
    subscriptions/{id}                        PUT, GET, DELETE
    subscriptions/{id}/streams                POST
    subscriptions/{id}/streams/{path}         DELETE
    subscriptions/{id}/callback               POST    webhook
    subscriptions/{id}/claim, ack, release    POST    pull-wake
"""

from __future__ import annotations

import re
from collections.abc import Coroutine
from typing import Any

import msgspec

from headwater.config import Settings
from headwater.doors.http import headers as parse
from headwater.doors.http.access import demand
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.named_access import SubscriptionAccess, subscription_needs
from headwater.doors.http.origin import Origin
from headwater.errors import (
    BadAck,
    BadHeader,
    BadName,
    BadQuery,
    BadSubscription,
    BodyTooLarge,
    Failure,
    Fenced,
    MethodNotAllowed,
    NoSuchRoute,
    SubscriptionNotFound,
    TokenMissing,
)
from headwater.model import glob, json_mode, moments, names, offsets
from headwater.model import subscriptions as model
from headwater.model.subscriptions import Config, Link, Subscription
from headwater.security import policy
from headwater.subscriptions.manager import Bearer, Manager
from headwater.subscriptions.telling import chosen, link_type

PREFIX = f"{parse.FLAT_PREFIX}{model.RESERVED}/"
BODY_BYTES_MAX = 512 * 1024
ID_BYTES_MAX = 256
STREAMS_MAX = 10_000
"""Streams that one subscription may name; those that its pattern takes in are not counted."""
DESCRIPTION_BYTES_MAX = 4_096
WORKER_BYTES_MAX = 256
JWKS_MAX_AGE_S = 300

RULES = {
    "jwks.json": policy.OPEN_PAGE,
    "subscriptions/{id}": policy.SUBSCRIPTION,
    "subscriptions/{id}/streams": policy.SUBSCRIPTION_DO,
    "subscriptions/{id}/streams/{path}": policy.SUBSCRIPTION_STREAM,
    "subscriptions/{id}/claim": policy.SUBSCRIPTION_DO,
    "subscriptions/{id}/ack": policy.WAKE,
    "subscriptions/{id}/callback": policy.WAKE,
    "subscriptions/{id}/release": policy.WAKE,
}
_KNOWN = {
    (b"", False): policy.SUBSCRIPTION,
    (b"streams", False): policy.SUBSCRIPTION_DO,
    (b"streams", True): policy.SUBSCRIPTION_STREAM,
    (b"claim", False): policy.SUBSCRIPTION_DO,
}
"""By what follows an id, and whether a path follows that."""
_BEARER = re.compile(r"[Bb]earer +([A-Za-z0-9._~+/=-]{1,1024})")

Answer = Coroutine[None, None, None]


class Subscriptions:
    def __init__(self, manager: Manager, settings: Settings, access: SubscriptionAccess) -> None:
        self._manager = manager
        self._access = access
        state = access.access.policy.state
        for route, rule in RULES.items():
            state(f"{PREFIX}{route}", rule)
        self._name_bytes_max = settings.stream_name_bytes_max
        self._origin = Origin(settings)

    def handle(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """A request on `PREFIX` + `rest`. Raises Failure when it is refused at once."""
        if rest == b"jwks.json":
            self._jwks(exchange)
            return
        section, _, tail = rest.partition(b"/")
        raw_id, *raw_action = tail.split(b"/", 1)
        if section != b"subscriptions" or not raw_id:
            raise NoSuchRoute
        name = _id(parse.path_text(raw_id))
        action, _, raw_path = raw_action[0].partition(b"/") if raw_action else (b"", b"", b"")
        if len(exchange.request.body) > BODY_BYTES_MAX:
            raise BodyTooLarge(BODY_BYTES_MAX)
        if action == b"streams" and raw_path:
            _allow(exchange, b"DELETE")
            path = self._path(parse.path_text(raw_path))
            self._run(exchange, name, self._remove_stream(exchange, name, path))
            return
        if raw_path:
            raise NoSuchRoute
        match action:
            case b"":
                self._base(exchange, name)
            case b"streams":
                _allow(exchange, b"POST")
                paths = self._paths(_body(exchange), required=True)
                self._run(exchange, name, self._add_streams(exchange, name, paths))
            case b"claim":
                _allow(exchange, b"POST")
                worker = _text(_body(exchange), "worker", WORKER_BYTES_MAX)
                if worker is None:
                    raise BadSubscription("worker must be a non-empty string")
                self._run(exchange, name, self._claim(exchange, name, worker))
            case b"ack" | b"callback":
                _allow(exchange, b"POST")
                bearer, body = _bearer(exchange)
                acks = self._acks(body)
                self._run(exchange, name, self._ack(exchange, name, bearer, acks, body.get("done") is True, action))
            case b"release":
                _allow(exchange, b"POST")
                bearer, _ = _bearer(exchange)
                self._run(exchange, name, self._release(exchange, name, bearer))
            case _:
                raise NoSuchRoute

    def judge(self, exchange: Exchange, rest: bytes, query: bytes) -> Answer | None:
        """See `access.Judge`. The way of `handle`."""
        access = self._access.access
        if rest == b"jwks.json":
            access.ruled(exchange, policy.OPEN_PAGE)
            return None
        section, _, tail = rest.partition(b"/")
        raw_id, *raw_action = tail.split(b"/", 1)
        action, _, raw_path = raw_action[0].partition(b"/") if raw_action else (b"", b"", b"")
        method = exchange.request.method
        if action in (b"ack", b"callback", b"release") and not raw_path and section == b"subscriptions":
            access.ruled(exchange, policy.WAKE)
            return None
        rule = _KNOWN.get((action, bool(raw_path)))
        if section != b"subscriptions" or not raw_id or rule is None:
            raise NoSuchRoute
        access.ruled(exchange, rule)
        if len(exchange.request.body) > BODY_BYTES_MAX:
            raise BodyTooLarge(BODY_BYTES_MAX)
        if method == b"PUT" and action == b"":
            config, streams = self._config(_body(exchange))
            demand(exchange, *subscription_needs(config.pattern, streams, config.wake_stream))
            return None
        if action == b"streams" and not raw_path and method == b"POST":
            demand(exchange, *subscription_needs(None, self._paths(_body(exchange), required=True), None))
        looks = method in (b"GET", b"HEAD")
        return self._access.known(exchange, _id(parse.path_text(raw_id)), "GET" if looks else action.decode("latin-1"))

    def _base(self, exchange: Exchange, name: str) -> None:
        method = exchange.request.method
        if method == b"PUT":
            config, streams = self._config(_body(exchange))
            self._run(exchange, name, self._create(exchange, name, config, streams, self._base_url(exchange)))
        elif method in (b"GET", b"HEAD"):
            self._run(exchange, name, self._show(exchange, name))
        elif method == b"DELETE":
            self._run(exchange, name, self._remove(exchange, name))
        else:
            raise MethodNotAllowed("GET, HEAD, PUT, DELETE, OPTIONS")

    def _run(self, exchange: Exchange, name: str, work: Answer) -> None:
        async def refused_when_durable() -> None:
            try:
                await work
            except Failure:
                # A refusal may rest on something that is not durable yet.
                await self._manager.durable(name)
                raise

        exchange.run(refused_when_durable())

    # ---- answers ------------------------------------------------------------------------------------------------

    def _jwks(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.method not in (b"GET", b"HEAD"):
            raise MethodNotAllowed("GET, HEAD, OPTIONS")
        body = self._manager.keys.jwks()
        headers = [
            ("Content-Type", "application/jwk-set+json"),
            ("Cache-Control", f"public, max-age={JWKS_MAX_AGE_S}"),
        ]
        head = exchange.responder.head(200, headers, len(body), request.keep_alive)
        exchange.reply(head if request.method == b"HEAD" else head + body)

    async def _create(self, exchange: Exchange, name: str, config: Config, streams: list[str], base_url: str) -> None:
        sub, new = await self._manager.create(name, config, streams, base_url)
        exchange.json(201 if new else 200, self._view(sub, chosen(sub), exchange))

    async def _show(self, exchange: Exchange, name: str) -> None:
        exchange.json(200, self._view(*await self._manager.show(name), exchange))

    async def _remove(self, exchange: Exchange, name: str) -> None:
        await self._manager.remove(name)
        exchange.empty(204, [])

    async def _add_streams(self, exchange: Exchange, name: str, paths: list[str]) -> None:
        sub = self._manager.find(name)
        named = sum(link.explicit for link in sub.links.values())
        if named + len(paths) > STREAMS_MAX:
            raise BadSubscription(f"a subscription names at most {STREAMS_MAX} streams; use a pattern")
        await self._manager.add_streams(name, paths)
        exchange.empty(204, [])

    async def _remove_stream(self, exchange: Exchange, name: str, path: str) -> None:
        await self._manager.remove_stream(name, path)
        exchange.empty(204, [])

    async def _claim(self, exchange: Exchange, name: str, worker: str) -> None:
        exchange.json(200, await self._manager.claim(name, worker))

    async def _ack(
        self, exchange: Exchange, name: str, bearer: Bearer, acks: list[tuple[str, int]], done: bool, action: bytes
    ) -> None:
        self._demand_own_wake(name, bearer)
        if action == b"ack":
            self._demand_pull_wake(name)
        following = await self._manager.acknowledge(name, bearer, acks, done)
        exchange.json(200, {"ok": True, "next_wake": following})

    async def _release(self, exchange: Exchange, name: str, bearer: Bearer) -> None:
        self._demand_own_wake(name, bearer)
        self._demand_pull_wake(name)
        await self._manager.release(name, bearer)
        exchange.empty(204, [])

    def _demand_own_wake(self, name: str, bearer: Bearer) -> None:
        """With authentication on, whoever has no token of the wake is not told whether there is the subscription."""
        if not self._access.access.guard.on:
            return
        try:
            self._manager.demand_wake(name, bearer)
        except SubscriptionNotFound:
            raise Fenced from None

    def _demand_pull_wake(self, name: str) -> None:
        if self._manager.find(name).config.kind != model.PULL_WAKE:
            raise BadSubscription("the subscription is not of type pull-wake; a webhook answers to its callback_url")

    def _base_url(self, exchange: Exchange) -> str:
        """Where the client reaches the subscriptions."""
        found = self._origin.base_url(exchange.request.headers)
        if found is None:
            raise BadHeader("Host", "expected the host and port that this server is reached by")
        return f"{found}{parse.FLAT_PREFIX}{model.RESERVED}"

    def _view(self, sub: Subscription, links: list[tuple[str, Link]], exchange: Exchange) -> dict[str, Any]:
        config = sub.config
        view: dict[str, Any] = {
            "id": sub.id,
            "subscription_id": sub.id,
            "type": config.kind,
            "pattern": config.pattern,
            "streams": [
                {"path": path, "link_type": link_type(link), "acked_offset": offsets.show(link.acked)}
                for path, link in links
            ],
            "streams_omitted": len(sub.links) - len(links) or None,
            "wake_stream": config.wake_stream,
            "lease_ttl_ms": config.lease_ms,
            "created_at": moments.show(sub.created_ms),
            "status": "failed" if sub.failures else "active",
            "description": config.description,
        }
        if config.url is not None:
            keys_url = f"{self._base_url(exchange)}/jwks.json"
            signing = {"alg": "ed25519", "kid": self._manager.keys.kid, "jwks_url": keys_url}
            view["webhook"] = {"url": config.url, "signing": signing}
        if sub.failures:
            view["retry"] = {"failures": sub.failures, "next_attempt_at": moments.show(sub.retry_at_ms)}
        return {name: value for name, value in view.items() if value is not None}

    # ---- requests -----------------------------------------------------------------------------------------------

    def _config(self, body: dict[str, Any]) -> tuple[Config, list[str]]:
        kind = body.get("type")
        if kind not in (model.WEBHOOK, model.PULL_WAKE):
            raise BadSubscription(f"type must be {model.WEBHOOK!r} or {model.PULL_WAKE!r}")
        pattern = _text(body, "pattern", glob.PATTERN_BYTES_MAX)
        if pattern is not None:
            pattern = pattern.strip("/")
            if not pattern or "\0" in pattern or pattern.split("/").count("**") > glob.ANY_DEPTH_MAX:
                raise BadSubscription(f"pattern must name something, and hold ** at most {glob.ANY_DEPTH_MAX} times")
        streams = self._paths(body, required=False)
        if pattern is None and not streams:
            raise BadSubscription("at least one of pattern and streams is needed")
        if len(streams) > STREAMS_MAX:
            raise BadSubscription(f"a subscription names at most {STREAMS_MAX} streams; use a pattern")
        lease_ms = body.get("lease_ttl_ms")
        lease_ms = model.LEASE_MS_DEFAULT if lease_ms is None else lease_ms
        if type(lease_ms) is not int or not model.LEASE_MS_MIN <= lease_ms <= model.LEASE_MS_MAX:
            raise BadSubscription(f"lease_ttl_ms must be an integer from {model.LEASE_MS_MIN} to {model.LEASE_MS_MAX}")
        url = wake_stream = None
        if kind == model.WEBHOOK:
            webhook = body.get("webhook")
            url = webhook.get("url") if isinstance(webhook, dict) else None
            if not isinstance(url, str) or not url:
                raise BadSubscription("a webhook subscription needs webhook.url")
        else:
            wake_stream = _text(body, "wake_stream", self._name_bytes_max)
            if wake_stream is None:
                raise BadSubscription("a pull-wake subscription needs wake_stream")
            wake_stream = self._path(wake_stream)
        description = _text(body, "description", DESCRIPTION_BYTES_MAX, empty=True)
        facts = (kind, pattern, streams, url, wake_stream, lease_ms, description)
        return Config(kind, pattern, url, wake_stream, lease_ms, description, model.digest(*facts)), streams

    def _paths(self, body: dict[str, Any], required: bool) -> list[str]:
        given = body.get("streams")
        if given is None and not required:
            return []
        if not isinstance(given, list) or any(not isinstance(path, str) for path in given):
            raise BadSubscription("streams must be an array of stream paths")
        return list(dict.fromkeys(self._path(path) for path in given))

    def _path(self, text: str) -> str:
        """A stream's path as subscriptions name it: relative to the stream root."""
        try:
            path = model.path_of(names.flat_key(text.strip("/"), self._name_bytes_max))
        except BadName as bad:
            raise BadSubscription(f"{text[:100]!r} is not a stream path: {bad.reason}") from None
        if model.reserved(path):
            raise BadSubscription(f"paths under {model.RESERVED} are reserved")
        return path

    def _acks(self, body: dict[str, Any]) -> list[tuple[str, int]]:
        given = body.get("acks")
        if given is None:
            return []
        if not isinstance(given, list):
            raise BadSubscription("acks must be an array")
        acks = []
        for ack in given:
            stream = ack.get("stream", ack.get("path")) if isinstance(ack, dict) else None
            text = ack.get("offset") if isinstance(ack, dict) else None
            if not isinstance(stream, str) or not isinstance(text, str):
                raise BadSubscription("each of acks needs stream and offset, both strings")
            try:
                path, offset = self._path(stream), offsets.parse(text)
            except (BadSubscription, BadQuery):
                offset = -1
            if offset < 0:
                raise BadAck(f"{stream[:100]!r} at {text[:40]!r} is no stream and offset of this server")
            acks.append((path, offset))
        return acks


def _allow(exchange: Exchange, method: bytes) -> None:
    if exchange.request.method != method:
        raise MethodNotAllowed(f"{method.decode()}, OPTIONS")


def _id(name: str) -> str:
    if len(name.encode()) > ID_BYTES_MAX or not name.isprintable():
        raise BadSubscription(f"an id is at most {ID_BYTES_MAX} bytes of printable text")
    return name


def _body(exchange: Exchange) -> dict[str, Any]:
    raw = exchange.request.body
    try:
        body = msgspec.json.decode(raw) if raw else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadSubscription(f"the body is not valid JSON ({json_mode.fault(error, raw)})") from None
    if not isinstance(body, dict):
        raise BadSubscription("the body must be a JSON object")
    return body


def _text(body: dict[str, Any], name: str, bytes_max: int, empty: bool = False) -> str | None:
    value = body.get(name)
    if value is None or (value == "" and not empty):
        return None
    if not isinstance(value, str) or len(value.encode()) > bytes_max:
        raise BadSubscription(f"{name} must be text of at most {bytes_max} bytes")
    return value


def _bearer(exchange: Exchange) -> tuple[Bearer, dict[str, Any]]:
    """The token and what the body names beside it. What is missing or of another type matches no wake."""
    authorization = exchange.request.headers.get(b"authorization", b"").decode("latin-1")
    found = _BEARER.fullmatch(authorization)
    if found is None:
        raise TokenMissing
    body = _body(exchange)
    wake_id, generation = body.get("wake_id"), body.get("generation")
    return (
        Bearer(
            found[1], wake_id if isinstance(wake_id, str) else None, generation if type(generation) is int else None
        ),
        body,
    )
