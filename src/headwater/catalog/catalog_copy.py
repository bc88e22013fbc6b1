"""A copy of the catalog as it is at one moment, taken beside the node that writes it.

Owns the copy and what it says of itself. Never writes to the catalog, and never waits for a checkpoint: SQLite copies
one committed state, while others write on.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import msgspec

from headwater.model.row import StreamRow
from headwater.ports import CatalogCopy, breathe

_SLICE_COUNT = 256
_decode = msgspec.msgpack.Decoder(StreamRow).decode


def copy_catalog(catalog: Path, to: Path) -> CatalogCopy:
    """Blocks, mostly without the GIL. Raises sqlite3.Error, OSError."""
    with closing(sqlite3.connect(to)) as copy:
        copy.execute("pragma synchronous = off")  # nobody looks for it after a crash
        with closing(sqlite3.connect(f"file:{quote(str(catalog.absolute()))}?mode=ro", uri=True)) as source:
            # In one step: a backup in several starts anew whenever a checkpoint comes between.
            source.backup(copy)
        copy.execute("pragma journal_mode = delete")  # one file, whole in itself
        meta = dict(copy.execute("select name, value from meta"))
        return CatalogCopy(
            meta.get("position", 0),
            meta.get("log_floor", 0),
            [name for (name,) in copy.execute("select name from files where dead_ms is null order by name")],
            _blobs(copy),
        )


def _blobs(copy: sqlite3.Connection) -> list[str]:
    # SQLite leaves out rows that cannot have a snapshot, without the GIL: they are never decoded.
    found = []
    for number, (row,) in enumerate(copy.execute("select row from streams where instr(row, ?) > 0", (b"snapshots/",))):
        snapshot = _decode(row).snapshot
        if snapshot is not None:
            found.append(snapshot.blob)
        if number % _SLICE_COUNT == 0:
            breathe()
    return found
