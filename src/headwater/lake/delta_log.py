"""The log of a Delta table: opened, mended after a power loss, committed to, synced and kept short.

Knows nothing of a table's columns or files: the lake's table and tables that Spark derives are both built on it. Never
says committed before the commit is durable and certain.

A commit may fail in three ways: another one took the version, the store did not answer, or it answered with an error
after it had stored the commit. All three end the same way: look at the newest version, where the change stands or does
not, and try again if it does not. The library's own retries are off: they would repeat a commit without looking.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count, islice, takewhile
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Field
from deltalake.transaction import AddAction, RemoveAction

from headwater.lake.local import LocalStore
from headwater.lake.store import LakeDamaged, ObjectMissing, ObjectStore, StoreError, StoreRefused, StoreUnavailable
from headwater.ports import pause

T = TypeVar("T")

LOG = "_delta_log"
CHECKPOINT_EVERY_COUNT = 32
"""Commits between checkpoints. The library walks every commit since the last one again for each new commit: 2 ms for
a few, 90 ms for 1,000, until the table is opened anew from a checkpoint."""
ATTEMPTS_MAX = 30
OUTAGES_MAX = 3
"""Attempts that end in silence or an error of the store, before the caller is told."""
ROWS_HIDDEN_BY = {"deletionVectors", "columnMapping"}
"""Features of a table whose files, read as they are, hold rows that do not count, or columns by other names."""
_BACKOFF_MS_MIN, _BACKOFF_MS_MAX = 5, 500
_NEWEST = 1 << 62


class CommitConflict(Exception):
    """Files this commit wanted to remove are no longer in the table; it was not made. Plan again."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__(f"no longer in the table: {', '.join(paths)}")
        self.paths = paths


def read_files(store: ObjectStore, version: int | None = None) -> tuple[DeltaTable, pa.Table] | None:
    """The newest version, or that one, and Delta's flat list of its files; None when there is no table.

    Changes nothing. Raises StoreError.
    """
    try:
        table = _opened(store, version)
        return table, pa.table(table.get_add_actions(flatten=True))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise meaning(store, error) from error


def meaning(store: ObjectStore, error: Exception) -> StoreError:
    """What an error of the library, or of the system below it, is to the caller."""
    return store.explain(error) or LakeDamaged(LOG, str(error).partition("\n")[0])


