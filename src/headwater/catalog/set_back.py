"""A catalog whose log is lost, set back to what the lake holds: it counts on no log any more.

Owns what becomes of a stream whose newest records were in the log alone: it is as it was after its newest record in the
lake. Never touches a file of the lake, and nobody serves the catalog meanwhile.

What came after that record is lost with it: that the stream was closed, what its producers had sent, its last
Stream-Seq. A producer that goes on is therefore refused, and begins a new epoch; it is not taken for one that repeats
itself. Offsets that were given to lost records are given again. A fork keeps what its source keeps of the records that
they share; when that is not all of them, its own records have nothing to stand on and are lost too.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from headwater.catalog.sqlite import SqliteCatalog, prepare
from headwater.model.extents import Extent
from headwater.model.row import StreamRow

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StreamRow).decode
_decode_extent = msgspec.msgpack.Decoder(Extent).decode
_ROWS_AT_ONCE = 10_000


class SetBack(NamedTuple):
    """A stream that lost records."""

    key: str
    tail: int
    """Where it ends now."""
    was: int
    """Where it ended."""
    records_count: int
    """How many were lost."""


class _End(NamedTuple):
    tail: int
    records_count: int


def set_back(path: Path) -> list[SetBack]:
    """On return the catalog needs nothing of a log up to its position. Returns who lost what, in order of creation.

    One transaction. Raises sqlite3.Error, CatalogMismatch.
    """
    SqliteCatalog(path).close()  # says so if it is of another format
    found: list[SetBack] = []
    ends: dict[int, _End] = {}
    with closing(sqlite3.connect(path)) as db, db:
        prepare(db)
        sid = -1
        # A source is older than its forks, so it comes before them.
        while rows := db.execute(
            "select row from streams where sid > ? order by sid limit ?", (sid, _ROWS_AT_ONCE)
        ).fetchall():
            for (encoded,) in rows:
                row = _decode(encoded)
                sid = row.sid
                end = _shared_end(row, ends) or _own_end(db, row)
                if end is not None:
                    ends[sid] = end
                    found.append(SetBack(row.key, end.tail, row.tail, row.count - end.records_count))
                    _write(db, row, end)
        db.execute("update meta set value = (select value from meta where name = 'position') where name = 'log_floor'")
    return found


def _shared_end(row: StreamRow, ends: dict[int, _End]) -> _End | None:
    """Where a fork ends whose source lost some of what they share and the fork still has."""
    forked = row.forked
    source = None if forked is None else ends.get(forked.sid)
    if forked is None or source is None or forked.at <= max(source.tail, row.earliest):
        return None
    return source if source.tail >= row.earliest else _End(row.earliest, row.first_seq)


def _own_end(db: sqlite3.Connection, row: StreamRow) -> _End | None:
    """Where a stream ends whose newest records are not in the lake; None when all of them are."""
    tail = max(row.cold_end, row.earliest, 0 if row.forked is None else row.forked.at)
    if tail >= row.tail:
        return None
    if tail == row.earliest:
        return _End(tail, row.first_seq)
    if row.forked is not None and tail == row.forked.at:
        return _End(tail, row.forked.seq)
    query = "select row from extents where sid = ? order by start desc limit 1"
    last = _decode_extent(db.execute(query, (row.sid,)).fetchone()[0])
    return _End(tail, last.seq_start + last.row_count)


def _write(db: sqlite3.Connection, row: StreamRow, end: _End) -> None:
    forked = row.forked
    if forked is not None and end.tail < forked.at:
        forked = msgspec.structs.replace(forked, at=end.tail, seq=end.records_count)
    db.execute("delete from extents where sid = ? and start >= ?", (row.sid, end.tail))
    row = msgspec.structs.replace(
        row,
        tail=end.tail,
        count=end.records_count,
        cold_end=min(row.cold_end, end.tail),
        forked=forked,
        closed=False,
        closed_by=None,
        producers=[],
        stream_seq=None,
    )
    query = "update streams set row = ?, aging = ? where sid = ?"
    db.execute(query, (_encode(row), 1 if row.aging else None, row.sid))
