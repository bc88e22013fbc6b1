"""Who may do what on which streams: actions, scopes, principals. Pure.

Owns what a scope covers. Names are stream keys as the routes resolved them (`bucket/name`, decoded once), never paths:
what was checked is what is acted on. Never knows how a principal proved who it is.

    read:orders             every stream of the bucket
    read,append:orders/eu/* what begins with eu/ in it; the part before the star is compared as it stands
    append:orders/7         that one stream
    read:*                  everything
    admin                   everything, and the node itself

The audit log is read like any stream. Nothing but `admin` allows more on it, whatever a scope covers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntFlag
from typing import NamedTuple, Protocol

AUDIT_KEY = "_headwater/audit"
"""The stream that is the audit log."""
SCOPES_MAX = 64
"""Of one principal."""
SCOPE_BYTES_MAX = 1_200
"""A name may have as many bytes as `stream_name_bytes_max` lets it by default."""
ALL = "*"
_BUCKET = re.compile(r"[^/\x00-\x1f*]{1,256}")


class Action(IntFlag):
    READ = 1
    APPEND = 2
    CREATE = 4
    MANAGE = 8
    ADMIN = 16


EVERY_ACTION = Action.READ | Action.APPEND | Action.CREATE | Action.MANAGE | Action.ADMIN
_ACTIONS = {str(action.name).lower(): action for action in Action}


def shown_actions(actions: Action) -> str:
    return ",".join(name for name, action in _ACTIONS.items() if action & actions)


class BadScope(ValueError):
    """The text is no scope; the message says why."""


class Need(NamedTuple):
    """What a request asks for: actions on one stream (`whole` False), or on everything that begins with `start`."""

    actions: Action
    start: str
    """A stream's key, or what keys begin with: `bucket/`, `bucket/prefix`, or nothing for all of them."""
    whole: bool = False

    def shown(self) -> str:
        """In words, for a refusal."""
        if not self.whole:
            where = f"the stream {self.start}"
        elif not self.start:
            where = "everything"
        elif self.start.endswith("/") and self.start.count("/") == 1:
            where = f"the bucket {self.start[:-1]}"
        else:
            where = f"what begins with {self.start}"
        return f"{shown_actions(self.actions)} on {where}"


class Scope(NamedTuple):
    """Actions on one stream (`exact`), or on all whose key begins with `start`; an empty start is everything."""

    actions: int
    start: str
    exact: bool = False

    def covers(self, need: Need) -> bool:
        """Whether it reaches all that the need is about, whatever the actions."""
        if self.exact:
            return not need.whole and need.start == self.start
        return need.start.startswith(self.start)

    def shown(self) -> str:
        """As `parse_scope` reads it."""
        if self.actions & Action.ADMIN:
            return "admin"
        actions = shown_actions(Action(self.actions))
        if not self.start:
            return f"{actions}:{ALL}"
        if self.exact:
            return f"{actions}:{self.start}"
        bucket, _, prefix = self.start.partition("/")
        return f"{actions}:{bucket}" if not prefix else f"{actions}:{self.start}{ALL}"


ADMIN_SCOPE = Scope(int(EVERY_ACTION), "")


def parse_scope(text: str) -> Scope:
    """Raises BadScope."""
    if len(text.encode("utf-8", "replace")) > SCOPE_BYTES_MAX:
        raise BadScope(f"a scope is at most {SCOPE_BYTES_MAX} bytes")
    if text == "admin":
        return ADMIN_SCOPE
    names, colon, where = text.partition(":")
    if not colon or not where:
        raise BadScope(f"{text[:100]!r} is no scope: write ACTIONS:BUCKET, ACTIONS:BUCKET/PREFIX*, or admin")
    actions = 0
    for name in names.split(","):
        action = _ACTIONS.get(name)
        if action is None:
            raise BadScope(f"{name[:40]!r} is no action: there are {', '.join(_ACTIONS)}")
        if action is Action.ADMIN:
            raise BadScope("admin stands alone: it is every action on everything")
        actions |= action
    if where == ALL:
        return Scope(actions, "")
    bucket, slash, name = where.partition("/")
    if _BUCKET.fullmatch(bucket) is None or "\0" in where:
        raise BadScope(f"{bucket[:100]!r} names no bucket; * alone is every bucket")
    if not slash or name in ("", ALL):
        return Scope(actions, f"{bucket}/")
    if name.endswith(ALL):
        return Scope(actions, f"{bucket}/{name[:-1]}")
    return Scope(actions, where, exact=True)


def parse_scopes(texts: Iterable[str]) -> tuple[Scope, ...]:
    """At least one. Raises BadScope."""
    found = tuple(dict.fromkeys(parse_scope(text) for text in texts))
    if not found:
        raise BadScope("a credential without scopes could do nothing: give at least one")
    if len(found) > SCOPES_MAX:
        raise BadScope(f"at most {SCOPES_MAX} scopes")
    return found


