"""A small text that all nodes of a cluster share and nobody else may know, in the object store that they share.

Owns that it is written once, by whichever node comes first, and that it can be read only with the cluster's secret:
whoever may read the lake can read the object. Never says what is in it, and never lets it into a log line.

    secrets/<name>      headwater-secret 1\\n | nonce (12 bytes) | ChaCha20-Poly1305 of the text
                        key: HMAC-SHA256 of the cluster's secret over "headwater shared secret 1\\n<name>"
                        bound to the first line and the name
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from headwater.log.medium import Unavailable, Unsure
from headwater.ports import SYSTEM_CLOCK, Clock, Rng

if TYPE_CHECKING:
    from headwater.log.object_places import ObjectPlace

FOLDER = "secrets"
TRIES_MAX = 20
AGAIN_S = 0.5
_HEADER = b"headwater-secret 1\n"
_NONCE_BYTES = 12


class BadSharedSecret(Exception):
    """The object cannot be used; the message says what to do."""


async def shared_secret(
    place: ObjectPlace, name: str, made: str, cluster_secret: bytes, rng: Rng, clock: Clock = SYSTEM_CLOCK
) -> str:
    """The text by that name: `made`, durably, when there was none. Tries for a while when the store does not answer.

    Raises BadSharedSecret, Unavailable, Unsure.
    """
    key = f"{FOLDER}/{name}"
    sealed = _seal(name, made, cluster_secret, rng)
    for left in reversed(range(TRIES_MAX)):
        try:
            found = await place.get(key)
            if found is None:
                # Of several nodes that create it at once one does. What is read then is what all of them read.
                await place.create(key, sealed)
                found = await place.get(key)
            if found is not None:
                return _open(name, found, cluster_secret)
        except (Unavailable, Unsure):
            if not left:
                raise
        await clock.sleep(AGAIN_S)
    raise Unavailable(f"{key} was created and is not there")


def _cipher(name: str, cluster_secret: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(hmac.digest(cluster_secret, f"headwater shared secret 1\n{name}".encode(), "sha256"))


def _seal(name: str, text: str, cluster_secret: bytes, rng: Rng) -> bytes:
    nonce = rng.token(_NONCE_BYTES)
    return _HEADER + nonce + _cipher(name, cluster_secret).encrypt(nonce, text.encode(), _HEADER + name.encode())


def _open(name: str, data: bytes, cluster_secret: bytes) -> str:
    nonce, sealed = data[len(_HEADER) :][:_NONCE_BYTES], data[len(_HEADER) + _NONCE_BYTES :]
    if data.startswith(_HEADER) and len(nonce) == _NONCE_BYTES:
        try:
            return _cipher(name, cluster_secret).decrypt(nonce, sealed, _HEADER + name.encode()).decode()
        except (InvalidTag, UnicodeDecodeError):
            pass
    raise BadSharedSecret(
        f"{FOLDER}/{name} in the lake's _cluster folder cannot be opened with this cluster's secret: start the node "
        f"with the --cluster-secret-file that the other nodes have"
    )
