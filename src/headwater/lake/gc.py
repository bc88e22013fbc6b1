"""Removes from the lake what nothing refers to: files without extents, orphans of crashes, superseded snapshots.

Owns which, and the order in which they go. Never rewrites a file: one that is dead only in part stays whole.

    list store and table -> ask what is logged but not in the catalog yet -> look into the catalog -> plan
    -> table forgets dead files -> catalog notes since when -> (grace) -> object deleted -> catalog forgets
    -> the table's log loses what an erasure asked for, a grace period ago

A crash between any two steps leaves something for the next run and never an extent without its file. Things are listed
before it is asked what is known of them, so whatever was finished in between is known; what is younger than the grace
period is not touched at all. Cost: a listing of the store and the table, an index lookup per file and per snapshot.

In a cluster an owner that was fenced and does not know it may still run this. What a later epoch wrote is not touched
either, and what is unused in an earlier one is never used again: it can remove garbage, never data. Files that were
swapped out stay until a catalog snapshot has the swap: a group whose log is lost goes on from one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import msgspec

from headwater.lake.names import SNAPSHOTS, data_prefix, epoch_of, snapshot_owner
from headwater.lake.store import ObjectStore, Stored
from headwater.ports import Erasure, GcFiles, LakeGcResult, Pending, Writer, breathe

_SLICE_COUNT = 256

Check = Callable[[], None]
"""Called now and then; whatever it raises ends the run where it stands."""


class Listing(msgspec.Struct, frozen=True):
    """What is old enough to be looked at, and every file of the table with the time of its commit."""

    data: list[Stored]
    snapshots: list[Stored]
    leftovers: list[Stored]
    table: dict[str, int]


class Plan(msgspec.Struct, frozen=True):
    leaving: list[str]
    """Files of the table that no extent refers to, or that the log never spoke of."""
    dying: list[str]
    """Files whose grace period begins now: `leaving`, and those that a crash kept from being noted."""
    dead: list[str]
    """Files whose grace period is over."""
    orphans: list[Stored]
    """Objects that are in neither table nor catalog."""
    snapshots: list[Stored]
    leftovers: list[Stored]
    erasure: Erasure | None = None
    """One whose grace period is over."""


def survey(
    store: ObjectStore, group: int, table: Callable[[], dict[str, int]], before_ms: int, check: Check
) -> Listing:
    """Lists what of the group's was last changed before `before_ms`. `table` is asked only when there is a file at all.

    Leftovers have no group: group 0 looks after them, and after snapshots from before there were groups.
    """
    prefix = data_prefix(group)
    data = _old(store.list(prefix), before_ms, check)
    any_data = next(iter(data), None) or next(iter(store.list(prefix)), None)
    snapshots = _old(store.list(f"{SNAPSHOTS}/{group}/" if group else SNAPSHOTS), before_ms, check)
    return Listing(
        data,
        [stored for stored in snapshots if (owner := snapshot_owner(stored.key)) is not None and owner[0] == group],
        [] if group else _old(store.leftovers(), before_ms, check),
        table() if any_data is not None else {},
    )


def _old(listed: Iterator[Stored], before_ms: int, check: Check) -> list[Stored]:
    found = []
    for number, stored in enumerate(listed):
        if stored.modified_ms <= before_ms:
            found.append(stored)
        if number % _SLICE_COUNT == 0:
            check()
    return found


def plan(listing: Listing, writer: Writer, lake_files: GcFiles, pending: Pending, before_ms: int, check: Check) -> Plan:
    """What goes. `pending` must have been gathered after the listing was made, and before this looks at the catalog."""
    known = lake_files.files()
    unused = lake_files.unused() - pending.files
    table = listing.table
    ours = {path for path in table if path.startswith(data_prefix(writer.group))}
    # Committed, but never logged: a crash or a lost answer came between, and the records settled again elsewhere.
    stray = {
        path
        for path in ours
        if path not in known
        and path not in pending.files
        and table[path] <= before_ms
        and epoch_of(path) <= writer.epoch
    }
    leaving = (unused & ours) | stray
    noted = {name: dead_ms for name in unused if (dead_ms := known.get(name)) is not None}
    erasure = lake_files.erasure()
    dead = [name for name, dead_ms in noted.items() if dead_ms <= before_ms and name not in leaving]
    swapped = {name: one.went for name, one in lake_files.standing(dead).items() if one.went is not None}
    return Plan(
        sorted(leaving),
        sorted(leaving | (unused - noted.keys())),
        sorted(name for name in dead if swapped.get(name, 0) <= pending.swaps_covered),
        [
            stored
            for stored in listing.data
            if stored.key not in known
            and stored.key not in table
            and stored.key not in pending.files
            and epoch_of(stored.key) <= writer.epoch
        ],
        [
            stored
            for stored in _breathing(listing.snapshots, check)
            if epoch_of(stored.key) <= writer.epoch and not _meant(stored.key, lake_files, pending)
        ],
        listing.leftovers,
        erasure if erasure is not None and erasure.at_ms <= before_ms else None,
    )


def _breathing(stored: list[Stored], check: Check) -> Iterator[Stored]:
    for number, one in enumerate(stored):
        yield one
        if number % _SLICE_COUNT == _SLICE_COUNT - 1:
            check()
            breathe()


def _meant(key: str, lake_files: GcFiles, pending: Pending) -> bool:
    """True for a blob that a stream refers to, and for what does not look like a snapshot of ours."""
    owner = snapshot_owner(key)
    return owner is None or key in pending.blobs or lake_files.refers(owner[1], key)


def carry_out(
    chosen: Plan,
    store: ObjectStore,
    leave_table: Callable[[list[str]], None],
    cut_log: Callable[[int], None],
    lake_files: GcFiles,
    now_ms: int,
    check: Check,
) -> LakeGcResult:
    """Does what was planned, in an order that a crash may cut anywhere. Raises StoreError; the rest stays for later."""
    if chosen.leaving:
        leave_table(chosen.leaving)
    if chosen.dying:
        lake_files.bury(chosen.dying, now_ms)
    size = 0
    for name in chosen.dead:
        check()
        size += store.head(name) or 0
        store.delete(name)
        lake_files.forget([name])
    for stored in chain(chosen.orphans, chosen.snapshots, chosen.leftovers):
        check()
        store.delete(stored.key)
        size += stored.size_bytes
    if chosen.erasure is not None:
        check()
        cut_log(chosen.erasure.version)
        lake_files.end_erasure(chosen.erasure)
    return swept(chosen, size)


def swept(chosen: Plan, size_bytes: int) -> LakeGcResult:
    return LakeGcResult(
        len(chosen.leaving),
        len(chosen.dead),
        len(chosen.orphans),
        len(chosen.snapshots),
        len(chosen.leftovers),
        size_bytes,
    )
