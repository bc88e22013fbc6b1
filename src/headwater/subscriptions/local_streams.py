"""The streams of this process's groups as subscriptions see them: by path, with what is visible of each.

Owns that view, and the answers to what other processes ask about these streams. Never loads a stream to look at it.
"""

from __future__ import annotations

import asyncio
from heapq import nsmallest

from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import UNBORN
from headwater.engine.outcome_future import OutcomeFuture
from headwater.errors import BadQuery, OffsetGone
from headwater.model import glob
from headwater.model.commands import Append, Producer
from headwater.model.row import StreamRow
from headwater.model.subscriptions import key_of, path_of, reserved

SLICE_STREAMS = 500
"""Streams looked at without a pause: about 5 ms of the event loop."""

State = tuple[int, int, int]
"""(sid, visible tail, where it forked off its source) of a stream that a reader would find."""
Row = tuple[str, int, int, int]
"""A path and its state."""
NONE: State = (0, 0, 0)
ELSEWHERE = -1
"""In place of a sid: the stream lives in the group that stands in place of the tail."""


class LocalStreams:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        questions = engine.questions
        questions.register("subscriptions_look", self._answer_look)
        questions.register("subscriptions_groups", self._answer_groups)
        questions.register("subscriptions_matching", self._answer_matching)
        questions.register("subscriptions_inside", self._answer_inside)
        questions.register("subscriptions_announce", self._answer_announce)

    def look(self, path: str, group: int) -> State | None:
        """The stream of that name in a group of this process."""
        loaded = self._engine.serving(group).group.loaded
        key = key_of(path)
        live = loaded.by_key.get(key)
        if live is not None:
            return None if live.visible == UNBORN or live.soft_deleted else (live.sid, live.visible, live.fork_at)
        return self._at_rest(loaded.catalog.load(key), group)

    def _at_rest(self, row: StreamRow | None, group: int) -> State | None:
        if row is None or row.sid in self._engine.serving(group).group.loaded.removed or row.soft_deleted:
            return None
        return row.sid, row.tail, 0 if row.forked is None else row.forked.at

    async def look_all(self, places: list[tuple[str, int]]) -> list[State | None]:
        """The same for many, each as it is on return."""
        at_rest: list[State | None] = []
        for at in range(0, len(places), SLICE_STREAMS):
            if at:
                await asyncio.sleep(0)
            at_rest.extend(self.look(path, group) for path, group in places[at : at + SLICE_STREAMS])
        if len(places) <= SLICE_STREAMS:
            return at_rest
        # One that grew or was created while others were looked at is loaded by now; one that was deleted is removed.
        for at, (path, group) in enumerate(places):
            loaded, found = self._engine.serving(group).group.loaded, at_rest[at]
            if key_of(path) in loaded.by_key or (found is not None and found[0] in loaded.removed):
                at_rest[at] = self.look(path, group)
        return at_rest

    def page(self, patterns: list[str], after: str, groups: list[int]) -> tuple[list[Row], str | None]:
        """Streams of these groups that the patterns take in, in order of their keys, of those after `after`; and where
        to go on. Raises GroupMoved when one of the groups is not served here."""
        for number in groups:
            self._engine.serving(number)
        wanted = glob.Patterns()
        for pattern in patterns:
            wanted.add(pattern, "")
        exact, ranges = _candidates(patterns)
        found: dict[str, list[tuple[int, StreamRow | None]]] = {}
        end: str | None = None
        for low, high in ranges:
            if high <= after:
                continue
            for number in groups:
                last = self._range(number, max(low, after), high, found)
                if last is not None:
                    end = last if end is None else min(end, last)
            if end is not None:
                break
        for key in exact:
            if key > after and (end is None or key <= end):
                found[key] = [(number, None) for number in groups]
        rows: list[Row] = []
        for key in sorted(found):
            path = path_of(key)
            if (end is not None and key > end) or reserved(path) or not wanted.matching(path):
                continue
            for number, row in found[key]:
                # A row is what a stream at rest is; a loaded one knows better.
                is_loaded = row is None or key in self._engine.serving(number).group.loaded.by_key
                state = self.look(path, number) if is_loaded else self._at_rest(row, number)
                if state is not None:
                    rows.append((path, *state))
        return rows, end

    def _range(
        self, number: int, low: str, high: str, found: dict[str, list[tuple[int, StreamRow | None]]]
    ) -> str | None:
        """Adds the first keys of a group between `low` and `high`; returns the last of them if there may be more."""
        loaded = self._engine.serving(number).group.loaded
        part: dict[str, StreamRow | None] = {row.key: row for row in loaded.catalog.page(low, high, SLICE_STREAMS)}
        full = len(part) == SLICE_STREAMS
        fresh = nsmallest(SLICE_STREAMS, (key for key in loaded.unlisted if low < key < high))
        lasts = [list(part)[-1]] if full else []
        if len(fresh) == SLICE_STREAMS:
            lasts.append(fresh[-1])
        for key in fresh:
            part.setdefault(key, None)
        for key, row in part.items():
            found.setdefault(key, []).append((number, row))
        return min(lasts, default=None)

    # ---- answers --------------------------------------------------------------------------------------------------

    async def _answer_look(self, places: list[tuple[str, int]]) -> list[State]:
        engine = self._engine
        found = [state or NONE for state in await self.look_all(places)]
        for at, (path, group) in enumerate(places):
            engine.serving(group)  # one that left meanwhile may have placed the name elsewhere since
            key = key_of(path)
            if engine.home(key) == group and (lives_in := engine.place(key)) != group:
                found[at] = (ELSEWHERE, lives_in, 0)
        return found

    async def _answer_groups(self) -> dict[int, int]:
        """The groups that are served here, and the epoch of each."""
        return {number: owned.group.epoch for number, owned in self._engine.owned.items()}

    async def _answer_matching(
        self, patterns: list[str], after: str, groups: list[int]
    ) -> tuple[list[Row], str | None]:
        return self.page(patterns, after, groups)

    async def _answer_inside(self, places: list[tuple[str, int, int]]) -> list[bool]:
        """For each path, sid and offset: whether that lies inside a record."""
        found: list[bool] = []
        for path, sid, offset in places:
            stream = self._engine.serving(sid % self._engine.groups_count).group.loaded.find(key_of(path))
            inside = False
            if stream is not None and stream.sid == sid and offset < stream.visible:
                try:
                    await self._engine.read_now(stream, offset, 1)
                except BadQuery:
                    inside = True
                except OffsetGone:
                    pass  # retention took it since it was read
            found.append(inside)
        return found

    async def _answer_announce(self, group: int, path: str, payload: bytes, producer: tuple[str, int] | None) -> None:
        """Appends a wake event; returns when it is durable. Its producer makes one that is repeated appear once."""
        future = OutcomeFuture()
        command = Append([payload], None, None if producer is None else Producer(*producer, 0))
        self._engine.serving(group).group.submit(key_of(path), command, future)
        await future.success()


def _candidates(patterns: list[str]) -> tuple[set[str], list[tuple[str, str]]]:
    """Keys that the patterns name outright, and ranges (both ends excluded) that hold every other match."""
    exact: set[str] = set()
    prefixes: set[str] = set()
    for pattern in patterns:
        prefix, literal = glob.literal_prefix(pattern)
        if prefix:
            exact.add(key_of(prefix))
        if not literal:
            prefixes.add(prefix)
    if "" in prefixes:
        return set(), [("", "\U0010ffff")]
    ranges: list[tuple[str, str]] = []
    for low, high in sorted((f"{prefix}/", f"{prefix}0") for prefix in prefixes):  # '0' follows '/'
        if not ranges or low >= ranges[-1][1]:
            ranges.append((low, high))
    return exact, ranges
