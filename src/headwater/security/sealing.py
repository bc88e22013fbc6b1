"""The operator's key, and the node's own secrets encrypted with it: whoever copies the disk does not have them.

Owns the key file and the form of what is encrypted. Never says what is in it, and never lets a key into a message.

    FILE            one key a line, of 32 characters or more: the first encrypts, the others only decrypt
    sealed text     headwater-sealed 1 <id of the key>
                    <base64url of nonce (12 bytes) | ChaCha20-Poly1305 of the text>
                    key: HMAC-SHA256 of the line over "headwater sealed 1 key"; bound to the first line and the name
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from headwater.config import Settings
from headwater.ports import Rng
from headwater.security.secret_file import read_secret
from headwater.setting_values import AUTO
from headwater.start_refused import CannotStart

LINE_CHARS_MIN = 32
LINES_MAX = 16
_HEADER = "headwater-sealed 1"
_NONCE_BYTES = 12
_MAKE = "`openssl rand -base64 32 > FILE; chmod 600 FILE`"


class Opened(NamedTuple):
    text: str
    is_current: bool
    """It is kept as it is to be: encrypted with the first key, or as it is where there is none."""


class _Key:
    __slots__ = ("cipher", "id")

    def __init__(self, line: str) -> None:
        secret = line.encode()
        self.cipher = ChaCha20Poly1305(hmac.digest(secret, b"headwater sealed 1 key", "sha256"))
        self.id = hmac.digest(secret, b"headwater sealed 1 id", "sha256").hex()[:16]
        """Tells which key it was, and nothing of it."""


class Sealing:
    def __init__(self, lines: Sequence[str] = (), where: str = "") -> None:
        """`where` names the file of the keys in messages."""
        self._keys = [_Key(line) for line in lines]
        self._where = where

    def seal(self, name: str, text: str, rng: Rng) -> str:
        """The secret of that name as it is to be kept."""
        if not self._keys:
            return text
        key, nonce = self._keys[0], rng.token(_NONCE_BYTES)
        head = f"{_HEADER} {key.id}"
        sealed = key.cipher.encrypt(nonce, text.encode(), _bound(head, name))
        return f"{head}\n{urlsafe_b64encode(nonce + sealed).decode()}\n"

    def open(self, name: str, kept: str, where: str) -> Opened:
        """The secret of that name. Raises CannotStart, which names `where` it was kept."""
        if not kept.startswith(_HEADER):
            return Opened(kept, not self._keys)
        if not self._keys:
            raise CannotStart(f"{where} is encrypted: give the secrets_key_file that it was encrypted with")
        head, _, body = kept.strip().partition("\n")
        id = head.removeprefix(_HEADER).strip()
        key = next((one for one in self._keys if one.id == id), None)
        if key is None:
            raise CannotStart(
                f"{where} is encrypted with a key that is not in {self._where}: put that key there too, on a line of "
                f"its own; if it is lost, remove {where}, and a new secret is made"
            )
        try:
            data = urlsafe_b64decode(body)
            text = key.cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _bound(head, name)).decode()
        except (InvalidTag, ValueError):
            raise CannotStart(f"{where} is damaged: restore it, or remove it so that a new secret is made") from None
        return Opened(text, key is self._keys[0])


NOT_SEALED = Sealing()


def sealing_of(settings: Settings) -> Sealing:
    """By the setting `secrets_key_file`. Raises CannotStart."""
    if settings.secrets_key_file == AUTO:
        return Sealing()
    path = Path(settings.secrets_key_file)
    try:
        text = read_secret(path)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror or error if isinstance(error, OSError) else "it is no text"
        raise CannotStart(f"cannot read the secrets_key_file {path}: {why}") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not 0 < len(lines) <= LINES_MAX:
        raise CannotStart(f"{path} holds {len(lines)} keys, and is to have 1 to {LINES_MAX}: make one with {_MAKE}")
    if any(len(line) < LINE_CHARS_MIN for line in lines):
        raise CannotStart(f"{path} has a key of fewer than {LINE_CHARS_MIN} characters: make one with {_MAKE}")
    return Sealing(lines, str(path))


def _bound(head: str, name: str) -> bytes:
    return f"{head}\n{name}".encode()
