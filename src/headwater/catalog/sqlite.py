"""Stream metadata in one SQLite file.

Owns the schema and its transactions. Never decides what is written when: checkpoints hand it rows and a position.

    streams(key, sid, deadline_ms, aging, lost, row)
                              row: msgpack of StreamRow; keys sort bytewise: a listing is a range
                              aging: 1 when an age policy may have to let go of settled records, else null
                              lost: log position of the newest record it let go of, null while there is none
    extents(sid, start, end, file, rows, row)   where settled records are in the lake; rows: how many
    marks(sid, mark, number, begin, end)        what settled records can be found by (see marks.py)
    unmarked(sid, end)        streams whose marks up to that offset have to go, and are still there in part
    deletions(sid)            streams that have deleted records, or had: extents may still name rows of them
    files(id, name, dead_ms, came, went)
                              files of the lake; dead_ms: since when no extent is left, by a swap or as gc found
                              came, went: numbers of the swaps that brought it and took it, if any did (see swaps)
    buckets(name, row)
    reads(day, bucket, reads, bytes)
                              how much was read; what is older than READS_DAYS goes
    incarnations(id, position)
                              what the log has gone through, in the order of rows (see model/lineage.py)
    things(domain, name, row) state beside the streams; each domain knows its own rows. (log, identity): of which shared
                              log the catalog is, when that continues another one (see log_identity)
    meta(name, value)         position, log_floor, next_sid, format; swaps: how many there were; table_behind: 1 while
                              the lake's table may not show the last of them; erased_version, erased_ms: the table's log
                              has to lose what is older than that version, a grace period after that moment

Two connections: the event loop reads through one, the checkpoint thread writes through the other. In WAL mode neither
waits for the other. A point read costs about 15 µs whatever the number of streams.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from headwater.catalog import marks
from headwater.catalog.swaps import swap_files
from headwater.model.deletions import has_deleted
from headwater.model.extents import Extent
from headwater.model.row import BucketRow, StreamRow
from headwater.ports import Change, ReadCount

FORMAT = 3

_SCHEMA = """
create table if not exists streams (
    key text primary key, sid integer not null unique, deadline_ms integer, aging integer, lost integer,
    row blob not null
) without rowid;
create index if not exists deadlines on streams (deadline_ms) where deadline_ms is not null;
create index if not exists aging on streams (aging) where aging is not null;
create index if not exists losses on streams (lost) where lost is not null;
create table if not exists extents (sid integer, start integer, end integer not null, file integer not null,
    rows integer not null, row blob not null, primary key (sid, start)) without rowid;
create index if not exists extents_of_files on extents (file, rows);
create table if not exists deletions (sid integer primary key);
create table if not exists files (
    id integer primary key, name text not null unique, dead_ms integer, came integer, went integer
);
create table if not exists marks (sid integer, mark text, number integer, begin integer not null, end integer not null,
    primary key (sid, mark, number)) without rowid;
create index if not exists marks_by_end on marks (sid, end);
create table if not exists unmarked (sid integer primary key, end integer not null);
create table if not exists buckets (name text primary key, row blob not null) without rowid;
create table if not exists things (
    domain text, name text, row blob not null, primary key (domain, name)
) without rowid;
create table if not exists reads (
    day integer, bucket text, reads integer not null, bytes integer not null, primary key (day, bucket)
) without rowid;
create table if not exists incarnations (id text primary key, position integer not null);
create table if not exists meta (name text primary key, value integer not null) without rowid;
"""
READS_DAYS = 400
"""How long counts of reads are kept: a year, and time to fetch it."""
BUSY_S_MAX = 60.0
"""How long a write waits for another connection's to end."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StreamRow).decode
_decode_extent = msgspec.msgpack.Decoder(Extent).decode
_decode_bucket = msgspec.msgpack.Decoder(BucketRow).decode


class CatalogMismatch(Exception):
    """The file was written by another version of the format; the message says what to do."""

    def __init__(self, path: Path | None, found: int) -> None:
        super().__init__(
            f"{path} has catalog format {found}; this version reads format {FORMAT}. Run the version that wrote it, or "
            "start this one on an empty data directory and copy the streams over"
        )


