"""The lake in a local directory: one file per object.

Owns what makes a local file durable: write elsewhere, sync, give it its name, sync its folder. Never trusts a name
whose bytes may not be on the disk yet, and never shows an object that is not whole.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from headwater.lake.store import (
    Data,
    LakeDamaged,
    ObjectMissing,
    Parts,
    Stored,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    check_key,
    parts_of,
)

# What the operating system says, and what the operator can do about it.
_REFUSALS = {
    errno.EACCES: "permission denied; let the server's user read and write there",
    errno.EPERM: "the file system does not permit it; it must allow hard links, or the lake must move elsewhere",
    errno.EOPNOTSUPP: "the file system cannot do it; it must allow hard links, or the lake must move elsewhere",
    errno.EROFS: "the file system is read-only; mount it writable",
    errno.EEXIST: "a file stands where a directory is needed; name another directory",
    errno.ENOTDIR: "a part of the path is a file; name a directory",
    errno.ENAMETOOLONG: "the path is too long; name a shorter directory",
}
_OUTAGES = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; raise it or free some space",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
}
_WRITE_BYTES_MAX = 4 << 20
"""One write call: a larger one would hold up a thread that wants to end."""
_FOLDERS_KNOWN_MAX = 10_000


class LocalStore:
    """Files below a directory.

    <directory>/data/3/x.parquet    an object: written elsewhere, synced, then given its name, its folder synced
    <directory>/_tmp/<random>       a write under way, or left behind by a crash; never listed as an object
    """

    _TEMPORARY = "_tmp"
    _FOREIGN_TEMPORARY = re.compile(r"#\d+$")
    """How deltalake names its own writes under way."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._root = Path(os.path.abspath(directory))
        self._known: set[Path] = set()
        """Folders that exist and whose names are synced. Overflow: all are forgotten, and looked at again."""

    @property
    def uri(self) -> str:
        return str(self._root)

    @property
    def storage_options(self) -> dict[str, str]:
        return {}

    def put(self, key: str, data: Parts) -> None:
        path = self._root / check_key(key)
        temporary = self._write(path, data)
        try:
            os.rename(temporary, path)
            _sync_path(path.parent)
        except OSError as error:
            _unlink_quietly(temporary)
            raise self._failure(error, f"cannot store {key}") from error

    def put_if_absent(self, key: str, data: Parts) -> bool:
        path = self._root / check_key(key)
        temporary = self._write(path, data)
        try:
            # A link fails when the name is taken, atomically, and the file below it is whole and synced by then.
            os.link(temporary, path)
            _sync_path(path.parent)
        except FileExistsError:
            return False
        except OSError as error:
            raise self._failure(error, f"cannot store {key}") from error
        finally:
            _unlink_quietly(temporary)
        return True

    def get(self, key: str) -> bytes:
        try:
            return (self._root / check_key(key)).read_bytes()
        except OSError as error:
            raise self._missing_or(error, key) from error

    def get_range(self, key: str, start: int, length: int) -> Data:
        data, size = self._read(key, start, length)
        if len(data) != length:
            raise LakeDamaged(key, f"it ends at byte {size}, before {start + length}")
        return data

    def get_tail(self, key: str, length: int) -> tuple[Data, int]:
        return self._read(key, -length, length)

    def local_path(self, key: str) -> str:
        return str(self._root / check_key(key))

    def head(self, key: str) -> int | None:
        try:
            return (self._root / check_key(key)).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._failure(error, f"cannot look at {key}") from error

    def delete(self, key: str) -> None:
        try:
            (self._root / _check_leftover(key)).unlink(missing_ok=True)
        except NotADirectoryError:
            pass
        except OSError as error:
            raise self._failure(error, f"cannot delete {key}") from error

    def list(self, prefix: str = "") -> Iterator[Stored]:
        for found in self._walk(check_key(prefix.rstrip("/")) if prefix else ""):
            if not self._is_leftover(found.key):
                yield found

    def leftovers(self) -> Iterator[Stored]:
        return (found for found in self._walk("") if self._is_leftover(found.key))

    def sync(self, keys: Iterable[str]) -> None:
        folders = set()
        for key in keys:
            path = self._root / check_key(key)
            try:
                _sync_path(path)
            except OSError as error:
                raise self._missing_or(error, key) from error
            folders.add(path.parent)
        try:
            for folder in folders:
                self._folder(folder)
                _sync_path(folder)
        except OSError as error:
            raise self._failure(error, "cannot sync") from error

    def explain(self, error: Exception) -> StoreError | None:
        if isinstance(error, StoreError):
            return error
        if isinstance(error, OSError) and error.errno is not None:
            return self._failure(error, "cannot work")
        if "Invalid table location" in str(error):
            return StoreRefused(f"{self.uri} is not a directory; name one, or where one can be made")
        # deltalake passes on the operating system's words without its number.
        for number, advice in (_REFUSALS | _OUTAGES).items():
            if os.strerror(number) in str(error):
                return (StoreRefused if number in _REFUSALS else StoreUnavailable)(f"{self.uri}: {advice}")
        return StoreUnavailable(f"{self.uri}: {error}") if isinstance(error, OSError) else None

    def _write(self, target: Path, data: Parts) -> Path:
        """A new file outside the objects, holding the data, synced; the target's folder exists by then."""
        path = self._root / self._TEMPORARY / secrets.token_hex(12)
        try:
            self._folder(target.parent)
            self._folder(path.parent)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                for part in parts_of(data):
                    view = memoryview(part)
                    while view:
                        view = view[os.write(descriptor, view[:_WRITE_BYTES_MAX]) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            _unlink_quietly(path)
            raise self._failure(error, f"cannot store {target.name}") from error
        return path

    def _read(self, key: str, start: int, length: int) -> tuple[bytes, int]:
        try:
            descriptor = os.open(self._root / check_key(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                if start < 0:
                    start = max(0, size + start)
                data = os.pread(descriptor, length, start)
                while len(data) < length and start + len(data) < size:
                    more = os.pread(descriptor, length - len(data), start + len(data))
                    if not more:
                        break
                    data += more
                return data, size
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._missing_or(error, key) from error

    def _folder(self, folder: Path) -> None:
        """Makes sure the folder is there and that its name survives a power loss, up to the root's parent."""
        if folder in self._known:
            return
        if folder != self._root:
            self._folder(folder.parent)
            folder.mkdir(exist_ok=True)
        else:
            folder.mkdir(parents=True, exist_ok=True)
        _sync_path(folder.parent)
        if len(self._known) >= _FOLDERS_KNOWN_MAX:
            self._known.clear()
        self._known.add(folder)

    def _walk(self, prefix: str) -> Iterator[Stored]:
        pending = [prefix]
        while pending:
            folder = pending.pop()
            try:
                with os.scandir(self._root / folder) as entries:
                    found = list(entries)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise self._failure(error, f"cannot list {folder or self.uri}") from error
            for entry in found:
                key = f"{folder}/{entry.name}" if folder else entry.name
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # deleted, or renamed from its temporary name, since it was listed
                if stat.S_ISDIR(status.st_mode):
                    pending.append(key)
                elif stat.S_ISREG(status.st_mode):
                    yield Stored(key, status.st_size, status.st_mtime_ns // 1_000_000)

    def _is_leftover(self, key: str) -> bool:
        return key.startswith(f"{self._TEMPORARY}/") or self._FOREIGN_TEMPORARY.search(key) is not None

    def _missing_or(self, error: OSError, key: str) -> StoreError:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
            return ObjectMissing(key)
        return self._failure(error, f"cannot read {key}")

    def _failure(self, error: OSError, what: str) -> StoreError:
        number = error.errno or 0
        if number in _REFUSALS:
            return StoreRefused(f"{what} in {self.uri}: {_REFUSALS[number]}")
        return StoreUnavailable(f"{what} in {self.uri}: {_OUTAGES.get(number, error.strerror or str(error))}")


def _sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unlink_quietly(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass  # it is listed as a leftover from now on


def _check_leftover(key: str) -> str:
    check_key(key.partition("#")[0])
    return key
