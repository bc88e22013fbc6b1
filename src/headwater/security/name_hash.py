"""Names of erased streams, hashed with a key that stays in the data directory.

Owns the key's file. Never keeps a name: whoever has one can ask for its hash and compare, and a receipt that holds the
hash tells nobody else which stream it is about.

    DATA/receipt-key    headwater-receipt-key 1
                        <base64url of 32 bytes>
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path

from headwater.ports import Rng
from headwater.security.secret_file import read_secret, write_secret

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
    def kept(cls, directory: Path, rng: Rng) -> NameHash:
        """With the key in `directory`, made and synced when there is none yet. Raises BadReceiptKey."""
        path = directory / FILE_NAME
        try:
            if not path.exists():
                text = urlsafe_b64encode(rng.token(_KEY_BYTES)).decode()
                write_secret(path, f"{_HEADER}\n{text}\n")
            lines = read_secret(path).splitlines()
            key = urlsafe_b64decode(lines[1]) if len(lines) == 2 and lines[0] == _HEADER else b""
        except (OSError, ValueError) as error:
            raise BadReceiptKey(f"cannot read or make the key file {path}: {error}") from None
        if len(key) != _KEY_BYTES:
            raise BadReceiptKey(f"{path} is not a key file; restore it, or remove it so that a new key is made")
        return cls(key)

    def of(self, name: str) -> str:
        """The hash of a stream's name, `bucket/name`."""
        return f"hmac-sha256:{self._id}:{hmac.digest(self._key, name.encode(), 'sha256').hex()}"
