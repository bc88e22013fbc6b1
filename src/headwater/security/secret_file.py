"""A small file that only its owner may read, written once; and once more when it is to be encrypted otherwise.

Owns that it is whole and on stable storage, or not there, also when several processes want to write it at once. Never
says what is in it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def write_secret(path: Path, text: str, instead_of: str | None = None) -> None:
    """On return the file is whole and on stable storage; a crash before leaves what was there. One that is there stays
    as it is unless it has `instead_of` in it: of several processes that write at once the first one counts. Raises
    OSError."""
    part = path.with_name(path.name + ".part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if path.exists() and (instead_of is None or path.read_text() != instead_of):
            # Another process wrote it meanwhile, and renamed the part that this one waited for.
            part.unlink(missing_ok=True)
        else:
            os.fchmod(fd, 0o600)
            os.ftruncate(fd, 0)
            os.write(fd, text.encode())
            os.fsync(fd)
            part.rename(path)
    finally:
        os.close(fd)
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
