"""Where an erased stream may still be: `erase --find` also looks outside the lake, and changes nothing.

Owns what can be seen from here: the node's streams and subscriptions, tables and backups that the recorded runs of jobs
or the caller name, and routes that read the stream. Never says that nothing is left anywhere: what was not
recorded is not looked at, and what could not be looked at is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headwater.lake.store import StoreError
from headwater.spark import backup_store
from headwater.spark.backup_store import BACKUPS, OBJECTS
from headwater.spark.derived_tables import DerivedTable, read
from headwater.spark.job_runs import (
    DONE,
    FINDINGS,
    RUNS_MAX,
    RUNS_STREAM,
    JobRefused,
    Progress,
    last_runs,
    names_any,
    recorded,
    silent,
)
from headwater.spark.jobs.erase import holdings, parts_of
from headwater.spark.lake_listing import File, Listing, listings
from headwater.spark.lake_place import Place
from headwater.spark.node import Node
from headwater.spark.options import BadOptions, parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SELECTING = ("subscribe", "subscribepattern", "bucket")
_ROUTES = ("route", "pipeline", "declared")


class Finding(NamedTuple):
    kind: str
    """`stream`, `fork`, `subscription`, `lake`, `table`, `quarantine`, `backup`, `run` or `route`."""
    where: str
    what: str


@recorded("erase", omit=("stream",))
def find_stream(
    spark: SparkSession,
    node: Node,
    stream: str,
    *,
    tables: Sequence[str | Place] = (),
    backups: Sequence[str | Place] = (),
    progress: Progress = silent,
) -> dict[str, object]:
    """Names what still holds records of the stream `bucket/name`, or its name. Raises JobRefused, NodeError.

    `tables` and `backups` are places to look at beside those that recorded runs name.
    """
    bucket, name = parts_of(stream)
    by_group = listings(node)
    known = node.known(stream)
    runs = last_runs(node, RUNS_MAX)
    found = [*_on_node(node, bucket, name, known["subscriptions"]), *_in_lake(spark, node, by_group, bucket, name)]
    blind: list[str] = []
    made = [{**run, "inputs": None} for run in runs]  # what a run says it made, not what it was given
    table_places = {**_places(made, "table", "table"), **_places(made, "quarantine", "quarantine")}
    table_places |= {_place(given): "table" for given in tables}
    for number, (place, kind) in enumerate(table_places.items()):
        progress("tables", number, len(table_places))
        _look(found, blind, place, lambda at=place, of=kind: _in_table(spark, at, of, bucket, name))
    backup_places = [*dict.fromkeys([*_places(_of(made, "backup"), "to", ""), *(_place(one) for one in backups)])]
    for number, place in enumerate(backup_places):
        progress("backups", number, len(backup_places))
        _look(found, blind, place, lambda at=place: _in_backups(spark, node, at, bucket, name))
    found += _in_runs(runs, stream)
    found += _routes(runs, bucket, name)
    return {
        "outcome": FINDINGS if found or blind else DONE,
        "stream_hash": known["stream_hash"],
        "findings_count": len(found),
        "findings": [finding._asdict() for finding in found],
        "not_looked_at": blind,
        "runs_looked_at": len(runs),
        "places_looked_at": len(table_places) + len(backup_places) - len(blind),
    }


def _look(found: list[Finding], blind: list[str], place: Place, look: Any) -> None:
    """One place; that it cannot be looked at is told, and the others are looked at all the same."""
    from headwater.spark.failures import cause, spark_errors

    try:
        found += look()
    except (StoreError, JobRefused, backup_store.Damaged, OSError) as error:
        blind.append(f"{place.url}: {error}")
    except spark_errors() as error:
        blind.append(f"{place.url}: {cause(error)}")


# ---- the node ----------------------------------------------------------------------------------------------------


def _on_node(node: Node, bucket: str, name: str, subscriptions: list[str]) -> Iterator[Finding]:
    sids: set[int] = set()
    forks: list[tuple[str, int]] = []
    for page in node.lake_streams():
        rows = pa.ipc.open_stream(page).read_all()
        mine = rows.filter(pc.and_(pc.equal(rows["bucket"], bucket), pc.equal(rows["stream"], name)))
        for row in mine.to_pylist():
            sids.add(row["incarnation"])
            gone = row["deleted"]
            yield Finding("stream", node.url, "deleted, and kept for its forks" if gone else "the stream itself")
        children = rows.filter(pc.is_valid(rows["forked_from"]))
        forks += [(f"{row['bucket']}/{row['stream']}", row["forked_from"]) for row in children.to_pylist()]
    for fork, source in forks:
        if source in sids:
            yield Finding("fork", fork, "shares records with it")
    for subscription in subscriptions:
        yield Finding("subscription", subscription, "names it; delete the subscription, or leave the stream out")


def _in_lake(spark: SparkSession, node: Node, by_group: Sequence[Listing], bucket: str, name: str) -> Iterator[Finding]:
    files = [file for listing in by_group for file in listing.files]
    for held in holdings(spark, node, by_group[0].place, files, files, bucket, name):
        yield Finding("lake", held.path, f"{held.rows} rows; headwater pipeline run erase removes them")


# ---- what jobs have made ------------------------------------------------------------------------------------------


def _in_table(spark: SparkSession, place: Place, kind: str, bucket: str, name: str) -> Iterator[Finding]:
    from pyspark.sql import functions as F

    table = DerivedTable(place)
    if not table.exists():
        return
    if not {"bucket", "stream"} <= set(table.schema.names):
        raise JobRefused("it has no columns bucket and stream, so it cannot be told whose rows it holds")
    rows = read(spark, table).where((F.col("bucket") == bucket) & (F.col("stream") == name)).count()
    if rows:
        yield Finding(kind, place.url, f"{rows} rows; and what its older versions held")


def _in_backups(spark: SparkSession, node: Node, place: Place, bucket: str, name: str) -> Iterator[Finding]:
    """By rows of the stream in a backup's files, or its name in what a backup has of catalog and log."""
    store = place.store()
    manifests = {one: backup_store.read(store, one) for one in backup_store.names(store)}
    objects = {item.key: item for manifest in manifests.values() for item in manifest.objects}
    files = [
        File(f"{OBJECTS}/{key}", item.bytes, 0, 0, 0, 0, 0) for key, item in objects.items() if key.endswith(".parquet")
    ]
    rows: dict[str, int] = {}
    for held in holdings(spark, node, place, (), files, bucket, name):
        key = held.path.removeprefix(f"{OBJECTS}/")
        rows[key] = rows.get(key, 0) + held.rows
    needle = f"{bucket}/{name}".encode()
    for one, manifest in manifests.items():
        count = sum(rows.get(item.key, 0) for item in manifest.objects)
        names_it = any(needle in part for part in _documents(store, manifest))
        if count or names_it:
            what = f"{count} rows" if count else "its name, or one that begins with it"
            yield Finding("backup", f"{place.url} {BACKUPS}/{one}", what)


