"""Keys and public buckets, as the directory group's log and catalog keep them.

Owns the fold of their events and the rows of a checkpoint. Never decides who may do what, and never holds a secret: of
a key there is a hash.

Rows in the catalog, msgpack arrays: `key/<id>`: the key's fields after its id; `public/<bucket>`: when the bucket that
is meant was made, ms.
"""

from __future__ import annotations

import msgspec

from headwater.engine.row_changes import RowChanges
from headwater.security.principals import Scope

ENDED_MAX = 1_000
"""Revoked keys that are still told of. Overflow: those that ended first are forgotten."""
_KEY, _PUBLIC = "key/", "public/"


class AccessKey(msgspec.Struct, frozen=True, array_like=True):
    name: str
    hash: bytes
    scopes: tuple[Scope, ...]
    created_ms: int
    created_by: str
    expires_ms: int | None = None
    ended_ms: int | None = None
    """When it was revoked."""
    follows: str = ""
    """The id of the key that it takes the place of."""

    def lives(self, now_ms: int) -> bool:
        return self.ended_ms is None and (self.expires_ms is None or now_ms < self.expires_ms)


class KeyMade(msgspec.Struct, frozen=True, array_like=True, tag=1):
    id: str
    key: AccessKey


class KeyRevoked(msgspec.Struct, frozen=True, array_like=True, tag=2):
    id: str


class KeyExpires(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Sooner than it was to."""

    id: str
    expires_ms: int


class BucketOpened(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Everybody may read it."""

    bucket: str
    created_ms: int
    """Of the bucket: one that is made later under that name is another one."""


class BucketClosed(msgspec.Struct, frozen=True, array_like=True, tag=5):
    bucket: str


AccessEvent = KeyMade | KeyRevoked | KeyExpires | BucketOpened | BucketClosed

_encode = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(AccessEvent).decode
_decode_key = msgspec.msgpack.Decoder(AccessKey).decode
_decode_ms = msgspec.msgpack.Decoder(int).decode


def encode(event: AccessEvent) -> bytes:
    return _encode(event)


class AccessRecords(RowChanges):
    """The `Domain` of access, of one group. Only that of the directory group ever has any."""

    name = "access"
    in_memory = True

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[str, AccessKey] = {}
        self.public: dict[str, int] = {}
        self._ended: dict[str, None] = {}
        """Revoked keys, the first first."""
        self.version = 0
        """Grows with every change."""

    # ---- the Domain ---------------------------------------------------------------------------------------------

    def apply(self, body: bytes, at_ms: int, position: int) -> None:
        event = _decode_event(body)
        if isinstance(event, KeyMade):
            self._keep(event.id, event.key)
        elif isinstance(event, KeyRevoked):
            key = self.keys.get(event.id)
            if key is not None and key.ended_ms is None:
                self._keep(event.id, msgspec.structs.replace(key, ended_ms=at_ms))
                self._ended[event.id] = None
                if len(self._ended) > ENDED_MAX:
                    self._forget(next(iter(self._ended)))
        elif isinstance(event, KeyExpires):
            key = self.keys.get(event.id)
            if key is not None:
                self._keep(event.id, msgspec.structs.replace(key, expires_ms=event.expires_ms))
        elif isinstance(event, BucketOpened):
            self.public[event.bucket] = event.created_ms
            self._changes[_PUBLIC + event.bucket] = _encode(event.created_ms)
        else:
            self.public.pop(event.bucket, None)
            self._changes[_PUBLIC + event.bucket] = None
        self.version += 1

    def restore(self, things: dict[str, bytes]) -> None:
        for name, row in things.items():
            if name.startswith(_KEY):
                self.keys[name.removeprefix(_KEY)] = _decode_key(row)
            else:
                self.public[name.removeprefix(_PUBLIC)] = _decode_ms(row)
        ended = [(key.ended_ms, id) for id, key in self.keys.items() if key.ended_ms is not None]
        self._ended = {id: None for _, id in sorted(ended)}
        self.version += 1

    # ---- inside -------------------------------------------------------------------------------------------------

    def _keep(self, id: str, key: AccessKey) -> None:
        self.keys[id] = key
        self._changes[_KEY + id] = _encode(key)

    def _forget(self, id: str) -> None:
        del self._ended[id]
        self.keys.pop(id, None)
        self._changes[_KEY + id] = None
