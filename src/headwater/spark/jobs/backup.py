"""`backup`: one consistent cut of each group of a node, copied elsewhere while the node serves.

Owns the order: hold, catalog and log, proof that a node starts from them, objects, manifest. Never calls something a
backup that is not whole: the manifest comes last, and what is there without one is only a start for the next run.

Objects of the lake never change, so one that an earlier backup in the same place vouches for is not copied again.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater import __version__
from headwater.data_directory import DataDirectory
from headwater.lake.names import SNAPSHOTS
from headwater.lake.store import ObjectStore, StoreError, probe
from headwater.spark import backup_store
from headwater.spark.backup_keeping import KEEP_ALL, Keep
from headwater.spark.backup_locks import SHARED, Lock, locked
from headwater.spark.backup_store import BACKUPS, FORMAT, OBJECTS, Document, Item, Manifest
from headwater.spark.job_runs import FINDINGS, JobRefused, Progress, recorded, silent
from headwater.spark.jobs.prune import prune
from headwater.spark.lake_listing import listings
from headwater.spark.lake_place import Place, place_of
from headwater.spark.node import Node, NodeError, NodeRefused, of
from headwater.spark.object_copies import Wanted, move
from headwater.spark.start_check import prove

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOLD_MS = 3_600_000
FETCH_BYTES = 16 << 20
PART_BYTES = 64 << 20
MANIFESTS_READ = 5
CUTS_MAX = 4
"""Of one group of a cluster, which may go from node to node while it is fetched."""
TOLD_MAX = 10
"""Problems named one by one."""


class HoldLost(JobRefused):
    """The node holds nothing of it any more."""


@recorded("backup", keep=Keep._asdict)
def backup(
    spark: SparkSession,
    node: Node,
    *,
    to: Place | str,
    hold_ms: int = HOLD_MS,
    keep: Keep = KEEP_ALL,
    dry_run: bool = False,
    progress: Progress = silent,
) -> dict[str, object]:
    """Everything that the node had acknowledged when this began is in the backup. Raises JobRefused, NodeError.

    `hold_ms` is how long the node keeps what is being copied after it last heard of this job. Backups that `keep` does
    not keep are deleted afterwards; that this could not be done is a finding.
    """
    target = Place(to) if isinstance(to, str) else to
    if dry_run:
        # What would be pruned is known once there is one backup more.
        return {**_would(node, target), **({"pruned": None} if keep.asks else {})}
    store = _opened(target)
    with locked(store, SHARED) as lock:
        summary = _made(spark, node, target, store, lock, hold_ms, progress)
    if keep.asks:
        try:
            pruned = prune(target, keep, progress=progress)
        except (JobRefused, StoreError) as why:
            return {**summary, "outcome": FINDINGS, "prune_refused": str(why)}
        summary["pruned"] = {name: value for name, value in pruned.items() if name != "place"}
    return summary


def _made(
    spark: SparkSession, node: Node, target: Place, store: ObjectStore, lock: Lock, hold_ms: int, progress: Progress
) -> dict[str, object]:
    known = _known(store)
    began_ms = time.time_ns() // 1_000_000
    with held(node, hold_ms) as cuts, tempfile.TemporaryDirectory(prefix="headwater-backup-") as folder:
        lake = place_of(cuts[0]["lake"])
        _require_apart(lake, target)
        data = Path(folder)
        DataDirectory(data).prepare(len(cuts), len(cuts))
        _fetch(node, cuts, data, hold_ms, progress)
        proof = prove(data)
        positions = [facts["position"] for facts in cuts]
        if proof.contents.position != sum(positions):
            raise JobRefused(f"the copies end at {proof.contents.position} together, not at {sum(positions)}")
        wanted = _wanted(lake, [key for facts in cuts for key in (*facts["files"], *facts["blobs"])])
        missing = ({*proof.files, *proof.blobs}) - {one.key for one in wanted}
        if missing:
            raise JobRefused(f"the node did not name {some(sorted(missing))}, which the copy needs")
        items = _kept(store, known, wanted)
        kept = {item.key for item in items}
        news = [one for one in wanted if one.key not in kept]
        moved = move(spark, news, lake, "", target, f"{OBJECTS}/", progress)
        problems = [one.problem for one in moved if one.problem is not None]
        if problems:
            raise JobRefused(
                f"the lake {lake.url} is not whole: {some(problems)}", "look at it with: headwater pipeline run verify"
            )
        items += [Item(one.key, one.bytes, one.digest) for one in moved]
        _require_there(store, items)
        name = backup_store.new_id(began_ms)
        documents = [_put(store, name, data, path) for facts in cuts for path in _documents(facts)]
        manifest = Manifest(
            FORMAT,
            name,
            began_ms,
            __version__,
            positions,
            proof.contents,
            proof.files,
            documents,
            sorted(items, key=lambda item: item.key),
        )
        for facts in cuts:
            # A group of a cluster may have moved, and nobody holds anything of it any more. All of the cut was copied
            # by now: what it names never changes, so the copies are whole.
            if not facts.get("in_cluster"):
                _part(node, facts, "")
        lock.require()
        backup_store.write(store, manifest)
    return {
        "backup": name,
        "to": store.uri,
        **manifest.totals,
        "objects": len(items),
        "objects_copied": len(moved),
        "objects_reused": len(kept),
        "bytes": manifest.size_bytes,
        "bytes_copied": sum(one.bytes for one in moved) + sum(part.bytes for one in documents for part in one.parts),
        "bytes_reused": sum(item.bytes for item in items if item.key in kept),
    }


@contextmanager
def held(node: Node, hold_ms: int) -> Iterator[list[dict[str, Any]]]:
    """A hold on each group of the node, renewed while the block runs. Raises JobRefused, NodeError."""
    cuts: list[dict[str, Any]] = []
    over = threading.Event()

    def renew() -> None:
        while not over.wait(hold_ms / 4_000):
            for facts in list(cuts):
                with suppress(NodeError):  # whoever reads the parts hears of it too
                    node.call("GET", _path(facts))

    renewing = threading.Thread(target=renew, daemon=True, name="headwater-hold")
    renewing.start()
    try:
        for group in node.groups():
            cuts.append(_hold(node, group, hold_ms))
        yield cuts
    finally:
        over.set()
        renewing.join()
        for facts in cuts:
            with suppress(NodeError):
                node.call("DELETE", _path(facts), repeat=True)


def _hold(node: Node, group: int, hold_ms: int) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = node.json("POST", f"{of(group)}/backup", {"hold_ms": hold_ms}, repeat=False)
    except NodeRefused as refused:
        if refused.status in (400, 404):
            why = str(refused).rpartition(": ")[2]
            raise JobRefused(f"the node at {node.url} makes no backup: {why}", "name a node with --data") from None
        raise
    return facts


def _path(facts: dict[str, Any]) -> str:
    return f"{of(facts['group'])}/backup/{facts['id']}"


def _part(node: Node, facts: dict[str, Any], rest: str) -> bytes:
    """Something of what is held. Raises HoldLost when it is not any more: gc may have taken what was left to copy."""
    try:
        return node.call("GET", _path(facts) + rest).body
    except NodeRefused as refused:
        if refused.status != 404:
            raise
        raise HoldLost(
            "the node let go of the backup before it was done: it was restarted, or the job asked nothing for too long",
            "run it again",
        ) from refused


def _would(node: Node, target: Place) -> dict[str, object]:
    """Which objects are needed and not there yet, by what the node lists now. How long catalog and log are only a cut
    tells."""
    by_group = listings(node)
    store = _opened(target, probing=False)
    lake = by_group[0].place
    _require_apart(lake, target)
    keys = [file.path for listing in by_group for file in listing.files]
    keys += [stored.key for stored in lake.store().list(SNAPSHOTS)]
    wanted = _wanted(lake, keys)
    kept = {item.key for item in _kept(store, _known(store), wanted)}
    news = [one for one in wanted if one.key not in kept]
    return {
        "backup": None,
        "to": store.uri,
        "objects": len(wanted),
        "objects_copied": len(news),
        "bytes": sum(one.bytes for one in wanted),
        "bytes_copied": sum(one.bytes for one in news),
    }


def _opened(target: Place, probing: bool = True) -> ObjectStore:
    if target.url == "memory:":
        raise JobRefused("memory: keeps nothing", "name a directory or s3://bucket/prefix")
    try:
        store = target.store()
        if probing:
            probe(store, secrets.token_hex(8))
        else:
            store.head(f"{BACKUPS}/none")
    except StoreError as error:
        raise JobRefused(f"nothing can be written to {target.url}: {error.reason}") from error
    return store


def _require_apart(lake: Place, target: Place) -> None:
    inner, outer = target.store().uri.rstrip("/") + "/", lake.store().uri.rstrip("/") + "/"
    if inner.startswith(outer) or outer.startswith(inner):
        raise JobRefused(
            f"{target.url} and the lake {lake.url} are in one place", "name another one: both would be lost at once"
        )


def _known(store: ObjectStore) -> dict[str, Item]:
    """What the last backups vouch for. One that cannot be read vouches for nothing."""
    found: dict[str, Item] = {}
    for name in backup_store.names(store)[-MANIFESTS_READ:]:
        with suppress(backup_store.Damaged, JobRefused):
            found.update((item.key, item) for item in backup_store.read(store, name).objects)
    return found


def _kept(store: ObjectStore, known: dict[str, Item], wanted: list[Wanted]) -> list[Item]:
    """Those of the objects that are there already, as an earlier backup vouches for them."""
    there = {stored.key: stored.size_bytes for stored in store.list(OBJECTS)}
    return [
        item
        for one in wanted
        if (item := known.get(one.key)) is not None and item.bytes == one.bytes == there.get(f"{OBJECTS}/{one.key}")
    ]


def _documents(facts: dict[str, Any]) -> list[str]:
    """A group's files of the data directory, by their path in it: the catalog first."""
    group = facts["group"]
    return [f"catalog/{group}.db", *(f"wal/{group}/{file['position']:020d}.wal" for file in facts["log_files"])]


