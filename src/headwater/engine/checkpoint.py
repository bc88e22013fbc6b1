"""Checkpoints: the catalog catches up with the log, then the log lets go of what nobody needs.

Owns their order: rows are captured, the log is synced beyond them, the catalog commits, the log is trimmed. Never
stops writers: rows are captured in slices between other work and may be newer than the checkpoint's position.
"""

from __future__ import annotations

import asyncio

from headwater.engine.group import Group, Outcome
from headwater.model.row import StreamRow
from headwater.model.stream import Unchanged
from headwater.world import Change

SLICE_STREAMS = 500
"""Rows captured without a pause: about 2 ms of the event loop."""


class _Signal:
    """A waiter that a coroutine can await."""

    def __init__(self) -> None:
        self._future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def resolve(self, outcome: Outcome) -> None:
        if not self._future.done():
            self._future.set_result(outcome)

    async def wait(self) -> Outcome:
        return await self._future


async def checkpoint(group: Group) -> int:
    """Writes what changed since the last checkpoint; returns how many rows that were. Cost grows with those.

    On an exception the changes stay marked and the next checkpoint tries them again.
    """
    shelf = group.shelf
    dirty, shelf.dirty = shelf.dirty, {}
    dirty_buckets, shelf.dirty_buckets = shelf.dirty_buckets, {}
    things = {name: domain.changes() for name, domain in group.domains.items()}
    extents = {sid: list(fresh) for sid, fresh in shelf.new_extents.items()}
    files = list(shelf.new_files)
    cuts, shelf.cuts = shelf.cuts, {}
    removed = dict(shelf.removed)
    listed = dict(shelf.unlisted)
    position = group.log.tail
    # Not later: what is let go of meanwhile may still have to be found again, until its end is durable.
    floor = min(position, group.log_floor())
    if not (dirty or removed or dirty_buckets or extents or cuts or any(things.values())):
        return 0
    try:
        rows: list[StreamRow] = []
        streams = list(dirty.values())
        for at in range(0, len(streams), SLICE_STREAMS):
            part = streams[at : at + SLICE_STREAMS]
            # One that was deleted meanwhile must not come back as a row that says otherwise.
            rows.extend(stream.row() for stream in part if stream.sid not in shelf.removed)
            await asyncio.sleep(0)
        change = Change(
            rows,
            [bucket.row() for bucket in dirty_buckets.values()],
            [(key, sid) for sid, key in removed.items()],
            [extent for fresh in extents.values() for extent in fresh],
            files,
            list(cuts.items()),
            [(domain, name, row) for domain, rows in things.items() for name, row in rows.items()],
            position,
            floor,
            group.next_sid,
        )
        signal = _Signal()
        group.barrier(signal)
        if not isinstance(await signal.wait(), Unchanged):
            raise OSError("the log failed; the catalog stays where it was")
        await asyncio.to_thread(group.catalog.write, change)
    except BaseException:
        for sid, stream in dirty.items():
            if sid not in shelf.removed:
                shelf.dirty.setdefault(sid, stream)
        for name, bucket in dirty_buckets.items():
            shelf.dirty_buckets.setdefault(name, bucket)
        shelf.cuts = cuts | shelf.cuts
        for name, changes in things.items():
            group.domains[name].retry(changes)
        raise
    for sid in removed:
        shelf.removed.pop(sid, None)
    del shelf.new_files[: len(files)]
    for sid, written in extents.items():
        fresh = shelf.new_extents.get(sid)
        if fresh is not None:
            del fresh[: len(written)]
            if not fresh:
                del shelf.new_extents[sid]
    for key, stream in listed.items():
        if shelf.unlisted.get(key) is stream:
            del shelf.unlisted[key]
    group.log.trim(floor)
    return len(change.rows) + len(change.gone) + len(change.buckets) + len(change.things)
