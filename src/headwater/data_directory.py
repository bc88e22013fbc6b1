"""A node's data directory: who may use it, how many groups it has, and where each group's files are.

Owns the lock, the layout and the take-over of directories that were made before there was more than one group. Never
opens a log or a catalog.

    directory.json          {"format": 2, "groups": N}: written first, never changed; of a cluster's node
                            {"format": 3, "groups": N, "cluster": ID}
    lock                    locked while processes serve the directory
    wal/<group>/            the group's log
    catalog/<group>.db      the group's catalog
    held/<group>/           copies that a backup takes from
    cache/<worker>/         parts of a remote lake at hand
    lake/                   the lake, unless the setting puts it elsewhere
    webhook-keys.json       and other secrets of the node
    node-id                 of a cluster's node: what the cluster knows it by
    snapshots/              of a cluster's node: catalogs that are on their way to the object store

Format 1 had one group, its catalog in `catalog.db` and no `directory.json`.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import IO

import msgspec

from headwater.log.wal import sync_directory

FORMAT, CLUSTER_FORMAT = 2, 3
DESCRIPTION = "directory.json"
OLD_CATALOG = "catalog.db"


class DirectoryInUse(Exception):
    """Another process serves the directory."""


class DirectoryRefused(Exception):
    """The directory cannot be used as asked; the message says why and what to do."""


class Description(msgspec.Struct, frozen=True, omit_defaults=True):
    format: int
    groups: int
    cluster: str = ""
    """The cluster that the node belongs to; empty when it is by itself."""


class DataDirectory:
    """The layout below `path`. Changes nothing by itself."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def wal(self, group: int) -> Path:
        return self.path / "wal" / str(group)

    def catalog(self, group: int) -> Path:
        return self.path / "catalog" / f"{group}.db"

    def catalog_as_found(self, group: int) -> Path:
        """The same in a directory that may not have been taken over yet."""
        old = self.path / OLD_CATALOG
        return old if group == 0 and old.exists() and not self.catalog(0).exists() else self.catalog(group)

    def held(self, group: int) -> Path:
        return self.path / "held" / str(group)

    @property
    def snapshots(self) -> Path:
        return self.path / "snapshots"

    def cache(self, worker: int) -> Path:
        return self.path / "cache" / str(worker)

    def lock(self) -> IO[bytes]:
        """The directory, made for this user alone if need be, is this process's, and that of its children, until the
        file is closed.

        Raises DirectoryInUse, DirectoryRefused.
        """
        try:
            self.path.mkdir(0o700, parents=True, exist_ok=True)
            lock = (self.path / "lock").open("ab")
        except OSError as error:
            raise DirectoryRefused(f"cannot use the data directory {self.path}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise DirectoryInUse(str(self.path)) from None
        except OSError as error:
            lock.close()
            raise DirectoryRefused(f"cannot lock the data directory {self.path}: {error.strerror}") from None
        return lock

    def is_in_use(self) -> bool:
        try:
            with (self.path / "lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def groups(self) -> int | None:
        """How many groups it was made with; None when there is no node's data in it. Raises DirectoryRefused."""
        found = self._description()
        if found is not None:
            return found.groups
        old = (self.path / OLD_CATALOG).exists() or self.wal(0).is_dir()
        return 1 if old else None

    def _description(self) -> Description | None:
        """Raises DirectoryRefused."""
        try:
            found = msgspec.json.decode((self.path / DESCRIPTION).read_bytes(), type=Description)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise DirectoryRefused(f"{self.path / DESCRIPTION} cannot be read: {error}") from None
        if found.format not in (FORMAT, CLUSTER_FORMAT):
            raise DirectoryRefused(
                f"{self.path} has format {found.format}, and this version of Headwater knows up to {CLUSTER_FORMAT}: "
                f"use a newer version"
            )
        return found

    def check_alone(self) -> None:
        """Raises DirectoryRefused when the directory is that of a cluster's node."""
        found = self._description()
        if found is not None and found.cluster:
            raise DirectoryRefused(
                f"{self.path} is the directory of a node of a cluster, whose logs are not in it: start it with "
                f"--cluster, or choose another --data"
            )

    def join(self, cluster: str, groups_count: int) -> None:
        """Makes a new directory that of a node of a cluster, if it is not. The lock must be held.

        Raises DirectoryRefused when it is that of another cluster's node, or of a node by itself.
        """
        found = self._description()
        if found is None and self.groups() is None:
            try:
                (self.path / "catalog").mkdir(exist_ok=True)
                description = Description(CLUSTER_FORMAT, groups_count, cluster)
                write_synced(self.path / DESCRIPTION, msgspec.json.encode(description))
            except OSError as error:
                raise DirectoryRefused(f"cannot prepare the data directory {self.path}: {error}") from None
        elif found is None or not found.cluster:
            raise DirectoryRefused(
                f"{self.path} holds the data of a node by itself: choose another --data for a node of a cluster. To "
                f"move the data, back it up and restore it into the cluster"
            )
        elif found.cluster != cluster:
            raise DirectoryRefused(
                f"{self.path} belongs to a node of another cluster ({found.cluster}, and this one is {cluster}): "
                f"choose another --data, or correct --cluster and --lake"
            )

    def given_to(self, cluster: str) -> None:
        """The directory of a node by itself is that of a node of a cluster from now on. The lock must be held. Raises
        OSError."""
        groups_count = self.groups()
        if groups_count is not None:
            description = Description(CLUSTER_FORMAT, groups_count, cluster)
            write_synced(self.path / DESCRIPTION, msgspec.json.encode(description))

    def check(self, groups_wanted: int | None) -> None:
        """Raises DirectoryRefused when the directory has another number of groups than is wanted, if one is, or is that
        of a cluster's node."""
        self.check_alone()
        found = self.groups()
        if found is not None and groups_wanted is not None and found != groups_wanted:
            groups = "1 group" if found == 1 else f"{found} groups"
            raise DirectoryRefused(
                f"{self.path} was made with {groups}, not {groups_wanted}. Their number is fixed when a "
                f"directory is made: leave --groups out, or restore a backup into a new directory"
            )

    def prepare(self, groups_wanted: int | None, groups_default: int) -> int:
        """Makes a new directory, or takes over an older one; returns the number of groups. The lock must be held.

        Raises DirectoryRefused when the directory has another number of groups than `groups_wanted`, if that is given.
        """
        self.check(groups_wanted)
        groups_count = self.groups() or groups_wanted or groups_default
        try:
            if not (self.path / DESCRIPTION).exists():
                write_synced(self.path / DESCRIPTION, msgspec.json.encode(Description(FORMAT, groups_count)))
            (self.path / "catalog").mkdir(exist_ok=True)
            self._take_over_catalog()
        except (OSError, sqlite3.Error) as error:
            raise DirectoryRefused(f"cannot prepare the data directory {self.path}: {error}") from None
        return groups_count

    def _take_over_catalog(self) -> None:
        """A crash in between leaves the old file where it was, or the new one in its place."""
        old, new = self.path / OLD_CATALOG, self.catalog(0)
        if not old.exists() or new.exists():
            return
        with closing(sqlite3.connect(old)) as db:
            # All of it is in one file then, and closing the connection removes the others.
            db.execute("pragma wal_checkpoint(truncate)")
        os.rename(old, new)
        sync_directory(new.parent)
        sync_directory(self.path)


def write_synced(path: Path, data: bytes) -> None:
    """On return the file is whole and durable; before, there is the old one or none."""
    draft = path.with_suffix(".part")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, path)
    sync_directory(path.parent)
