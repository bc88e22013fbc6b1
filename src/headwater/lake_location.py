"""Where a node's lake is, as its settings say.

Never tries whether it can be reached.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headwater.config import Settings
from headwater.lake.open_store import open_store
from headwater.lake.store import ObjectStore
from headwater.log.object_places import DirectoryPlace, ObjectPlace

CLUSTER_FOLDER = "_cluster"
"""Beside the table's files in the lake. The underscore keeps other writers' vacuum of the table away from it."""


def lake_url(settings: Settings) -> str:
    return str(Path(settings.data) / "lake") if settings.lake == "auto" else settings.lake


def open_lake(settings: Settings, url: str) -> ObjectStore:
    """Raises StoreRefused for what can never work; tries nothing yet."""
    return open_store(url, endpoint=_given(settings.lake_endpoint), region=_given(settings.lake_region))


def cluster_url(settings: Settings) -> str:
    """Where nodes of a cluster register, and keep their catalog snapshots."""
    return f"{lake_url(settings).rstrip('/')}/{CLUSTER_FOLDER}"


def open_place(settings: Settings, url: str) -> ObjectPlace:
    """A place whose objects are created once. Tries nothing yet."""
    if url.startswith("s3://"):
        # Imported here: a node without S3 does not pay for loading its client.
        from headwater.log.object_places import S3Place

        parts = urlsplit(url)
        endpoint, region = _given(settings.lake_endpoint), _given(settings.lake_region)
        return S3Place(parts.netloc, parts.path, endpoint=endpoint, region=region)
    path = unquote(urlsplit(url).path) if url.startswith("file://") else os.path.abspath(url)
    return DirectoryPlace(Path(path))


def place(settings: Settings, store: ObjectStore) -> dict[str, str | None]:
    """How others open the lake's store."""
    return {
        "url": store.uri,
        "endpoint": _given(settings.lake_endpoint),
        "region": _given(settings.lake_region),
    }


def _given(value: str) -> str | None:
    return None if value == "auto" else value
