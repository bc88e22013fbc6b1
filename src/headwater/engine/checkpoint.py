"""Checkpoints: the catalog catches up with the log, then the log lets go of what nobody needs.

Owns their order: rows are captured, the log is synced beyond them, the catalog commits, the log is trimmed. Never
stops writers: rows are captured in slices between other work, those that changed meanwhile again, and the last few
together with the position that all of them are true for.
"""

from __future__ import annotations

import asyncio

from headwater.engine.group import Group
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.loaded_streams import LoadedStreams
from headwater.engine.outcome_future import OutcomeFuture
from headwater.model.buckets import Bucket
from headwater.model.row import StreamRow
from headwater.model.stream import Unchanged
from headwater.ports import Change, ReadCount

SLICE_STREAMS = 500
"""Rows captured without a pause: about 2 ms of the event loop."""
ROUNDS_MAX = 8
"""How often changed rows are captured again before the rest is captured at once, however much that is."""


async def checkpoint(group: Group, always: bool = False) -> int:
    """Writes what changed since the last checkpoint; returns how many rows that were. Cost grows with those.

    Whoever asks, they are taken one at a time. On an exception the changes stay marked and the next one tries them
    again. With `always` the log is trimmed also when nothing changed: it may have begun a new file since.
    """
    async with group.loaded.checkpointing:
        return await write_out(group, always)


async def write_out(group: Group, always: bool = False) -> int:
    """The checkpoint itself, for whoever holds `loaded.checkpointing` and wants to go on while no other is taken."""
    loaded = group.loaded
    captured = loaded.capturing = {}
    buckets: dict[str, Bucket] = {}
    things: dict[str, dict[str, bytes | None]] = {}
    cuts: dict[int, int] = {}
    reads: list[ReadCount] = []
    try:
        rows = await _capture(loaded, captured)
        # No await from here to the barrier: everything below is true for one position.
        buckets, loaded.dirty_buckets = loaded.dirty_buckets, {}
        things = {name: domain.changes() for name, domain in group.domains.items()}
        cuts, loaded.cuts = loaded.cuts, {}
        reads = group.usage.take()
        extents = {sid: list(fresh) for sid, fresh in loaded.new_extents.items()}
        files = list(loaded.new_files)
        removed = dict(loaded.removed)
        listed = dict(loaded.unlisted)
        loaded.losing, loaded.lost = loaded.lost, {}
        position = group.log.tail
        # Not later: what is let go of while this is written may have to be found again until its end is durable.
        floor = min(position, group.log_floor())
        change = Change(
            [row for sid, row in rows.items() if sid not in removed],
            [bucket.row() for bucket in buckets.values()],
            [(key, sid) for sid, key in removed.items()],
            [extent for fresh in extents.values() for extent in fresh],
            files,
            list(cuts.items()),
            [(domain, name, row) for domain, changes in things.items() for name, row in changes.items()],
            position,
            floor,
            group.next_sid,
            reads,
        )
        count = len(change.rows) + len(change.gone) + len(change.buckets) + len(change.things)
        if not (count or extents or files or cuts or reads or always):
            return 0
        future = OutcomeFuture()
        group.barrier(future)
        if not isinstance(await future.wait(), Unchanged):
            raise OSError("the log failed; the catalog stays where it was")
        await asyncio.to_thread(group.catalog.write, change)
    except BaseException:
        for sid, stream in captured.items():
            if sid not in loaded.removed:
                loaded.dirty.setdefault(sid, stream)
        for name, bucket in buckets.items():
            loaded.dirty_buckets.setdefault(name, bucket)
        loaded.cuts = cuts | loaded.cuts
        loaded.lost = loaded.losing | loaded.lost
        group.usage.give_back(reads)
        for name, changes in things.items():
            group.domains[name].retry(changes)
        raise
    finally:
        loaded.capturing, loaded.losing = {}, {}
    for sid in removed:
        loaded.removed.pop(sid, None)
    del loaded.new_files[: len(files)]
    for sid, written in extents.items():
        fresh = loaded.new_extents.get(sid)
        if fresh is not None:
            del fresh[: len(written)]
            if not fresh:
                del loaded.new_extents[sid]
    for key, stream in listed.items():
        if loaded.unlisted.get(key) is stream:
            del loaded.unlisted[key]
    group.log.trim(floor)
    return count


async def _capture(loaded: LoadedStreams, captured: dict[int, LoadedStream]) -> dict[int, StreamRow]:
    """Rows of all that is dirty, true for the moment of return. Notes in `captured` what is not marked any more."""
    rows: dict[int, StreamRow] = {}
    for _ in range(ROUNDS_MAX):
        if len(loaded.dirty) <= SLICE_STREAMS:
            break
        dirty, loaded.dirty = loaded.dirty, {}
        captured.update(dirty)
        streams = list(dirty.values())
        for at in range(0, len(streams), SLICE_STREAMS):
            for stream in streams[at : at + SLICE_STREAMS]:
                rows[stream.sid] = stream.row()
            await asyncio.sleep(0)
    dirty, loaded.dirty = loaded.dirty, {}
    captured.update(dirty)
    for stream in dirty.values():
        rows[stream.sid] = stream.row()
    return rows
