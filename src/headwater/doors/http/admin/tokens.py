"""Keys, signed URLs and public buckets over HTTP.

Owns these calls and the shape of a key as it is shown: never its secret, which only the answer to its making has.

    /__headwater/tokens                     GET, POST   all keys; a new one
    /__headwater/tokens/{id}                GET, DELETE one; revoked from now on
    /__headwater/tokens/{id}/rotate         POST        a new one in its place, which stays valid for a while
    /__headwater/sign                       POST        a signature for a URL that a browser reads
    /__headwater/buckets/{bucket}/public    PUT, DELETE everybody may read it, or not
"""

from __future__ import annotations

from typing import Any

import msgspec

from headwater.doors.http import bucket_schemas
from headwater.doors.http import headers as parse
from headwater.doors.http.access import Access, demand, no_credential
from headwater.doors.http.bucket_schemas import SchemaCalls
from headwater.doors.http.buckets import Buckets
from headwater.doors.http.exchange import Exchange
from headwater.engine.access_records import AccessKey
from headwater.errors import BadAccess, BadBody, KeyNotFound, MethodNotAllowed, NoSuchRoute
from headwater.model import json_mode, moments
from headwater.ports import Clock
from headwater.security import policy, signed_urls
from headwater.security.directory import Directory
from headwater.security.guard import FILE_KEY_ID
from headwater.security.keys import ID, Made
from headwater.security.policy import Concern, Rule
from headwater.security.principals import KEY, PUBLIC, Action, BadScope, Need, Scope, parse_scopes

PREFIX = "/__headwater/tokens"
SIGN = "/__headwater/sign"
BUCKETS_PREFIX = "/__headwater/buckets"
BODY_BYTES_MAX = 256 * 1024
OVERLAP_S_DEFAULT, OVERLAP_S_MAX = 3_600, 30 * 86_400
EXPIRES_S_MAX = 10 * 366 * 86_400
SIGNED_S_DEFAULT = 3_600
_RULES = {
    PREFIX: Rule(Concern.EVERYTHING, {"GET": Action.ADMIN, "POST": Action.ADMIN}),
    f"{PREFIX}/{{id}}": Rule(Concern.EVERYTHING, {"GET": Action.ADMIN, "DELETE": Action.ADMIN}),
    f"{PREFIX}/{{id}}/rotate": Rule(Concern.EVERYTHING, {"POST": Action.ADMIN}),
}
_BUCKET = Rule(Concern.BUCKET, {"GET": Action.READ, "HEAD": Action.READ})
_PUBLIC = Rule(Concern.BUCKET, {"PUT": Action.MANAGE, "DELETE": Action.MANAGE})


