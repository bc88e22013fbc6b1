"""The Delta table of a lake, as it lists its files: for reads without a node, and to skip files.

Owns reading that list. Never opens a file of the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from headwater.lake.layout import SCHEMA
from headwater.lake.names import data_group
from headwater.lake.store import ObjectMissing, StoreRefused
from headwater.spark.lake_place import Place
from headwater.spark.ranges import FAR, File


def table_files(place: Place, version: int | None = None) -> dict[int, list[File]]:
    """The files of the newest version of the table, or of that one, by group.

    Raises StoreError for what is no lake, or cannot be read as one.
    """
    listed = listed_table(place, version)
    names = ("path", "size_bytes", "num_records", "min.position", "max.position", "modification_time")
    rows = zip(*(_column(listed, name) for name in (*names, "min.ts_ms", "max.ts_ms")), strict=True)
    found: dict[int, list[File]] = {}
    for path, size, count, low, high, ms, ms_min, ms_max in rows:
        bounds = (1 if low is None else low, FAR if high is None else high)
        file = File(path, size, count or 0, count or 0, *bounds, ms, None, ms_min, ms_max)
        found.setdefault(data_group(path), []).append(file)
    return dict(sorted(found.items()))


def table_bounds(place: Place, columns: Iterable[str]) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Between which values of these columns the rows of each file lie, as far as the table says. Raises StoreError."""
    listed = listed_table(place)
    found: dict[str, dict[str, tuple[Any, Any]]] = {path: {} for path in _column(listed, "path")}
    for name in columns:
        spans = zip(_column(listed, f"min.{name}"), _column(listed, f"max.{name}"), strict=True)
        for known, (low, high) in zip(found.values(), spans, strict=True):
            if low is not None and high is not None:
                known[name] = (low, high)
    return found


def is_wide(place: Place) -> bool:
    """Whether some of its files may have the columns that were added (see `lake.layout`). Raises StoreError."""
    from headwater.lake.delta_log import read_files

    found = read_files(place.store())
    return found is not None and len(found[0].schema().fields) > len(SCHEMA)


def listed_table(place: Place, version: int | None = None) -> pa.Table:
    """What the newest version of the table, or that one, says of its files. Raises StoreError."""
    from headwater.lake.delta_log import LOG, ROWS_HIDDEN_BY, read_files

    store = place.store()
    found = read_files(store, version)
    if found is None:
        raise ObjectMissing(f"{LOG} in {store.uri}: is it the place of a lake?")
    table, listed = found
    features = ROWS_HIDDEN_BY & set(table.protocol().reader_features or ())
    if features:
        raise StoreRefused(
            f"the table at {store.uri} uses {', '.join(sorted(features))}: its files hold rows that do not count. "
            "Read it through its node, or rewrite it without"
        )
    return listed


def _column(listed: pa.Table, name: str) -> list[Any]:
    return list(listed[name].to_pylist()) if name in listed.column_names else [None] * len(listed)
