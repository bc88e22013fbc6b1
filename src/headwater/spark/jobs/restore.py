"""`restore`: a data directory and a lake from a backup, from which a node starts as if it had only been away.

Owns the order, and what is checked when: manifest, catalog and log, proof that a node starts from them, objects, table,
and all of it once more; then groups are made to agree about forks, as each was cut by itself. Never writes over
anything: data directory and lake have to be empty. What is found damaged is named, and then nothing is kept of what was
written.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater.data_directory import DESCRIPTION, DataDirectory, DirectoryRefused
from headwater.lake.store import ObjectMissing, ObjectStore, StoreError, probe
from headwater.spark import backup_store
from headwater.spark.backup_store import OBJECTS, Manifest
from headwater.spark.executor_tasks import parallelism, told
from headwater.spark.job_runs import JobRefused, Progress, recorded, silent
from headwater.spark.jobs.backup import some
from headwater.spark.lake_place import Place
from headwater.spark.object_copies import Wanted, move
from headwater.spark.same_versions import for_executors
from headwater.spark.start_check import place_forks, prove

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headwater.lake.layout import NewFile

AUTO = "auto"
COMMIT_FILES = 1_000
STAGING = ".restoring"
_DELETE_THREADS = 16


@recorded("restore")
def restore(
    spark: SparkSession,
    *,
    source: Place | str,
    data: str | Path,
    lake: Place | str = AUTO,
    backup: str | None = None,
    dry_run: bool = False,
    progress: Progress = silent,
) -> dict[str, object]:
    """`backup` is an id, or None for the newest; `lake` is a directory or bucket, `auto` that of `data` itself.

    Raises JobRefused; then nothing is kept of what was written.
    """
    origin, store, manifest, data, place, target = planned(source, data, lake, backup)
    known: dict[str, object] = {
        "backup": manifest.id,
        "data": str(data),
        "lake": target.uri,
        "groups": manifest.groups,
        **manifest.totals,
        "digest": manifest.contents.digest,
        "objects": len(manifest.objects),
        "bytes": manifest.size_bytes,
        "table_files": len(manifest.table),
    }
    if dry_run:
        return known
    made, described = not data.exists(), (data / DESCRIPTION).exists()
    staging = data / STAGING
    wanted = [Wanted(item.key, item.bytes, item.digest) for item in manifest.objects]
    try:
        _probe(target, place)
        staging.mkdir(parents=True)
        DataDirectory(staging).prepare(manifest.groups, manifest.groups)
        _put_documents(store, manifest, staging, progress)
        _require(manifest, staging)
        moved = move(spark, wanted, origin, f"{OBJECTS}/", place, "", progress)
        problems = [one.problem for one in moved if one.problem is not None]
        if problems:
            raise JobRefused(
                f"backup {manifest.id} in {store.uri} is damaged: {some(problems)}",
                "nothing was restored; restore another backup with --backup",
            )
        _require_there(target, manifest)
        rows = _rebuild_table(spark, place, target, manifest, progress)
        _name_files(staging, data)
        _require(manifest, data)
        mended = place_forks(data) if manifest.groups > 1 else {}
    except BaseException:
        progress("cleaning up", 0, None)
        _undo(target, manifest, data, staging, made, described)
        raise
    return {**known, "objects": len(moved), "table_rows": rows, **mended}


def listed(source: Place | str) -> list[dict[str, Any]]:
    """The backups that are there, oldest first. A damaged one is listed too, with `damage`. Raises JobRefused."""
    store = _opened(Place(source) if isinstance(source, str) else source)
    found: list[dict[str, Any]] = []
    for name in backup_store.names(store):
        try:
            manifest = backup_store.read(store, name)
        except (backup_store.Damaged, JobRefused) as error:
            found.append({"backup": name, "damage": str(error)})
            continue
        sizes = {"objects": len(manifest.objects), "bytes": manifest.size_bytes}
        facts = {"made_ms": manifest.made_ms, "groups": manifest.groups, **manifest.totals, **sizes}
        found.append({"backup": name, **facts})
    return found


# ---- before anything is written ----------------------------------------------------------------------------------


def _opened(origin: Place) -> ObjectStore:
    try:
        store = origin.store()
        store.head(f"{backup_store.BACKUPS}/none")
    except StoreError as error:
        raise JobRefused(f"{origin.url} cannot be read: {error.reason}") from error
    return store


class Plan(NamedTuple):
    origin: Place
    store: ObjectStore
    manifest: Manifest
    data: Path
    place: Place
    target: ObjectStore


def planned(source: Place | str, data: str | Path, lake: Place | str, backup: str | None) -> Plan:
    """What is to be done, if it can be done as far as looking tells. Changes nothing; raises JobRefused."""
    origin = Place(source) if isinstance(source, str) else source
    data = Path(data).absolute()
    place = lake if isinstance(lake, Place) else Place(str(data / "lake") if lake == AUTO else lake)
    store = _opened(origin)
    manifest = backup_store.chosen(store, backup)
    _require_empty(data, manifest)
    try:
        target = place.store()
        found = next(iter(target.list()), None)
    except StoreError as error:
        raise JobRefused(f"the lake {place.url} cannot be used: {error.reason}") from error
    if found is not None:
        raise JobRefused(f"the lake {place.url} is not empty: it holds {found.key}", "name a place that is")
    return Plan(origin, store, manifest, data, place, target)


def _require_empty(data: Path, manifest: Manifest) -> None:
    """A directory that a node was never served from may already say how many groups it is for."""
    if not data.exists():
        return
    if not data.is_dir() or any(path.name not in (DESCRIPTION, "lock") for path in data.iterdir()):
        raise JobRefused(f"{data} is not empty", "name a directory that is, or one that does not exist yet")
    try:
        groups = DataDirectory(data).groups()
    except DirectoryRefused as refused:
        raise JobRefused(str(refused)) from None
    if groups not in (None, manifest.groups):
        raise JobRefused(
            f"{data} was made for {groups} groups, and backup {manifest.id} is of {manifest.groups}",
            "name a directory that is empty: it gets as many groups as the backup has",
        )


def _probe(target: ObjectStore, place: Place) -> None:
    try:
        probe(target, os.urandom(8).hex())
    except StoreError as error:
        raise JobRefused(f"the lake {place.url} cannot be used: {error.reason}") from error


# ---- catalog and log ---------------------------------------------------------------------------------------------


def _put_documents(store: ObjectStore, manifest: Manifest, staging: Path, progress: Progress) -> None:
    parts = [(document.path, part) for document in manifest.documents for part in document.parts]
    for number, (path, part) in enumerate(parts):
        try:
            body = store.get(part.key)
            found = backup_store.digest(body)
        except ObjectMissing:
            body, found = b"", "none: it is missing"
        if found != part.digest:
            raise JobRefused(
                f"backup {manifest.id} in {store.uri} is damaged: {part.key} has digest {found}, not {part.digest}",
                "nothing was restored; restore another backup with --backup",
            )
        (staging / path).parent.mkdir(parents=True, exist_ok=True)
        with (staging / path).open("ab") as out:
            out.write(body)
            out.flush()
            os.fsync(out.fileno())
        progress("catalog and log", number + 1, len(parts))


def _require(manifest: Manifest, data: Path) -> None:
    """A node that starts there holds what the backed up one held."""
    proof = prove(data)
    if proof.contents != manifest.contents or proof.files != manifest.table:
        raise JobRefused(
            f"what was restored is not what was backed up: {proof.contents}, not {manifest.contents}",
            "use the version that made the backup",
        )


def _name_files(staging: Path, data: Path) -> None:
    """Gives the files their names. The catalogs' come last: without them no node starts on a part of the logs."""
    (staging / "lock").unlink(missing_ok=True)
    for name in (DESCRIPTION, "wal", "catalog"):
        for folder in [staging, *(path for path in staging.rglob("*") if path.is_dir())]:
            _sync(folder)
        os.rename(staging / name, data / name)
        _sync(data)
    shutil.rmtree(staging)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- objects and table -------------------------------------------------------------------------------------------


