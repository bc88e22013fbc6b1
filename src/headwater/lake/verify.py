"""Whether catalog, Delta log and objects agree: what `headwater lake verify` finds out.

Owns the checks and their words. Never changes anything, and never trusts one of the three for what another should say.

    stream rows     -> their extents join up, without gap or overlap, from the first record kept to the last settled;
                       deleted records may be missing
    extents         -> their file is in table, catalog and store, and has the rows (deep: they are these very records)
    table, catalog  -> neither knows a file that the other should know and does not, nor holds one that was swapped for
                       others; sizes and row counts agree
    snapshots       -> the blob that a stream refers to is there, of its size
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Protocol

import msgspec

from headwater.lake.cache import MemoryCache
from headwater.lake.layout import FileInfo
from headwater.lake.names import DATA, SNAPSHOTS
from headwater.lake.reader import Reader
from headwater.lake.store import ObjectStore, StoreError
from headwater.model import extent_rules
from headwater.model.extent_rules import Fault, Part
from headwater.model.extents import Extent
from headwater.model.holes import Holes
from headwater.model.row import StreamRow

FINDINGS_MAX = 1_000
"""Told one by one; more are only counted."""
CACHE_BYTES = 32 << 20

Progress = Callable[[str, int, int | None], None]
"""What is being looked at, how far it got, and how much there is, if that is known."""


class Finding(msgspec.Struct, frozen=True):
    kind: str
    subject: str
    """A stream's key or a file's name."""
    what: str


class Report(msgspec.Struct):
    streams: int = 0
    extents: int = 0
    files: int = 0
    rows: int = 0
    """Rows that extents refer to."""
    bytes: int = 0
    """Payload bytes of those."""
    snapshots: int = 0
    deep: bool = False
    findings_count: int = 0
    findings: list[Finding] = []

    def find(self, kind: str, subject: str, what: str) -> None:
        self.findings_count += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(kind, subject, what))


class State(Protocol):
    """What a node would believe if it started now: the catalog with the log's news on top."""

    def streams(self) -> Iterator[StreamRow]:
        """Every stream, by sid."""
        ...

    def extents(self) -> Iterator[Extent]:
        """Every extent, by sid and offset."""
        ...

    def extents_in(self, file: str) -> list[Extent]: ...

    def files(self) -> dict[str, int | None]:
        """Known files, and since when they are dead."""
        ...


def verify(store: ObjectStore, table: dict[str, FileInfo], state: State, deep: bool, progress: Progress) -> Report:
    """Looks at everything once. Raises StoreError when the store does not answer; damage is a finding, not an error."""
    report = Report(deep=deep)
    objects = {stored.key: stored.size_bytes for stored in store.list(DATA)}
    blobs = {stored.key: stored.size_bytes for stored in store.list(SNAPSHOTS)}
    known = state.files()
    used = _check_streams(report, state, blobs, progress)
    _check_files(report, table, known, used, objects)
    _check_rows(report, store, table, state, used, objects, deep, progress)
    return report


# ---- streams and their extents -----------------------------------------------------------------------------------


def _check_streams(report: Report, state: State, blobs: dict[str, int], progress: Progress) -> dict[str, int]:
    """Returns how many rows extents refer to, by file."""
    used: dict[str, int] = {}
    needs, gone = _needs(state.streams())
    by_sid = groupby(state.extents(), lambda extent: extent.sid)
    sid, extents = next(by_sid, (None, iter(())))
    for row in state.streams():
        while sid is not None and sid < row.sid:
            _ownerless(report, sid, extents)
            sid, extents = next(by_sid, (None, iter(())))
        if sid == row.sid:
            _check_stream(report, row, extents, needs.get(row.sid), gone.get(row.sid, []), used)
            sid, extents = next(by_sid, (None, iter(())))
        else:
            _check_stream(report, row, iter(()), needs.get(row.sid), gone.get(row.sid, []), used)
        if row.snapshot is not None:
            report.snapshots += 1
            size = blobs.get(row.snapshot.blob)
            if size is None:
                report.find("snapshot", row.key, f"its snapshot {row.snapshot.blob} is missing from the store")
            elif size != row.snapshot.size:
                report.find("snapshot", row.key, f"its snapshot has {size} bytes, not {row.snapshot.size}")
        report.streams += 1
        if report.streams % 1_000 == 0:
            progress("streams", report.streams, None)
    while sid is not None:
        _ownerless(report, sid, extents)
        sid, extents = next(by_sid, (None, iter(())))
    return used


def _ownerless(report: Report, sid: int, extents: Iterable[Extent]) -> None:
    count = sum(1 for _ in extents)
    report.find("extent", f"stream {sid}", f"{count} extents of a stream that does not exist")


def _needs(rows: Iterable[StreamRow]) -> tuple[dict[int, int], dict[int, list[Holes]]]:
    """The lowest offset that forks need of their ancestors, by the ancestor's sid, and what they do not need."""
    forks: dict[int, StreamRow] = {row.sid: row for row in rows if row.forked is not None}
    needs: dict[int, int] = {}
    gone: dict[int, list[Holes]] = {}
    for row in forks.values():
        forked = row.forked
        while forked is not None and row.earliest < forked.at:
            needs[forked.sid] = min(needs.get(forked.sid, forked.at), row.earliest)
            if row.holes:
                gone.setdefault(forked.sid, []).append(Holes(row.holes))
            above = forks.get(forked.sid)
            forked = None if above is None else above.forked
    return needs, gone


