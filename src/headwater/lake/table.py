"""The Delta table over the lake's files: which files are in it, changed atomically, one version after the other.

Owns the table's creation and its files; `delta_log` commits, syncs and mends. Never touches a data file.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Transaction
from deltalake.schema import Field, PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from headwater.lake.delta_log import (
    CHECKPOINT_EVERY_COUNT,
    ROWS_HIDDEN_BY,
    CommitConflict,
    DeltaLog,
    add_columns,
    commit_actions,
    set_properties,
)
from headwater.lake.layout import ADDED, PRUNED_BY, SCHEMA, FileInfo, NewFile, listed_files
from headwater.lake.store import ObjectStore, StoreError, StoreRefused
from headwater.ports import pause

LOG_KEPT_HOURS = 24
_SKIPPING, _SKIPPED_BY = "delta.dataSkippingStatsColumns", ",".join(PRUNED_BY)
ERASED = "headwater/erased"
"""Delta's id of an application whose transactions say from which version on the table may be read (see `past`): files
of earlier ones hold what was erased."""


class Owner(NamedTuple):
    """Who commits for a group in a cluster."""

    app: str
    """Delta's id of an application: of the group and its log."""
    epoch: int
    """Delta's version of that application's last transaction."""


class Superseded(StoreError):
    """A later owner commits for the group: whatever this one has committed, that one knows of."""


