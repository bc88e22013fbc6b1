"""Signed tokens (JWT, RFC 7519): whose they are, by keys that somebody else publishes.

Owns what is asked of a token, and which keys and algorithms count: asymmetric ones alone, so that a public key is never
taken for a shared secret and `none` for a signature. Never fetches keys (`jwks` does), and never remembers a token: the
guard does.

    iss         the setting jwt_issuer
    aud         the setting jwt_audience, or a list with it
    exp         needed, and not over; nbf and iat not in the future by more than LEEWAY_S
    sub         the principal's name
    <claim>     the setting jwt_claim: scopes, as a list or as text with spaces between. What is no scope of this server
                is passed over: other services have theirs there too
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from joserfc import jwt
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from headwater.errors import CredentialRefused
from headwater.security.principals import JWT, SCOPES_MAX, BadScope, Principal, Scope, parse_scope

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
LEEWAY_S = 60
KEYS_MAX = 64
"""Of one set. Overflow: the set is refused."""
RSA_BITS_MIN = 2048
NAME_CHARS_MAX = 200
_KINDS: dict[str, type[RSAKey] | type[ECKey] | type[OKPKey]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
Key = RSAKey | ECKey | OKPKey
_WRONG = (JoseError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


warnings.simplefilter("ignore", SecurityWarning)
"""It speaks of what is decided here: EdDSA by its old name, keys that are too short."""


class BadKeySet(Exception):
    """The document is no set of keys that can be used; the message says why."""


def key_set(document: Any) -> list[Key]:
    """The keys of a JWK set (RFC 7517) that can verify. Those of other kinds are passed over. Raises BadKeySet."""
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list):
        raise BadKeySet("it has no list of keys")
    if len(keys) > KEYS_MAX:
        raise BadKeySet(f"it has more than {KEYS_MAX} keys")
    found: list[Key] = []
    for one in keys:
        kind = _KINDS.get(str(one.get("kty"))) if isinstance(one, dict) else None
        if kind is None or one.get("use", "sig") != "sig" or one.get("alg", ALGORITHMS[0]) not in ALGORITHMS:
            continue
        try:
            # Only what is public of it: a set that holds private keys by mistake is not to spread them.
            key = kind.import_key({name: value for name, value in one.items() if name not in _PRIVATE})
            if isinstance(key, RSAKey) and key.public_key.key_size < RSA_BITS_MIN:
                continue
        except _WRONG:
            continue
        found.append(key)
    if not found:
        raise BadKeySet("it has no public key of a kind that is taken (RSA from 2048 bits on, EC, Ed25519)")
    return found


_PRIVATE = frozenset(("d", "p", "q", "dp", "dq", "qi", "oth"))


class JwtTokens:
    """The guard's `Tokens`."""

    def __init__(self, issuer: str, audience: str, claim: str) -> None:
        self._issuer = issuer
        self._audience = audience
        self._claim = claim
        self._keys: list[Key] = []
        self._registry = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
        self.on_unknown_key: Callable[[], None] = lambda: None
        """Called for a token of a key that is not known: there may be a newer set."""

    @property
    def knows(self) -> bool:
        return bool(self._keys)

    def learn(self, keys: Iterable[Key]) -> None:
        self._keys = list(keys)

    def verified(self, text: bytes, now_ms: int) -> Principal:
        """Raises CredentialRefused."""
        if text.count(b".") != 2:
            raise CredentialRefused("it is neither a key of this server nor a signed token")
        try:
            token = jwt.decode(text, self._key, list(ALGORITHMS), self._registry)
        except _UnknownKey:
            self.on_unknown_key()
            raise CredentialRefused("the token is signed with a key that is not known here") from None
        except _WRONG:
            raise CredentialRefused("the token's signature or form is not right") from None
        return self._principal(token.claims, now_ms)

    def _key(self, token: Any) -> Key:
        """The key that a token names. One that names none is tried with the only key there is."""
        header = token.headers()
        kid, algorithm = header.get("kid"), header.get("alg")
        for key in self._keys:
            if kid is None and len(self._keys) > 1:
                break
            if kid is not None and key.kid != kid:
                continue
            if key.alg is not None and key.alg != algorithm:
                raise ValueError("the key is for another algorithm")
            return key
        raise _UnknownKey

    def _principal(self, claims: dict[str, Any], now_ms: int) -> Principal:
        now_s = now_ms / 1000
        if claims.get("iss") != self._issuer:
            raise CredentialRefused("the token is of another issuer")
        audience = claims.get("aud")
        if self._audience not in (audience if isinstance(audience, list) else [audience]):
            raise CredentialRefused("the token is for another audience")
        expires_s = _moment(claims.get("exp"))
        if expires_s is None:
            raise CredentialRefused("the token has no time at which it expires (exp)")
        if expires_s <= now_s:
            raise CredentialRefused("the token has expired")
        for name in ("nbf", "iat"):
            begins_s = _moment(claims.get(name))
            if name in claims and (begins_s is None or begins_s > now_s + LEEWAY_S):
                raise CredentialRefused(f"the token is not valid yet ({name})")
        subject = claims.get("sub")
        name = subject if isinstance(subject, str) and subject else "token"
        name = "".join(char if char.isprintable() else "?" for char in name[:NAME_CHARS_MAX])
        return Principal(JWT, name, self._scopes(claims.get(self._claim)), int(expires_s * 1000), f"jwt:{name}")

    @staticmethod
    def _scopes(given: object) -> tuple[Scope, ...]:
        texts = given.split(" ") if isinstance(given, str) else given if isinstance(given, list) else []
        found: dict[Scope, None] = {}
        for text in texts:
            if not isinstance(text, str) or len(found) >= SCOPES_MAX:
                continue
            try:
                found[parse_scope(text)] = None
            except BadScope:
                continue
        return tuple(found)


class _UnknownKey(Exception):
    pass


def _moment(value: object) -> float | None:
    """Seconds since 1970; None for what is no such number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0 < value < 1e11 else None
