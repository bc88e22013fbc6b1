"""Earlier versions of the table: which can still be read, when each was the newest, and which files it listed.

Owns the answer to "as of when", from the table's own log. Changes nothing, and never opens a data file.

    log of the table    v7  v8  v9  v10 …        what is before a mark of an erasure does not count
    files               listed by v8, replaced in v9: there until gc deletes them, and v8 can be read as long
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from headwater.lake.delta_log import LOG, read_files
from headwater.lake.names import data_group, data_position
from headwater.lake.store import LakeDamaged, ObjectMissing, ObjectStore
from headwater.lake.table import ERASED

LOOKS_MAX = 10
"""Files of the log that are cleaned away while they are read: then it is listed again."""
THREADS = 16
_COMMIT = re.compile(r"(?:^|/)(\d{20})\.json$")
_CHECKPOINT = re.compile(r"(?:^|/)(\d{20})\.checkpoint\.")


class Commit(NamedTuple):
    """What made a version of the one before it."""

    version: int
    at_ms: int
    """When, as whoever made it told; never before the one before."""
    added: tuple[str, ...]
    removed: tuple[str, ...]


class Past(NamedTuple):
    """The versions that the table's log still tells of. The last one is the newest."""

    commits: list[Commit]
    first_files: frozenset[str]
    """Listed by the oldest of them."""

    def at_moment(self, ms: int) -> int | None:
        """Which commit's version was the newest then, by its place in the list; None: none of these."""
        found = bisect_right(self.commits, ms, key=lambda commit: commit.at_ms)
        return found - 1 if found else None

    def at_positions(self, positions: Mapping[int, int]) -> int | None:
        """The last one before the table had a record behind one of the positions; None: the oldest has."""
        found = None
        for at, reached in enumerate(self._reached()):
            if any(position > positions.get(group, position) for group, position in reached.items()):
                break
            found = at
        return found

    def positions_at(self, at: int) -> dict[int, int]:
        """Of the newest record that the table had by then, by group."""
        return next(reached for number, reached in enumerate(self._reached()) if number == at)

    def files_at(self, at: int) -> set[str]:
        files = set(self.first_files)
        for commit in self.commits[1 : at + 1]:
            files.difference_update(commit.removed)
            files.update(commit.added)
        return files

    def removed_after(self, at: int) -> set[str]:
        """Files that were listed then or later, and are not any more."""
        listed = {path for commit in self.commits[at + 1 :] for path in commit.removed}
        return listed - self.files_at(len(self.commits) - 1)

    def kept_from(self, gone: Collection[str]) -> int:
        """The oldest one from which on no version lists a file that is gone."""
        found = 0
        for at, commit in enumerate(self.commits):
            if any(path in gone for path in commit.removed):
                found = at
        return found

    def _reached(self) -> Iterable[dict[int, int]]:
        reached: dict[int, int] = {}
        for at, commit in enumerate(self.commits):
            for path in self.first_files if at == 0 else commit.added:
                group = data_group(path)
                reached[group] = max(reached.get(group, 0), data_position(path))
            yield dict(reached)


def read_past(store: ObjectStore) -> Past:
    """Costs a listing of the table's log and a request for each commit in it. Raises StoreError."""
    for _ in range(LOOKS_MAX):
        try:
            return _read(store)
        except ObjectMissing as missing:
            if missing.key == LOG:
                raise
    raise LakeDamaged(LOG, "its files go while they are read")


def missing_files(store: ObjectStore, paths: Iterable[str]) -> set[str]:
    """Those of the files whose objects are gone. Raises StoreError."""
    wanted = sorted(paths)
    with ThreadPoolExecutor(THREADS, "past") as pool:
        return {path for path, size in zip(wanted, pool.map(store.head, wanted), strict=True) if size is None}


def _read(store: ObjectStore) -> Past:
    keys = [stored.key for stored in store.list(LOG)]
    written = {int(found[1]): key for key in keys if (found := _COMMIT.search(key))}
    complete = {int(found[1]) for key in keys if (found := _CHECKPOINT.search(key))}
    newest = read_files(store)
    if newest is None or not written:
        raise ObjectMissing(LOG)
    last = newest[0].version()
    oldest = last
    while oldest - 1 in written:
        oldest -= 1
    # The files of a version are those of a checkpoint, and what later commits changed.
    whole = 0 if oldest == 0 else min((version for version in complete if version >= oldest - 1), default=last)
    first = max(oldest, whole, newest[0].transaction_version(ERASED) or 0)
    numbers = [number for number in range(first, last + 1) if number in written]
    if not numbers or numbers[0] != first:
        raise ObjectMissing(f"{LOG}/{first:020d}.json")
    with ThreadPoolExecutor(THREADS, "past") as pool:
        told = list(pool.map(lambda number: _told(store, written[number]), numbers))
    commits: list[Commit] = []
    for number, (ms, added, removed) in zip(numbers, told, strict=True):
        at_ms = max(ms, commits[-1].at_ms) if commits else ms
        commits.append(Commit(number, at_ms, added, removed))
    base = read_files(store, first)
    listed = [] if base is None else base[1]["path"].to_pylist()
    return Past(commits, frozenset(listed))


class _Path(msgspec.Struct):
    path: str


class _Info(msgspec.Struct):
    timestamp: int = 0


class _Line(msgspec.Struct):
    add: _Path | None = None
    remove: _Path | None = None
    commitInfo: _Info | None = None


_line = msgspec.json.Decoder(_Line).decode


def _told(store: ObjectStore, key: str) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """When a commit was made, and the files that it added and removed."""
    try:
        lines = [_line(line) for line in bytes(store.get(key)).splitlines() if line.strip()]
    except msgspec.MsgspecError as error:
        raise LakeDamaged(key, f"it is no commit ({error})") from error
    ms = max((line.commitInfo.timestamp for line in lines if line.commitInfo is not None), default=0)
    added = tuple(line.add.path for line in lines if line.add is not None)
    return ms, added, tuple(line.remove.path for line in lines if line.remove is not None)