class LakeTable:
    """Opens the table in the store, or creates it. Raises StoreRefused for one that is not a lake of ours.

    Thread-safe; calls block. All raise StoreUnavailable, StoreRefused or LakeDamaged.
    """

    def __init__(
        self,
        store: ObjectStore,
        checkpoint_every_count: int = CHECKPOINT_EVERY_COUNT,
        log_kept_hours: int = LOG_KEPT_HOURS,
        sleep: Callable[[float], None] = pause,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._every_count = checkpoint_every_count
        self._kept_hours = log_kept_hours
        self._lock = threading.Lock()
        self._log = DeltaLog(store, checkpoint_every_count, sleep, chance)
        with self._lock:
            self._log.attempting(self._open_or_create)
            _check(self._log.table, store)

    @property
    def version(self) -> int:
        return self._log.table.version()

    @property
    def tidy_failure(self) -> str | None:
        """Why the last checkpoint or clean-up did not work; None when it did. The table is right either way."""
        return self._log.tidy_failure

    def commit(
        self,
        adds: Sequence[NewFile],
        removes: Sequence[str],
        now_ms: int,
        data_change: bool = True,
        owner: Owner | None = None,
    ) -> int:
        """Adds and removes files in one step, and returns a version that shows it, durable.

        Made at most once: a change that the table shows already is not made again. Raises CommitConflict; after
        StoreUnavailable the outcome is unknown, and the same call may be repeated until it is known. `data_change` is
        False when the same rows only move to other files. With an `owner` it is made only if the version before it
        knows of no later one, and no earlier one's is made after it: raises Superseded.
        """

        def act(table: DeltaTable) -> int:
            transaction = None if owner is None else _transaction(table, owner)
            present = _present(table, [file.path for file in adds] + list(removes))
            missing = [path for path in removes if path not in present]
            if all(file.path in present for file in adds) and len(missing) == len(removes):
                return table.version()
            if missing:
                raise CommitConflict(missing)
            actions: list[AddAction | RemoveAction] = [
                AddAction(file.path, file.size_bytes, {}, now_ms, data_change, file.statistics) for file in adds
            ]
            actions += [RemoveAction(path, data_change, now_ms, present[path], {}) for path in removes]
            if adds and table.metadata().configuration.get(_SKIPPING) != _SKIPPED_BY:
                # Readers look at statistics of the columns that the table names. An older version named fewer.
                set_properties(table, {_SKIPPING: _SKIPPED_BY})
            if any(file.wide for file in adds):
                # Before the file: a reader finds each of its columns in the schema of the version that shows it.
                add_columns(table, _lacking(table))
            version = table.version() + 1
            commit_actions(table, actions, table.schema(), transaction=transaction)
            return version

        with self._lock:
            return self._log.change(act, look_first=bool(removes))

    def claim(self, owner: Owner) -> None:
        """On return the table takes no commit of an earlier owner any more. Raises Superseded."""

        def act(table: DeltaTable) -> None:
            transaction = _transaction(table, owner)
            if table.transaction_version(owner.app) != owner.epoch:
                commit_actions(table, [], table.schema(), transaction=transaction)

        with self._lock:
            self._log.change(act)

    def files(self) -> dict[str, FileInfo]:
        """Every file of the newest version, by path. Costs time and memory in step with their number."""
        with self._lock:
            listed = pa.table(self._newest().get_add_actions(flatten=True))
        return listed_files(listed)

    def contains(self, paths: Iterable[str]) -> set[str]:
        """Those of the paths that are in the newest version."""
        with self._lock:
            return set(_present(self._newest(), list(paths)))

    def tidy(self) -> None:
        """Writes a checkpoint now and drops log files older than their keeping. Raises what the store raises."""
        with self._lock:
            self._newest()
            self._log.attempting(self._log.checkpoint)

    def end_past(self) -> int:
        """On return the table says that no version before the returned one is to be read any more."""

        def act(table: DeltaTable) -> int:
            version = table.version() + 1
            commit_actions(table, [], table.schema(), transaction=Transaction(ERASED, version))
            return version

        with self._lock:
            self._newest()
            return self._log.change(act)

    def cut_log(self, below: int) -> None:
        """On return the log holds nothing of versions before that one, nor of commits that were never made."""
        with self._lock:
            newest = self._newest().version()
            self._log.attempting(lambda: self._log.cut(min(below, newest)))

    def _newest(self) -> DeltaTable:
        self._log.attempting(self._log.refresh)
        return self._log.table

    def _open_or_create(self) -> None:
        if self._log.open():
            self._log.sync()
            return
        self._log.create(
            SCHEMA,
            name="headwater",
            description="Records of durable streams, a row for each.",
            configuration={
                "delta.enableDeletionVectors": "false",
                _SKIPPING: _SKIPPED_BY,
                "delta.logRetentionDuration": f"interval {self._kept_hours} hours",
                "delta.deletedFileRetentionDuration": "interval 1 days",
                # LakeTable writes checkpoints itself; other writers need not.
                "delta.checkpointInterval": str(self._every_count),
            },
        )


def _transaction(table: DeltaTable, owner: Owner) -> Transaction:
    newest = table.transaction_version(owner.app)
    if newest is not None and newest > owner.epoch:
        raise Superseded(f"a later owner of the group (epoch {newest}, this is {owner.epoch}) writes to the table")
    return Transaction(owner.app, owner.epoch)


def _present(table: DeltaTable, paths: list[str]) -> dict[str, int]:
    """Those of the paths that the version at hand holds, with their sizes."""
    listed = pa.table(table.get_add_actions())
    found = listed.filter(pc.is_in(listed["path"], value_set=pa.array(paths, pa.string())))
    return dict(zip(found["path"].to_pylist(), found["size_bytes"].to_pylist(), strict=True))


def _lacking(table: DeltaTable) -> list[Field]:
    """Columns that were added since tables like this one were made."""
    known = {field.name for field in table.schema().fields}
    return [Field(field.name, PrimitiveType("string"), nullable=True) for field in ADDED if field.name not in known]


def _check(table: DeltaTable, store: ObjectStore) -> None:
    refused = ROWS_HIDDEN_BY & set(table.protocol().reader_features or ())
    if refused:
        raise StoreRefused(
            f"the table at {store.uri} uses {', '.join(sorted(refused))}, which plain Parquet readers do not see; "
            "rewrite it without, or name another lake"
        )
    if table.metadata().partition_columns:
        raise StoreRefused(f"the table at {store.uri} is partitioned; a lake is not: name another place")
    found = {field.name: field.type for field in pa.schema(table.schema())}
    wrong = [field.name for field in SCHEMA if found.get(field.name) != field.type]
    wrong += [field.name for field in ADDED if found.get(field.name, field.type) != field.type]
    if wrong:
        raise StoreRefused(
            f"the table at {store.uri} is not a lake: its columns {', '.join(wrong)} are missing or of another type; "
            "name another place"
        )
