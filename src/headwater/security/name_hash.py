"""Names of erased streams, hashed with a key that stays in the data directory.

Owns the key's file. Never keeps a name: whoever has one can ask for its hash and compare, and a receipt that holds the
hash tells nobody else which stream it is about.

    DATA/receipt-key    headwater-receipt-key 1
                        <base64url of 32 bytes>

It is encrypted where the operator gives a key (see `sealing`). The nodes of a cluster share theirs (see
`security.shared_secret`): a receipt is the same whoever gave it.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.ports import Rng
from headwater.security.kept_secret import kept_secret
from headwater.security.sealing import NOT_SEALED, Sealing
from headwater.security.shared_secret import FOLDER, BadSharedSecret, shared_secret

if TYPE_CHECKING:
    from headwater.log.object_places import ObjectPlace

FILE_NAME = "receipt-key"
_HEADER = "headwater-receipt-key 1"
_KEY_BYTES = 32


class BadReceiptKey(Exception):
    """The key's file cannot be used; the message says what to do."""


class NameHash:
    def __init__(self, key: bytes) -> None:
        self._key = key
        self._id = hashlib.sha256(key).hexdigest()[:8]
        """Tells hashes of another node's key from one that does not match."""

    @classmethod
    def kept(cls, directory: Path, rng: Rng, sealing: Sealing = NOT_SEALED) -> NameHash:
        """With the key in `directory`, made and synced when there is none yet. Raises BadReceiptKey, CannotStart."""
        path = directory / FILE_NAME
        try:
            text = kept_secret(path, _made(rng), sealing, rng)
        except (OSError, ValueError) as error:
            raise BadReceiptKey(f"cannot read or make the key file {path}: {error}") from None
        return cls(_parsed(text, str(path)))

    @classmethod
    async def shared(cls, place: ObjectPlace, cluster_secret: bytes, rng: Rng) -> NameHash:
        """With the key of the cluster whose objects lie in `place`, made by its first node.

        Raises BadReceiptKey, and Unavailable or Unsure when the store does not answer.
        """
        try:
            text = await shared_secret(place, FILE_NAME, _made(rng), cluster_secret, rng)
        except BadSharedSecret as error:
            raise BadReceiptKey(str(error)) from None
        return cls(_parsed(text, f"the object {FOLDER}/{FILE_NAME}"))

    def of(self, name: str) -> str:
        """The hash of a stream's name, `bucket/name`."""
        return f"hmac-sha256:{self._id}:{hmac.digest(self._key, name.encode(), 'sha256').hex()}"


def _made(rng: Rng) -> str:
    return f"{_HEADER}\n{urlsafe_b64encode(rng.token(_KEY_BYTES)).decode()}\n"


def _parsed(text: str, where: str) -> bytes:
    lines = text.splitlines()
    if len(lines) == 2 and lines[0] == _HEADER:
        try:
            key = urlsafe_b64decode(lines[1])
            if len(key) == _KEY_BYTES:
                return key
        except ValueError:
            pass
    raise BadReceiptKey(f"{where} is not a key file; restore it, or remove it so that a new key is made")
