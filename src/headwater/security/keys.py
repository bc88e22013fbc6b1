"""Bearer keys: `hw_<id>_<secret>`, and what is kept of them.

Owns their form, and the comparison. A secret is 256 random bits, so a plain SHA-256 of it can be kept: there is nothing
to guess that a slow hash would protect. Never keeps a secret.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b32encode, urlsafe_b64encode
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headwater.ports import Rng

PREFIX = "hw_"
_ID_BYTES = 10
_SECRET_BYTES = 32
_KEY = re.compile(rb"hw_([a-z2-7]{16})_([A-Za-z0-9_-]{43})")
ID = re.compile(r"[a-z2-7]{16}")
HASH_BYTES = 32


class Made(NamedTuple):
    """A new key: the only moment at which the text of it exists here."""

    id: str
    text: str
    hash: bytes


def make(rng: Rng) -> Made:
    id = b32encode(rng.token(_ID_BYTES)).decode().lower()
    secret = urlsafe_b64encode(rng.token(_SECRET_BYTES)).rstrip(b"=")
    return Made(id, f"{PREFIX}{id}_{secret.decode()}", hash_of(secret))


def hash_of(secret: bytes) -> bytes:
    return hashlib.sha256(b"headwater key 1\n" + secret).digest()


def parsed(text: bytes) -> tuple[str, bytes] | None:
    """(id, hash of the secret); None for what is no key."""
    found = _KEY.fullmatch(text)
    return None if found is None else (found[1].decode(), hash_of(found[2]))


def is_it(kept: bytes | None, given: bytes) -> bool:
    """Whether a hash is the kept one. Takes as long when there is none: an id that exists cannot be told by time."""
    return hmac.compare_digest(kept or bytes(HASH_BYTES), given) and kept is not None
