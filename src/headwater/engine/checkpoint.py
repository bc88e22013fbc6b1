"""Checkpoints: the catalog catches up with the log, then the log lets go of what nobody needs.

Owns their order: rows are captured, the log is synced beyond them, the catalog commits, the log is trimmed. Never
stops writers: rows are captured in slices between other work, those that changed meanwhile again, and the last few
together with the position that all of them are true for.
"""

from __future__ import annotations

import asyncio

from headwater.engine.group import Group
from headwater.engine.loaded_streams import LoadedStreams
from headwater.engine.outcome_future import OutcomeFuture
from headwater.model.stream import Unchanged
from headwater.ports import Change

SLICE_STREAMS = 500
"""Rows captured without a pause: about 2 ms of the event loop."""
ROUNDS_MAX = 8
"""How often changed rows are captured again before the rest is captured at once, however much that is."""


async def checkpoint(group: Group, always: bool = False) -> int:
    """Writes what changed since the last checkpoint; returns how many rows that were. Cost grows with those.

    Whoever asks, they are taken one at a time. On an exception the changes stay marked and the next one tries them
    again. With `always` the log is trimmed also when nothing changed: it may have begun a new file since.
    """
    async with group.locks.checkpointing:
        return await write_out(group, always)


async def write_out(group: Group, always: bool = False) -> int:
    """The checkpoint itself, for whoever holds the lock `checkpointing` and wants to go on while no other is taken."""
    loaded = group.loaded
    await _capture(loaded)
    # No await from here to the barrier: everything below is true for one position.
    changes = loaded.take_changes()
    position = group.log.tail
    # Not later: what is let go of while this is written may have to be found again until its end is durable.
    floor = min(position, group.log_floor())
    if changes.empty and not always:
        loaded.commit(changes)
        return 0
    if not group.closed:
        group.unlogged_heads.captured()
    try:
        cancelled = await _write(group, changes.at(position, floor, group.next_sid))
    except BaseException:
        loaded.give_back(changes)
        raise
    loaded.commit(changes)
    group.log.trim(floor)
    if cancelled:
        raise asyncio.CancelledError
    return changes.count


async def _capture(loaded: LoadedStreams) -> None:
    """Captures rows until so few are left that they can be captured at once."""
    for _ in range(ROUNDS_MAX):
        if len(loaded.dirty) <= SLICE_STREAMS:
            break
        loaded.begin_capture()
        while loaded.capture(SLICE_STREAMS):
            await asyncio.sleep(0)


async def _write(group: Group, change: Change) -> bool:
    """On return the log is synced up to the change's position, and the catalog has the change.

    A write that began is waited for: only its end says what the catalog has. Returns True when the task was cancelled
    meanwhile.
    """
    future = OutcomeFuture()
    group.barrier(future)
    if not isinstance(await future.wait(), Unchanged):
        raise OSError("the log failed; the catalog stays where it was")
    writing = asyncio.ensure_future(asyncio.to_thread(group.catalog.write, change))
    cancelled = False
    while not writing.done():
        try:
            await asyncio.wait([writing])
        except asyncio.CancelledError:
            cancelled = True
    writing.result()
    return cancelled
