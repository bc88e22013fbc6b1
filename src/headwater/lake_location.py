"""Where a node's lake is, as its settings say.

Never tries whether it can be reached.
"""

from __future__ import annotations

from pathlib import Path

from headwater.config import Settings
from headwater.lake.open_store import open_store
from headwater.lake.store import ObjectStore


def lake_url(settings: Settings) -> str:
    return str(Path(settings.data) / "lake") if settings.lake == "auto" else settings.lake


def open_lake(settings: Settings, url: str) -> ObjectStore:
    """Raises StoreRefused for what can never work; tries nothing yet."""
    return open_store(url, endpoint=_given(settings.lake_endpoint), region=_given(settings.lake_region))


def place(settings: Settings, store: ObjectStore) -> dict[str, str | None]:
    """How others open the lake's store."""
    return {
        "url": store.uri,
        "endpoint": _given(settings.lake_endpoint),
        "region": _given(settings.lake_region),
    }


def _given(value: str) -> str | None:
    return None if value == "auto" else value
