"""What the Delta table says of its files, summed up: how large they are, what they hold, how well they can be skipped.

Owns the sums, over what a commit said of each file. Opens no file, and judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import Any

import pyarrow as pa

from headwater.lake.delta_log import read_files
from headwater.lake.layout import PRUNED_BY
from headwater.lake.overlap import deepest
from headwater.lake.store import ObjectStore

BUCKETS_SHOWN_MAX = 1_000


def summed_up(store: ObjectStore) -> dict[str, Any]:
    """Costs a look at the table. Raises StoreError."""
    found = read_files(store)
    if found is None:
        return {"lake": store.uri, "table_version": None, **_sizes([], [])}
    table, listed = found
    return {"lake": store.uri, "table_version": table.version(), **described(listed)}


def described(listed: pa.Table) -> dict[str, Any]:
    """The same of Delta's flat list of files."""
    sizes, rows = _column(listed, "size_bytes"), [count or 0 for count in _column(listed, "num_records")]
    times = _bounds(listed, "ts_ms")
    known = [span for span in times if span is not None]
    buckets = _by_bucket(sizes, rows, _bounds(listed, "bucket"), times)
    return {
        **_sizes(sizes, rows),
        "earliest_ms": min((low for low, _ in known), default=None),
        "latest_ms": max((high for _, high in known), default=None),
        "files_at_one_time": len(deepest(span if span is None or span[0] < span[1] else None for span in times)),
        "columns": [_of_column(listed, name) for name in PRUNED_BY],
        "buckets_more": max(0, len(buckets) - BUCKETS_SHOWN_MAX),
        "buckets": buckets[:BUCKETS_SHOWN_MAX],
    }


def _sizes(sizes: Sequence[int], rows: Sequence[int]) -> dict[str, Any]:
    told: dict[str, Any] = {"files": len(sizes), "rows": sum(rows), "bytes": sum(sizes)}
    for name, values in (("bytes", sizes), ("rows", rows)):
        told[f"file_{name}_min"] = min(values, default=None)
        told[f"file_{name}_median"] = median_low(values) if values else None
        told[f"file_{name}_max"] = max(values, default=None)
    return told


def _of_column(listed: pa.Table, name: str) -> dict[str, Any]:
    """`files`: how many tell of it at all. Null where none does, and for a column without a value."""
    spans = [span for span in _bounds(listed, name) if span is not None]
    nulls = [count for count in _column(listed, f"null_count.{name}") if count is not None]
    return {
        "column": name,
        "files": max(len(spans), len(nulls)),
        "least": min((low for low, _ in spans), default=None),
        "greatest": max((high for _, high in spans), default=None),
        "nulls": sum(nulls) if nulls else None,
    }


def _by_bucket(
    sizes: Sequence[int], rows: Sequence[int], buckets: Iterable[Any], times: Iterable[Any]
) -> list[dict[str, Any]]:
    """The largest first. The bucket None stands for files of several, or of ones that nobody tells."""
    found: dict[str | None, dict[str, Any]] = {}
    for size, count, span, time in zip(sizes, rows, buckets, times, strict=True):
        bucket = span[0] if span is not None and span[0] == span[1] else None
        one = found.setdefault(
            bucket, {"bucket": bucket, "files": 0, "rows": 0, "bytes": 0, "earliest_ms": None, "latest_ms": None}
        )
        one["files"], one["rows"], one["bytes"] = one["files"] + 1, one["rows"] + count, one["bytes"] + size
        if time is not None:
            one["earliest_ms"] = time[0] if one["earliest_ms"] is None else min(one["earliest_ms"], time[0])
            one["latest_ms"] = time[1] if one["latest_ms"] is None else max(one["latest_ms"], time[1])
    return sorted(found.values(), key=lambda one: (-one["bytes"], one["bucket"] or ""))


def _bounds(listed: pa.Table, name: str) -> list[tuple[Any, Any] | None]:
    spans = zip(_column(listed, f"min.{name}"), _column(listed, f"max.{name}"), strict=True)
    return [None if low is None or high is None else (low, high) for low, high in spans]


def _column(listed: pa.Table, name: str) -> list[Any]:
    return list(listed[name].to_pylist()) if name in listed.column_names else [None] * len(listed)
