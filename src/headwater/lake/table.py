"""The Delta table over the lake's files: which files are in it, changed atomically, one version after the other.

Owns the table's creation, commits, checkpoints and the length of its log. Never touches a data file, and never says
committed before the commit is durable and certain.

A commit may fail in three ways: another one took the version, the store did not answer, or it answered with an error
after it had stored the commit. All three end the same way: look at the newest version, where the change stands or does
not, and try again if it does not. The library's own retries are off: they would repeat a commit without looking.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import count, islice, takewhile
from typing import TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from headwater.lake.layout import PRUNED_BY, SCHEMA, FileInfo, NewFile, listed_files
from headwater.lake.local import LocalStore
from headwater.lake.store import (
    LakeDamaged,
    ObjectMissing,
    ObjectStore,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from headwater.ports import pause

T = TypeVar("T")

LOG = "_delta_log"
_DELTA_SCHEMA = DeltaSchema.from_arrow(SCHEMA)
CHECKPOINT_EVERY_COUNT = 32
"""Commits between checkpoints. The library walks every commit since the last one again for each new commit: 2 ms for
a few, 90 ms for 1,000, until the table is opened anew from a checkpoint."""
LOG_KEPT_HOURS = 24
ATTEMPTS_MAX = 30
OUTAGES_MAX = 3
"""Attempts that end in silence or an error of the store, before the caller is told."""
_BACKOFF_MS_MIN, _BACKOFF_MS_MAX = 5, 500
_FEATURES_REFUSED = {"deletionVectors", "columnMapping"}
"""Others read the files as they are, without the table: no file may hold rows that do not count."""


class CommitConflict(Exception):
    """Files this commit wanted to remove are no longer in the table; it was not made. Plan again."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__(f"no longer in the table: {', '.join(paths)}")
        self.paths = paths


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
        self.tidy_failure: str | None = None
        """Why the last checkpoint or clean-up did not work; None when it did. The table is right either way."""
        self._store = store
        self._every_count = checkpoint_every_count
        self._kept_hours = log_kept_hours
        self._sleep = sleep
        self._chance = chance
        self._lock = threading.Lock()
        self._synced = -1
        """All commits up to this version are on stable storage."""
        with self._lock:
            self._table = self._attempting(self._open_or_create)
            _check(self._table, store)
            self._opened_at = self._table.version()

    @property
    def version(self) -> int:
        return self._table.version()

    def commit(self, adds: Sequence[NewFile], removes: Sequence[str], now_ms: int, data_change: bool = True) -> int:
        """Adds and removes files in one step, and returns a version that shows it, durable.

        Made at most once: a change that the table shows already is not made again. Raises CommitConflict; after
        StoreUnavailable the outcome is unknown, and the same call may be repeated until it is known. `data_change` is
        False when the same rows only move to other files.
        """
        with self._lock:
            outages_count = 0
            for attempt in range(ATTEMPTS_MAX):
                try:
                    if attempt:
                        self._back_off(attempt)
                    if attempt or removes:
                        self._refresh(anew=outages_count > 0)
                    version = self._try(adds, removes, now_ms, data_change)
                    self._settle(version)
                    self._tidy()
                    return version
                except (DeltaError, OSError, StoreUnavailable) as error:
                    if isinstance(error, CommitFailedError) and self._store.explain(error) is None:
                        continue  # another commit took the version
                    failure = self._meaning(error)
                    outages_count += 1
                    if outages_count == OUTAGES_MAX or isinstance(failure, StoreRefused):
                        raise failure from error
            raise StoreUnavailable(f"{self._store.uri}: {ATTEMPTS_MAX} commits in a row were lost to others")

    def files(self) -> dict[str, FileInfo]:
        """Every file of the newest version, by path. Costs time and memory in step with their number."""
        with self._lock:
            self._attempting(self._refresh)
            listed = pa.table(self._table.get_add_actions(flatten=True))
        return listed_files(listed)

    def contains(self, paths: Iterable[str]) -> set[str]:
        """Those of the paths that are in the newest version."""
        with self._lock:
            self._attempting(self._refresh)
            return set(self._present(list(paths)))

    def tidy(self) -> None:
        """Writes a checkpoint now and drops log files older than their keeping. Raises what the store raises."""
        with self._lock:
            self._attempting(self._refresh)
            self._attempting(self._checkpoint)

    def newest(self) -> int:
        """The number of the newest version."""
        with self._lock:
            self._attempting(self._refresh)
            return self._table.version()

    def cut_log(self, below: int) -> None:
        """On return the log holds nothing of versions before that one, nor of commits that were never made."""
        with self._lock:
            self._attempting(self._refresh)
            self._attempting(lambda: self._cut_log(min(below, self._table.version())))

    # ---- committing ---------------------------------------------------------------------------------------------

    def _try(self, adds: Sequence[NewFile], removes: Sequence[str], now_ms: int, data_change: bool) -> int:
        """One attempt upon the version at hand; raises CommitFailedError when that is not the newest any more."""
        present = self._present([file.path for file in adds] + list(removes))
        missing = [path for path in removes if path not in present]
        if all(file.path in present for file in adds) and len(missing) == len(removes):
            return self._table.version()
        if missing:
            raise CommitConflict(missing)
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size_bytes, {}, now_ms, data_change, file.statistics) for file in adds
        ]
        actions += [RemoveAction(path, data_change, now_ms, present[path], {}) for path in removes]
        version = self._table.version() + 1
        self._table.create_write_transaction(
            actions,
            "append",
            _DELTA_SCHEMA,
            commit_properties=CommitProperties(max_commit_retries=0),
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
        )
        self._table.update_incremental()
        return version

    def _settle(self, version: int) -> None:
        """Syncs the commit and every one before it that others made: a log with a hole is no log."""
        newest = max(version, self._table.version())
        for number in range(self._synced + 1, newest + 1):
            try:
                self._store.sync([f"{LOG}/{number:020d}.json"])
            except ObjectMissing:
                pass  # another one's, and already replaced by a checkpoint
        self._synced = newest

    def _back_off(self, attempt: int) -> None:
        self._sleep(min(_BACKOFF_MS_MIN << attempt, _BACKOFF_MS_MAX) * (0.5 + self._chance()) / 1000)

    # ---- looking ------------------------------------------------------------------------------------------------

    def _refresh(self, anew: bool = False) -> None:
        """Looks at the newest version. Others may have cleaned away the commits that lead there: then opens anew."""
        if not anew:
            try:
                self._table.update_incremental()
                return
            except DeltaError as error:
                if self._store.explain(error) is not None:
                    raise
        self._reopen()

    def _present(self, paths: list[str]) -> dict[str, int]:
        """Those of the paths that the version at hand holds, with their sizes."""
        listed = pa.table(self._table.get_add_actions())
        found = listed.filter(pc.is_in(listed["path"], value_set=pa.array(paths, pa.string())))
        return dict(zip(found["path"].to_pylist(), found["size_bytes"].to_pylist(), strict=True))

    # ---- keeping the log short ----------------------------------------------------------------------------------

    def _tidy(self) -> None:
        """Writes a checkpoint after every `checkpoint_every_count` versions, and opens the table anew as often."""
        version = self._table.version()
        if version % self._every_count and version - self._opened_at < self._every_count:
            return
        try:
            if version % self._every_count == 0:
                self._checkpoint()
            else:
                self._reopen()
            self.tidy_failure = None
        except (DeltaError, OSError, StoreError) as error:
            self.tidy_failure = self._meaning(error).reason  # the commit stands; the next one tries again

    def _checkpoint(self) -> None:
        self._table.create_checkpoint()
        # In this order: no log file goes before the checkpoint that replaces it is durable.
        version = self._table.version()
        self._store.sync([f"{LOG}/{version:020d}.checkpoint.parquet", f"{LOG}/_last_checkpoint"])
        self._reopen()
        self._table.cleanup_metadata()

    def _cut_log(self, below: int) -> None:
        old = sorted(stored.key for stored in self._store.list(LOG) if _version(stored.key) < below)
        if not old:
            return
        # What goes is needed by whoever has no checkpoint: one of the newest version is there, and durable, first.
        self._checkpoint()
        for key in old:
            self._store.delete(key)
        self._reopen()

    def _reopen(self) -> None:
        self._table = self._open()
        self._opened_at = self._table.version()

    # ---- opening ------------------------------------------------------------------------------------------------

    def _open(self) -> DeltaTable:
        return DeltaTable(self._store.uri, storage_options=self._store.storage_options or None)

    def _open_or_create(self) -> DeltaTable:
        self._mend()
        try:
            table = self._open()
        except TableNotFoundError:
            try:
                table = self._create()
            except DeltaError:
                table = self._open()  # another node was quicker
        # What an earlier process committed and did not live to sync is built upon from here on.
        self._table = table
        self._synced = max(-1, table.version() - 2 * self._every_count)
        self._settle(table.version())
        return table

    def _create(self) -> DeltaTable:
        return DeltaTable.create(
            self._store.uri,
            SCHEMA,
            name="headwater",
            description="Records of durable streams, a row for each.",
            configuration={
                "delta.enableDeletionVectors": "false",
                "delta.dataSkippingStatsColumns": ",".join(PRUNED_BY),
                "delta.logRetentionDuration": f"interval {self._kept_hours} hours",
                "delta.deletedFileRetentionDuration": "interval 1 days",
                # Checkpoints are made by whoever commits through here; other writers need not.
                "delta.checkpointInterval": str(self._every_count),
            },
            storage_options=self._store.storage_options or None,
        )

    def _mend(self) -> None:
        """Takes away commits and checkpoints that a power loss left torn.

        The library gives a local file its name before its bytes are synced. Whoever made it was not told that it is
        committed before they were, and no log file goes before its checkpoint is synced: nothing promised is lost.
        """
        if not isinstance(self._store, LocalStore):
            return
        newest = sorted((found.key for found in self._store.list(LOG)), reverse=True)
        torn = list(
            takewhile(lambda key: _torn(self._store.get(key)), (key for key in newest if key.endswith(".json")))
        )
        for key in islice((key for key in newest if key.endswith(".checkpoint.parquet")), 4):
            if bytes(self._store.get_tail(key, 4)[0]) != b"PAR1":
                torn += [key, f"{LOG}/_last_checkpoint"]
        for key in torn:
            self._store.delete(key)

    def _attempting(self, act: Callable[[], T]) -> T:
        """Does something that is safe to repeat, a few times. Raises StoreError."""
        for attempt in count(1):
            try:
                return act()
            except (DeltaError, OSError, StoreUnavailable) as error:
                failure = self._meaning(error)
                if attempt == OUTAGES_MAX or not isinstance(failure, StoreUnavailable):
                    raise failure from error
            self._back_off(attempt + 4)
        raise RuntimeError("counting ended")

    def _meaning(self, error: Exception) -> StoreError:
        return self._store.explain(error) or LakeDamaged(LOG, str(error).partition("\n")[0])


