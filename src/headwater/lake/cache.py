"""What cold reads keep at hand: decoded values in memory, ranges of remote files on local disk.

Owns both bounds, in bytes, and that two readers of one thing fetch it once. Never the only copy of anything: what it
forgets or finds damaged is fetched again.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from headwater.lake.store import Data, StoreRefused

T = TypeVar("T")


class MemoryCache:
    """Least recently used goes first when `bytes_max` is passed. A value larger than the whole is handed out, not kept.

    Thread-safe. Values are shared between threads: they must not change.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits_count = 0
        self.misses_count = 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._flights: dict[Hashable, Future[Any]] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, load: Callable[[], tuple[T, int]]) -> T:
        """The value under `key`; `load` gives it and its size when it is not here.

        Callers that ask while it loads wait for that one load and share its outcome, an exception too. Failures are
        not kept. `load` must not ask for the same key.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                self.hits_count += 1
                value: T = entry[0]
                return value
            self.misses_count += 1
            flight = self._flights.get(key)
            leads = flight is None
            if flight is None:
                flight = self._flights[key] = Future()
        if not leads:
            shared: T = flight.result()
            return shared
        try:
            value, size_bytes = load()
        except BaseException as error:
            with self._lock:
                del self._flights[key]
            flight.set_exception(error)
            raise
        with self._lock:
            del self._flights[key]
            if size_bytes <= self.bytes_max:
                self._entries[key] = (value, size_bytes)
                self.bytes += size_bytes
                while self.bytes > self.bytes_max:
                    _, (_, dropped_bytes) = self._entries.popitem(last=False)
                    self.bytes -= dropped_bytes
        flight.set_result(value)
        return value

    def peek(self, key: Hashable) -> Any | None:
        """The value under `key` when it is here. Never waits for a load."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            self.hits_count += 1
            return entry[0]

    def forget(self, matches: Callable[[Hashable], bool]) -> None:
        """Drops every value whose key matches; what is loading at this moment may still come in afterwards."""
        with self._lock:
            for key in [key for key in self._entries if matches(key)]:
                _, size_bytes = self._entries.pop(key)
                self.bytes -= size_bytes


_CHECK_BYTES = 8
_NAME = re.compile("[0-9a-f]{16}-[0-9a-f]{32}")


class DiskCache:
    """Ranges of remote files as local ones, `bytes_max` in all; least recently used goes first.

        <directory>/<xxh3-64 of key>-<xxh3-128 of key, start and length>    xxh3-64 of the bytes | the bytes

    Nothing is synced and nothing must last: a file that a crash left torn fails its checksum and is fetched again.
    The directory belongs to one process; what lies there from an earlier one is taken over, oldest first. Raises
    StoreRefused when it cannot be used.
    """

    def __init__(self, directory: str | os.PathLike[str], bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._directory = Path(directory)
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()
        found = []
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            for path in self._directory.iterdir():
                if not path.is_file():
                    continue
                if not _NAME.fullmatch(path.name):  # a write that was cut off, or a name that tells of no file
                    path.unlink(missing_ok=True)
                else:
                    status = path.stat()
                    found.append((status.st_mtime_ns, path.name, status.st_size))
        except OSError as error:
            raise StoreRefused(f"the cache cannot use {directory}: {error.strerror}; name another directory") from error
        for _, name, size in sorted(found):
            self._sizes[name] = size
            self.bytes += size
        self._shrink()

    def get(self, key: str, start: int, length: int | None, fetch: Callable[[], Data]) -> Data:
        """The bytes, from here or through `fetch`. A full or broken disk costs the caching, never the read.

        Without a length they are whatever `fetch` makes of that place.
        """
        name = _name(key, start, length)
        with self._lock:
            known = name in self._sizes
            if known:
                self._sizes.move_to_end(name)
        if known:
            data = self._read(name, length)
            if data is not None:
                return data
        data = fetch()
        self._write(name, data)
        return data

    def drop(self, key: str, start: int, length: int | None) -> None:
        """Forgets bytes that were damaged before they came here: their checksum cannot tell."""
        with self._lock:
            self._drop(_name(key, start, length))

    def forget(self, keys: Iterable[str]) -> None:
        """Drops all parts of the files. Looks at every name that is kept."""
        gone = {_prefix(key) for key in keys}
        if not gone:
            return
        with self._lock:
            for name in [name for name in self._sizes if name.partition("-")[0] in gone]:
                self._drop(name)

    def _read(self, name: str, length: int | None) -> Data | None:
        try:
            content = (self._directory / name).read_bytes()
        except OSError:
            content = b""
        data = memoryview(content)[_CHECK_BYTES:]
        if length in (None, len(data)) and content and xxhash.xxh3_64_digest(data) == content[:_CHECK_BYTES]:
            return data
        with self._lock:
            self._drop(name)
        return None

    def _write(self, name: str, data: Data) -> None:
        size = len(data) + _CHECK_BYTES
        if size > self.bytes_max:
            return
        temporary = self._directory / f"{secrets.token_hex(8)}.tmp"
        try:
            with open(temporary, "xb", buffering=0) as file:
                written = os.writev(file.fileno(), [xxhash.xxh3_64_digest(data), data])
            if written != size:
                raise OSError("a short write")
            with self._lock:  # name and account change together: another thread may drop this very name
                temporary.rename(self._directory / name)
                self.bytes += size - self._sizes.pop(name, 0)
                self._sizes[name] = size
                self._shrink()
        except OSError:
            try:
                temporary.unlink()
            except OSError:
                pass  # deleted at the next start

    def _shrink(self) -> None:
        while self.bytes > self.bytes_max:
            self._drop(next(iter(self._sizes)))

    def _drop(self, name: str) -> None:
        self.bytes -= self._sizes.pop(name, 0)
        try:
            (self._directory / name).unlink()
        except OSError:
            pass  # gone already, or the disk is broken: it no longer counts either way


def _name(key: str, start: int, length: int | None) -> str:
    part = xxhash.xxh3_128_hexdigest(f"{key}\0{start}\0{length}".encode())
    return f"{_prefix(key)}-{part}"


def _prefix(key: str) -> str:
    return xxhash.xxh3_64_hexdigest(key.encode())
