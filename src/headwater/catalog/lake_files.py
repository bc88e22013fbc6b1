"""The catalog as the lake's upkeep and `headwater lake` see it: which files live, which snapshots are meant.

Owns a connection of its own, so that long looks from worker threads hold up neither checkpoints nor the event loop.
Never writes anything but what gc keeps about a file (since when it is dead, that it is gone), and how much of the
table's log an erasure wants gone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import msgspec

from headwater.catalog.sqlite import BUSY_S_MAX, FORMAT, CatalogMismatch, prepare
from headwater.model.deletions import Deletions, Part
from headwater.model.extents import Extent
from headwater.model.row import StreamRow
from headwater.ports import Erasure, RowCounts, Standing

_decode = msgspec.msgpack.Decoder(StreamRow).decode
_decode_extent = msgspec.msgpack.Decoder(Extent).decode
FILES_BY_NAME_MAX = 64
"""Of more than so many files, deleted records are counted in one pass over all."""
KEYS_LOOKED_UP_MAX = 1_000


class LakeFiles:
    """Thread-safe in the sense that one call at a time may come from any thread. Raises CatalogMismatch."""

    def __init__(self, path: Path, read_only: bool = False) -> None:
        where = f"file:{quote(str(path.absolute()))}?mode={'ro' if read_only else 'rw'}"
        self._db = sqlite3.connect(where, uri=True, check_same_thread=False, timeout=BUSY_S_MAX)
        found = dict(self._db.execute("select name, value from meta"))
        if found.get("format", FORMAT) != FORMAT:
            raise CatalogMismatch(path, found["format"])
        if not read_only:
            prepare(self._db)
        known = self._db.execute("select count(*) from sqlite_schema where name = 'deletions'")
        self._has_deletions: bool = known.fetchone()[0] > 0
        """A catalog that no version has opened which knows of deleted records holds none."""

    def position(self) -> int:
        found = self._db.execute("select value from meta where name = 'position'").fetchone()
        return 0 if found is None else int(found[0])

    def counts(self) -> dict[str, int]:
        """What `lake.info` tells of a catalog. SQLite counts by walking: about 0.1 s per million, without the GIL."""
        known, live = self.files(), self.row_counts()
        return {
            "rows_live": sum(rows.live for rows in live.values()),
            "files_without_records": len(known.keys() - live.keys()),
            "files_waiting_for_deletion": sum(1 for dead_ms in known.values() if dead_ms is not None),
            "streams": self._db.execute("select count(*) from streams").fetchone()[0],
            "extents": self._db.execute("select count(*) from extents").fetchone()[0],
            "catalog_position": self.position(),
        }

    def files(self) -> dict[str, int | None]:
        """Every file of the lake that the catalog knows, and since when it is dead; None while it is not."""
        return dict(self._db.execute("select name, dead_ms from files"))

    def unused(self) -> set[str]:
        """Files that no extent refers to. One index lookup per file, whatever the number of extents."""
        query = "select name from files where not exists (select 1 from extents where extents.file = files.id)"
        return {name for (name,) in self._db.execute(query)}

    def row_counts(self) -> dict[str, RowCounts]:
        """How many rows of each file that extents refer to are live.

        Walks one index: about 0.1 s per million extents, no GIL. Streams with deleted records add a look at each of
        their extents and holes.
        """
        query = "select name, sum(rows) from extents join files on files.id = extents.file group by extents.file"
        named = dict(self._db.execute(query))
        gone: dict[str, int] = {}
        kept: dict[str, int] = {}
        for sid, deletions in self._deletions():
            counted = kept if deletions.kept else gone
            for file, extent in self._extents_before(sid, deletions.end):
                counted[file] = counted.get(file, 0) + deletions.deleted_rows(extent)
        return {name: RowCounts(rows - gone.get(name, 0), kept.get(name, 0)) for name, rows in named.items()}

    def row_counts_from(self, first: str, prefix: str) -> dict[str, RowCounts]:
        """The same of files from a name on, as far as theirs begin so. Costs what it looks at of them."""
        query = (
            "select name, sum(rows) from files join extents on extents.file = files.id"
            " where name >= ? and name < ? group by files.id"
        )
        named: dict[str, int] = dict(self._db.execute(query, (first, f"{prefix}\U0010ffff")))
        if len(named) > FILES_BY_NAME_MAX and self._has_deletions:
            every = self.row_counts()
            return {name: every[name] for name in named if name in every}
        return {name: self._counted(name, rows) for name, rows in named.items()}

    def _counted(self, name: str, rows: int) -> RowCounts:
        gone = kept = 0
        deletions = dict(self._deletions(name))
        if deletions:
            for extent in self.extents_in(name):
                of = deletions.get(extent.sid)
                if of is not None and of.kept:
                    kept += of.deleted_rows(extent)
                elif of is not None:
                    gone += of.deleted_rows(extent)
        return RowCounts(rows - gone, kept)

    def rows_in(self, files: Iterable[str], bucket: str | None, but: tuple[str, ...]) -> dict[str, int]:
        """How many rows of a bucket (None: of all) without some others each file has, by extents. SQLite counts: about
        a microsecond for each."""
        return {
            name: self._rows_in(name, bucket) - sum(self._rows_in(name, one) for one in but if bucket in (None, one))
            for name in files
        }

    def _rows_in(self, file: str, bucket: str | None) -> int:
        of_file = "where extents.file = (select id from files where name = ?)"
        if bucket is None:
            found = self._db.execute(f"select sum(extents.rows) from extents {of_file}", (file,)).fetchone()
        else:
            query = f"select sum(extents.rows) from extents join streams using (sid) {of_file} and key > ? and key < ?"
            found = self._db.execute(query, (file, f"{bucket}/", f"{bucket}0")).fetchone()
        return int(found[0] or 0)

    def rows_of(
        self, files: list[str], after: int, keys: tuple[str, ...] | None, takes: Callable[[str], bool], count_max: int
    ) -> dict[str, int]:
        """How many rows of some streams each file has behind a log position, at most: extents count whole.

        `keys` are the only ones that can be meant, if there is a list. Nothing is told of a file when about `count_max`
        extents have been looked at before it.
        """
        if keys is not None and len(keys) <= KEYS_LOOKED_UP_MAX:
            return self._rows_of_keys(files, after, keys, count_max)
        found: dict[str, int] = {}
        looked = 0
        query = (
            "select streams.key, extents.rows, extents.row from extents join streams using (sid)"
            " where extents.file = (select id from files where name = ?)"
        )
        for name in files:
            if looked >= count_max:
                break
            total = 0
            for key, rows, row in self._db.execute(query, (name,)):
                looked += 1
                if takes(key) and _reaches(row, after):
                    total += rows
            found[name] = total
        return found

    def _rows_of_keys(self, files: list[str], after: int, keys: tuple[str, ...], count_max: int) -> dict[str, int]:
        found = dict.fromkeys(files, 0)
        looked = 0
        # The newest first: those that end before the position are not looked at.
        query = (
            "select name, rows, row from extents join files on files.id = extents.file"
            " where sid = (select sid from streams where key = ?) order by start desc"
        )
        for key in keys:
            for name, rows, row in self._db.execute(query, (key,)):
                looked += 1
                if looked > count_max:
                    return {}
                if not _reaches(row, after):
                    break
                if name in found:
                    found[name] += rows
        return found

    def live_parts(self, file: str) -> Iterator[Part]:
        """The extents of one file without rows of deleted records; those that only forks read are told apart."""
        deletions = dict(self._deletions(file))
        for extent in self.extents_in(file):
            of = deletions.get(extent.sid)
            if of is None:
                yield Part(extent, False)
            else:
                yield from (part for part in of.parts(extent) if of.kept or not part.deleted)

    def live_in(self, file: str) -> list[Extent]:
        """Rows of one file that a swap has to bring into others, as extents."""
        return [part.extent for part in self.live_parts(file)]

    def _deletions(self, file: str | None = None) -> Iterator[tuple[int, Deletions]]:
        """Of streams that have deleted records, by sid: of all, or of those with records in a file."""
        if not self._has_deletions:
            return
        query = "select row from streams where sid in (select sid from deletions)"
        if file is not None:
            query = (
                "select row from streams where sid in (select sid from extents join deletions using (sid)"
                " where file = (select id from files where name = ?))"
            )
        for (encoded,) in self._db.execute(query, () if file is None else (file,)):
            row = _decode(encoded)
            yield row.sid, Deletions(row)

    def _extents_before(self, sid: int, offset: int) -> Iterator[tuple[str, Extent]]:
        """Extents of a stream that begin at or before an offset, each with its file."""
        query = "select name, row from extents join files on files.id = extents.file where sid = ? and start <= ?"
        return ((name, _decode_extent(row)) for name, row in self._db.execute(query, (sid, offset)))

    def refers(self, sid: int, blob: str) -> bool:
        """True when the stream's snapshot is in this blob, or may be that of a fork, which shares its source's.

        A source has its row, deleted or not, for as long as a fork of it or a fork of that has one.
        """
        row = self._stream(sid)
        return row is not None and (row.children > 0 or (row.snapshot is not None and row.snapshot.blob == blob))

    def aged(self, now_ms: int) -> Iterator[str]:
        """Keys of streams of which an age policy should let go of settled records. Cost: those with such a policy."""
        cursor = self._db.execute("select row from streams where aging is not null")
        for (encoded,) in cursor:
            row = _decode(encoded)
            if row.retention is None or row.retention.age_ms is None or row.soft_deleted:
                continue
            before_ms = now_ms - row.retention.age_ms
            # The oldest extent may go when the one after it begins before the bound, or when all of the stream does.
            second = self._db.execute(
                "select row from extents where sid = ? and end > ? order by start limit 1 offset 1",
                (row.sid, row.earliest),
            ).fetchone()
            if row.last_ms < before_ms or (second is not None and _decode_extent(second[0]).ms < before_ms):
                yield row.key

    def streams(self) -> Iterator[StreamRow]:
        """Every stream, in the order of sids."""
        return (_decode(row) for (row,) in self._db.execute("select row from streams order by sid"))

    def streams_after(self, sid: int, count_max: int, bytes_max: int) -> tuple[list[StreamRow], bool]:
        """The streams with the next higher sids, and whether there may be more: as many as asked for, or as take so
        many bytes, whichever is less."""
        query = "select row from streams where sid > ? order by sid limit ?"
        found: list[StreamRow] = []
        size = 0
        with closing(self._db.execute(query, (sid, count_max))) as rows:
            for (row,) in rows:
                found.append(_decode(row))
                size += len(row)
                if size >= bytes_max:
                    return found, True
        return found, len(found) == count_max

    def losses(self, after: int, count_max: int) -> list[StreamRow]:
        """Streams that let go of records after a log position, by that of the newest. Costs what it returns."""
        query = "select row from streams where lost > ? order by lost limit ?"
        return [_decode(row) for (row,) in self._db.execute(query, (after, count_max))]

    def extents(self) -> Iterator[Extent]:
        """Every extent, by stream and offset."""
        return (_decode_extent(row) for (row,) in self._db.execute("select row from extents order by sid, start"))

    def extents_in(self, file: str) -> list[Extent]:
        """The extents of one file."""
        query = "select row from extents where file = (select id from files where name = ?)"
        return [_decode_extent(row) for (row,) in self._db.execute(query, (file,))]

    def extents_count(self, files: Iterable[str]) -> int:
        """How many extents the files have. Walks an index."""
        query = "select count(*) from extents where file = (select id from files where name = ?)"
        return sum(self._db.execute(query, (name,)).fetchone()[0] for name in files)

    def bury(self, names: Iterable[str], now_ms: int) -> None:
        """Notes since when files are dead, also of files it did not know; what was noted before stays."""
        with self._db as db:
            db.executemany(
                "insert into files (name, dead_ms) values (?, ?) on conflict (name) do update"
                " set dead_ms = coalesce(dead_ms, excluded.dead_ms)",
                [(name, now_ms) for name in names],
            )

    def forget(self, names: Iterable[str]) -> None:
        """Files are gone from the store."""
        with self._db as db:
            db.executemany(
                "delete from files where name = ? and dead_ms is not null"
                " and not exists (select 1 from extents where extents.file = files.id)",
                [(name,) for name in names],
            )

    # ---- erasures ------------------------------------------------------------------------------------------------

    def erasure(self) -> Erasure | None:
        """What the table's log has to lose; None when nothing."""
        found = dict(self._db.execute("select name, value from meta where name in ('erased_version', 'erased_ms')"))
        return Erasure(found["erased_version"], found["erased_ms"]) if len(found) == 2 else None

    def ask_erasure(self, wanted: Erasure) -> None:
        """The newest one asks for all that earlier ones did, so it is the only one kept."""
        with self._db as db:
            db.executemany(
                "insert into meta (name, value) values (?, ?) on conflict (name) do update set value = excluded.value",
                [("erased_version", wanted.version), ("erased_ms", wanted.at_ms)],
            )

    def end_erasure(self, done: Erasure) -> None:
        """Forgets it, unless another one was asked for meanwhile."""
        with self._db as db:
            db.execute("begin immediate")
            if self.erasure() == done:
                db.execute("delete from meta where name in ('erased_version', 'erased_ms')")

    # ---- swaps --------------------------------------------------------------------------------------------------

    def standing(self, names: Iterable[str]) -> dict[str, Standing]:
        """What is known of those of the files that are known at all."""
        query = "select dead_ms, came, went from files where name = ?"
        found = ((name, self._db.execute(query, (name,)).fetchone()) for name in names)
        return {name: Standing(*row) for name, row in found if row is not None}

    def swapped(self, number: int) -> tuple[set[str], set[str]]:
        """The files that a swap took, and those it brought, as far as gc has not forgotten them."""
        went = {name for (name,) in self._db.execute("select name from files where went = ?", (number,))}
        return went, {name for (name,) in self._db.execute("select name from files where came = ?", (number,))}

    def swaps_count(self) -> int:
        """The number of the newest swap."""
        found = self._db.execute("select value from meta where name = 'swaps'").fetchone()
        return 0 if found is None else int(found[0])

    def table_behind(self) -> bool:
        """True when the lake's table may not show the last swap."""
        return self._db.execute("select 1 from meta where name = 'table_behind'").fetchone() is not None

    def close(self) -> None:
        self._db.close()

    def _stream(self, sid: int) -> StreamRow | None:
        found = self._db.execute("select row from streams where sid = ?", (sid,)).fetchone()
        return None if found is None else _decode(found[0])


def _reaches(row: bytes, after: int) -> bool:
    """Whether an extent may have records behind a log position."""
    position = _decode_extent(row).position
    return not position or position > after
