"""Where the lake's objects are, for executors: a place that pickles, and the store it names.

Owns the hand-over of that place from driver to executors. Never carries credentials: each process finds them in its own
environment, as the node does.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from headwater.lake.open_store import open_store
from headwater.lake.store import ObjectStore


class _Fields(NamedTuple):
    url: str
    endpoint: str | None = None
    region: str | None = None


class Place(_Fields):
    """A lake, or a directory or bucket for tables or a backup.

    A relative path is one of the process that names it: executors have other working directories.
    """

    __slots__ = ()

    def __new__(cls, url: str, endpoint: str | None = None, region: str | None = None) -> Place:
        return super().__new__(cls, url if not url or ":" in url else os.path.abspath(url), endpoint, region)

    def store(self) -> ObjectStore:
        """Raises StoreRefused for what can never work; tries nothing yet."""
        return open_store(self.url, endpoint=self.endpoint, region=self.region)

    @property
    def is_local(self) -> bool:
        return "://" not in self.url or self.url.startswith("file://")


def place_of(facts: dict[str, Any]) -> Place:
    """The place that a group's `lake/files` names."""
    return Place(facts["url"], facts.get("endpoint"), facts.get("region"))