def _require_there(store: ObjectStore, manifest: Manifest) -> None:
    """Executors elsewhere may have written to a directory of their own."""
    sizes = {stored.key: stored.size_bytes for stored in store.list()}
    lost = [item.key for item in manifest.objects if sizes.get(item.key) != item.bytes]
    if lost:
        raise JobRefused(
            f"the lake {store.uri} does not hold {some(lost)} after they were copied there",
            "name a lake that every Spark executor and this machine share",
        )


def _rebuild_table(
    spark: SparkSession, place: Place, store: ObjectStore, manifest: Manifest, progress: Progress
) -> int:
    """The Delta table over the files that hold records; returns how many rows it has."""
    from headwater.lake.table import LakeTable

    if not manifest.table:
        return 0
    table = LakeTable(store)
    files = _described(spark, place, manifest.table)
    for at in range(0, len(files), COMMIT_FILES):
        table.commit(files[at : at + COMMIT_FILES], [], time.time_ns() // 1_000_000)
        progress("table", min(at + COMMIT_FILES, len(files)), len(files))
    if set(table.files()) != set(manifest.table):
        raise JobRefused(f"the table in {store.uri} does not show what was committed to it")
    return sum(file.row_count for file in files)


def _described(spark: SparkSession, place: Place, paths: list[str]) -> list[NewFile]:
    """What a commit says of each file, read from their footers by tasks."""
    from headwater.lake.layout import NewFile

    count = min(len(paths), parallelism(spark))
    shares = [paths[number::count] for number in range(count)]
    schema = "path string, size_bytes long, row_count long, statistics string"
    with told("reading footers"):
        rows = (
            spark.range(0, count, 1, count)
            .mapInArrow(for_executors(partial(_read_footers, shares, place)), schema)
            .collect()
        )
    return sorted((NewFile(*row) for row in rows), key=lambda file: file.path)


def _read_footers(shares: list[list[str]], place: Place, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    import pyarrow as pa

    from headwater.lake.keys import described

    store = place.store()
    for batch in batches:
        for number in batch.column(0).to_pylist():
            with ThreadPoolExecutor(8) as pool:
                found = list(pool.map(lambda path: described(store, path), shares[number]))
            names = ("path", "size_bytes", "row_count", "statistics")
            yield pa.RecordBatch.from_pydict({name: [getattr(file, name) for file in found] for name in names})


def _undo(store: ObjectStore, manifest: Manifest, data: Path, staging: Path, made: bool, described: bool) -> None:
    """Both places were empty: what is there now is ours. Does what it can; the first failure is what matters."""
    for folder in (staging, data / "wal", data / "catalog"):
        shutil.rmtree(folder, ignore_errors=True)
    for name in ("lock",) if described else ("lock", DESCRIPTION):
        (data / name).unlink(missing_ok=True)
    try:
        keys = [item.key for item in manifest.objects] + [stored.key for stored in store.list("_delta_log")]
        with ThreadPoolExecutor(_DELETE_THREADS) as pool:
            list(pool.map(store.delete, keys))
    except StoreError:
        return
    if (data / "lake").is_dir() and store.uri == str(data / "lake"):
        shutil.rmtree(data / "lake", ignore_errors=True)
    if made:
        shutil.rmtree(data, ignore_errors=True)