class _Make(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    scopes: list[str]
    expires_in_s: int | None = None
    expires_at: str | None = None


class _Rotate(msgspec.Struct, forbid_unknown_fields=True):
    overlap_s: int = OVERLAP_S_DEFAULT
    expires_in_s: int | None = None
    expires_at: str | None = None


class _Sign(msgspec.Struct, forbid_unknown_fields=True):
    stream: str | None = None
    prefix: str | None = None
    expires_in_s: int = SIGNED_S_DEFAULT


class TokenCalls:
    def __init__(self, directory: Directory, access: Access, clock: Clock, name_bytes_max: int) -> None:
        self._directory = directory
        self._access = access
        self._clock = clock
        self._name_bytes_max = name_bytes_max
        for route, rule in _RULES.items():
            access.policy.state(route, rule)

    def judge(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """See `access.Judge`."""
        self._access.ruled(exchange, _RULES[_route(rest)])

    def handle(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """A request on `PREFIX` + `rest`."""
        method, route = exchange.request.method, _route(rest)
        rule = _RULES[route]
        if rule.action(method) is None:
            raise MethodNotAllowed(rule.allowed)
        id = rest.split(b"/")[1].decode("latin-1") if rest.strip(b"/") else ""
        if not id:
            exchange.run(self._list(exchange) if method == b"GET" else self._make(exchange))
        elif ID.fullmatch(id) is None:
            raise KeyNotFound
        elif route.endswith("rotate"):
            exchange.run(self._rotate(exchange, id))
        elif method == b"GET":
            exchange.run(self._show(exchange, id))
        else:
            exchange.run(self._revoke(exchange, id))

    async def _list(self, exchange: Exchange) -> None:
        found = sorted((await self._directory.list()).items(), key=lambda one: (one[1].created_ms, one[0]))
        exchange.json(200, {"tokens": [self._shown(id, key) for id, key in found]})

    async def _show(self, exchange: Exchange, id: str) -> None:
        exchange.json(200, self._shown(id, await self._key(id)))

    async def _key(self, id: str) -> AccessKey:
        key = (await self._directory.list()).get(id)
        if key is None:
            raise KeyNotFound
        return key

    async def _make(self, exchange: Exchange) -> None:
        asked: _Make = _body(exchange, _Make)
        try:
            scopes = parse_scopes(asked.scopes)
        except BadScope as bad:
            raise BadAccess(f"scopes: {bad}") from None
        expires_ms = self._expires_ms(asked.expires_in_s, asked.expires_at)
        made, key = await self._directory.make(asked.name, scopes, expires_ms, _by(exchange))
        exchange.is_about(_told(made.id, key))
        self._reply_made(exchange, made, key)

    async def _rotate(self, exchange: Exchange, id: str) -> None:
        asked: _Rotate = _body(exchange, _Rotate)
        if not 0 <= asked.overlap_s <= OVERLAP_S_MAX:
            raise BadAccess(f"overlap_s is from 0 to {OVERLAP_S_MAX}")
        old, now_ms = await self._key(id), self._clock.now_ms()
        if not old.lives(now_ms):
            raise BadAccess("the key is not valid any more: make a new one")
        expires_ms = self._expires_ms(asked.expires_in_s, asked.expires_at)
        if expires_ms is None and old.expires_ms is not None:
            expires_ms = now_ms + (old.expires_ms - old.created_ms)  # as long as the old one was made for
        made, key = await self._directory.make(old.name, old.scopes, expires_ms, _by(exchange), follows=id)
        exchange.is_about(f"{id} to {_told(made.id, key)}")
        await self._directory.end(id, now_ms + asked.overlap_s * 1000 if asked.overlap_s else None)
        self._reply_made(exchange, made, key)

    async def _revoke(self, exchange: Exchange, id: str) -> None:
        key = await self._directory.end(id, None)
        exchange.is_about(_told(id, key))
        exchange.json(200, self._shown(id, key))

    def _reply_made(self, exchange: Exchange, made: Made, key: AccessKey) -> None:
        exchange.json(201, {"token": made.text, **self._shown(made.id, key)})

    def _expires_ms(self, in_s: int | None, at: str | None) -> int | None:
        if in_s is not None and at is not None:
            raise BadAccess("give expires_in_s or expires_at, not both")
        if in_s is not None:
            if not 0 < in_s <= EXPIRES_S_MAX:
                raise BadAccess(f"expires_in_s is from 1 to {EXPIRES_S_MAX}")
            return self._clock.now_ms() + in_s * 1000
        if at is None:
            return None
        expires_ms = moments.parse(at)
        if expires_ms is None:
            raise BadAccess("expires_at is a moment such as 2030-01-31T12:00:00Z")
        return expires_ms

    def _shown(self, id: str, key: AccessKey) -> dict[str, Any]:
        now_ms = self._clock.now_ms()
        state = "valid" if key.lives(now_ms) else "revoked" if key.ended_ms is not None else "expired"
        return {
            "id": id,
            "name": key.name,
            "scopes": [Scope(*scope).shown() for scope in key.scopes],
            "state": state,
            "created_at": moments.show(key.created_ms),
            "created_by": key.created_by,
            "expires_at": None if key.expires_ms is None else moments.show(key.expires_ms),
            "revoked_at": None if key.ended_ms is None else moments.show(key.ended_ms),
            "follows": key.follows or None,
        }

    # ---- signed URLs --------------------------------------------------------------------------------------------

    def sign(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """`POST /__headwater/sign`. Whoever signs may read that, and the URL is good for as long as its key is."""
        exchange.only(b"POST", rest)
        guard, principal = self._access.guard, exchange.principal
        if principal.kind == PUBLIC:
            raise no_credential(exchange)
        asked: _Sign = _body(exchange, _Sign)
        if (asked.stream is None) == (asked.prefix is None):
            raise BadAccess("give stream, such as orders/7, or prefix, such as orders/eu/")
        if not 0 < asked.expires_in_s <= signed_urls.EXPIRES_S_MAX:
            raise BadAccess(f"expires_in_s is from 1 to {signed_urls.EXPIRES_S_MAX}")
        if not guard.on or guard.url_secret is None:
            raise BadAccess("authentication is off: every URL works without a signature")
        if principal.kind != KEY:
            raise BadAccess("URLs are signed with a key: it says for how long they are good")
        if asked.stream is not None:
            key = parse.stream_key(parse.FLAT_PREFIX + asked.stream, self._name_bytes_max)
            scope = Scope(int(Action.READ), key, exact=True)
        else:
            prefix = asked.prefix or ""
            bucket, slash, _ = prefix.partition("/")
            if not bucket or not slash or "\0" in prefix or "*" in bucket:
                raise BadAccess("prefix is a bucket and what names in it begin with, such as orders/eu/")
            scope = Scope(int(Action.READ), prefix)
        demand(exchange, Need(Action.READ, scope.start, not scope.exact))
        expires_ms = self._clock.now_ms() + asked.expires_in_s * 1000
        if principal.expires_ms is not None:
            expires_ms = min(expires_ms, principal.expires_ms)
        text = signed_urls.sign(guard.url_secret, scope, expires_ms // 1000, principal.id or FILE_KEY_ID)
        exchange.is_about(f"{scope.shown()} until {moments.show(expires_ms)}")
        facts = {"signed": text, "query": f"signed={text}", "scope": scope.shown()}
        exchange.json(200, {**facts, "expires_at": moments.show(expires_ms // 1000 * 1000)})


class BucketCalls:
    """Calls about a bucket by its name, whatever it is: `/__headwater/buckets/{bucket}` and below."""

    def __init__(self, buckets: Buckets, directory: Directory, schemas: SchemaCalls, access: Access) -> None:
        self._buckets = buckets
        self._schemas = schemas
        self._directory = directory
        self._access = access
        access.policy.state(f"{BUCKETS_PREFIX}/{{bucket}}", _BUCKET)
        access.policy.state(f"{BUCKETS_PREFIX}/{{bucket}}/streams", policy.LISTING)
        access.policy.state(f"{BUCKETS_PREFIX}/{{bucket}}/public", _PUBLIC)
        access.policy.state(f"{BUCKETS_PREFIX}/{{bucket}}/schema", bucket_schemas.RULE)

    def judge(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """See `access.Judge`."""
        match [parse.path_text(part) for part in rest.split(b"/")]:
            case ["", name] if name:
                self._access.ruled(exchange, _BUCKET, f"{name}/")
            case ["", name, "streams"] if name:
                self._access.ruled(exchange, policy.LISTING)
            case ["", name, "public"] if name:
                self._access.ruled(exchange, _PUBLIC, f"{name}/")
            case ["", name, "schema"] if name:
                self._access.ruled(exchange, bucket_schemas.RULE, f"{name}/")
            case _:
                raise NoSuchRoute

    def handle(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        parts = rest.split(b"/")
        if len(parts) == 3 and parts[2] == b"schema":
            self._schemas.handle(exchange, parse.path_text(parts[1]))
            return
        if len(parts) != 3 or parts[2] != b"public":
            self._buckets.by_any_name(exchange, rest, query)
            return
        method = exchange.request.method
        if method not in (b"PUT", b"DELETE"):
            raise MethodNotAllowed(_PUBLIC.allowed)
        exchange.run(self._open(exchange, parse.path_text(parts[1]), method == b"PUT"))

    async def _open(self, exchange: Exchange, bucket: str, is_open: bool) -> None:
        await self._directory.open_bucket(bucket, is_open)
        exchange.json(200, {"bucket_id": bucket, "public": "read" if is_open else None})


def _route(rest: bytes) -> str:
    """Raises NoSuchRoute."""
    match rest.split(b"/"):
        case [b""] | [b"", b""]:
            return PREFIX
        case [b"", id] if id:
            return f"{PREFIX}/{{id}}"
        case [b"", id, b"rotate"] if id:
            return f"{PREFIX}/{{id}}/rotate"
        case _:
            raise NoSuchRoute


def _told(id: str, key: AccessKey) -> str:
    """A key, for the audit log."""
    return f"{id} {key.name}: {' '.join(Scope(*scope).shown() for scope in key.scopes)}"


def _by(exchange: Exchange) -> str:
    """Who asks, as a key tells of it."""
    principal = exchange.principal
    return f"{principal.name} ({principal.id})" if principal.id else principal.name


def _body(exchange: Exchange, kind: Any) -> Any:
    """Raises BadBody."""
    raw = exchange.request.body
    if len(raw) > BODY_BYTES_MAX:
        raise BadBody(f"at most {BODY_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadBody(f"not what this call takes ({json_mode.fault(error, raw)})") from None
