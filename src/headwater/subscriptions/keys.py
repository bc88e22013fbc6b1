"""The node's own secrets: the Ed25519 key that signs webhooks, and the secret that wake tokens are derived from.

Owns the file that keeps them, written once and readable by its owner alone. The nodes of a cluster share theirs (see
`security.shared_secret`): a token that one gave out is taken by whoever owns the subscription next. Never lets a secret
into the log, the catalog or a log line: tokens are computed again whenever they are needed, also after a restart.

They are encrypted where the operator gives a key (see `security.sealing`):

    headwater-keys 1
    signing <base64url of the 32-byte Ed25519 seed>
    tokens <base64url of 32 bytes>
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from headwater.ports import Rng
from headwater.security.kept_secret import kept_secret
from headwater.security.sealing import NOT_SEALED, Sealing
from headwater.security.shared_secret import FOLDER, BadSharedSecret, shared_secret

if TYPE_CHECKING:
    from headwater.log.object_places import ObjectPlace

FILE_NAME = "webhook-keys"
_HEADER = "headwater-keys 1"
_SECRET_BYTES = 32


class BadKeys(Exception):
    """The key file cannot be used; the message says what to do."""


class Keys:
    def __init__(self, seed: bytes, token_secret: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self._token_secret = token_secret
        public = _b64(self._private.public_key().public_bytes_raw())
        # The thumbprint of RFC 7638: these members, in this order, without spaces.
        thumbprint = hashlib.sha256(msgspec.json.encode({"crv": "Ed25519", "kty": "OKP", "x": public})).digest()
        self.kid = f"ds_{_b64(thumbprint)}"
        self._jwk = {"kty": "OKP", "crv": "Ed25519", "x": public, "kid": self.kid, "use": "sig", "alg": "EdDSA"}

    @classmethod
    def fresh(cls, rng: Rng) -> Keys:
        return cls(rng.token(_SECRET_BYTES), rng.token(_SECRET_BYTES))

    @classmethod
    def kept(cls, directory: Path, rng: Rng, sealing: Sealing = NOT_SEALED) -> Keys:
        """The keys in `directory`, made and synced when there are none yet. Raises BadKeys, CannotStart."""
        path = directory / FILE_NAME
        try:
            text = kept_secret(path, _made(rng), sealing, rng)
        except (OSError, UnicodeDecodeError) as error:
            raise BadKeys(f"cannot read or make the key file {path}: {error}") from None
        return _parsed(text, str(path))

    @classmethod
    async def shared(cls, place: ObjectPlace, cluster_secret: bytes, rng: Rng) -> Keys:
        """The keys of the cluster whose objects lie in `place`, made by its first node.

        Raises BadKeys, and Unavailable or Unsure when the store does not answer.
        """
        try:
            text = await shared_secret(place, FILE_NAME, _made(rng), cluster_secret, rng)
        except BadSharedSecret as error:
            raise BadKeys(str(error)) from None
        return _parsed(text, f"the object {FOLDER}/{FILE_NAME}")

    def jwks(self) -> bytes:
        """The public keys, as receivers of webhooks fetch them."""
        return msgspec.json.encode({"keys": [self._jwk]})

    def sign(self, body: bytes, now_s: int) -> str:
        """The value of Webhook-Signature for `body`."""
        signature = self._private.sign(b"%d.%s" % (now_s, body))
        return f"t={now_s},kid={self.kid},ed25519={_b64(signature)}"

    def token(self, uid: str, generation: int, wake_id: str) -> str:
        """What entitles its bearer to act on that wake, and on no other."""
        named = f"{uid}\n{generation}\n{wake_id}".encode()
        return _b64(hmac.digest(self._token_secret, named, "sha256"))

    def holds(self, token: str, uid: str, generation: int, wake_id: str) -> bool:
        expected = self.token(uid, generation, wake_id)
        return hmac.compare_digest(token.encode("utf-8", "surrogateescape"), expected.encode())


def _parsed(text: str, where: str) -> Keys:
    lines = text.splitlines()
    if len(lines) == 3 and lines[0] == _HEADER:
        try:
            seed = _unb64(lines[1].removeprefix("signing "))
            secret = _unb64(lines[2].removeprefix("tokens "))
            if len(seed) == len(secret) == _SECRET_BYTES:
                return Keys(seed, secret)
        except ValueError:
            pass
    raise BadKeys(f"{where} is not a key file; restore it, or remove it so that new keys are made")


def _made(rng: Rng) -> str:
    seed, secret = rng.token(_SECRET_BYTES), rng.token(_SECRET_BYTES)
    return f"{_HEADER}\nsigning {_b64(seed)}\ntokens {_b64(secret)}\n"


def _b64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
