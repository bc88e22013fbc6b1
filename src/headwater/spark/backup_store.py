"""Where backups are kept: one target holds any number of them, and each object once.

Owns the layout and the manifest. Never says that a backup is there before all of it is: its manifest is written last.

    objects/data/<group>/<...>.parquet          objects of the lake under their own names; they never change
    objects/snapshots/<...>
    backups/<id>/catalog/<group>.db.000000, ... each group's catalog, and the log after it, in parts
    backups/<id>/wal/<group>/<position>.wal.000000
    backups/<id>/manifest.json                  {"digest": xxh3-128 of the rest, "manifest": {...}}
    locks/<kind>-<token>                        who works here just now (see `backup_locks`)

Format 1 had one group, and its catalog in `catalog.db`.
"""

from __future__ import annotations

import re
import secrets
import time

import msgspec
from xxhash import xxh3_128_hexdigest

from headwater.lake.store import ObjectMissing, ObjectStore
from headwater.spark.job_runs import JobRefused

FORMAT, OLD_FORMAT = 2, 1
OBJECTS, BACKUPS, MANIFEST = "objects", "backups", "manifest.json"
_ID = re.compile(r"\d{8}T\d{6}(\.\d{3})?Z-[0-9a-f]{8}")
"""The moment it began, to the millisecond: the newest is the last by name. Older ones have whole seconds."""


class Item(msgspec.Struct, frozen=True, array_like=True):
    """An object of the lake; `key` is its name there."""

    key: str
    bytes: int
    digest: str


class Document(msgspec.Struct, frozen=True):
    """A file of the data directory, in parts; their keys are the target's."""

    path: str
    parts: list[Item]


class Contents(msgspec.Struct, frozen=True):
    """What a node holds, counted and hashed (see `headwater lake contents`)."""

    position: int
    """Those of its groups together."""
    streams: int
    records: int
    bytes: int
    digest: str
    """Of every stream's name, incarnation, tail, count, producers and more, in their order."""


class Manifest(msgspec.Struct, frozen=True):
    format: int
    id: str
    made_ms: int
    version: str
    """Of the software that made it."""
    positions: list[int]
    """Of each group: each has a cut of its own."""
    contents: Contents
    table: list[str]
    """Files of the lake that hold a record: the rest of them only waits for gc."""
    documents: list[Document]
    objects: list[Item]

    @property
    def groups(self) -> int:
        return len(self.positions)

    @property
    def totals(self) -> dict[str, object]:
        """What a summary says of what it holds."""
        return {
            "positions": {str(group): position for group, position in enumerate(self.positions)},
            "streams": self.contents.streams,
            "records": self.contents.records,
        }

    @property
    def size_bytes(self) -> int:
        parts = sum(part.bytes for document in self.documents for part in document.parts)
        return parts + sum(item.bytes for item in self.objects)


class _OldManifest(msgspec.Struct, frozen=True):
    id: str
    made_ms: int
    version: str
    contents: Contents
    table: list[str]
    documents: list[Document]
    objects: list[Item]


class _Sealed(msgspec.Struct, frozen=True):
    digest: str
    manifest: msgspec.Raw


class _Format(msgspec.Struct, frozen=True):
    format: int


class Damaged(Exception):
    """A manifest that cannot be believed. The message names it."""


def digest(data: bytes | memoryview) -> str:
    return xxh3_128_hexdigest(data)


def manifest_key(name: str) -> str:
    return f"{BACKUPS}/{name}/{MANIFEST}"


def write(store: ObjectStore, manifest: Manifest) -> None:
    """From now on the backup is there. Raises StoreError."""
    raw = msgspec.json.encode(manifest)
    sealed = msgspec.json.encode(_Sealed(digest(raw), msgspec.Raw(raw)))
    if not store.put_if_absent(manifest_key(manifest.id), sealed):
        raise JobRefused(f"there is a backup {manifest.id} already in {store.uri}", "run it again")


def read(store: ObjectStore, name: str) -> Manifest:
    """Raises ObjectMissing, Damaged, StoreError; JobRefused for a format of another version."""
    key = manifest_key(name)
    try:
        sealed = msgspec.json.decode(store.get(key), type=_Sealed)
    except msgspec.MsgspecError as error:
        raise Damaged(f"{key} in {store.uri} is damaged: {error}") from None
    if digest(bytes(sealed.manifest)) != sealed.digest:
        raise Damaged(f"{key} in {store.uri} is damaged: its digest is not {sealed.digest}")
    found = msgspec.json.decode(sealed.manifest, type=_Format).format
    if found == OLD_FORMAT:
        return _of_one_group(msgspec.json.decode(sealed.manifest, type=_OldManifest))
    if found != FORMAT:
        raise JobRefused(f"backup {name} has format {found}; this version reads formats up to {FORMAT}")
    return msgspec.json.decode(sealed.manifest, type=Manifest)


def _of_one_group(old: _OldManifest) -> Manifest:
    documents = [Document("catalog/0.db", one.parts) if one.path == "catalog.db" else one for one in old.documents]
    made = (FORMAT, old.id, old.made_ms, old.version)
    return Manifest(*made, [old.contents.position], old.contents, old.table, documents, old.objects)


def new_id(began_ms: int) -> str:
    """Sorts after that of any backup that began earlier."""
    second = time.strftime("%Y%m%dT%H%M%S", time.gmtime(began_ms // 1_000))
    return f"{second}.{began_ms % 1_000:03d}Z-{secrets.token_hex(4)}"


def names(store: ObjectStore) -> list[str]:
    """Ids of the backups that are there, oldest first, readable or not."""
    found = {stored.key.split("/")[1] for stored in store.list(BACKUPS) if stored.key.endswith(f"/{MANIFEST}")}
    return sorted(name for name in found if _ID.fullmatch(name))


def chosen(store: ObjectStore, name: str | None) -> Manifest:
    """The backup of that id, or the newest. Raises JobRefused for one that is not there, or is damaged."""
    there = names(store)
    if not there:
        raise JobRefused(f"there is no backup in {store.uri}", "name the place that backups were made to")
    try:
        return read(store, name or there[-1])
    except ObjectMissing:
        raise JobRefused(f"there is no backup {name} in {store.uri}", f"there are {', '.join(there[-10:])}") from None
    except Damaged as damaged:
        others = ", ".join(one for one in there[-10:] if one != (name or there[-1]))
        advice = f"restore another one with --backup: {others}" if others else "there is no other one"
        raise JobRefused(str(damaged), advice) from None
