"""A swap of the lake's files as the catalog takes it: within the transaction of the checkpoint that brings it.

Owns which of its extents count. Never judges whether the files hold the same records: who logged the swap did, at a
position before the swap's own. Streams may have been deleted or trimmed between the two, and a node that follows the
log may have forgotten their extents by then: none of those comes back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import msgspec

from headwater.model.extents import Extent, unpacked
from headwater.model.row import StreamRow
from headwater.ports import FilesSwapped

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StreamRow).decode
NOTHING, EVERYTHING = 1 << 62, -1


def swap_files(db: sqlite3.Connection, swap: FilesSwapped) -> None:
    """Rows of streams are as new as the swap. Raises RuntimeError for files that were swapped in before, or are dead.

    From here on the catalog says that the lake's table may not show it, until `table_followed`.
    """
    db.executemany("insert or ignore into files (name) values (?)", ((name,) for name in swap.added))
    ids = {}
    for name in swap.added:
        query = "select id, dead_ms, came from files where name = ?"
        ids[name], dead_ms, came = db.execute(query, (name,)).fetchone()
        if dead_ms is not None or came is not None:
            raise RuntimeError(f"the file {name} is swapped in, and has been in the lake before")
    number = db.execute("select coalesce(max(value), 0) + 1 from meta where name = 'swaps'").fetchone()[0]
    db.executemany(
        "delete from extents where file = (select id from files where name = ?)", ((name,) for name in swap.removed)
    )
    db.executemany(
        "insert into extents (sid, start, end, file, rows, row) values (?, ?, ?, ?, ?, ?)",
        ((one.sid, one.start, one.end, ids[one.file], one.row_count, _encode(one)) for one in _counting(db, swap)),
    )
    db.executemany("update files set came = ? where name = ?", ((number, name) for name in swap.added))
    db.executemany(
        "update files set dead_ms = coalesce(dead_ms, ?), went = ? where name = ?",
        ((swap.at_ms, number, name) for name in swap.removed),
    )
    # Rows that all died meanwhile: nothing will ever refer to such a file.
    db.executemany(
        "update files set dead_ms = ? where name = ?"
        " and not exists (select 1 from extents where extents.file = files.id)",
        ((swap.at_ms, name) for name in swap.added),
    )
    db.executemany(
        "insert into meta (name, value) values (?, ?) on conflict (name) do update set value = excluded.value",
        [("swaps", number), ("table_behind", 1)],
    )


def _counting(db: sqlite3.Connection, swap: FilesSwapped) -> Iterator[Extent]:
    sid, earliest = -1, 0
    for part in swap.extents:
        for extent in unpacked(part):
            if extent.sid != sid:
                sid, earliest = extent.sid, _earliest(db, extent.sid)
            if extent.end > earliest:
                yield extent


def _earliest(db: sqlite3.Connection, sid: int) -> int:
    """Extents of the stream that end at or before this have been let go of."""
    query = (
        "select lost is null and not exists (select 1 from deletions where sid = ?1), row from streams where sid = ?1"
    )
    found = db.execute(query, (sid,)).fetchone()
    if found is None:
        return NOTHING
    if found[0]:
        return EVERYTHING  # it never let go of anything: most streams do not, and their rows need not be decoded
    row = _decode(found[1])
    return EVERYTHING if row.children else row.earliest
