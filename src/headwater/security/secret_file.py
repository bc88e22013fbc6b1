"""A small file that only its owner may read, written once.

Owns that it is whole and on stable storage, or not there. Never says what is in it.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_secret(path: Path, text: str) -> None:
    """On return the file is whole and on stable storage; a crash before leaves none. Raises OSError."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(fd, text.encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    part.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_secret(path: Path) -> str:
    """What is in it. Takes back what others were allowed. Raises OSError, UnicodeDecodeError."""
    if path.stat().st_mode & 0o077:
        # A volume may hand files to a whole group; what can be taken back is.
        path.chmod(0o600)
    return path.read_text()