def _fetch(node: Node, cuts: list[dict[str, Any]], data: Path, hold_ms: int, progress: Progress) -> None:
    """Catalogs and logs, as files of a data directory. A group of a cluster that moved meanwhile is cut again."""
    for index, facts in enumerate(cuts):
        for left in reversed(range(CUTS_MAX)):
            try:
                _fetch_group(node, facts, data, progress)
                break
            except HoldLost:
                if not left or not facts.get("in_cluster"):
                    raise
                facts = cuts[index] = _hold(node, facts["group"], hold_ms)


def _fetch_group(node: Node, facts: dict[str, Any], data: Path, progress: Progress) -> None:
    total = facts["catalog_bytes"] + facts["log_bytes"]
    done = 0

    def get(what: str, path: Path, start: int, size: int) -> None:
        nonlocal done
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as out:
            while size:
                query = f"from={start}&size={min(size, FETCH_BYTES)}"
                body = _part(node, facts, f"/{what}?{query}")
                if not body:
                    raise JobRefused(f"the node's copy of its {what} ends early")
                out.write(body)
                start, size, done = start + len(body), size - len(body), done + len(body)
                progress(f"catalog and log of group {facts['group']}", done, total)

    shutil.rmtree(DataDirectory(data).wal(facts["group"]), ignore_errors=True)
    DataDirectory(data).wal(facts["group"]).mkdir(parents=True)
    catalog, *logs = [data / path for path in _documents(facts)]
    get("catalog", catalog, 0, facts["catalog_bytes"])
    at = 0
    for path, file in zip(logs, facts["log_files"], strict=True):
        get("log", path, at, file["bytes"])
        at += file["bytes"]