class SqliteCatalog:
    def __init__(self, path: Path | None) -> None:
        """Opens or makes the file. Without a path the catalog lives as long as the process, in a private file."""
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._writer = _connect(path)
        # Looked at before anything is made: a table of another format would not take this one's indexes.
        made = self._writer.execute("select count(*) from sqlite_schema where name = 'meta'").fetchone()[0]
        found = dict(self._writer.execute("select name, value from meta")).get("format", FORMAT) if made else FORMAT
        if found != FORMAT:
            self._writer.close()
            raise CatalogMismatch(path, found)
        self._writer.executescript(_SCHEMA)
        self._reader = self._writer if path is None else _connect(path)
        meta = dict(self._reader.execute("select name, value from meta"))
        self.position: int = meta.get("position", 0)
        self.log_floor: int = meta.get("log_floor", 0)
        self.next_sid: int = meta.get("next_sid", 0)
        self.table_behind: bool = meta.get("table_behind", 0) > 0

    def load(self, key: str) -> StreamRow | None:
        return self._one("select row from streams where key = ?", key)

    def load_sid(self, sid: int) -> StreamRow | None:
        return self._one("select row from streams where sid = ?", sid)

    def _one(self, query: str, value: object) -> StreamRow | None:
        found = self._reader.execute(query, (value,)).fetchone()
        return None if found is None else _decode(found[0])

    def load_bucket(self, name: str) -> BucketRow | None:
        found = self._reader.execute("select row from buckets where name = ?", (name,)).fetchone()
        return None if found is None else _decode_bucket(found[0])

    def extents(self, sid: int, offset: int, count_max: int) -> list[Extent]:
        # Extents of a stream do not overlap: those before the one around `offset` are passed by the index, not read.
        rows = self._reader.execute(
            "select row from extents where sid = ?1 and end > ?2 and start >= "
            "coalesce((select max(start) from extents where sid = ?1 and start <= ?2), ?2) order by start limit ?3",
            (sid, offset, count_max),
        )
        return [_decode_extent(row) for (row,) in rows]

    def marked(self, sid: int, mark: str, first: int, last: int, count_max: int) -> list[tuple[int, int, int]]:
        return marks.marked(self._reader, sid, mark, first, last, count_max)

    def marked_between(
        self, sid: int, after: tuple[str, int], high: str, count_max: int
    ) -> list[tuple[str, int, int, int]]:
        return marks.marked_between(self._reader, sid, after, high, count_max)

    def prune_marks(self) -> bool:
        with self._writer as db:
            return marks.prune(db)

    def incarnations(self) -> list[tuple[str, int]]:
        return list(self._reader.execute("select id, position from incarnations order by rowid"))

    def keep_incarnations(self, incarnations: Sequence[tuple[str, int]]) -> None:
        with self._writer as db:
            db.execute("delete from incarnations")
            db.executemany("insert into incarnations (id, position) values (?, ?)", incarnations)

    def files(self) -> set[str]:
        return {name for (name,) in self._reader.execute("select name from files")}

    def newest_file(self, prefix: str) -> str | None:
        query = "select max(name) from files where name > ? and name < ?"
        name: str | None = self._reader.execute(query, (prefix, f"{prefix}\U0010ffff")).fetchone()[0]
        return name

    def alive(self) -> dict[str, bool]:
        with self._another() as db:
            query = "select name, exists (select 1 from extents where extents.file = files.id) from files"
            return {name: bool(used) for name, used in db.execute(f"{query} where dead_ms is null")}

    def table_followed(self) -> None:
        with self._another() as db, db:
            db.execute("delete from meta where name = 'table_behind'")
        self.table_behind = False

    @contextmanager
    def _another(self) -> Iterator[sqlite3.Connection]:
        """A connection for a worker thread: the event loop's and the checkpoint's are theirs alone."""
        if self._path is None:
            yield self._writer
            return
        with closing(sqlite3.connect(self._path, timeout=BUSY_S_MAX)) as db:
            prepare(db)
            yield db

    def due(self, now_ms: int, count_max: int) -> list[str]:
        rows = self._reader.execute(
            "select key from streams where deadline_ms <= ? order by deadline_ms limit ?", (now_ms, count_max)
        )
        return [key for (key,) in rows]

    def load_things(self, domain: str) -> dict[str, bytes]:
        return dict(self._reader.execute("select name, row from things where domain = ?", (domain,)))

    def thing(self, domain: str, name: str) -> bytes | None:
        found = self._reader.execute("select row from things where domain = ? and name = ?", (domain, name)).fetchone()
        return None if found is None else found[0]

    def has_things(self, domain: str) -> bool:
        return self._reader.execute("select 1 from things where domain = ? limit 1", (domain,)).fetchone() is not None

    def reads(self, day: int, bucket: str, count_max: int) -> list[ReadCount]:
        rows = self._reader.execute(
            "select day, bucket, reads, bytes from reads where (day, bucket) > (?, ?) order by day, bucket limit ?",
            (day, bucket, count_max),
        )
        return [ReadCount(*row) for row in rows]

    def page(self, low: str, high: str, count_max: int) -> list[StreamRow]:
        rows = self._reader.execute(
            "select row from streams where key > ? and key < ? order by key limit ?", (low, high, count_max)
        )
        return [_decode(row) for (row,) in rows]

    def write(self, change: Change) -> None:
        with self._writer as db:
            db.executemany("delete from streams where key = ? and sid = ?", change.gone)
            db.executemany(
                "insert into streams (key, sid, deadline_ms, aging, lost, row) values (?, ?, ?, ?, ?, ?)"
                " on conflict (key) do update set sid = excluded.sid, deadline_ms = excluded.deadline_ms,"
                " aging = excluded.aging, lost = excluded.lost, row = excluded.row",
                (
                    (row.key, row.sid, row.deadline_ms, 1 if row.aging else None, _lost(row), _encode(row))
                    for row in change.rows
                ),
            )
            deleted = ((row.sid,) for row in change.rows if has_deleted(row))
            db.executemany("insert or ignore into deletions (sid) values (?)", deleted)
            db.executemany("delete from deletions where sid = ?", ((sid,) for _, sid in change.gone))
            files = dict.fromkeys([*change.files, *(extent.file for extent in change.extents)])
            db.executemany("insert or ignore into files (name) values (?)", ((name,) for name in files))
            ids = _living(db, files)
            db.executemany(
                "insert or replace into extents (sid, start, end, file, rows, row) values (?, ?, ?, ?, ?, ?)",
                (
                    (extent.sid, extent.start, extent.end, ids[extent.file], extent.row_count, _encode(extent))
                    for extent in change.extents
                    if extent.file in ids
                ),
            )
            for swap in change.swaps:
                swap_files(db, swap)
            db.executemany("delete from extents where sid = ? and end <= ?", change.cuts)
            db.executemany("delete from extents where sid = ?", ((sid,) for _, sid in change.gone))
            marks.write(db, change)
            db.executemany(
                "insert into buckets (name, row) values (?, ?) on conflict (name) do update set row = excluded.row",
                ((row.name, _encode(row)) for row in change.buckets if not _forgettable(row, change)),
            )
            db.executemany(
                "delete from buckets where name = ?",
                ((row.name,) for row in change.buckets if _forgettable(row, change)),
            )
            db.executemany(
                "delete from things where domain = ? and name = ?",
                ((domain, name) for domain, name, row in change.things if row is None),
            )
            db.executemany(
                "insert into things (domain, name, row) values (?, ?, ?)"
                " on conflict (domain, name) do update set row = excluded.row",
                (thing for thing in change.things if thing[2] is not None),
            )
            if change.reads:
                db.executemany(
                    "insert into reads (day, bucket, reads, bytes) values (?, ?, ?, ?) on conflict (day, bucket)"
                    " do update set reads = reads + excluded.reads, bytes = bytes + excluded.bytes",
                    ((count.day, count.bucket, count.reads, count.bytes) for count in change.reads),
                )
                newest = max(count.day for count in change.reads)
                db.execute("delete from reads where day < ?", (newest - READS_DAYS,))
            db.executemany(
                "insert into meta (name, value) values (?, ?) on conflict (name) do update set value = excluded.value",
                [
                    ("format", FORMAT),
                    ("position", change.position),
                    ("log_floor", change.log_floor),
                    ("next_sid", change.next_sid),
                ],
            )
        if change.swaps:
            self.table_behind = True
        self.position = change.position
        self.log_floor = change.log_floor
        self.next_sid = change.next_sid

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


