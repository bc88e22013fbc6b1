"""A secret that the node makes for itself and keeps in a file, encrypted if the operator gave a key.

Owns that what was kept in another way before is kept as it is to be. Never says what is in it.
"""

from __future__ import annotations

from pathlib import Path

from headwater.ports import Rng
from headwater.security.sealing import Sealing
from headwater.security.secret_file import read_secret, write_secret


def kept_secret(path: Path, made: str, sealing: Sealing, rng: Rng) -> str:
    """The secret in a file: `made`, on stable storage, when there was none. On return the file is as `sealing` has it.

    Raises OSError, UnicodeDecodeError, and CannotStart when it cannot be decrypted."""
    if not path.exists():
        write_secret(path, sealing.seal(path.name, made, rng))
    while True:
        kept = read_secret(path)
        opened = sealing.open(path.name, kept, str(path))
        if opened.is_current:
            return opened.text
        # Another process may do the same: what it wrote is looked at then.
        write_secret(path, sealing.seal(path.name, opened.text, rng), instead_of=kept)
