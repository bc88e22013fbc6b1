"""Who a credential belongs to, as this process knows it now.

Owns the copy of the keys, what is remembered of credentials that were verified, and the epoch: a number that grows
whenever an answer may be another one than before. Whoever remembers that something was allowed keeps the epoch beside
it, and asks again when they differ. Never decides what a request needs, never fetches anything.

    0       authentication is off: nobody is ever asked
    1..     keys, signing keys of tokens, or public buckets changed, or a credential that was seen has expired
"""

from __future__ import annotations

import hashlib
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

import msgspec

from headwater.engine.access_records import AccessKey
from headwater.errors import AccessUnknown, CredentialRefused
from headwater.ports import Clock
from headwater.security import keys as bearer
from headwater.security import signed_urls
from headwater.security.principals import (
    ADMIN_SCOPE,
    EVERYONE,
    KEY,
    NOBODY,
    PUBLIC,
    SIGNED,
    Action,
    Need,
    Principal,
    Scope,
)

REMEMBERED_MAX = 10_000
"""Credentials that were verified. Overflow: all are forgotten, and verified again."""
EXPIRY_PAUSE_S = 0.05
"""Expiries within this time raise the epoch once."""
STALE_S_MAX = 600.0
"""How long keys are good in a process that cannot reach the directory of keys."""
CREDENTIAL_BYTES_MAX = 16 * 1024
_UNKNOWN = "it is no key of this server"
FILE_KEY_ID = "file"
"""Whom signed URLs name whose signer had the key of `admin_key_file`."""


class Copy(msgspec.Struct, frozen=True):
    """What every process knows of the directory's keys."""

    keys: dict[str, AccessKey] = {}
    public: list[str] = []
    """Buckets that everybody may read."""


class Tokens(Protocol):
    """Who verifies signed tokens (see `security.jwt`)."""

    def verified(self, text: bytes, now_ms: int) -> Principal:
        """Raises CredentialRefused."""
        ...


