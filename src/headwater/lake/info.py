"""What is in a lake, in numbers: for `headwater lake info` and the node's own page.

Owns a look at table and store that changes neither, so that it may be taken beside a node that serves them. Never
judges what it finds: `verify` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headwater.lake.delta_log import read_files
from headwater.lake.layout import FileInfo, listed_files
from headwater.lake.names import SNAPSHOTS
from headwater.lake.store import ObjectStore


def read_table(store: ObjectStore) -> tuple[int, dict[str, FileInfo]] | None:
    """The newest version and its files; None when there is no table. Neither mends nor creates one."""
    found = read_files(store)
    return None if found is None else (found[0].version(), listed_files(found[1]))


def describe(store: ObjectStore, counts: Mapping[int, Mapping[str, int]]) -> dict[str, Any]:
    """`counts` are those of each group's catalog (see `catalog.lake_files`).

    Costs a listing of the table and of the snapshots.
    """
    found = read_table(store)
    version, files = (None, {}) if found is None else found
    total = _sum(files.values())
    snapshots = [stored.size_bytes for stored in store.list(SNAPSHOTS)]
    names = ("rows_live", "files_without_records", "files_waiting_for_deletion", "streams", "extents")
    counted = {name: sum(of_group[name] for of_group in counts.values()) for name in names}
    groups = sorted(counts.keys() | {info.group for info in files.values() if info.group is not None})
    return {
        "lake": store.uri,
        "table_version": version,
        **total,
        "rows_dead": max(0, total["rows"] - counted["rows_live"]),
        **counted,
        "snapshots": len(snapshots),
        "snapshot_bytes": sum(snapshots),
        "groups": [
            {
                "group": group,
                **_sum(info for info in files.values() if info.group == group),
                "catalog_position": counts.get(group, {}).get("catalog_position"),
            }
            for group in groups
        ],
    }


def _sum(files: Iterable[FileInfo]) -> dict[str, Any]:
    listed = list(files)
    lows = [info.position_min for info in listed if info.position_min is not None]
    highs = [info.position_max for info in listed if info.position_max is not None]
    times_ms = [info.modified_ms for info in listed]
    return {
        "files": len(listed),
        "rows": sum(info.row_count or 0 for info in listed),
        "bytes": sum(info.size_bytes for info in listed),
        "position_min": min(lows, default=None),
        "position_max": max(highs, default=None),
        "oldest_ms": min(times_ms, default=None),
        "newest_ms": max(times_ms, default=None),
    }


def flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Without the groups, for a table of two columns."""
    return {name: value for name, value in facts.items() if name != "groups"}