def _wanted(lake: Place, keys: list[str]) -> list[Wanted]:
    try:
        store = lake.store()
        folders = {key.partition("/")[0] for key in keys}
        sizes = {stored.key: stored.size_bytes for folder in folders for stored in store.list(folder)}
    except StoreError as error:
        raise JobRefused(
            f"the lake cannot be reached from here: {error.reason}",
            "run the job where the lake's directory is, or with the credentials of its bucket in the environment",
        ) from error
    missing = [key for key in keys if key not in sizes]
    if missing:
        raise JobRefused(
            f"the lake {lake.url} as it is seen from here lacks {some(missing)}",
            "run the job where the lake is; if it is here: headwater pipeline run verify",
        )
    return [Wanted(key, sizes[key], None) for key in keys]


def _require_there(store: ObjectStore, items: list[Item]) -> None:
    """Executors elsewhere may have written to a directory of their own."""
    sizes = {stored.key: stored.size_bytes for stored in store.list(OBJECTS)}
    lost = [item.key for item in items if sizes.get(f"{OBJECTS}/{item.key}") != item.bytes]
    if lost:
        raise JobRefused(
            f"{store.uri} does not hold {some(lost)} after they were copied there",
            "name a place that every Spark executor and this machine share",
        )


def _put(store: ObjectStore, name: str, data: Path, path: str) -> Document:
    parts: list[Item] = []
    with (data / path).open("rb") as file:
        while (body := file.read(PART_BYTES)) or not parts:
            key = f"{BACKUPS}/{name}/{path}.{len(parts):06d}"
            store.put(key, body)
            parts.append(Item(key, len(body), backup_store.digest(body)))
            if len(body) < PART_BYTES:
                break
    return Document(path, parts)


def some(names: list[str]) -> str:
    shown = ", ".join(names[:TOLD_MAX])
    return shown if len(names) <= TOLD_MAX else f"{shown} and {len(names) - TOLD_MAX} more"
