"""Catalog snapshots in the object store: where a node begins that has no catalog, or one that the log has outrun.

Owns their names and their layout, and which of them the log may be purged by. Never decides when one is written.

    catalogs/<group>/<position>-<log floor>-<epoch>/catalog         the snapshot; numbers of 20, 20 and 10 digits
    catalogs/<group>/<position>-<log floor>-<epoch>/seen-<member>   empty: that member has fetched it, and it was whole

    0   4s   "HWCS"
    4   u32  format version
    8   u64  xxh3-64 of the rest
    16  ...  the catalog, a SQLite file

A snapshot is true for its position, which the log had acknowledged before it was written, so every one of them is true,
whoever wrote it and when. It is named with its writer's epoch, and only who has that epoch or a later one deletes it.
All calls block: they run on worker threads.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from headwater.lake.store import ObjectStore, StoreError
from headwater.ports import CatalogCopy

FOLDER = "catalogs"
FORMAT = 1
_MAGIC = b"HWCS"
_HEAD = Struct("<4sIQ")
_NAME = re.compile(r"catalogs/(\d+)/(\d{20})-(\d{20})-(\d{10})/(catalog|seen-(.+))")
_SLICE_BYTES = 8 << 20


class SnapshotDamaged(Exception):
    """What the store holds is not what was written."""


class SnapshotTaken(StoreError):
    """Another one of that name is there."""


class Snapshot(NamedTuple):
    """In the order of what they cover."""

    position: int
    log_floor: int
    epoch: int
    group: int

    @property
    def folder(self) -> str:
        return f"{FOLDER}/{self.group}/{self.position:020d}-{self.log_floor:020d}-{self.epoch:010d}"

    def told(self) -> dict[str, int]:
        """For operators."""
        return {"position": self.position, "log_floor": self.log_floor, "epoch": self.epoch}


def purge_limit(found: dict[Snapshot, set[str]], members_needed: int) -> Snapshot | None:
    """The newest snapshot that enough members could load: the log is not needed below its floor."""
    return max((one for one, seen in found.items() if len(seen) >= members_needed), default=None)


def superseded(found: Iterable[Snapshot], limit: Snapshot, epoch: int) -> list[Snapshot]:
    """What an owner of that epoch may delete once the log may be purged by `limit`."""
    return sorted(one for one in found if one < limit and one.log_floor <= limit.log_floor and one.epoch <= epoch)


class CatalogSnapshots:
    """Of one group, as one member uses them."""

    def __init__(self, store: ObjectStore, group: int, member: str, directory: Path) -> None:
        """`directory` is for copies that are on their way."""
        self._store = store
        self._group = group
        self._member = member
        self._directory = directory

    def found(self) -> dict[Snapshot, set[str]]:
        """Every snapshot, and which members have seen it whole. Raises StoreError."""
        whole: set[Snapshot] = set()
        seen: dict[Snapshot, set[str]] = {}
        for stored in self._store.list(f"{FOLDER}/{self._group}/"):
            match = _NAME.fullmatch(stored.key)
            if match is None or int(match[1]) != self._group:
                continue
            one = Snapshot(int(match[2]), int(match[3]), int(match[4]), self._group)
            if match[6] is None:
                whole.add(one)
            else:
                seen.setdefault(one, set()).add(match[6])
        return {one: seen.get(one, set()) for one in whole}

    def write(self, copy: Callable[[Path], CatalogCopy], epoch: int, only_new: bool = False) -> Snapshot:
        """Stores the catalog as it is now. Raises StoreError, sqlite3.Error, OSError; SnapshotTaken when there is one
        of that name and `only_new`."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"snapshot-{self._group}.part"
        path.unlink(missing_ok=True)
        try:
            copied = copy(path)
            snapshot = Snapshot(copied.position, copied.log_floor, epoch, self._group)
            with (
                path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
                memoryview(content) as view,
            ):
                head = _HEAD.pack(_MAGIC, FORMAT, _digest(view))
                key = f"{snapshot.folder}/catalog"
                if not only_new:
                    self._store.put(key, [head, view])
                elif not self._store.put_if_absent(key, [head, view]):
                    raise SnapshotTaken(f"somebody else has just written {key}")
        finally:
            path.unlink(missing_ok=True)
        return snapshot

    def fetch(self, snapshot: Snapshot, to: Path) -> None:
        """On return `to` is the catalog, whole and durable, over an older one if need be. Raises StoreError, OSError,
        SnapshotDamaged, and then what was there is still there."""
        content = self._content(snapshot)
        to.parent.mkdir(parents=True, exist_ok=True)
        draft = to.with_suffix(".part")
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # What SQLite kept beside the old file says nothing of the new one.
        for suffix in ("-wal", "-shm"):
            to.with_name(to.name + suffix).unlink(missing_ok=True)
        os.replace(draft, to)

    def confirm(self, snapshot: Snapshot) -> None:
        """Fetches it and says that it could be loaded. Raises StoreError, SnapshotDamaged."""
        self._content(snapshot)
        self._store.put(f"{snapshot.folder}/seen-{self._member}", b"")

    def delete(self, snapshots: Iterable[Snapshot]) -> None:
        """Raises StoreError; the rest stays for later."""
        gone = {one.folder for one in snapshots}
        if not gone:
            return
        # The snapshot before who saw it: a marker alone is no snapshot, and goes the next time.
        keys = [stored.key for stored in self._store.list(f"{FOLDER}/{self._group}/")]
        for key in sorted(keys):
            if key.rpartition("/")[0] in gone:
                self._store.delete(key)

    def _content(self, snapshot: Snapshot) -> memoryview:
        data = self._store.get(f"{snapshot.folder}/catalog")
        if len(data) < _HEAD.size:
            raise SnapshotDamaged(f"{snapshot.folder} is cut short")
        magic, version, digest = _HEAD.unpack_from(data)
        content = memoryview(data)[_HEAD.size :]
        if magic != _MAGIC or version != FORMAT or xxh3_64_intdigest(content) != digest:
            raise SnapshotDamaged(f"{snapshot.folder} is not what was written, or of another version")
        return content


def _digest(view: memoryview) -> int:
    digest = xxh3_64()
    for at in range(0, len(view), _SLICE_BYTES):
        digest.update(view[at : at + _SLICE_BYTES])
    return digest.intdigest()
