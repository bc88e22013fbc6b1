"""The streams of a group as subscriptions see them: by path, with what is visible of each.

Owns that view and the walk over streams that a new pattern takes in. Never loads a stream and never changes one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from headwater.engine.group import Group
from headwater.engine.loaded_stream import UNBORN
from headwater.model import glob
from headwater.model.row import StreamRow
from headwater.model.subscriptions import Config, LinkRow, key_of, path_of, reserved

SLICE_STREAMS = 500
"""Streams looked at without a pause: about 5 ms of the event loop."""
SLICE_BYTES = 256 * 1024
"""Names handed out at once, so that the event that links them stays small."""


class Streams:
    def __init__(self, group: Group) -> None:
        self._group = group

    def look(self, path: str) -> tuple[int, int] | None:
        """(sid, visible tail) of the stream, None when a reader would find none."""
        loaded = self._group.loaded
        key = key_of(path)
        live = loaded.by_key.get(key)
        if live is not None:
            return None if live.visible == UNBORN or live.soft_deleted else (live.sid, live.visible)
        return self._at_rest(loaded.catalog.load(key))

    def _at_rest(self, row: StreamRow | None) -> tuple[int, int] | None:
        if row is None or row.sid in self._group.loaded.removed or row.soft_deleted:
            return None
        return row.sid, row.tail

    def tail(self, path: str, sid: int) -> int:
        found = self.look(path)
        return found[1] if found is not None and found[0] == sid else -1

    async def link_rows(self, paths: list[str]) -> list[LinkRow]:
        """Each path with its stream's sid and tail as they are on return; 0 and 0 where there is no stream."""
        loaded = self._group.loaded
        at_rest: dict[str, tuple[int, int] | None] = {}
        for at in range(0, len(paths), SLICE_STREAMS):
            for path in paths[at : at + SLICE_STREAMS]:
                if key_of(path) not in loaded.by_key:
                    at_rest[path] = self._at_rest(loaded.catalog.load(key_of(path)))
            await asyncio.sleep(0)
        # One that grew, or was created, while others were looked at is loaded by now: only those can have changed.
        rows = []
        for path in paths:
            is_loaded = key_of(path) in loaded.by_key
            found = self.look(path) if is_loaded else at_rest.get(path)
            rows.append((path, *(found or (0, 0))))
        return rows

    async def matching(self, config: Config) -> AsyncIterator[list[LinkRow]]:
        """The streams that exist when the walk begins and that the pattern takes in, in slices."""
        if config.pattern is None:
            return
        loaded = self._group.loaded
        wanted = glob.Patterns()
        wanted.add(config.pattern, "")
        async for part in self._candidates(*glob.literal_prefix(config.pattern)):
            found: list[LinkRow] = []
            size = 0
            for key, row in part.items():
                path = path_of(key)
                if reserved(path) or path == config.wake_stream or not wanted.matching(path):
                    continue
                # A row is what a stream at rest is; a loaded one knows better.
                state = self.look(path) if row is None or key in loaded.by_key else self._at_rest(row)
                if state is not None:
                    found.append((path, *state))
                    size += len(path)
                if size >= SLICE_BYTES:
                    yield found
                    found, size = [], 0
            if found:
                yield found

    async def _candidates(self, prefix: str, literal: bool) -> AsyncIterator[dict[str, StreamRow | None]]:
        """Keys of streams that begin with the segments of `prefix`, with their rows in the catalog where they have one.

        Those that the catalog does not list yet come first: a checkpoint may move them there during the walk.
        """
        loaded = self._group.loaded
        if prefix:
            yield {key_of(prefix): None}
            if literal:
                return
        unlisted = [key for key in loaded.unlisted if not prefix or key.startswith(f"{prefix}/")]
        for at in range(0, len(unlisted), SLICE_STREAMS):
            yield dict.fromkeys(unlisted[at : at + SLICE_STREAMS])
            await asyncio.sleep(0)
        low, high = (f"{prefix}/", f"{prefix}0") if prefix else ("", "\U0010ffff")  # '0' follows '/'
        while page := loaded.catalog.page(low, high, SLICE_STREAMS):
            yield {row.key: row for row in page}
            low = page[-1].key
            await asyncio.sleep(0)
