"""Checkpoints: the catalog catches up with the log, then the log lets go of what nobody needs.

Owns their order: rows are captured, the log is synced beyond them, the catalog commits, the log is trimmed. Never
stops writers: rows are captured in slices between other work and may be newer than the checkpoint's position.
"""

from __future__ import annotations

import asyncio

from headwater.engine.group import Group, Outcome
from headwater.model.row import StreamRow
from headwater.model.stream import Unchanged

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
    """Writes what changed since the last checkpoint; returns how many streams that were. Cost grows with those.

    On an exception the changes stay marked and the next checkpoint tries them again.
    """
    dirty, group.dirty = group.dirty, {}
    removed = dict(group.removed)
    position = group.log.tail
    if not dirty and not removed:
        return 0
    try:
        rows: list[StreamRow] = []
        streams = list(dirty.values())
        for at in range(0, len(streams), SLICE_STREAMS):
            rows.extend(stream.row() for stream in streams[at : at + SLICE_STREAMS])
            await asyncio.sleep(0)
        signal = _Signal()
        group.barrier(signal)
        if not isinstance(await signal.wait(), Unchanged):
            raise OSError("the log failed; the catalog stays where it was")
        gone = [(key, sid) for sid, key in removed.items()]
        next_sid = group.next_sid
        await asyncio.to_thread(group.catalog.write, rows, gone, position, next_sid)
    except BaseException:
        for sid, stream in dirty.items():
            if sid not in group.removed:
                group.dirty.setdefault(sid, stream)
        raise
    for sid in removed:
        group.removed.pop(sid, None)
    group.log.trim(min(position, group.log_floor()))
    return len(rows) + len(removed)
