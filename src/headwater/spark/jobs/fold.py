"""`fold`: application snapshots for streams with enough new records, so that clients start from a state, not a history.

Owns which streams are due, and that no snapshot is published which a record is missing from: publishing one lets go of
the records before it. Never keeps state between runs (the snapshot before is the state), and never asks about a stream
that did not change.

    settled rows + a header per due stream -> by stream, in order -> folded by executors -> published, 1,000 a request
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BadName
from headwater.model.names import bucketed_key
from headwater.spark import lake_listing
from headwater.spark.derived_tables import native_root
from headwater.spark.executor_tasks import over_files, parallelism, told, watching
from headwater.spark.folding import (
    JSON,
    BadFold,
    Fold,
    Folded,
    Folder,
    FoldFailed,
    Function,
    Record,
    applied,
    load_function,
    media_type,
)
from headwater.spark.group_states import heads_of, seen_in
from headwater.spark.job_runs import DONE, FINDINGS, RUNS_BUCKET, JobRefused, Progress, recorded, silent
from headwater.spark.lake_file import LakeFile
from headwater.spark.lake_listing import File
from headwater.spark.lake_place import Place
from headwater.spark.matching import job_match
from headwater.spark.node import Node, NodeRefused
from headwater.spark.offsets import Offset
from headwater.spark.options import BadOptions, of_each, parse
from headwater.spark.publishing import BATCH_BYTES_MAX, BUSY, ENTRIES_MAX, entry_of, publish
from headwater.spark.ranges import Positions
from headwater.spark.resuming import resume
from headwater.spark.same_versions import for_executors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIN_RECORDS = 100
TASK_BYTES = 64 << 20
FEW = 500
"""So many streams are named to Spark one by one, and it skips row groups that hold none of them."""
PATIENCE_S = 60.0
"""How long a node may be too busy to publish anything."""
ERRORS_SHOWN = 5
_READ = ["incarnation", "seq", "offset", "ts_ms", "tag", "payload", "group", "position"]
_COUNTS = "counts string"


class Due(NamedTuple):
    """A stream that is to be folded, as its executor needs to know it."""

    name: str
    """bucket/stream"""
    content_type: str
    first_seq: int
    start: int
    """Offset of the first record to fold."""
    snapshot_offset: int | None


@recorded("fold")
def fold(
    spark: SparkSession,
    node: Node,
    *,
    mode: str = "last",
    key: tuple[str, ...] = (),
    deleted: str | None = None,
    function: str | Function | None = None,
    bucket: str | None = None,
    pattern: str | None = None,
    min_records: int = MIN_RECORDS,
    flush: bool = True,
    until: Positions | Offset | None = None,
    require_match: bool = False,
    dry_run: bool = False,
    progress: Progress = silent,
) -> dict[str, object]:
    """Folds and publishes; safe to run twice, and at any time. Raises JobRefused.

    `flush` settles what is in the node's memory first; without it only what is in the lake by itself is folded, and
    what came later follows the snapshot as ordinary records. `until` leaves records with a later position in their
    group's log alone, because others have yet to read them; an offset also says of which logs, and other ones are
    DataLoss.
    `require_match` refuses a bucket or pattern that no stream is in, which is a warning otherwise.
    """
    if min_records < 1:
        raise JobRefused("min_records is at least 1")
    named = function if isinstance(function, str) else None if function is None else "given:function"
    try:
        how = Fold.of(mode, key, deleted, named)
        call = load_function(function) if isinstance(function, str) else function
        how.folder(None, JSON)  # says now what is wrong with its pointers
        wanted = _selection(node, bucket, pattern)
    except (BadFold, BadOptions) as error:
        raise JobRefused(str(error)) from None
    if call is not None:
        _ship(call)
    if isinstance(until, Offset):
        node, until = resume(node, until, True).node, until.positions
    heads = heads_of(node)
    if until is not None:
        try:
            until = of_each("until", until, heads)
        except BadOptions as error:
            raise JobRefused(str(error)) from None
    # Nothing is published on another log than the one that was read.
    node = node.expecting(seen_in(heads))
    warnings = job_match(node, wanted, require_match)
    if flush and not dry_run:
        node.flush()
    # In this order: records that settle later are in no file of the listing, and simply follow the snapshot.
    by_group = lake_listing.listings(node)
    files = [file for listing in by_group for file in listing.files]
    skipped: Counter[str] = Counter()
    due = _due(node, how, wanted, min_records, skipped, progress)
    total: Counter[str] = Counter()
    errors: list[str] = []
    records_due = skipped.pop("records_due", 0)
    if dry_run:
        return {
            "mode": mode,
            "streams": skipped.pop("streams", 0),
            "due": due.num_rows,
            "records": records_due,
            "skipped": dict(sorted(skipped.items())),
            **({"warnings": warnings} if warnings else {}),
        }
    if due.num_rows and files:
        settled = {one.group: one.lake_position for one in by_group}
        ends = {group: min(end, end if until is None else until[group]) for group, end in settled.items()}
        frame = _rows(spark, by_group[0].place, files, due, ends, with_facts=call is not None)
        counts = _folded(frame, node, how, call, min_records, spark, files)
        with watching(spark, progress, "tasks"), told("folding"):
            for row in counts.collect():
                found = json.loads(row["counts"])
                errors += found.pop("errors")
                total.update(found)
    return {
        "outcome": FINDINGS if total["failed"] or total["incomplete"] else DONE,
        "mode": mode,
        "streams": skipped.pop("streams", 0),
        "due": due.num_rows,
        **{name: total[name] for name in ("published", "overtaken", "failed", "incomplete", "unsettled", "empty")},
        "records": total["records"],
        "records_without_key": total["ignored"],
        "snapshot_bytes": total["bytes"],
        "skipped": dict(sorted(skipped.items())),
        **({"errors": errors[:ERRORS_SHOWN]} if errors else {}),
        **({"warnings": warnings} if warnings else {}),
    }


# ---- which streams are due ---------------------------------------------------------------------------------------


def _selection(node: Node, bucket: str | None, pattern: str | None) -> Any:
    said = {"bucket": bucket, "subscribePattern": pattern}
    given = {"url": node.url, **{name: value for name, value in said.items() if value is not None}}
    return parse(given).selection


def _due(node: Node, how: Fold, wanted: Any, min_records: int, skipped: Counter[str], progress: Progress) -> pa.Table:
    """Incarnation, start and header of every stream to fold. Counts their new records, and why others are not."""
    pages = []
    for body in node.lake_streams():
        page = pa.ipc.open_stream(body).read_all()
        skipped["streams"] += page.num_rows
        new = pc.greater_equal(pc.subtract(page["count"], page["first_seq"]), min_records)
        page = page.filter(pc.and_(new, pc.invert(page["deleted"])))
        pages.append(_headers(page, how, wanted, skipped))
        progress("streams", skipped["streams"], None)
    return pa.concat_tables(pages)


def _headers(page: pa.Table, how: Fold, wanted: Any, skipped: Counter[str]) -> pa.Table:
    read = (
        *("bucket", "stream", "incarnation", "content_type", "earliest", "first_seq", "snapshot_offset", "fork_at"),
        *("holes", "count"),
    )
    rows = zip(*(page[name].to_pylist() for name in read), strict=True)
    found: list[tuple[int, int, bytes]] = []
    for bucket, stream, incarnation, content_type, earliest, first_seq, snapshot, fork_at, holes, count in rows:
        if bucket == RUNS_BUCKET or not wanted.takes(bucket, stream):
            continue
        if how.json_only and media_type(content_type) != JSON:
            skipped["not_json"] += 1
        elif earliest != (0 if snapshot is None else snapshot) or holes is not None:
            skipped["history_gone"] += 1  # retention, or a deletion, took what the fold would need
        elif fork_at is not None and earliest < fork_at:
            skipped["forks"] += 1  # its first records are another stream's
        elif not _reachable(bucket, stream):
            skipped["name_without_snapshots"] += 1
        else:
            due = Due(f"{bucket}/{stream}", content_type, first_seq, earliest, snapshot)
            found.append((incarnation, earliest, msgspec.msgpack.encode(due)))
            skipped["records_due"] += count - first_seq
    columns = [[one[index] for one in found] for index in range(3)]
    return pa.table([pa.array(column, of) for column, of in zip(columns, _HEADER_TYPES, strict=True)], names=_HEADER)


_HEADER = ["incarnation", "start", "header"]
_HEADER_TYPES = (pa.int64(), pa.int64(), pa.binary())


def _reachable(bucket: str, stream: str) -> bool:
    """Clients find snapshots below bucketed paths only: a stream without one would lose its history for nothing."""
    try:
        bucketed_key(bucket, stream)
    except BadName:
        return False
    return True


# ---- the rows ----------------------------------------------------------------------------------------------------


def _rows(
    spark: SparkSession, place: Place, files: list[File], due: pa.Table, ends: Positions, with_facts: bool
) -> DataFrame:
    """Every settled row of the streams that are due, and before them a header with seq -1."""
    from pyspark.sql import functions as F

    facts = ["ts_ms", "tag"] if with_facts else []
    if (root := native_root(place)) is not None:
        rows = spark.read.parquet(*(f"{root}/{file.path}" for file in files))
    else:
        kinds = {"tag": "string", "payload": "binary", "group": "int"}
        schema = ", ".join(f"`{name}` {kinds.get(name, 'bigint')}" for name in _READ)
        rows = over_files(spark, files, _Reader(place), schema)
    within = [(F.col("group") == group) & (F.col("position") <= end) for group, end in ends.items()]
    rows = rows.filter(reduce(lambda one, other: one | other, within))
    streams = spark.createDataFrame(due)
    if due.num_rows <= FEW:
        rows = rows.filter(F.col("incarnation").isin(due["incarnation"].to_pylist()))
    starts = streams.select(F.col("incarnation").alias("due"), "start")
    mine = rows.join(starts, (F.col("incarnation") == F.col("due")) & (F.col("offset") >= F.col("start")), "left_semi")
    headers = streams.select(
        "incarnation",
        F.lit(-1).cast("bigint").alias("seq"),
        F.col("start").alias("offset"),
        F.col("header").alias("payload"),
        F.lit(None).cast("bigint").alias("ts_ms"),
        F.lit(None).cast("string").alias("tag"),
    )
    names = ["incarnation", "seq", "offset", "payload", *facts]
    return mine.select(*names).unionAll(headers.select(*names))


class _Reader:
    """Reads files that Spark itself cannot reach."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def __call__(self, files: list[File]) -> Iterator[pa.RecordBatch]:
        store = self._place.store()
        for file in files:
            for _, rows in LakeFile(store, file.path).rows(_READ):
                yield from rows.select(_READ).to_batches()


