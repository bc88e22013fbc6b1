"""What `verify` looks at on executors: rows of files against the catalog's extents, and extents against their streams.

Owns the checks and their words. Never changes anything, and never shuffles a row of the lake: a file is checked where
it is read, and only its extents, one line for each stream in it, come together by stream.

    files -> rows are as extents say -> extents ┐
    streams of the catalog, what forks need     ├ by incarnation -> they join up, from the first record to the last one
    snapshots in the store                      ┘                   that settled
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.lake.names import SNAPSHOTS, data_group, snapshot_owner
from headwater.lake.store import LakeDamaged, ObjectMissing
from headwater.lake.writer import in_order
from headwater.model import extent_rules
from headwater.model.extent_rules import Fault, Part
from headwater.model.holes import Holes
from headwater.spark.lake_file import LakeFile, extents_of, live_mask, spans
from headwater.spark.lake_listing import File
from headwater.spark.lake_place import Place
from headwater.spark.node import Node

STREAM, NEED, BLOB, EXTENT, FINDING, FILE = range(6)
"""Kinds of lines, in the order in which a stream's are looked at."""
NUMBERS = (
    *("kind", "incarnation", "start", "end", "seq", "rows", "ms", "n", "last_ms", "last_n"),
    *("tail", "earliest", "first_seq", "total", "cold_end", "forked_from", "fork_at", "snapshot_offset"),
)
_TEXTS = ("name", "file", "found", "what")
LINE = pa.schema(
    [*((name, pa.int64()) for name in NUMBERS), *((name, pa.string()) for name in _TEXTS), ("holes", pa.binary())]
)
KINDS = {**dict.fromkeys(NUMBERS, "long"), **dict.fromkeys(_TEXTS, "string"), "holes": "binary"}
LINES = ", ".join(f"`{name}` {kind}" for name, kind in KINDS.items())
"""Everything that comes together by incarnation, as Spark spells it. Each kind fills in what it has."""
REPORT = "kind string, subject string, what string, file string, incarnation long, counts string"
_REPORT = pa.schema(
    [(name, pa.string()) for name in ("kind", "subject", "what", "file")]
    + [("incarnation", pa.int64()), ("counts", pa.string())]
)
FINDINGS_PER_TASK = 1_000
FINDINGS_PER_FILE = 20
_KEYS = ["bucket", "stream", "incarnation", "seq", "offset", "ts_ms", "n", "group", "position", "content_type"]
_SEPARATOR = "\n"
"""Between the names of two files; no name holds one."""


class Look(NamedTuple):
    """What is looked at: everything, or again at what a finding is about."""

    deep: bool
    incarnations: frozenset[int] | None = None
    files: frozenset[str] | None = None
    """Files whose rows are read; all when None."""

    def wanted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without the lines of other incarnations."""
        if self.incarnations is None:
            return batch
        chosen = pa.array(sorted(self.incarnations), pa.int64())
        return batch.filter(pc.is_in(batch["incarnation"], value_set=chosen))


def lines(kind: int, length: int, /, **columns: Any) -> pa.RecordBatch:
    """`length` lines of one kind. Columns are Arrow or numpy arrays, or one value for all."""
    made = []
    for field in LINE:
        value = kind if field.name == "kind" else columns.get(field.name)
        if value is None:
            made.append(pa.nulls(length, field.type))
        elif isinstance(value, pa.Array):
            made.append(value)
        elif isinstance(value, np.ndarray):
            made.append(pa.array(value, field.type))
        else:
            made.append(pa.array([value] * length, field.type))
    return pa.RecordBatch.from_arrays(made, schema=LINE)


# ---- what the node and the store know ---------------------------------------------------------------------------


def streams(node: Node, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Every stream of the catalog. One task: each page begins where the one before ended."""
    for _ in batches:
        for page in node.lake_streams():
            for batch in pa.ipc.open_stream(page):
                yield lines(
                    STREAM,
                    len(batch),
                    incarnation=batch["incarnation"],
                    tail=batch["tail"],
                    earliest=batch["earliest"],
                    first_seq=batch["first_seq"],
                    total=batch["count"],
                    cold_end=batch["cold_end"],
                    fork_at=batch["fork_at"],
                    forked_from=batch["forked_from"],
                    snapshot_offset=batch["snapshot_offset"],
                    name=pc.binary_join_element_wise(batch["bucket"], batch["stream"], "/"),
                    holes=batch["holes"],
                )