class DeltaLog:
    """For one thread at a time; calls block. Several processes may commit to the same table."""

    def __init__(
        self,
        store: ObjectStore,
        checkpoint_every_count: int = CHECKPOINT_EVERY_COUNT,
        sleep: Callable[[float], None] = pause,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.tidy_failure: str | None = None
        """Why the last checkpoint or clean-up did not work; None when it did. The table is right either way."""
        self._store = store
        self._every_count = checkpoint_every_count
        self._sleep = sleep
        self._chance = chance
        self._table: DeltaTable | None = None
        self._opened_at = self._synced = -1
        """All commits up to the version `_synced` are on stable storage."""

    @property
    def table(self) -> DeltaTable:
        """As it was last looked at. Only after `open` or `create`."""
        if self._table is None:
            raise RuntimeError("the table was not opened")
        return self._table

    # ---- opening ------------------------------------------------------------------------------------------------

    def open(self) -> bool:
        """Looks at the newest version; False when there is no table. Raises DeltaError, OSError, StoreError."""
        if self._table is not None:
            self.refresh()
            return True
        self._mend()
        try:
            self._reopen()
        except TableNotFoundError:
            return False
        # An earlier process may have ended before it synced its last commits: they are synced with the next one.
        self._synced = max(-1, self.table.version() - 2 * self._every_count)
        return True

    def create(self, schema: pa.Schema, **options: Any) -> None:
        """The table is there on return, made by this call or by another process that was quicker."""
        try:
            DeltaTable.create(self._store.uri, schema, storage_options=self._store.storage_options or None, **options)
        except (DeltaError, OSError):
            if not self.open():
                raise
        else:
            self.open()
        self.sync()

    def refresh(self, anew: bool = False) -> None:
        """Looks at the newest version. Others may have cleaned away the commits that lead there: then opens anew."""
        if not anew:
            try:
                self.table.update_incremental()
                return
            except DeltaError as error:
                if self._store.explain(error) is not None:
                    raise
        self._reopen()

    def attempting(self, act: Callable[[], T]) -> T:
        """Does something that is safe to repeat, a few times. Raises StoreError."""
        for attempt in count(1):
            try:
                return act()
            except (DeltaError, OSError, StoreUnavailable) as error:
                failure = meaning(self._store, error)
                if attempt == OUTAGES_MAX or not isinstance(failure, StoreUnavailable):
                    raise failure from error
            self._back_off(attempt + 4)
        raise RuntimeError("counting ended")

    def _reopen(self) -> None:
        self._table = _opened(self._store)
        self._opened_at = self._table.version()

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

    # ---- committing ---------------------------------------------------------------------------------------------

    def change(self, act: Callable[[DeltaTable], T], look_first: bool = True) -> T:
        """Has `act` commit upon the newest version until no other commit comes between; on return it is durable.

        `act` is given the table as it is, may be called again after it has committed, and then has to see that it did.
        Without `look_first` it is first called with the table as it was last looked at. What it raises beside errors of
        the library and StoreUnavailable ends the change. Raises StoreError; after StoreUnavailable the outcome is
        unknown, and the same change may be made again.
        """
        before, outages_count = self.table.version(), 0
        for attempt in range(ATTEMPTS_MAX):
            try:
                if attempt:
                    self._back_off(attempt)
                if attempt or look_first:
                    self.refresh(anew=outages_count > 0)
                done = act(self.table)
                self.table.update_incremental()
                self.sync()
                self._tidy(before)
                return done
            except (DeltaError, OSError, StoreUnavailable) as error:
                if isinstance(error, CommitFailedError) and self._store.explain(error) is None:
                    continue  # another commit took the version
                failure = meaning(self._store, error)
                outages_count += 1
                if outages_count == OUTAGES_MAX or isinstance(failure, StoreRefused):
                    raise failure from error
        raise StoreUnavailable(f"{self._store.uri}: {ATTEMPTS_MAX} commits in a row were lost to others")

    def sync(self) -> None:
        """Syncs every commit up to the newest, those of others included: a log with a hole is no log."""
        newest = self.table.version()
        for number in range(self._synced + 1, newest + 1):
            try:
                self._store.sync([f"{LOG}/{number:020d}.json"])
            except ObjectMissing:
                pass  # another one's, and already replaced by a checkpoint
        self._synced = newest

    def _back_off(self, attempt: int) -> None:
        self._sleep(min(_BACKOFF_MS_MIN << attempt, _BACKOFF_MS_MAX) * (0.5 + self._chance()) / 1000)

    # ---- keeping it short ---------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Writes a checkpoint now and drops log files older than their keeping."""
        self.table.create_checkpoint()
        # In this order: no log file goes before the checkpoint that replaces it is durable.
        version = self.table.version()
        self._store.sync([f"{LOG}/{version:020d}.checkpoint.parquet", f"{LOG}/_last_checkpoint"])
        self._reopen()
        self.table.cleanup_metadata()

    def cut(self, below: int) -> None:
        """On return the log holds nothing of versions before that one, nor of commits that were never made."""
        old = sorted(stored.key for stored in self._store.list(LOG) if _version(stored.key) < below)
        if not old:
            return
        # Readers without a checkpoint need what is deleted here: a durable one of the newest version comes first.
        self.checkpoint()
        for key in old:
            self._store.delete(key)
        self._reopen()

    def _tidy(self, before: int) -> None:
        """Writes a checkpoint after every `checkpoint_every_count` versions, and opens the table anew as often."""
        version, every = self.table.version(), self._every_count
        if version // every == before // every and version - self._opened_at < every:
            return
        try:
            if version // every > before // every:
                self.checkpoint()
            else:
                self._reopen()
            self.tidy_failure = None
        except (DeltaError, OSError, StoreError) as error:
            self.tidy_failure = meaning(self._store, error).reason  # the commit stands; a later one tries again


def commit_actions(
    table: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    schema: DeltaSchema,
    *,
    mode: str = "append",
    transaction: Transaction | None = None,
) -> None:
    """One attempt upon the version at hand. Raises CommitFailedError when that is not the newest any more."""
    table.create_write_transaction(
        list(actions),
        mode,
        schema,
        partition_by=list(table.metadata().partition_columns) or None,
        commit_properties=CommitProperties(
            max_commit_retries=0, app_transactions=None if transaction is None else [transaction]
        ),
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
    )


def add_columns(table: DeltaTable, fields: Sequence[Field]) -> None:
    """One attempt, as above. On return the table at hand has them. Rows of files without them are null there."""
    if fields:
        table.alter.add_columns(
            list(fields),
            commit_properties=CommitProperties(max_commit_retries=0),
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
        )


def set_properties(table: DeltaTable, properties: dict[str, str]) -> None:
    """One attempt, as above. On return the table at hand has them."""
    table.alter.set_table_properties(
        properties,
        raise_if_not_exists=False,
        commit_properties=CommitProperties(max_commit_retries=0),
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
    )


def _opened(store: ObjectStore, version: int | None = None) -> DeltaTable:
    return DeltaTable(store.uri, version=version, storage_options=store.storage_options or None)


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
