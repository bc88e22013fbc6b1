"""Stream metadata in one SQLite file.

Owns the schema and its transactions. Never decides what is written when: checkpoints hand it rows and a position.

    streams(key, sid, row)    row: msgpack of StreamRow; keys sort bytewise, so a bucket's listing is a range
    meta(name, value)         position, next_sid, format

Two connections: the event loop reads through one, the checkpoint thread writes through the other. In WAL mode neither
waits for the other. A point read costs about 15 µs whatever the number of streams.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

import msgspec

from headwater.model.row import StreamRow

FORMAT = 1

_SCHEMA = """
create table if not exists streams (key text primary key, sid integer not null unique, row blob not null) without rowid;
create table if not exists meta (name text primary key, value integer not null) without rowid;
"""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StreamRow).decode


class CatalogMismatch(Exception):
    """The file was written by another version of the format."""


class SqliteCatalog:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = _connect(path)
        self._writer.executescript(_SCHEMA)
        self._reader = _connect(path)
        meta = dict(self._reader.execute("select name, value from meta"))
        found = meta.get("format", FORMAT)
        if found != FORMAT:
            raise CatalogMismatch(f"{path} has catalog format {found}; this version reads format {FORMAT}")
        self.position: int = meta.get("position", 0)
        self.next_sid: int = meta.get("next_sid", 0)

    def load(self, key: str) -> StreamRow | None:
        return self._one("select row from streams where key = ?", key)

    def load_sid(self, sid: int) -> StreamRow | None:
        return self._one("select row from streams where sid = ?", sid)

    def _one(self, query: str, value: object) -> StreamRow | None:
        found = self._reader.execute(query, (value,)).fetchone()
        return None if found is None else _decode(found[0])

    def write(
        self, rows: Iterable[StreamRow], gone: Iterable[tuple[str, int]], position: int, next_sid: int
    ) -> None:
        with self._writer as db:
            db.executemany("delete from streams where key = ? and sid = ?", gone)
            db.executemany(
                "insert into streams (key, sid, row) values (?, ?, ?)"
                " on conflict (key) do update set sid = excluded.sid, row = excluded.row",
                ((row.key, row.sid, _encode(row)) for row in rows),
            )
            db.executemany(
                "insert into meta (name, value) values (?, ?)"
                " on conflict (name) do update set value = excluded.value",
                [("format", FORMAT), ("position", position), ("next_sid", next_sid)],
            )
        self.position = position
        self.next_sid = next_sid

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class NullCatalog:
    """The catalog of a node that keeps nothing: always empty."""

    position = 0
    next_sid = 0

    def load(self, key: str) -> StreamRow | None:
        return None

    def load_sid(self, sid: int) -> StreamRow | None:
        return None

    def write(
        self, rows: Iterable[StreamRow], gone: Iterable[tuple[str, int]], position: int, next_sid: int
    ) -> None: ...

    def close(self) -> None: ...


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False, cached_statements=64)
    db.execute("pragma journal_mode = wal")
    # The log is what is durable; a checkpoint that a power cut undoes is simply replayed. But the log is trimmed on
    # the strength of a checkpoint, so its commit has to reach the disk.
    db.execute("pragma synchronous = full")
    return db