def _folded(
    frame: DataFrame,
    node: Node,
    how: Fold,
    call: Function | None,
    min_records: int,
    spark: SparkSession,
    files: list[File],
) -> DataFrame:
    size = sum(file.live_bytes for file in files)
    # A number of its own: Spark would join small partitions, and one task would publish everything.
    parts = max(parallelism(spark), -(-size // TASK_BYTES))

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = _Task(node, how, call, min_records)
        for batch in batches:
            task.add(batch)
        yield pa.RecordBatch.from_pydict({"counts": [json.dumps(task.finish())]})

    return (
        frame.repartition(parts, "incarnation")
        .sortWithinPartitions("incarnation", "seq")
        .mapInArrow(for_executors(work), _COUNTS)
    )


# ---- on executors ------------------------------------------------------------------------------------------------


class _Stream:
    """A stream while its rows come in."""

    __slots__ = ("due", "end", "folder", "previous", "records", "seq", "whole")

    def __init__(self, due: Due) -> None:
        self.due = due
        self.seq, self.end = due.first_seq, due.start
        self.whole = True
        self.previous: bytes | None = None
        self.folder: Folder | None = None
        self.records: list[Record] = []


class _Task:
    """Folds the streams of one partition, one after the other, and publishes what they come to."""

    def __init__(self, node: Node, how: Fold, call: Function | None, min_records: int) -> None:
        self._node, self._how, self._call, self._min_records = node, how, call, min_records
        self._at: _Stream | None = None
        self._incarnation = -1
        self._counts: Counter[str] = Counter()
        self._errors: list[str] = []
        self._entries: list[dict[str, Any]] = []
        self._entries_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        incarnations = batch.column("incarnation").to_numpy()
        seqs, offsets = batch.column("seq").to_numpy(), batch.column("offset").to_numpy()
        payloads = batch.column("payload").to_pylist()
        marks = [0, *(np.flatnonzero(incarnations[1:] != incarnations[:-1]) + 1).tolist(), len(payloads)]
        for start, end in pairwise(marks):
            if start == end:
                continue
            if incarnations[start] != self._incarnation:
                self._finish_stream()
                self._incarnation = int(incarnations[start])
            if seqs[start] == -1:
                self._begin(Due(*msgspec.msgpack.decode(payloads[start])))
                start += 1
            if start < end and self._at is not None and self._at.whole:
                self._take(self._at, batch, seqs, offsets, payloads, start, end)

    def _begin(self, due: Due) -> None:
        self._at = _Stream(due)

    def _take(
        self, at: _Stream, batch: pa.RecordBatch, seqs: Any, offsets: Any, payloads: list[bytes], start: int, end: int
    ) -> None:
        # A snapshot stands for all records before it: if one is missing, or comes twice, none is published.
        lengths = np.fromiter((len(payload) for payload in payloads[start:end]), np.int64, end - start)
        ends = offsets[start:end] + lengths
        in_order = seqs[start] == at.seq and offsets[start] == at.end and seqs[end - 1] - seqs[start] == end - start - 1
        if not in_order or (ends[:-1] != offsets[start + 1 : end]).any():
            at.whole = False
            return
        try:
            if self._call is not None:
                at.records += _records(batch.slice(start, end - start), payloads[start:end])
            else:
                if at.folder is None:
                    at.folder = self._how.folder(self._previous(at.due), at.due.content_type)
                at.folder.feed(payloads[start:end])
        except (FoldFailed, NodeRefused) as error:
            self._fail(at, error)
            return
        at.seq, at.end = int(seqs[end - 1]) + 1, int(ends[-1])

    def _fail(self, at: _Stream, error: Exception) -> None:
        at.whole = False
        if isinstance(error, NodeRefused) and error.status in (404, 410):
            self._counts["overtaken"] += 1
        else:
            self._counts["failed"] += 1
            self._errors.append(f"{at.due.name}: {error}"[:300])
        self._at = None

    def _finish_stream(self) -> None:
        at, self._at = self._at, None
        if at is None:
            return
        records = at.seq - at.due.first_seq
        if not at.whole:
            self._counts["incomplete"] += 1
            self._errors.append(f"{at.due.name}: its records in the lake are not all there from {at.due.start:020d} on")
            return
        if records < self._min_records:
            self._counts["unsettled"] += 1
            return
        try:
            made = self._made(at)
        except (FoldFailed, NodeRefused) as error:
            self._fail(at, error)
            return
        if made is None:
            self._counts["empty"] += 1
            return
        if len(made.body) > BATCH_BYTES_MAX:
            self._counts["failed"] += 1
            self._errors.append(f"{at.due.name}: its snapshot has {len(made.body)} bytes, more than {BATCH_BYTES_MAX}")
            return
        self._counts["records"] += records
        self._counts["ignored"] += made.ignored_count
        if self._entries_bytes + len(made.body) > BATCH_BYTES_MAX or len(self._entries) == ENTRIES_MAX:
            self._publish()
        self._entries.append(entry_of(at.due.name, at.end, made.content_type, made.body))
        self._entries_bytes += len(made.body)

    def _made(self, at: _Stream) -> Folded | None:
        if self._call is not None:
            return applied(self._call, self._previous(at.due), at.records)
        return None if at.folder is None else at.folder.finish()

    def _previous(self, due: Due) -> bytes | None:
        """The snapshot before. Raises NodeRefused with 404 when there is a newer one."""
        if due.snapshot_offset is None:
            return None
        path = "/".join(quote(part, safe="") for part in due.name.split("/", 1))
        return self._node.call("GET", f"/{path}/snapshot/{due.snapshot_offset:020d}").body

    def finish(self) -> dict[str, Any]:
        self._finish_stream()
        self._publish()
        return {**self._counts, "errors": self._errors[:ERRORS_SHOWN]}

    def _publish(self) -> None:
        entries, self._entries, self._entries_bytes = self._entries, [], 0
        for entry, answer in zip(entries, publish(self._node, entries, PATIENCE_S), strict=True):
            status = answer["status"]
            if status == 204:
                self._counts["published"] += 1
                self._counts["bytes"] += len(entry["body"])
            elif status in (404, 409, 410):
                self._counts["overtaken"] += 1  # deleted, trimmed, or a newer one is there
            else:
                self._counts["failed"] += 1
                why = "the node stayed too busy" if status in BUSY else f"{status} {answer['error']['message']}"
                self._errors.append(f"{entry['stream']}: {why}"[:300])


def _records(rows: pa.RecordBatch, payloads: list[bytes]) -> list[Record]:
    facts = (rows.column(name).to_pylist() for name in ("seq", "offset", "ts_ms", "tag"))
    return [Record(*values) for values in zip(*facts, payloads, strict=True)]


def _ship(function: Function) -> None:
    """The user's module travels with the work: executors need not have it. An installed package they do have."""
    from pyspark import cloudpickle

    module = sys.modules.get(getattr(function, "__module__", ""))
    place = getattr(module, "__file__", None)
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    if module is not None and place is not None and not any(place.startswith(folder) for folder in installed):
        cloudpickle.register_pickle_by_value(module)