def _documents(store: Any, manifest: backup_store.Manifest) -> Iterator[bytes]:
    """Catalog and log in pieces; the end of each comes again with the next, for what lies across."""
    for document in manifest.documents:
        kept = b""
        for part in document.parts:
            body = bytes(store.get(part.key))
            yield kept + body
            kept = body[-1_024:]


# ---- what runs have recorded --------------------------------------------------------------------------------------


def _in_runs(runs: Sequence[Mapping[str, Any]], stream: str) -> Iterator[Finding]:
    count = sum(names_any(run, [stream]) for run in runs)
    if count:
        yield Finding("run", RUNS_STREAM, f"{count} recorded runs name it; headwater pipeline run erase hides the name")


def _routes(runs: Sequence[Mapping[str, Any]], bucket: str, name: str) -> Iterator[Finding]:
    told: set[str] = set()
    for run in runs:
        if run.get("job") not in _ROUTES or not (run.get("rows_written") or run.get("streams")):
            continue
        selection = {key.lower(): value for key, value in _pairs(run) if key.lower() in _SELECTING}
        if selection and not _takes(selection, bucket, name):
            continue
        where = str(run.get("query") or run.get("pipeline") or run.get("began_ms"))
        if where not in told:
            told.add(where)
            target = next((str(value) for key, value in _pairs(run) if key == "target"), None)
            onto = "" if target is None else f" onto {target}"
            yield Finding("route", where, f"a run of {run['job']} may have copied records of it{onto}")


def _takes(selection: Mapping[str, Any], bucket: str, name: str) -> bool:
    given = {key: str(value) for key, value in selection.items()}
    try:
        return parse({"url": "http://localhost", **given}).selection.takes(bucket, name)
    except BadOptions:
        return True


def _places(runs: Iterable[Mapping[str, Any]], key: str, kind: str) -> dict[Place, str]:
    found = (value for run in runs for named, value in _pairs(run) if named == key and isinstance(value, str))
    return {_place(url): kind for url in found}


def _place(given: str | Place) -> Place:
    return given if isinstance(given, Place) else Place(given)


def _of(runs: Iterable[Mapping[str, Any]], job: str) -> list[Mapping[str, Any]]:
    return [run for run in runs if run.get("job") == job]


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, at any depth."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield str(key), one
            yield from _pairs(one)
    elif isinstance(value, list):
        for one in value:
            yield from _pairs(one)