def blobs(place: Place, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Every snapshot in the store, by its name. One task: a store lists page by page."""
    for _ in batches:
        incarnations: list[int] = []
        offsets: list[int] = []
        for stored in place.store().list(SNAPSHOTS):
            owner = snapshot_owner(stored.key)
            offset = stored.key.rpartition("/")[2].partition("-")[0]
            if owner is not None and offset.isdigit():
                incarnations.append(owner[1])
                offsets.append(int(offset))
            if len(offsets) == 10_000:
                yield _blobs(incarnations, offsets)
                incarnations, offsets = [], []
        yield _blobs(incarnations, offsets)


def _blobs(incarnations: list[int], offsets: list[int]) -> pa.RecordBatch:
    return lines(
        BLOB,
        len(offsets),
        incarnation=pa.array(incarnations, pa.int64()),
        start=pa.array(offsets, pa.int64()),
    )


# ---- files -------------------------------------------------------------------------------------------------------


def files(node: Node, place: Place, look: Look, some: list[File]) -> Iterator[pa.RecordBatch]:
    """Extents of the files, and what is wrong with their rows."""
    store = place.store()
    by_path = {file.path: file for file in some}
    for path, extents in extents_of(node, [(file.path, file.rows) for file in some]):
        if look.files is not None and path not in look.files:
            yield look.wanted(_extents(path, extents, None))
            continue
        found = _Found(path)
        audit = None
        try:
            audit = _Audit(LakeFile(store, path), by_path[path], extents, data_group(path), look.deep, found)
            audit.run()
        except (LakeDamaged, ObjectMissing) as error:
            found.add("damage" if isinstance(error, LakeDamaged) else "store", error.reason)
        yield look.wanted(_extents(path, extents, audit.ids if audit is not None and audit.done else None))
        yield found.batch()
        yield lines(FILE, 1, incarnation=-1, rows=audit.rows_read if audit is not None else 0, file=path)


def _extents(path: str, extents: pa.Table, ids: dict[str, Any] | None) -> pa.RecordBatch:
    held = {"incarnation": "incarnation", "start": "start", "end": "end", "seq": "seq_start", "rows": "row_count"}
    columns = {name: pa.array(extents[theirs].to_numpy(), pa.int64()) for name, theirs in held.items()}
    return lines(EXTENT, len(extents), **columns, **(ids or {}), file=path)


class _Found:
    """What is wrong with one file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.texts: list[tuple[str, str]] = []
        self._more = 0

    def add(self, kind: str, what: str) -> None:
        if len(self.texts) < FINDINGS_PER_FILE:
            self.texts.append((kind, what))
        else:
            self._more += 1

    def batch(self) -> pa.RecordBatch:
        if self._more:
            self.texts.append(("rows", f"{self._more} more of its rows are wrong"))
        return lines(
            FINDING,
            len(self.texts),
            incarnation=-1,
            name=self._path,
            file=self._path,
            found=pa.array([kind for kind, _ in self.texts], pa.string()),
            what=pa.array([what for _, what in self.texts], pa.string()),
        )


class _Audit:
    """One file's rows, piece by piece. A row is wrong when the extent that it is in says something else of it."""

    def __init__(self, file: LakeFile, listed: File, extents: pa.Table, group: int, deep: bool, found: _Found) -> None:
        self._file, self._listed, self._found = file, listed, found
        self._group, self._deep = group, deep
        self._starts, self._ends = spans(file, extents)
        self._told = {name: extents[name].to_numpy() for name in ("incarnation", "seq_start", "start", "end")}
        count = len(extents)
        self.ids: dict[str, Any] = {name: np.zeros(count, np.int64) for name in ("ms", "n", "last_ms", "last_n")}
        self.ids["name"] = pa.nulls(count, pa.string())
        self._names: list[pa.Array] = []
        self.rows_read = 0
        self.done = False

    def run(self) -> None:
        file, listed = self._file, self._listed
        if file.size_bytes != listed.bytes:
            self._found.add("store", f"the object has {file.size_bytes} bytes, the table says {listed.bytes}")
        if file.row_count != listed.rows:
            self._found.add("table", f"it has {file.row_count} rows, the table says {listed.rows}")
        if (self._starts[1:] < self._ends[:-1]).any():
            self._found.add("overlap", "two extents refer to the same row of it")
        last: pa.Table | None = None
        for at, rows in file.rows([*_KEYS, "payload"] if self._deep else _KEYS):
            keys = rows.select(_KEYS)
            if not in_order(keys if last is None else pa.concat_tables([last, keys])):
                self._found.add("rows", "its rows are not sorted by bucket, stream, incarnation and seq")
            last = keys.slice(len(keys) - 1)
            self._check(at, rows)
            self.rows_read += len(rows)
        self.ids["name"] = pa.concat_arrays(self._names) if self._names else self.ids["name"]
        self.done = True

    def _check(self, at: int, rows: pa.Table) -> None:
        count = len(rows)
        sid, seq, offset, ms, n, position, group = (
            rows[name].to_numpy() for name in ("incarnation", "seq", "offset", "ts_ms", "n", "position", "group")
        )
        if (group != self._group).any():
            self._found.add("rows", f"rows {at} to {at + count} are not all of group {self._group}")
        low, high = np.searchsorted(self._starts, (at, at + count))
        first, last = self._starts[low:high] - at, self._ends[low:high] - at - 1
        at_first = rows.take(pa.array(first))
        self._names.append(pc.binary_join_element_wise(at_first["bucket"], at_first["stream"], "/").combine_chunks())
        self.ids["ms"][low:high], self.ids["n"][low:high] = ms[first], n[first]
        self.ids["last_ms"][low:high], self.ids["last_n"][low:high] = ms[last], n[last]
        told = {name: values[low:high] for name, values in self._told.items()}
        wrong = (
            (sid[first] != told["incarnation"]) | (seq[first] != told["seq_start"]) | (offset[first] != told["start"])
        )
        wrong |= offset[last] > told["end"]
        # Within an extent each row follows from the one before it.
        live = live_mask(self._starts, self._ends, at, count)
        inner = np.ones(count, bool) if live is None else live
        inner[first] = False
        inner[0] = False
        joined = np.zeros(count, bool)
        joined[1:] = (sid[1:] == sid[:-1]) & (seq[1:] == seq[:-1] + 1)
        joined[1:] &= (ms[1:] > ms[:-1]) | ((ms[1:] == ms[:-1]) & (n[1:] > n[:-1]))
        if self._deep:
            ends = offset + pc.binary_length(rows["payload"]).to_numpy()
            joined[1:] &= offset[1:] == ends[:-1]
            wrong |= ends[last] != told["end"]
        else:
            joined[1:] &= offset[1:] >= offset[:-1]
        for row in np.nonzero(inner & ~joined)[0]:
            wrong[np.searchsorted(first, row, "right") - 1] = True
        inside = (position >= self._listed.position_min) & (position <= self._listed.position_max)
        if self._listed.position_max and not inside.all():  # otherwise the table does not tell
            self._found.add("table", f"the position of row {at + int(np.argmin(inside))} is not what the table says")
        for index in np.nonzero(wrong)[0]:
            where = f"rows {at + first[index]} to {at + last[index] + 1}"
            why = f"{told['seq_start'][index]} on of stream {told['incarnation'][index]}"
            span = f"from {told['start'][index]} to {told['end'][index]}"
            self._found.add("rows", f"{where} are not the records {why}, {span}")


# ---- streams -----------------------------------------------------------------------------------------------------


class _Counts:
    def __init__(self) -> None:
        self.of = dict.fromkeys(("extents", "rows", "bytes", "files_read", "rows_read", "findings"), 0)
        self.findings: list[tuple[str, str, str, str, int]] = []

    def find(self, kind: str, subject: str, what: str, files: str, incarnation: int) -> None:
        self.of["findings"] += 1
        if len(self.findings) < FINDINGS_PER_TASK:
            self.findings.append((kind, subject, what, files, incarnation))


def joints(look: Look, sids_max: list[int], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Lines of whole incarnations, sorted by incarnation, kind, start and end: what is wrong with them, and counts.

    Incarnations above `sids_max`, which has one for each group, began after the streams were listed. All streams are
    among the lines, also when not all are looked at: what their forks need is found from them.
    """
    counts = _Counts()
    stream: _Stream | None = None
    for batch in batches:
        columns = {name: batch.column(LINE.get_field_index(name)).to_pylist() for name in LINE.names}
        for values in zip(*columns.values(), strict=True):
            line = _Line(*values)
            if line.kind == FINDING:
                counts.find(line.found, line.name, line.what, line.file, -1)
                continue
            if line.kind == FILE:
                counts.of["files_read"] += 1
                counts.of["rows_read"] += line.rows
                continue
            if line.incarnation > sids_max[line.incarnation % len(sids_max)]:
                continue
            if look.incarnations is not None and line.incarnation not in look.incarnations:
                continue
            if stream is None or stream.incarnation != line.incarnation:
                if stream is not None:
                    stream.end()
                stream = _Stream(line.incarnation, counts)
            stream.take(line)
    if stream is not None:
        stream.end()
    yield _reported(counts)


class _Line(NamedTuple):
    """In the order of `LINE`."""

    kind: int
    incarnation: int
    start: int
    end: int
    seq: int
    rows: int
    ms: int | None
    n: int | None
    last_ms: int | None
    last_n: int | None
    tail: int
    earliest: int
    first_seq: int
    total: int
    cold_end: int
    forked_from: int | None
    fork_at: int | None
    snapshot_offset: int | None
    name: str
    file: str
    found: str
    what: str
    holes: bytes | None


def _part(line: _Line) -> Part:
    return Part(line.start, line.end, line.seq, line.rows)


class _Stream:
    """One incarnation, line by line. What is settled since the catalog was asked is no finding."""

    def __init__(self, incarnation: int, counts: _Counts) -> None:
        self.incarnation = incarnation
        self._counts = counts
        self._row: _Line | None = None
        self._need: int | None = None
        self._gone: list[Holes] = []
        self._blobs: set[int] = set()
        self._last: _Line | None = None
        self._ownerless = 0

    def take(self, line: _Line) -> None:
        if line.holes:
            self._gone.append(Holes(line.holes))
        if line.kind == STREAM:
            self._row = line
        elif line.kind == NEED:
            self._need = line.start if self._need is None else min(self._need, line.start)
        elif line.kind == BLOB:
            self._blobs.add(line.start)
        else:
            self._extent(line)

    def _extent(self, line: _Line) -> None:
        self._counts.of["extents"] += 1
        self._counts.of["rows"] += line.rows
        self._counts.of["bytes"] += line.end - line.start
        row, last = self._row, self._last
        self._last = line
        if row is None:
            self._ownerless += 1
            return
        part = _part(line)
        self._tell(extent_rules.shape(part), line)
        if line.name is not None and line.name != row.name:
            self._find("name", f"rows of it are named {line.name}", line)
        if last is not None:
            self._joint(last, line, self._first(row))
            return
        faults = extent_rules.beginning(part, self._first(row), row.cold_end, row.earliest, row.first_seq, self._gone)
        self._tell(faults, line)

    def _joint(self, last: _Line, line: _Line, first: int) -> None:
        self._tell(extent_rules.joint(_part(last), _part(line), self._gone, first), last, line)
        if None not in (line.ms, last.last_ms) and (line.ms, line.n) <= (last.last_ms, last.last_n):
            self._find("id", f"the id at {line.start} is not greater than the one before it", last, line)

    def end(self) -> None:
        row, last = self._row, self._last
        if row is None:
            if last is not None:
                what = f"{self._ownerless} extents of a stream that does not exist"
                self._counts.find("extent", f"stream {self.incarnation}", what, last.file, self.incarnation)
            return
        end = self._first(row) if last is None else last.end
        self._tell(extent_rules.ending(end, row.cold_end, self._gone), *([last] if last else []))
        if last is not None and row.cold_end == row.tail == last.end:
            self._tell(extent_rules.counted(_part(last), row.total, self._gone), last)
        # A fork shares the snapshot of its source, under its source's name.
        if row.snapshot_offset is not None and row.fork_at is None and row.snapshot_offset not in self._blobs:
            self._find("snapshot", f"its snapshot at {row.snapshot_offset} is missing from the store")

    def _first(self, row: _Line) -> int:
        return extent_rules.first_needed(row.earliest, self._need, row.fork_at or 0)

    def _tell(self, faults: Iterable[Fault], *about: _Line) -> None:
        for kind, what in faults:
            self._find(kind, what, *about)

    def _find(self, kind: str, what: str, *about: _Line) -> None:
        name = f"stream {self.incarnation}" if self._row is None else self._row.name
        files = _SEPARATOR.join(line.file for line in about)
        self._counts.find(kind, name, what, files, self.incarnation)


def _reported(counts: _Counts) -> pa.RecordBatch:
    rows = [*counts.findings, (None, None, None, None, None)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    columns.append([None] * len(counts.findings) + [json.dumps(counts.of)])
    made = [pa.array(column, field.type) for column, field in zip(columns, _REPORT, strict=True)]
    return pa.RecordBatch.from_arrays(made, schema=_REPORT)


def files_in(text: str | None) -> list[str]:
    return text.split(_SEPARATOR) if text else []
