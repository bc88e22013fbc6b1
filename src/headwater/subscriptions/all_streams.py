"""The streams of all groups as subscriptions see them, whichever process serves them.

Owns whom to ask, and that what is found is still true when it is handed out. Never decides about a subscription.

An answer of another process may be overtaken by a hint of it that is applied meanwhile. Every lookup keeps the paths
of such hints, and asks for those again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from headwater.engine.engine import Engine
from headwater.errors import BadAck, Failure, GroupMoved, MemberUnavailable, OutcomeUnknown
from headwater.model.subscriptions import Tail, key_of
from headwater.subscriptions.local_streams import ELSEWHERE, LocalStreams, Row, State

AWAY = (MemberUnavailable, OutcomeUnknown, GroupMoved)
"""What a question ends with when the other process cannot answer it."""
QUESTION_STREAMS = 2_000
"""Streams in one question."""
NOBODY: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class Looked:
    found: dict[str, State] = field(default_factory=dict)
    unknown: dict[str, Failure] = field(default_factory=dict)
    """Paths whose process does not answer, and how it failed."""

    def tail(self, path: str, sid: int) -> int:
        """See `model.Tail`."""
        state = self.found.get(path)
        return state[1] if state is not None and state[0] == sid else -1

    def tail_or(self, unknown: int) -> Tail:
        """The same, with `unknown` for a stream whose process does not answer."""
        return lambda path, sid: unknown if path in self.unknown else self.tail(path, sid)

    def demand(self) -> None:
        """Raises the failure of a process that does not answer."""
        for failure in self.unknown.values():
            raise failure


class AllStreams:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.local = LocalStreams(engine)
        self._touched: list[set[str]] = []
        """For each lookup under way: paths of hints that were applied since it asked."""

    def touch(self, path: str) -> None:
        """A hint about the stream was applied: what a lookup hears of it from now on may be older."""
        for touched in self._touched:
            touched.add(path)

    @contextmanager
    def _touching(self) -> Iterator[set[str]]:
        touched: set[str] = set()
        self._touched.append(touched)
        try:
            yield touched
        finally:
            self._touched = [other for other in self._touched if other is not touched]

    def group_of(self, sid: int) -> int:
        return sid % self._engine.groups_count

    def place(self, path: str) -> int:
        """The group where the search for a stream begins."""
        engine = self._engine
        home = engine.home(key_of(path))
        return engine.place(key_of(path)) if home in engine.owned else home

    async def look(self, places: dict[str, int], owners: Mapping[int, int] = NOBODY) -> Looked:
        """The stream of each path, sought in its group, as it is on return. `owners`: who is asked about a group, if
        that is not whoever is seen to serve it."""
        looked, where, owned = Looked(), dict(places), self._engine.owned
        todo = {path for path, group in where.items() if group not in owned}
        asked: set[str] = set()
        with self._touching() as touched:
            while True:
                touched.clear()
                moved = await self._look_elsewhere(todo, where, looked, owners) if todo else set()
                asked |= todo
                # Last, and anew in every round: no hint tells that these changed.
                here = [place for place in where.items() if place[1] in owned]
                asked.difference_update(path for path, _ in here)
                try:
                    found_here = await self.local.look_all(here)
                except GroupMoved:
                    found_here = []
                again = (moved | touched) & where.keys() - looked.unknown.keys()
                # One whose group has left since has been looked for nowhere.
                todo = {path for path, group in where.items() if group not in owned and path not in asked}
                todo |= {path for path in again if where[path] not in owned}
                if not todo and len(found_here) == len(here) and all(group in owned for _, group in here):
                    break
        for (path, _), found in zip(here, found_here, strict=True):
            looked.found.pop(path, None)
            looked.unknown.pop(path, None)
            if found is not None:
                looked.found[path] = found
        return looked

    async def _look_elsewhere(
        self, paths: set[str], where: dict[str, int], looked: Looked, owners: Mapping[int, int]
    ) -> set[str]:
        """Asks for the paths; returns those that live in another group than `where` said, and corrects that."""
        by_member: dict[int, list[tuple[str, int]]] = {}
        for path in paths:
            group = where[path]
            try:
                member = owners[group] if group in owners else self._engine.questions.owner(group)
            except MemberUnavailable as failure:
                looked.found.pop(path, None)
                looked.unknown[path] = failure
            else:
                by_member.setdefault(member, []).append((path, group))
        asked = [
            (member, part[at : at + QUESTION_STREAMS])
            for member, part in by_member.items()
            for at in range(0, len(part), QUESTION_STREAMS)
        ]
        moved: set[str] = set()
        for answer in await asyncio.gather(*(self._ask(member, part) for member, part in asked)):
            for path, state in answer.items():
                looked.found.pop(path, None)
                if isinstance(state, Failure):
                    looked.unknown[path] = state
                elif state[0] == ELSEWHERE:
                    where[path] = state[1]
                    moved.add(path)
                elif state[0]:
                    looked.found[path] = state
        return moved

    async def _ask(self, member: int, places: list[tuple[str, int]]) -> dict[str, State | Failure]:
        try:
            states = await self._engine.questions.ask(member, "subscriptions_look", places, into=list[State])
        except AWAY as failure:
            return {path: failure for path, _ in places}
        return {path: state for (path, _), state in zip(places, states, strict=True)}

    async def matching(self, member: int, patterns: list[str], groups: list[int]) -> AsyncIterator[list[Row]]:
        """The streams of a process's groups that the patterns take in, in slices. What a hint told of meanwhile is left
        out. Raises GroupMoved when one of the groups leaves it."""
        questions = self._engine.questions
        after: str | None = ""
        while after is not None:
            with self._touching() as touched:
                rows, after = await questions.ask(
                    member, "subscriptions_matching", patterns, after, groups, into=tuple[list[Row], str | None]
                )
            # What has come to this process since is known here, and compared here.
            come = self._engine.owned.keys() if member != questions.me else ()
            yield [row for row in rows if row[0] not in touched and self.group_of(row[1]) not in come]
            await asyncio.sleep(0)

    async def check_edges(self, acks: list[tuple[str, int, int]]) -> None:
        """Raises BadAck for a path, sid and offset inside a record: a worker could not read on from there."""
        by_group: dict[int, list[tuple[str, int, int]]] = {}
        for ack in acks:
            by_group.setdefault(self.group_of(ack[1]), []).append(ack)
        for group, part in by_group.items():
            inside = await self._engine.questions.ask_owner(group, "subscriptions_inside", part, into=list[bool])
            for (path, _, offset), is_inside in zip(part, inside, strict=True):
                if is_inside:
                    raise BadAck(f"offset {offset} of {path!r} lies inside a message")

    async def announce(self, path: str, payload: bytes, producer: tuple[str, int] | None) -> None:
        """Appends a wake event to the stream. Raises what its process refused, or that it cannot be reached."""
        group = await self._engine.locate(key_of(path))
        await self._engine.questions.ask_owner(group, "subscriptions_announce", group, path, payload, producer)