_NEWEST = 1 << 62


def _version(key: str) -> int:
    """Which version a file of the log tells of: -1 for a commit under way, which may have ended in the middle."""
    name = key.rpartition("/")[2]
    digits = name.partition(".")[0]
    if len(digits) == 20 and digits.isascii() and digits.isdigit():
        return int(digits)
    return -1 if name.startswith("_commit_") else _NEWEST


def _torn(commit: bytes) -> bool:
    """A commit is lines of JSON, at least one. Blocks that never reached the disk are absent, or zeros."""
    try:
        for line in commit.splitlines():
            msgspec.json.decode(line, type=dict)
    except msgspec.DecodeError:
        return True
    return not commit


def _check(table: DeltaTable, store: ObjectStore) -> None:
    refused = _FEATURES_REFUSED & set(table.protocol().reader_features or ())
    if refused:
        raise StoreRefused(
            f"the table at {store.uri} uses {', '.join(sorted(refused))}, which plain Parquet readers do not see; "
            "rewrite it without, or name another lake"
        )
    if table.metadata().partition_columns:
        raise StoreRefused(f"the table at {store.uri} is partitioned; a lake is not: name another place")
    found = {field.name: field.type for field in pa.schema(table.schema())}
    wrong = [field.name for field in SCHEMA if found.get(field.name) != field.type]
    if wrong:
        raise StoreRefused(
            f"the table at {store.uri} is not a lake: its columns {', '.join(wrong)} are missing or of another type; "
            "name another place"
        )