KEY, JWT, SIGNED, CERTIFICATE, PUBLIC, OPEN = "key", "jwt", "signed url", "certificate", "public", "open"
"""Kinds of principals: how they proved who they are."""


class Principal:
    """Whoever a request is done for. Frozen: what it may never changes; the guard makes another one instead."""

    __slots__ = ("everything", "expires_ms", "id", "kind", "name", "scopes")

    def __init__(
        self, kind: str, name: str, scopes: tuple[Scope, ...], expires_ms: int | None = None, id: str = ""
    ) -> None:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "name", name)
        """For people: of a key its name, of a token its subject."""
        object.__setattr__(self, "id", id)
        """Tells it from others for good: of a key its id. Fit for log lines: never a secret."""
        object.__setattr__(self, "scopes", scopes)
        object.__setattr__(self, "expires_ms", expires_ms)
        object.__setattr__(self, "everything", ADMIN_SCOPE in scopes)

    kind: str
    name: str
    id: str
    scopes: tuple[Scope, ...]
    expires_ms: int | None
    everything: bool

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a principal is frozen")

    def __repr__(self) -> str:
        return f"Principal({self.kind}, {self.name!r}, {self.id!r})"

    def may(self, action: int, key: str) -> bool:
        """All of `action` on one stream, by its key."""
        if self.everything:
            return True
        left = int(action)
        if key == AUDIT_KEY and left & ~Action.READ:
            return False
        for actions, start, exact in self.scopes:
            if key == start if exact else key.startswith(start):
                left &= ~actions
                if not left:
                    return True
        return False

    def may_all(self, action: int, start: str) -> bool:
        """All of `action` on every stream that begins with `start`, whether or not it is there."""
        if self.everything:
            return True
        left = int(action)
        if left & Action.MANAGE and AUDIT_KEY.startswith(start):
            return False  # such as making its bucket public
        for scope in self.scopes:
            if not scope.exact and start.startswith(scope.start):
                left &= ~scope.actions
        return not left

    def meets(self, need: Need) -> bool:
        return self.may_all(need.actions, need.start) if need.whole else self.may(need.actions, need.start)

    def within(self, action: int, start: str) -> list[Scope] | None:
        """What of everything that begins with `start` it may `action`: scopes that do not overlap; None: all of it."""
        if self.may_all(action, start):
            return None
        found = {
            Scope(int(action), scope.start, scope.exact)
            for scope in self.scopes
            if scope.actions & action == action and scope.start.startswith(start)
        }
        starts = {scope.start for scope in found if not scope.exact}
        return sorted(
            scope
            for scope in found
            if not any(scope.start.startswith(one) and (scope.exact or scope.start != one) for one in starts)
        )


EVERYONE = Principal(OPEN, "everyone", (ADMIN_SCOPE,))
"""Where nothing is asked: without authentication, and between processes of one node or cluster."""
NOBODY = Principal(PUBLIC, "nobody", ())


class Asked(NamedTuple):
    """A request, as the audit log tells of it."""

    door: str
    address: str
    principal: Principal | None
    """None: its credential did not hold."""
    request_id: str | None = None


class Trail(Protocol):
    """Where it is told who was refused, and what was allowed (see `security.audit`)."""

    def denied(self, asked: Asked, action: str, what: str, code: str, needs: str = "") -> None: ...

    def allowed(self, asked: Asked, action: str, what: str) -> None:
        """It is begun; how it ends is not told."""
        ...


class Identity:
    """Whom the requests of one connection are for."""

    __slots__ = (
        "admitted",
        "audit",
        "credential",
        "credential_epoch",
        "epoch",
        "generation",
        "key",
        "method",
        "needs",
        "principal",
        "unguarded",
    )

    def __init__(self, unguarded: bool = True, audit: Trail | None = None) -> None:
        self.audit = audit
        self.unguarded = unguarded
        """Nobody is asked: another process of the node is the client, or authentication is off."""
        self.admitted: Principal | None = None
        """Whom the connection itself is for, such as a client's certificate. Its requests must not share heads that
        were judged with others': it needs a `Heads` of its own."""
        self.credential: bytes | None = None
        self.credential_epoch = 0
        self.principal = NOBODY
        """The last credential that a request brought, the guard's epoch when it was judged, and whose it was."""
        self.key: str | None = None
        self.method = b""
        self.needs: tuple[Need, ...] = ()
        """The stream and method that it was allowed last, and what that needed: producers repeat both."""
        self.epoch = self.generation = 0
        """The guard's, when the answer under way was judged last."""
