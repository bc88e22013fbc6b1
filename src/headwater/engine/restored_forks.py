"""Forks after a restore: the groups of a backup were cut one after another, so they may not agree about a name.

Owns what becomes of such names, before anybody serves the groups. Never touches a name that all groups agree on.

    a fork whose home does not know of it            the home was cut before it was made: it is placed now
    two streams of one name                          the older one was deleted before the other was made, in groups that
                                                     were cut before that: it is deleted now
    a home that names a group without the stream     that group was cut before it was made: the name goes home
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from headwater.engine.checkpoint import checkpoint
from headwater.engine.engine import home_of
from headwater.engine.group import Group
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.placements import Placed, Placements, encode
from headwater.model.commands import Delete
from headwater.model.row import StreamRow

_PAGE_COUNT = 1_000
_BEYOND = "\U0010ffff" * 64
"""Sorts behind every name: no bucket's is as long."""


class Mended(msgspec.Struct, frozen=True):
    forks_placed: int = 0
    """Forks that can be reached again."""
    streams_deleted: int = 0
    """Streams that had been deleted before another one of their name was made."""
    names_home: int = 0
    """Names that are free again."""


class _Stray(NamedTuple):
    """A stream that does not live where its name's home says."""

    row: StreamRow
    group: int


async def place_forks(groups: Sequence[Group]) -> Mended:
    """All groups of a node, recovered and open for writing, which nobody serves. Walks all streams. On return what was
    changed is durable. Raises Failure, OSError."""
    if len(groups) == 1:
        return Mended()
    for group in groups:
        await checkpoint(group)  # what the catalogs say is all there is
    placed = deleted = 0
    for stray in [one for group in groups for one in _strays(groups, group)]:
        key = stray.row.key
        home = groups[home_of(key, len(groups))]
        others = [
            _Stray(row, group.number)
            for group in groups
            if group.number != stray.group
            and (row := group.catalog.load(key)) is not None
            and not row.soft_deleted
            and group.has(key)
        ]
        newest = max([stray, *others], key=lambda one: (one.row.created_ms, one.group == home.number))
        for one in [stray, *others]:
            if one is not newest and groups[one.group].has(key):
                await _delete(groups[one.group], key)
                deleted += 1
        if newest is stray and groups[stray.group].has(key):
            await _place(home, key, stray.group)
            placed += 1
    return Mended(placed, deleted, await _send_home(groups))


def _strays(groups: Sequence[Group], group: Group) -> Iterator[_Stray]:
    low = ""
    while rows := group.catalog.page(low, _BEYOND, _PAGE_COUNT):
        low = rows[-1].key
        for row in rows:
            home = home_of(row.key, len(groups))
            if home != group.number and not row.soft_deleted:
                found = _placements(groups[home]).get(row.key)
                if found is None or found.group != group.number or groups[home].has(row.key):
                    yield _Stray(row, group.number)


async def _send_home(groups: Sequence[Group]) -> int:
    count = 0
    for group in groups:
        for key in group.catalog.load_things(Placements.name):
            found = _placements(group).get(key)
            if found is not None and not groups[found.group].has(key):
                await _place(group, key, None)
                count += 1
    return count


def _placements(group: Group) -> Placements:
    found = group.domains[Placements.name]
    if not isinstance(found, Placements):
        raise TypeError("a group without placements")
    return found


async def _place(home: Group, key: str, group: int | None) -> None:
    future = OutcomeFuture()
    home.note(Placements.name, encode(Placed(key, group)), future)
    await future.success()


async def _delete(group: Group, key: str) -> None:
    future = OutcomeFuture()
    group.submit(key, Delete(), future)
    await future.success()
