"""The secret that URLs are signed with.

Owns its file, and in a cluster its object. Never signs anything (`signed_urls` does), and never logs it.

It is encrypted where the operator gives a key (see `sealing`).

    DATA/url-key    headwater-url-key 1
                    <base64url of 32 bytes>
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.ports import Rng
from headwater.security.kept_secret import kept_secret
from headwater.security.sealing import NOT_SEALED, Sealing
from headwater.security.shared_secret import FOLDER, BadSharedSecret, shared_secret
from headwater.start_refused import CannotStart

if TYPE_CHECKING:
    from headwater.log.object_places import ObjectPlace

FILE_NAME = "url-key"
_HEADER = "headwater-url-key 1"
_KEY_BYTES = 32


def kept(directory: Path, rng: Rng, sealing: Sealing = NOT_SEALED) -> bytes:
    """The secret in `directory`, made and synced when there is none yet. Raises CannotStart."""
    path = directory / FILE_NAME
    try:
        text = kept_secret(path, _made(rng), sealing, rng)
    except (OSError, ValueError) as error:
        raise CannotStart(f"cannot read or make the key file {path}: {error}") from None
    return _parsed(text, str(path))


async def shared(place: ObjectPlace, cluster_secret: bytes, rng: Rng) -> bytes:
    """That of the cluster whose objects lie in `place`. Raises CannotStart, Unavailable, Unsure."""
    try:
        text = await shared_secret(place, FILE_NAME, _made(rng), cluster_secret, rng)
    except BadSharedSecret as error:
        raise CannotStart(str(error)) from None
    return _parsed(text, f"the object {FOLDER}/{FILE_NAME}")


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
    raise CannotStart(f"{where} is not a key file; restore it, or remove it so that a new key is made")