def _check_stream(
    report: Report,
    row: StreamRow,
    extents: Iterable[Extent],
    need: int | None,
    gone_of_forks: list[Holes],
    used: dict[str, int],
) -> None:
    gone = [Holes(row.holes), *gone_of_forks] if row.holes else gone_of_forks
    first = extent_rules.first_needed(row.earliest, need, 0 if row.forked is None else row.forked.at)
    last: Extent | None = None
    last_part: Part | None = None

    def tell(faults: Iterable[Fault]) -> None:
        for kind, what in faults:
            report.find(kind, row.key, what)

    for extent in extents:
        report.extents += 1
        report.rows += extent.row_count
        report.bytes += extent.end - extent.start
        used[extent.file] = used.get(extent.file, 0) + extent.row_count
        part = Part(extent.start, extent.end, extent.seq_start, extent.row_count)
        tell(extent_rules.shape(part))
        if last is None or last_part is None:
            tell(extent_rules.beginning(part, first, row.cold_end, row.earliest, row.first_seq, gone))
        else:
            tell(extent_rules.joint(last_part, part, gone, first))
            _check_ids(report, row.key, last, extent)
        last, last_part = extent, part
    end = first if last_part is None else last_part.end
    tell(extent_rules.ending(end, row.cold_end, gone))
    if last_part is not None and end > row.cold_end:
        report.find("extent", row.key, f"extents reach to {end}, but its records settled up to {row.cold_end}")
    if last_part is not None and end == row.tail:
        tell(extent_rules.counted(last_part, row.count, gone))


def _check_ids(report: Report, key: str, last: Extent, extent: Extent) -> None:
    if (extent.ms, extent.n) <= (last.ms, last.n):
        report.find("id", key, f"the id at {extent.start} is not greater than the one at {last.start}")
    # The records of one event have one position, and may lie in two extents.
    if 0 < extent.position < last.position:
        report.find("id", key, f"the log position at {extent.end} is less than the one at {last.end}")


# ---- files -------------------------------------------------------------------------------------------------------


def _check_files(
    report: Report,
    table: dict[str, FileInfo],
    known: dict[str, int | None],
    used: dict[str, int],
    objects: dict[str, int],
) -> None:
    for name, rows in used.items():
        info = table.get(name)
        if name not in known:
            report.find("catalog", name, "extents refer to it, but the catalog has no such file")
        elif known[name] is not None:
            report.find("catalog", name, "extents refer to it, but the catalog says it is dead")
        if info is None:
            report.find("table", name, "extents refer to it, but it is not in the table")
        elif info.row_count is not None and info.row_count < rows:
            report.find("table", name, f"extents refer to {rows} rows, but the table says it has {info.row_count}")
        if name not in objects:
            report.find("store", name, "extents refer to it, but the store has no such object")
    for name, info in table.items():
        if not name.startswith(f"{DATA}/"):
            report.find("table", name, f"it is in the table, but not below {DATA}/: no node wrote it")
            continue
        report.files += 1
        if name not in known:
            report.find("catalog", name, "it is in the table, but the catalog does not know it")
        elif known[name] is not None and name not in used:
            report.find("table", name, "it is in the table, but the catalog says it is dead")
        size = objects.get(name)
        if size is None:
            if name not in used:
                report.find("store", name, "it is in the table, but the store has no such object")
        elif size != info.size_bytes:
            report.find("store", name, f"the object has {size} bytes, the table says {info.size_bytes}")


def _check_rows(
    report: Report,
    store: ObjectStore,
    table: dict[str, FileInfo],
    state: State,
    used: dict[str, int],
    objects: dict[str, int],
    deep: bool,
    progress: Progress,
) -> None:
    """By footers, or by every row when deep."""
    names = sorted(name for name in used if name in objects)
    for number, name in enumerate(names):
        progress("files", number, len(names))
        # A cache of its own for each file: none is looked at twice.
        reader = Reader(store, MemoryCache(CACHE_BYTES))
        try:
            groups = reader.rows(name)
            found = reader.extents(name) if deep else []
        except StoreError as error:
            report.find("damage", name, error.reason)
            continue
        info = table.get(name)
        if info is not None and info.row_count is not None and sum(groups) != info.row_count:
            report.find("table", name, f"it has {sum(groups)} rows, the table says {info.row_count}")
        by_place = {(extent.row_group, extent.row_start): extent for extent in found}
        for extent in state.extents_in(name):
            rows = groups[extent.row_group] if 0 <= extent.row_group < len(groups) else 0
            if extent.row_start < 0 or extent.row_start + extent.row_count > rows:
                why = f"stream {extent.sid} has rows up to {extent.row_start + extent.row_count} of row group "
                report.find("rows", name, f"{why}{extent.row_group}, which has {rows}")
            elif deep and by_place.get((extent.row_group, extent.row_start)) != extent:
                _check_inside(report, name, extent, found, reader)
    progress("files", len(names), len(names))


def _check_inside(report: Report, name: str, extent: Extent, found: list[Extent], reader: Reader) -> None:
    """An extent that is not exactly one run of rows may still be a part of one."""
    for run in found:
        skipped = extent.row_start - run.row_start
        if (
            run.row_group == extent.row_group
            and run.sid == extent.sid
            and skipped >= 0
            and skipped + extent.row_count <= run.row_count
            and run.seq_start + skipped == extent.seq_start
        ):
            try:
                records = reader.records(extent, extent.start, extent.end)
            except StoreError as error:
                report.find("rows", name, error.reason)
                return
            same = (records.ms[0], records.n[0], len(records.payloads)) == (extent.ms, extent.n, extent.row_count)
            if same and extent.position in (0, records.positions[-1]):
                return
    where = f"rows {extent.row_start} to {extent.row_start + extent.row_count} of row group {extent.row_group}"
    why = f"are not the records {extent.seq_start} on of stream {extent.sid}, from {extent.start} to {extent.end}"
    report.find("rows", name, f"{where} {why}")
