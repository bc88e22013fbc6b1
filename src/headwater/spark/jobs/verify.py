"""`verify`: whether streams, catalog, table, files and objects agree, while the node serves them.

Owns what is compared with what, and when a difference is a finding: when it is still there at a second look. Never
changes anything. Records that are not in the lake yet are counted and not looked at.

    the catalog's streams -> list of files -> their extents, their rows -> by stream: no gap, no overlap, order

In this order: records that settle and files that are swapped meanwhile only add to what was expected. Records that are
trimmed meanwhile look like damage at the first look, and not at the second.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater.lake.info import read_table
from headwater.lake.names import DATA
from headwater.spark import lake_checks
from headwater.spark.executor_tasks import over_files, told, watching
from headwater.spark.job_runs import DONE, FINDINGS, Progress, recorded, silent
from headwater.spark.lake_checks import Look
from headwater.spark.lake_listing import File, listings, would_look_at
from headwater.spark.lake_place import Place
from headwater.spark.node import Node
from headwater.spark.same_versions import for_executors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FINDINGS_MAX = 200
"""Told one by one; more are only counted."""
LOOKS_MAX = 4
FORK_DEPTH_MAX = 100


class Finding(NamedTuple):
    kind: str
    subject: str
    """A stream's key or a file's name."""
    what: str


class _Seen(NamedTuple):
    counts: dict[str, int]
    findings: dict[Finding, tuple[list[str], int]]
    """With the files and the incarnation they are about; -1 when it is about files alone."""
    total: int
    """Also of those that are not told one by one."""


@recorded("verify")
def verify(
    spark: SparkSession, node: Node, *, deep: bool = False, dry_run: bool = False, progress: Progress = silent
) -> dict[str, object]:
    """Looks at everything; `deep` reads payloads too. Raises JobRefused; damage is a finding, not an error."""
    if dry_run:
        return {**would_look_at(listings(node)), "deep": deep}
    first = seen = _look(spark, node, Look(deep), progress)
    confirmed: dict[Finding, tuple[list[str], int]] = {}
    looks = 1
    while seen.findings and not confirmed and looks < LOOKS_MAX:
        looks += 1
        again = _look(spark, node, _again(seen, deep), progress)
        confirmed = {finding: about for finding, about in again.findings.items() if finding in seen.findings}
        seen = again
    # More than could be named are all counted, once some of them are certain.
    count = seen.total if confirmed and seen.total > len(seen.findings) else len(confirmed)
    told_of = sorted(confirmed)[:FINDINGS_MAX]
    return {
        "outcome": FINDINGS if count else DONE,
        **first.counts,
        "deep": deep,
        "looks": looks,
        "findings_count": count,
        "findings": [finding._asdict() for finding in told_of],
    }


def _again(seen: _Seen, deep: bool) -> Look:
    if seen.total > len(seen.findings):
        return Look(deep)  # too many to name: all of it
    files = frozenset(path for paths, _ in seen.findings.values() for path in paths)
    incarnations = frozenset(incarnation for _, incarnation in seen.findings.values() if incarnation >= 0)
    return Look(deep, incarnations, files)


def _look(spark: SparkSession, node: Node, look: Look, progress: Progress) -> _Seen:
    from pyspark.sql import functions as F
    from pyspark.storagelevel import StorageLevel

    groups_count = len(listings(node))  # takes a checkpoint: the catalog knows of everything that is settled by now
    one, sid = spark.range(0, 1, 1, 1), F.col("incarnation")
    streams = one.mapInArrow(for_executors(partial(lake_checks.streams, node)), lake_checks.LINES).persist(
        StorageLevel.DISK_ONLY
    )
    try:
        with watching(spark, progress, "tasks"), told("verify"):
            sums = (
                streams.agg(
                    F.count("*").alias("streams"),
                    *(
                        F.max(F.when(sid % groups_count == group, sid)).alias(f"sid_max_{group}")
                        for group in range(groups_count)
                    ),
                    F.count("forked_from").alias("forks"),
                    F.count("snapshot_offset").alias("snapshots"),
                    F.sum((F.col("tail") > F.col("cold_end")).cast("long")).alias("streams_hot"),
                    F.sum(F.greatest(F.col("tail") - F.greatest("cold_end", "earliest"), F.lit(0))).alias("hot_bytes"),
                )
                .collect()[0]
                .asDict()
            )
            by_group = listings(node)
            place, every = by_group[0].place, [file for listing in by_group for file in listing.files]
            findings: dict[Finding, tuple[list[str], int]] = {}
            objects = _compare(place, every, look, findings)
            in_driver = len(findings)
            lines = streams
            if sums["forks"]:
                lines = lines.unionByName(_needs(streams))
            if sums["snapshots"]:
                lines = lines.unionByName(
                    one.mapInArrow(for_executors(partial(lake_checks.blobs, place)), lake_checks.LINES)
                )
            if every:
                work = partial(lake_checks.files, node, place, look)
                lines = lines.unionByName(over_files(spark, every, work, lake_checks.LINES))
            found = [sums[f"sid_max_{group}"] for group in range(groups_count)]
            sids_max = [-1 if number is None else number for number in found]
            reports = (
                lines.repartition("incarnation")
                .sortWithinPartitions("incarnation", "kind", "start", "end")
                .mapInArrow(for_executors(partial(lake_checks.joints, look, sids_max)), lake_checks.REPORT)
                .collect()
            )
    finally:
        streams.unpersist()
    totals: dict[str, int] = {}
    for row in reports:
        if row["counts"] is None:
            finding = Finding(row["kind"], row["subject"], row["what"])
            findings[finding] = lake_checks.files_in(row["file"]), row["incarnation"]
        else:
            for name, value in json.loads(row["counts"]).items():
                totals[name] = totals.get(name, 0) + value
    counts = {
        "streams": sums["streams"],
        "streams_hot": sums["streams_hot"] or 0,
        "hot_bytes": sums["hot_bytes"] or 0,
        "files": len(every),
        **objects,
        **{name: totals.get(name, 0) for name in ("extents", "rows", "bytes", "files_read", "rows_read")},
        "snapshots": sums["snapshots"],
    }
    return _Seen(counts, findings, in_driver + totals.get("findings", 0))


def _needs(streams: DataFrame) -> DataFrame:
    """What forks need of their sources, and of theirs in turn: a line for each, with the lowest offset, and what they
    lack of it."""
    from pyspark.sql import functions as F

    forks = streams.where("forked_from is not null").select(
        "incarnation", "forked_from", "fork_at", "earliest", "holes"
    )
    found = forks.where("earliest < fork_at").select(
        F.col("forked_from").alias("incarnation"), F.col("earliest").alias("start"), "holes"
    )
    above = forks.select(F.col("incarnation").alias("of"), "forked_from", "fork_at")
    step = found
    for _ in range(FORK_DEPTH_MAX):
        step = (
            step.join(above, F.col("incarnation") == F.col("of"))
            .where("start < fork_at")
            .select(F.col("forked_from").alias("incarnation"), "start", "holes")
            .groupBy("incarnation", "holes")
            .agg(F.min("start").alias("start"))
        )
        if step.isEmpty():
            break
        found = found.unionByName(step)
    known = {name: F.col(name) for name in ("incarnation", "start", "holes")}
    known["kind"] = F.lit(lake_checks.NEED).cast("long")
    kinds = lake_checks.KINDS.items()
    return found.select(*(known.get(name, F.lit(None).cast(kind)).alias(name) for name, kind in kinds))


def _compare(
    place: Place, every: list[File], look: Look, findings: dict[Finding, tuple[list[str], int]]
) -> dict[str, int]:
    """The node's list of files against the table and the store's own list."""
    store = place.store()
    objects = {stored.key: stored.size_bytes for stored in store.list(DATA)}
    found = read_table(store)
    table = {} if found is None else found[1]
    known = {file.path for file in every}

    def find(kind: str, file: File, what: str) -> None:
        if look.files is None or file.path in look.files:
            findings[Finding(kind, file.path, what)] = [file.path], -1

    for file in every:
        info = table.get(file.path)
        if info is None:
            find("table", file, "streams have records in it, but it is not in the table")
        elif info.row_count is not None and info.row_count != file.rows:
            find("table", file, f"the node says it has {file.rows} rows, the table says {info.row_count}")
        if file.path not in objects:
            find("store", file, "streams have records in it, but the store does not list it")
    return {
        "files_waiting_for_gc": sum(1 for path in table if path not in known),
        "objects": len(objects),
        "objects_unused": sum(1 for path in objects if path not in known),
    }


def clean(summary: dict[str, Any]) -> bool:
    return not summary["findings_count"]
