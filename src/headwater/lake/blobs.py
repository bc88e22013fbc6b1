"""Whole objects in a local directory or in memory.

Owns their durability: on disk an object is written beside its place, synced, and renamed into
it. Never lists or expires.
"""

from __future__ import annotations

import os
from pathlib import Path

from headwater.world import BlobsUnavailable


class LocalBlobs:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def put(self, key: str, data: bytes) -> None:
        path = self._directory / key
        part = path.with_name(path.name + ".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.rename(path)
            for folder in (path.parent, *path.parent.parents):
                _sync_directory(folder)
                if folder == self._directory:
                    break
        except OSError as error:
            raise BlobsUnavailable(f"{error.strerror}: {path}") from error

    def get(self, key: str) -> bytes:
        try:
            return (self._directory / key).read_bytes()
        except FileNotFoundError:
            raise KeyError(key) from None
        except OSError as error:
            raise BlobsUnavailable(f"{error.strerror}: {key}") from error

    def delete(self, key: str) -> None:
        try:
            (self._directory / key).unlink(missing_ok=True)
        except OSError as error:
            raise BlobsUnavailable(f"{error.strerror}: {key}") from error


class MemoryBlobs:
    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}

    def put(self, key: str, data: bytes) -> None:
        self._objects[key] = data

    def get(self, key: str) -> bytes:
        return self._objects[key]

    def delete(self, key: str) -> None:
        self._objects.pop(key, None)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
