"""`erase`: rows that no stream has any more leave the files they are in; for one stream also with a receipt.

Owns which files are rewritten, the proof that none of the lake's files holds a row of an erased stream, and that the
node clears its own files. Never deletes a stream unless it was told to, and never an object: gc does, after its grace
period. Never writes the stream's name down: a keyed hash stands for it.

A row is dead when its stream was deleted or has expired, or when the range of records it settled in was let go of. A
compaction that read a file before its rows died cannot bring them back: its swap is refused once the file is gone, or
else its new file is found here at the next look.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headwater.lake.info import read_table
from headwater.lake.names import DATA, data_group, snapshots_of
from headwater.lake.store import LakeDamaged, ObjectMissing
from headwater.spark import rewrite as files
from headwater.spark.executor_tasks import over_files, told, watching
from headwater.spark.job_runs import (
    DONE,
    FINDINGS,
    RUNS_BUCKET,
    RUNS_STREAM,
    JobRefused,
    Progress,
    recorded,
    rewrite_runs,
    silent,
)
from headwater.spark.lake_file import LakeFile, extents_of
from headwater.spark.lake_listing import File, listed, listings
from headwater.spark.lake_place import Place
from headwater.spark.node import Node, NodeRefused
from headwater.spark.rewrite import Changed, Swapped, counted, summed

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import SparkSession

MAX_BYTES = 64 << 30
NOT_REACHED = (
    "tables that were derived from the stream, their quarantine tables, and older versions of both",
    "streams that its records were routed or copied to",
    "checkpoints and state of Spark queries that read it",
    "backups that were made before, and replicas or snapshots of the disk",
    "older versions of objects, where the bucket of the lake keeps them",
    "files of NATS servers, where a cluster keeps its logs in them: what was purged stays there for a while",
    "what others have: clients, caches between them and the node, log lines of proxies",
)
"""What an erasure cannot know of, or must not change."""
_UNNUMBERED = -1
"""Of a stream whose incarnation the node did not tell."""
_HELD = "path string, incarnation long, rows long, live_rows long"


@recorded("erase")
def erase(
    spark: SparkSession,
    node: Node,
    *,
    dead_share: float = 0.0,
    target_bytes: int = files.TARGET_BYTES,
    max_bytes: int = MAX_BYTES,
    dry_run: bool = False,
    progress: Progress = silent,
) -> dict[str, object]:
    """Rewrites files, up to `max_bytes`, of which more than `dead_share` of the rows are dead. Raises JobRefused."""
    if not 0 <= dead_share < 1:
        raise JobRefused(f"{dead_share} is no share of a file's rows", "name one from 0 up to, but not, 1")
    swaps: list[Swapped] = []
    rest_bytes, conflicts = max_bytes, 0
    left: list[File] = []
    made = 0
    for listing in listings(node):
        # The next run takes rows that die in other files meanwhile: on a busy node this one would never end.
        known = {file.path for file in listing.files}
        while True:
            found = _with_dead_rows(listing.files, dead_share)
            chosen = _some([file for file in found if file.path in known], min(files.SWAP_BYTES_MAX, rest_bytes))
            if not chosen:
                break
            if dry_run:
                swaps.append(files.would_rewrite(chosen, target_bytes))
                rest_bytes -= sum(file.bytes for file in chosen)
                listing = files.without(listing, chosen)
                made += len(swaps[-1].added)
                continue
            progress("bytes", max_bytes - rest_bytes, max_bytes - rest_bytes + sum(file.bytes for file in chosen))
            try:
                swaps.append(files.rewrite(spark, node, listing, chosen, target_bytes, progress))
                rest_bytes -= sum(file.bytes for file in chosen)
                listing = listed(node, listing.group)
            except Changed as changed:
                conflicts = counted(conflicts, changed)
                listing = listed(node, listing.group)
                known = {file.path for file in listing.files}  # rows that were dead may have moved
        left += listing.files
    summary: dict[str, object] = {
        **summed(swaps),
        "conflicts": conflicts,
        "files": len(left) + made,
        "files_with_dead_rows": len(_with_dead_rows(left, dead_share)),
        "rows_dead": sum(file.rows - file.live_rows for file in left),
    }
    if not swaps:
        summary["nothing_to_do"] = True
    return summary


def _with_dead_rows(found: Sequence[File], dead_share: float) -> list[File]:
    return [file for file in found if file.rows - file.live_rows > dead_share * file.rows]


@recorded("erase", omit=("stream",))
def erase_stream(
    spark: SparkSession,
    node: Node,
    stream: str,
    *,
    delete: bool = False,
    target_bytes: int = files.TARGET_BYTES,
    dry_run: bool = False,
    progress: Progress = silent,
) -> dict[str, object]:
    """Rewrites every file that holds dead rows of the stream `bucket/name`, whichever incarnation; returns a receipt.

    The stream is deleted already, or `delete` says to do it. Raises JobRefused when it exists and `delete` is not set.
    `complete` is False when forks of it still need some of its records, or a backup under way holds a copy.
    """
    bucket, name = parts_of(stream)
    listings(node)  # refuses before anything is deleted
    if dry_run:
        return _would_erase(spark, node, stream, delete, progress)
    node.known(stream)
    incarnation = _delete(node, stream, delete)
    names = [(bucket, name)]
    if rewrite_runs(node):
        names.append((RUNS_BUCKET, RUNS_STREAM.partition("/")[2]))
    # A flush that was under way when it was deleted is over afterwards.
    node.flush()
    swaps: list[Swapped] = []
    conflicts = rows_erased = 0
    while True:
        by_group = listings(node)
        place, every = by_group[0].place, [file for listing in by_group for file in listing.files]
        held = holdings(spark, node, place, every, every, bucket, name, progress)
        others = [one for other in names[1:] for one in holdings(spark, node, place, every, every, *other, progress)]
        dead = {one.path for one in (*held, *others) if one.rows > one.live_rows}
        listing = next((one for one in by_group if any(file.path in dead for file in one.files)), None)
        if listing is None:
            break
        chosen = _some([file for file in listing.files if file.path in dead], files.SWAP_BYTES_MAX)
        try:
            swaps.append(files.rewrite(spark, node, listing, chosen, target_bytes, progress))
            paths = {file.path for file in chosen}
            rows_erased += sum(one.rows - one.live_rows for one in held if one.path in paths)
        except Changed as changed:
            conflicts = counted(conflicts, changed)
    kept_rows = sum(one.live_rows for one in held)
    unlisted = _unlisted(place, every)
    waiting = holdings(spark, node, place, every, unlisted, bucket, name, progress)
    others = [one for other in names[1:] for one in holdings(spark, node, place, every, unlisted, *other, progress)]
    _leave_table(node, place, [one.path for one in (*waiting, *others)])
    removed = {file.path for swapped in swaps for file in swapped.removed}
    incarnations = {one.incarnation for one in (*held, *waiting)} | (
        {incarnation} if incarnation is not None else set()
    )
    store = place.store()
    objects = sorted({one.path for one in (*waiting, *others)})
    if not kept_rows:
        for number in sorted(incarnations):
            # An incarnation's number says in which group it is.
            objects += snapshots_of(store, number % len(by_group), number)
    # Last: from here on nothing writes of the stream any more, and its files are no longer in the table.
    cleared = node.erase(stream)
    erased_ms = time.time_ns() // 1_000_000
    gone_by_ms = erased_ms + max(listing.unused_ms_max for listing in by_group)
    under_way = cleared["backups_held"]
    warnings = []
    if not incarnations:
        warnings.append("no stream of that name was found, deleted or not: see whether it is spelt as it was")
    receipt: dict[str, object] = {
        "outcome": FINDINGS if kept_rows or under_way else DONE,
        "stream_hash": cleared["stream_hash"],
        "incarnations": sorted(incarnations),
        "deleted": incarnation is not None,
        "complete": not kept_rows and not under_way,
        "rows_erased": rows_erased,
        "rows_waiting_for_gc": sum(one.rows for one in waiting),
        "rows_kept_for_forks": kept_rows,
        "runs_rewritten": len(names) > 1,
        **({"warnings": warnings} if warnings else {}),
        "files_looked_at": len(every),
        "files_rewritten": len(removed),
        "swaps": [
            {"removed": [file.path for file in swapped.removed], "added": [path for path, _, _ in swapped.added]}
            for swapped in swaps
        ],
        "conflicts": conflicts,
        "erased_ms": erased_ms,
        "log_cleared_below": cleared["log_positions"],
        "catalog_rewritten": cleared["catalog_rewritten"],
        "table_log_goes_below_version": cleared["table_version"],
        "objects_waiting_for_gc": objects,
        "gone_by_ms": gone_by_ms,
        "backups_under_way": under_way,
        "subscriptions_that_name_it": cleared["subscriptions"],
        "not_reached": list(NOT_REACHED),
        "statement": _statement(bool(kept_rows), under_way, bool(objects), gone_by_ms),
    }
    return receipt


def _would_erase(spark: SparkSession, node: Node, stream: str, delete: bool, progress: Progress) -> dict[str, object]:
    """Which rows go, by looking into every file. Which of them forks keep is known of a deleted stream alone."""
    incarnation = _exists(node, stream, delete)
    by_group = listings(node)
    place, every = by_group[0].place, [file for listing in by_group for file in listing.files]
    held = holdings(spark, node, place, every, every, *parts_of(stream), progress)
    waiting = holdings(spark, node, place, every, _unlisted(place, every), *parts_of(stream), progress)
    there = incarnation is not None
    dead = {one.path for one in held if there or one.rows > one.live_rows}
    return {
        "incarnations": sorted({one.incarnation for one in (*held, *waiting)}),
        "would_delete": there,
        "rows_erased": sum(one.rows - (0 if there else one.live_rows) for one in held),
        "rows_kept_for_forks": None if there else sum(one.live_rows for one in held),
        "rows_waiting_for_gc": sum(one.rows for one in waiting),
        "files_looked_at": len(every),
        "files_rewritten": len(dead),
        "bytes_read": sum(file.bytes for file in every if file.path in dead),
    }


def parts_of(stream: str) -> tuple[str, str]:
    """Bucket and name. Raises JobRefused, without the text: it may be a name after all."""
    bucket, _, name = stream.partition("/")
    if not bucket or not name:
        raise JobRefused("that names no stream", "write it as bucket/name, with _default for a name without one")
    return bucket, name


def _statement(kept: bool, under_way: int, objects: bool, gone_by_ms: int) -> str:
    said = ["No file of the lake's table holds a record of the stream, and the node's log and catalog hold nothing."]
    if kept:
        said = [
            "Forks of the stream share records with it: these, and its name in the catalog, stay until the forks are "
            "deleted and this is run again."
        ]
    if under_way:
        said.append(f"Backups under way ({under_way}) hold copies of it: run this again when they are done.")
    moment = datetime.fromtimestamp(gone_by_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if objects:
        said.append(
            "The objects named here still hold some, and nothing refers to them: the node's gc deletes them by "
            f"{moment}, if the node runs until then and no backup holds it up."
        )
    said.append(f"The table's own log may name it until {moment}.")
    said.append("What is under not_reached is for somebody else to look at; --find names what can be seen.")
    return " ".join(said)


def _delete(node: Node, stream: str, delete: bool) -> int | None:
    """Which incarnation is deleted by this call; None when there was none."""
    incarnation = _exists(node, stream, delete)
    if incarnation is not None:
        node.call("DELETE", node.stream_path(stream), repeat=False)
    return None if incarnation == _UNNUMBERED else incarnation


def _exists(node: Node, stream: str, delete: bool) -> int | None:
    """Its incarnation, if it is not deleted. Raises JobRefused when it is there and `delete` is not set."""
    try:
        head = node.call("HEAD", node.stream_path(stream))
    except NodeRefused as refused:
        if refused.status in (404, 410):
            return None
        raise
    if not delete:
        raise JobRefused(
            "the stream exists",
            "delete it first, or say --delete; without --stream, rows of earlier streams of that name go too",
        )
    number = head.headers.get("etag", "").strip('"').partition(":")[0]
    return int(number) if number.isdigit() else _UNNUMBERED


def _some(found: Sequence[File], bytes_max: int) -> list[File]:
    """As many as one swap takes, those with neighbouring positions together; the first whatever its size."""
    chosen: list[File] = []
    size = rows = 0
    for file in sorted(found, key=lambda file: (file.position_max, file.path)):
        size, rows = size + file.bytes, rows + file.rows
        full = size > bytes_max or rows > files.SWAP_ROWS_MAX or len(chosen) == files.SWAP_FILES_MAX
        if full and (chosen or bytes_max < files.SWAP_BYTES_MAX):
            break
        chosen.append(file)
    return chosen


# ---- where a stream's rows are -----------------------------------------------------------------------------------


class Held(NamedTuple):
    path: str
    incarnation: int
    rows: int
    live_rows: int


def holdings(
    spark: SparkSession,
    node: Node,
    place: Place,
    listed_files: Sequence[File],
    some: Sequence[File],
    bucket: str,
    name: str,
    progress: Progress = silent,
) -> list[Held]:
    """How many rows of a stream each of some files has, by looking into them: the catalog is not believed.

    `listed_files` are those of which the node knows which rows are live.
    """
    if not some:
        return []
    known = frozenset(file.path for file in listed_files)
    work = partial(_holdings, node, place, known, bucket, name)
    with watching(spark, progress, "tasks"), told("erase"):
        return [Held(*row) for row in over_files(spark, some, work, _HELD).collect()]


def _holdings(
    node: Node, place: Place, known: Collection[str], bucket: str, name: str, some: list[File]
) -> Iterator[pa.RecordBatch]:
    store = place.store()
    for listed_file in some:
        try:
            file = LakeFile(store, listed_file.path)
            counts = _rows_of(file, bucket, name)
        except (ObjectMissing, LakeDamaged):
            if listed_file.path in known:
                raise
            continue  # gone since it was listed, or never a file of the lake
        if not counts:
            continue
        live = dict.fromkeys(counts, 0)
        if listed_file.path in known:
            for _, extents in extents_of(node, [(file.path, file.row_count)]):
                for number in live:
                    mine = extents.filter(pc.equal(extents["incarnation"], number))
                    live[number] = pc.sum(mine["row_count"]).as_py() or 0
        yield pa.RecordBatch.from_pydict(
            {
                "path": [file.path] * len(counts),
                "incarnation": list(counts),
                "rows": list(counts.values()),
                "live_rows": [live[number] for number in counts],
            }
        )


def _rows_of(file: LakeFile, bucket: str, name: str) -> dict[int, int]:
    counts: dict[int, int] = {}
    groups = [
        number
        for number in range(file.footer.num_row_groups)
        if _may_hold(file, number, "bucket", bucket) and _may_hold(file, number, "stream", name)
    ]
    for _, rows in file.rows(["bucket", "stream", "incarnation"], groups):
        mine = rows.filter(pc.and_(pc.equal(rows["bucket"], bucket), pc.equal(rows["stream"], name)))
        for one in mine["incarnation"].value_counts().to_pylist():
            counts[one["values"]] = counts.get(one["values"], 0) + one["counts"]
    return counts


def _may_hold(file: LakeFile, number: int, column: str, value: str) -> bool:
    group: Any = file.footer.row_group(number)
    known = group.column(file.footer.schema.names.index(column)).statistics
    # Of a long name the statistics may be missing; they are never cut short.
    return known is None or not known.has_min_max or known.min <= value <= known.max


def _leave_table(node: Node, place: Place, paths: list[str]) -> None:
    """Files in which no stream has records leave the table now, and not only at gc's next run."""
    found = read_table(place.store())
    leaving: dict[int, list[str]] = {}
    for path in sorted({path for path in paths if found is not None and path in found[1]}):
        leaving.setdefault(data_group(path), []).append(path)
    for group, some in leaving.items():
        for at in range(0, len(some), files.SWAP_FILES_MAX):
            try:
                node.swap(group, some[at : at + files.SWAP_FILES_MAX], [])
            except NodeRefused as refused:
                if refused.status != 409:  # gc has deleted it, or will
                    raise


def _unlisted(place: Place, listed_files: Sequence[File]) -> list[File]:
    """Objects that no stream has records in."""
    known = {file.path for file in listed_files}
    return [
        File(stored.key, stored.size_bytes, 0, 0, 0, 0, stored.modified_ms)
        for stored in place.store().list(DATA)
        if stored.key not in known and stored.key.endswith(".parquet")
    ]