class Guard:
    """With `on` False nothing is asked, for good."""

    def __init__(self, clock: Clock, on: bool = False, file_key: tuple[str, bytes] | None = None) -> None:
        """`file_key`: id and hash of the key that the operator gave (`admin_key_file`)."""
        self.on = on
        self.epoch = 1 if on else 0
        self.generation = 0
        """Grows with the epoch when more than the expiry of a credential is behind it."""
        self.anonymous = NOBODY if on else EVERYONE
        """Whoever brings no credential."""
        self.tokens: Tokens | None = None
        self.url_secret: bytes | None = None
        """What URLs are signed with."""
        self.refused_count = 0
        """Credentials that did not hold."""
        self._clock = clock
        self._file_key = file_key
        self._copy: Copy | None = None
        self._remembered: dict[bytes, Principal] = {}
        self._expiries: list[tuple[int, bytes]] = []
        """Of what is remembered: a heap."""
        self._timer: Any = None

    # ---- what is known ------------------------------------------------------------------------------------------

    @property
    def knows(self) -> bool:
        """The keys are known here."""
        return self._copy is not None

    @property
    def has_file_key(self) -> bool:
        return self._file_key is not None

    def learn(self, copy: Copy | None) -> None:
        """The keys as they are now; None: nobody has told for too long."""
        if not self.on or copy == self._copy:
            return
        self._copy = copy
        scopes = () if copy is None else tuple(Scope(int(Action.READ), f"{bucket}/") for bucket in copy.public)
        self.anonymous = Principal(PUBLIC, "public", scopes) if scopes else NOBODY
        self.forget((KEY, SIGNED))

    def forget(self, kinds: tuple[str, ...]) -> None:
        """Something that credentials of these kinds rested on is another now: they are verified again."""
        self._remembered = {digest: one for digest, one in self._remembered.items() if one.kind not in kinds}
        self._expiries = [one for one in self._expiries if one[1] in self._remembered]
        heapify(self._expiries)
        self.generation += 1
        self.epoch += 1

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- who it is ----------------------------------------------------------------------------------------------

    def principal(self, authorization: bytes | None, signed: bytes | None = None) -> Principal:
        """By the value of the header, or the signature of the URL. Raises CredentialRefused, AccessUnknown."""
        if authorization is None and signed is None:
            return self.anonymous
        # What is remembered is found by a hash: a look into the table does not tell how much of a guess was right.
        digest = hashlib.sha256(signed or b"" if authorization is None else b"\0" + authorization).digest()
        found = self._remembered.get(digest)
        if found is not None:
            if found.expires_ms is not None and found.expires_ms <= self._clock.now_ms():
                raise CredentialRefused("it has expired")
            return found
        try:
            found = self._signer(signed or b"") if authorization is None else self._verified(authorization)
        except CredentialRefused:
            self.refused_count += 1
            raise
        self._remember(digest, found)
        return found

    def remembered(self, authorization: bytes) -> Principal | None:
        """By the value of the header, if that was verified before; nothing is verified for it now."""
        found = self._remembered.get(hashlib.sha256(b"\0" + authorization).digest())
        return found if found is not None and self.holds(found) else None

    def holds(self, principal: Principal) -> bool:
        """Whether somebody who was seen in this generation is still good."""
        return principal.expires_ms is None or self._clock.now_ms() < principal.expires_ms

    def _verified(self, authorization: bytes) -> Principal:
        scheme, _, text = authorization.partition(b" ")
        text = text.strip(b" ")
        if scheme.lower() != b"bearer" or not text:
            raise CredentialRefused("it is not of the form 'Bearer KEY'")
        if len(text) > CREDENTIAL_BYTES_MAX:
            raise CredentialRefused("it is too long")
        if text.startswith(bearer.PREFIX.encode()):
            return self._of_key(text)
        if self.tokens is not None:
            return self.tokens.verified(text, self._clock.now_ms())
        raise CredentialRefused(_UNKNOWN)

    def _of_key(self, text: bytes) -> Principal:
        found = bearer.parsed(text)
        if found is None:
            raise CredentialRefused("it is not a whole key")
        id, hash = found
        if self._file_key is not None and self._file_key[0] == id:
            if bearer.is_it(self._file_key[1], hash):
                return Principal(KEY, "admin_key_file", (ADMIN_SCOPE,), None, FILE_KEY_ID)
            raise CredentialRefused(_UNKNOWN)
        if self._copy is None:
            raise AccessUnknown
        kept = self._copy.keys.get(id)
        if not bearer.is_it(None if kept is None else kept.hash, hash) or kept is None:
            raise CredentialRefused(_UNKNOWN)
        if kept.ended_ms is not None:
            raise CredentialRefused("the key was revoked")
        if not kept.lives(self._clock.now_ms()):
            raise CredentialRefused("the key has expired")
        return Principal(KEY, kept.name, kept.scopes, kept.expires_ms, id)

    def _signer(self, text: bytes) -> Principal:
        if self.url_secret is None:
            raise AccessUnknown
        signed = signed_urls.checked(self.url_secret, text)
        if signed is None:
            raise CredentialRefused("the URL was not signed by this server, or was changed")
        expires_ms, now_ms = signed.expires_ms, self._clock.now_ms()
        if expires_ms <= now_ms:
            raise CredentialRefused("the signed URL has expired")
        if signed.by != FILE_KEY_ID or self._file_key is None:
            if self._copy is None:
                raise AccessUnknown
            signer = self._copy.keys.get(signed.by)
            if signer is None or not signer.lives(now_ms):
                raise CredentialRefused("the key that signed the URL is not valid any more")
            may, scope = Principal(KEY, signer.name, signer.scopes), signed.scope
            if not may.meets(Need(Action.READ, scope.start, not scope.exact)):
                raise CredentialRefused("the key that signed the URL may not read that any more")
            expires_ms = min(expires_ms, signer.expires_ms or expires_ms)
        return Principal(SIGNED, signed.by, (signed.scope,), expires_ms, f"signed-{signed.by}")

    # ---- what is remembered -------------------------------------------------------------------------------------

    def _remember(self, digest: bytes, principal: Principal) -> None:
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
            self._expiries.clear()
            self.epoch += 1  # nobody would hear of the end of those that are in use
        self._remembered[digest] = principal
        if principal.expires_ms is not None:
            heappush(self._expiries, (principal.expires_ms, digest))
            if self._expiries[0][1] == digest:
                self._wait()

    def _wait(self) -> None:
        self.close()
        if self._expiries:
            # In steps of an hour at most: the wall clock may be set meanwhile.
            delay_s = min(3_600.0, max(EXPIRY_PAUSE_S, (self._expiries[0][0] - self._clock.now_ms()) / 1000))
            self._timer = self._clock.call_later(delay_s, self._look)

    def _look(self) -> None:
        now_ms, expiries = self._clock.now_ms(), self._expiries
        if expiries and expiries[0][0] <= now_ms:
            while expiries and expiries[0][0] <= now_ms:
                self._remembered.pop(heappop(expiries)[1], None)
            self.epoch += 1
        self._wait()


def file_key_of(text: str) -> tuple[str, bytes] | None:
    """Id and hash of the key in `admin_key_file`; None when it is none."""
    return bearer.parsed(text.strip().encode("utf-8", "replace"))
