"""A catalog whose log is lost, made true for what the lake holds.

Owns what becomes of records that only the log held: streams end before them, as if they had never been appended. Never
touches the lake, and never does this to a catalog that is served.

What stays as it was: ids, producers' sequence numbers and Stream-Seq, which were acknowledged and are not given out
again. So a producer goes on with its next number, and what it had acknowledged and is lost is not taken for a gap of
its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from headwater.catalog.sqlite import SqliteCatalog
from headwater.model.extents import Extent
from headwater.model.holes import Holes
from headwater.model.lineage import DOMAIN, IDENTITY
from headwater.model.row import BucketRow, StreamRow
from headwater.ports import Change

SIDS_SKIPPED = 1 << 32
"""Incarnations of streams that the lost log may have given out since: none of them is given out again."""
_SLICE_COUNT = 1_000
_decode = msgspec.msgpack.Decoder(StreamRow).decode
_decode_extent = msgspec.msgpack.Decoder(Extent).decode
_decode_bucket = msgspec.msgpack.Decoder(BucketRow).decode


class Cut(msgspec.Struct, frozen=True):
    """What a catalog says without its log."""

    position: int
    """True for it; the log goes on from there."""
    streams_count: int
    cut_count: int
    """Streams whose newest records were in the log alone."""
    cut_bytes: int
    gone_count: int
    """Forks whose source lost records that they shared: they begin after them."""


def survey(path: Path) -> Cut:
    """What `cut` would make of it. Raises sqlite3.Error."""
    found = _Cuts()
    with closing(_opened(path)) as db:
        for _ in found.rows(db):
            pass
        return found.told(db)


def cut(path: Path, identity: str) -> Cut:
    """Makes the catalog true without its log, and one of the log `identity`. Raises sqlite3.Error, CatalogMismatch."""
    found = _Cuts()
    with closing(SqliteCatalog(path)) as catalog, closing(_opened(path)) as db:
        changed = list(found.rows(db))
        told = found.told(db)
        for at in range(0, len(changed), _SLICE_COUNT):
            _write(catalog, changed[at : at + _SLICE_COUNT], catalog.position, catalog.log_floor, catalog.next_sid, [])
        thing = (DOMAIN, IDENTITY, identity.encode())
        _write(catalog, [], told.position, told.position, catalog.next_sid + SIDS_SKIPPED, [thing])
    with closing(_opened(path)) as db, db:
        # Files that settled after this catalog are in the lake's table, and not in it.
        db.execute("insert or replace into meta (name, value) values ('table_behind', 1)")
    return told


def _write(
    catalog: SqliteCatalog,
    rows: list[StreamRow],
    position: int,
    log_floor: int,
    next_sid: int,
    things: list[tuple[str, str, bytes | None]],
) -> None:
    catalog.write(Change(rows, [], [], [], [], [], things, position, log_floor, next_sid))


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path)


class _Cuts:
    def __init__(self) -> None:
        self._position = 0
        self._streams_count = self._cut_count = self._cut_bytes = self._gone_count = 0
        self._tails: dict[int, int] = {}
        """Where streams end now that forks share."""

    def rows(self, db: sqlite3.Connection) -> Iterator[StreamRow]:
        """Those that change. A fork is younger than its source, so sources come first."""
        for (data,) in db.execute("select row from streams order by sid"):
            row = _decode(data)
            self._streams_count += 1
            self._position = max(self._position, row.position)
            made = self._gone_before(self._ended(db, row))
            if made.children:
                self._tails[made.sid] = made.tail
            if made is not row:
                yield made

    def _ended(self, db: sqlite3.Connection, row: StreamRow) -> StreamRow:
        fork_at = 0 if row.forked is None else row.forked.at
        end = max(row.cold_end, row.earliest, fork_at)
        if row.tail <= end:
            return row
        self._cut_count += 1
        self._cut_bytes += row.tail - end
        count, end = self._seq_at(db, row, end, fork_at)
        holes = Holes(row.holes).up_to(count, end).packed()
        return msgspec.structs.replace(row, tail=end, count=count, cold_end=min(row.cold_end, end), holes=holes)

    def _seq_at(self, db: sqlite3.Connection, row: StreamRow, end: int, fork_at: int) -> tuple[int, int]:
        """The number of the record that comes next, and where it does: at `end`, or before deleted records there."""
        if end == row.earliest:
            return row.first_seq, end
        if row.forked is not None and end == fork_at:
            return row.forked.seq, end
        found = db.execute("select row from extents where sid = ? and end = ?", (row.sid, end)).fetchone()
        if found is None:
            # What lies before `end` was deleted, and no file holds it any more.
            for hole in Holes(row.holes):
                if hole.begin <= end <= hole.end:
                    return (hole.last, end) if hole.end == end else (hole.first, hole.begin)
            raise sqlite3.DatabaseError(f"the catalog lists no file of the lake that holds {row.key} up to {end}")
        extent = _decode_extent(found[0])
        return extent.seq_start + extent.row_count, end

    def _gone_before(self, row: StreamRow) -> StreamRow:
        """A fork whose source ends before the place where it left it begins at that place."""
        forked = row.forked
        if forked is None or self._tails.get(forked.sid, forked.at) >= forked.at or row.earliest >= forked.at:
            return row
        self._gone_count += 1
        lost = max(row.lost_position, 1)
        holes = Holes(row.holes)
        seq, at = holes.cut(forked.seq, forked.at)
        return msgspec.structs.replace(row, earliest=at, first_seq=seq, lost_position=lost, holes=holes.packed())

    def told(self, db: sqlite3.Connection) -> Cut:
        meta = dict(db.execute("select name, value from meta"))
        buckets = (_decode_bucket(row).position for (row,) in db.execute("select row from buckets"))
        # An event at or below the position of a row would not be applied to it.
        position = max([meta.get("position", 0), self._position, *buckets])
        return Cut(position, self._streams_count, self._cut_count, self._cut_bytes, self._gone_count)
