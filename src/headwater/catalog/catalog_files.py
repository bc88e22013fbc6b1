"""A group's catalog file as worker threads use it: each opens it for itself.

Owns the way to the file, and the directory for copies of it. Never keeps it open.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from headwater.catalog.catalog_copy import copy_catalog
from headwater.catalog.lake_files import LakeFiles
from headwater.catalog.scrub import scrub
from headwater.ports import CatalogCopy


class SqliteCatalogFiles:
    """The `CatalogFiles` of a group (see `engine.owned_group`)."""

    def __init__(self, path: Path, held_directory: Path) -> None:
        self._path = path
        self.held_directory = held_directory

    def open(self) -> LakeFiles:
        return LakeFiles(self._path)

    def open_to_read(self) -> LakeFiles:
        return LakeFiles(self._path, read_only=True)

    def copy(self, to: Path) -> CatalogCopy:
        return copy_catalog(self._path, to)

    def scrub(self, name: str | None) -> bool:
        return scrub(self._path, name)


def remove_catalog(path: Path) -> None:
    """If there is one. Nobody has it open. What cannot be removed stays for the next call."""
    with suppress(OSError):
        for suffix in ("-wal", "-shm", ""):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
