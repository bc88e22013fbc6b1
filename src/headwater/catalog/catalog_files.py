"""A group's catalog file as worker threads use it: each opens it for itself.

Owns the way to the file, and the directory for copies of it. Never keeps it open.
"""

from __future__ import annotations

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

    def scrub(self, name: str) -> bool:
        return scrub(self._path, name)
