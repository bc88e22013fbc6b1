"""`prune`: backups that no rule keeps are dropped, and what only they needed is deleted.

Owns what goes and in which order: manifests first, so that at every moment each backup that is there is whole; then
whatever no manifest that is left speaks of. Never deletes anything while a backup is made, or while one that is there
cannot be read: what it needs is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from headwater.lake.store import ObjectMissing, ObjectStore, StoreError
from headwater.spark import backup_store
from headwater.spark.backup_keeping import Keep, kept
from headwater.spark.backup_locks import ALONE, Lock, locked
from headwater.spark.backup_store import BACKUPS, MANIFEST, OBJECTS, Manifest
from headwater.spark.job_runs import JobRefused, Progress, recorded, silent
from headwater.spark.lake_place import Place

DELETED_AT_ONCE = 1_000
_THREADS = 16


class Plan(NamedTuple):
    """What would be done. `keep` says why, by id; both are in the order in which they were made."""

    keep: dict[str, list[str]]
    drop: list[str]
    keys: list[str]
    """Beside the manifests of `drop`: what no kept backup needs, also what stopped runs left behind."""
    bytes: int
    objects_kept: int


@recorded("prune", keep=Keep._asdict)
def prune(place: Place | str, keep: Keep, *, dry_run: bool = False, progress: Progress = silent) -> dict[str, object]:
    """Needs no Spark. Raises JobRefused, and StoreError when the store fails; then each backup is whole or gone.

    Run again it goes on. With `dry_run` it only says what it would do.
    """
    store = opened(Place(place) if isinstance(place, str) else place)
    if dry_run:
        plan = planned(store, keep)
    else:
        with locked(store, ALONE) as lock:
            plan = planned(store, keep)
            act(store, plan, lock, progress)
    told: dict[str, object] = {
        "place": store.uri,
        "backups_kept": [{"backup": name, "kept_by": why} for name, why in plan.keep.items()],
        "backups_dropped": plan.drop,
        "objects_kept": plan.objects_kept,
        "objects_deleted": len(plan.keys) + len(plan.drop),
        "bytes_deleted": plan.bytes,
    }
    return {**told, "dry_run": True} if dry_run else told


def opened(place: Place) -> ObjectStore:
    """Raises JobRefused."""
    try:
        store = place.store()
        store.head(f"{BACKUPS}/none")
    except StoreError as error:
        raise JobRefused(f"{place.url} cannot be read: {error.reason}") from error
    return store


def planned(store: ObjectStore, keep: Keep) -> Plan:
    """Changes nothing. Raises JobRefused, StoreError."""
    if not keep.asks:
        raise JobRefused("no rule says which backups are kept", "give --keep, --keep-daily or --keep-weekly")
    there = {name: _readable(store, name) for name in backup_store.names(store)}
    if not there:
        raise JobRefused(f"there is no backup in {store.uri}", "name the place that backups were made to")
    keeping = kept({name: manifest.made_ms for name, manifest in there.items()}, keep)
    drop = [name for name in there if name not in keeping]
    needed = {key for name in keeping for key in _needed(name, there[name])}
    manifests = {backup_store.manifest_key(name) for name in drop}
    keys: list[str] = []
    size = objects = 0
    for folder in (BACKUPS, OBJECTS):
        for stored in store.list(folder):
            if stored.key in needed:
                objects += 1
                continue
            size += stored.size_bytes
            if stored.key not in manifests:
                keys.append(stored.key)
    return Plan(keeping, drop, sorted(keys), size, objects)


def act(store: ObjectStore, plan: Plan, lock: Lock, progress: Progress = silent) -> None:
    """Does it. Raises JobRefused when the lock was lost, StoreError."""
    done, total = 0, len(plan.drop) + len(plan.keys)
    for keys in _shares([backup_store.manifest_key(name) for name in plan.drop], plan.keys):
        lock.require()
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(store.delete, keys))
        done += len(keys)
        progress("objects", done, total)


def _shares(*lists: list[str]) -> Iterator[list[str]]:
    for keys in lists:
        for at in range(0, len(keys), DELETED_AT_ONCE):
            yield keys[at : at + DELETED_AT_ONCE]


def _readable(store: ObjectStore, name: str) -> Manifest:
    advice = f"nothing was deleted; restore it with the version that made it, or delete {BACKUPS}/{name}/{MANIFEST}"
    try:
        return backup_store.read(store, name)
    except ObjectMissing:
        raise JobRefused(f"backup {name} in {store.uri} went away meanwhile", "run it again") from None
    except backup_store.Damaged as damaged:
        raise JobRefused(str(damaged), advice) from None
    except JobRefused as refused:
        raise JobRefused(refused.message, advice) from None


def _needed(name: str, manifest: Manifest) -> Iterator[str]:
    yield backup_store.manifest_key(name)
    for document in manifest.documents:
        yield from (part.key for part in document.parts)
    for item in manifest.objects:
        yield f"{OBJECTS}/{item.key}"