def _lost(row: StreamRow) -> int | None:
    return None if row.soft_deleted else row.lost_position or None


def _living(db: sqlite3.Connection, files: Iterable[str]) -> dict[str, int]:
    """Ids of those files that are not dead. An extent of a file that was swapped away is not written any more."""
    query = "select id from files where name = ? and dead_ms is null"
    found = ((name, db.execute(query, (name,)).fetchone()) for name in files)
    return {name: row[0] for name, row in found if row is not None}


def _forgettable(row: BucketRow, change: Change) -> bool:
    """An empty bucket needs no row, unless the row tells of events that a recovery will meet again."""
    return not row.explicit and not row.count and row.position <= change.position


def _connect(path: Path | None) -> sqlite3.Connection:
    # An empty name is SQLite's own temporary file, gone with its connection.
    db = sqlite3.connect(path or "", check_same_thread=False, cached_statements=64)
    db.execute("pragma journal_mode = wal")
    prepare(db)
    return db


def prepare(db: sqlite3.Connection) -> None:
    """What every connection that writes has in common."""
    # The log is what is durable; a checkpoint that a power cut undoes is simply replayed. But the log is trimmed on
    # the strength of a checkpoint, so its commit has to reach the disk.
    db.execute("pragma synchronous = full")
    # Zeros where a row was: the name of a stream that is gone must not stay in a free part of the file.
    db.execute("pragma secure_delete = on")
