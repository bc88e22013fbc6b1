"""What is in a lake, in numbers: for `headwater lake info` and the node's own page.

Owns a look at table and store that changes neither, so that it may be taken beside a node that serves them. Never
judges what it finds: `verify` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from headwater.lake.layout import FileInfo, listed_files
from headwater.lake.names import SNAPSHOTS
from headwater.lake.store import LakeDamaged, ObjectStore


class Counted(Protocol):
    """The catalog, as far as it is counted here (see `catalog.lake_files`)."""

    def position(self) -> int: ...
    def counts(self) -> dict[str, int]: ...
    def files(self) -> dict[str, int | None]: ...
    def live_rows(self) -> dict[str, int]: ...


def read_table(store: ObjectStore) -> tuple[int, dict[str, FileInfo]] | None:
    """The newest version and its files; None when there is no table. Neither mends nor creates one."""
    try:
        table = DeltaTable(store.uri, storage_options=store.storage_options or None)
        listed = pa.table(table.get_add_actions(flatten=True))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise store.explain(error) or LakeDamaged("_delta_log", str(error).partition("\n")[0]) from error
    return table.version(), listed_files(listed)


def describe(store: ObjectStore, catalogs: Sequence[Counted]) -> dict[str, Any]:
    """What the lake holds, by the catalogs of all groups.

    Costs a listing of the table and of the snapshots, and a walk over an index of each catalog.
    """
    found = read_table(store)
    version, files = (None, {}) if found is None else found
    live = {name: count for catalog in catalogs for name, count in catalog.live_rows().items()}
    known = {name: dead_ms for catalog in catalogs for name, dead_ms in catalog.files().items()}
    counts: dict[str, int] = {}
    for catalog in catalogs:
        for name, count in catalog.counts().items():
            counts[name] = counts.get(name, 0) + count
    total = _sum(files.values())
    rows = total["rows"]
    snapshots = [stored.size_bytes for stored in store.list(SNAPSHOTS)]
    live_count = sum(live.values())
    return {
        "lake": store.uri,
        "table_version": version,
        **total,
        "rows_live": live_count,
        "rows_dead": max(0, rows - live_count),
        "files_without_records": len(known.keys() - live.keys()),
        "files_waiting_for_deletion": sum(1 for dead_ms in known.values() if dead_ms is not None),
        "snapshots": len(snapshots),
        "snapshot_bytes": sum(snapshots),
        **counts,
        "catalog_position": sum(catalog.position() for catalog in catalogs),
        "groups": [
            {"group": group, **_sum(info for info in files.values() if info.group == group)}
            for group in sorted({info.group for info in files.values() if info.group is not None})
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
