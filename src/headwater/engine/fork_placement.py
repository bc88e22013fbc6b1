"""Where forks are created: with their source, whatever group their name belongs to.

Owns the change of a name's placement, which the name's home decides, and the refusal of creations that rest on an older
one. Never creates a stream.

    PUT of a fork -> home of its name -> where does the source live? -> Placed (logged) -> created there

A name is placed elsewhere only while no stream of it lives where it was placed before: that group is asked, answers
when what it knows is durable, and refuses from then on what was sent to it by the old placement. So there are never two
streams of one name. That refusal is remembered in memory alone: what was sent to a process that has ended is gone.

In a cluster that is not enough: the group may have another owner by then, which was not asked to refuse anything, and
who sent the creation may have lost the home without knowing. So a creation that was sent by a placement is confirmed
first: the home's owner logs the placement again, which only its true owner can.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from headwater.engine.engine import Engine
from headwater.engine.keyed_locks import KeyedLocks
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.owned_group import OwnedGroup
from headwater.engine.placements import Placed, Placement, Placements, encode
from headwater.errors import Failure, NotServedHere


class ForkPlacement:
    """An `Observer` of all groups of this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._locks = KeyedLocks()
        self._deciding: dict[str, int] = {}
        """Names whose placement is being decided, and by how many; who only waits for that does not count."""
        self._sent: dict[str, int] = {}
        """Creations that were sent to where their names are placed, and have not been answered."""
        self._tidying: set[asyncio.Task[None]] = set()
        engine.questions.register("placement", self._answer_placement)
        engine.questions.register("placement_left", self._answer_left)
        engine.questions.register("placement_confirm", self._answer_confirm)
        engine.questions.register("placement_tidy", self._tidy)
        if engine.groups_count > 1:
            engine.observe(self)

    def is_deciding(self, key: str) -> bool:
        """True while it is being decided where the name is placed: a creation should wait for `decided`."""
        return key in self._deciding

    async def decided(self, key: str) -> None:
        async with self._locks.of(key):
            pass

    def sent(self, key: str) -> Callable[[], None]:
        """A creation is sent to where its name is placed, which stays so until the returned is called."""
        self._sent[key] = self._sent.get(key, 0) + 1

        def answered() -> None:
            self._sent[key] -= 1
            if not self._sent[key]:
                del self._sent[key]

        return answered

    @asynccontextmanager
    async def _decide(self, key: str) -> AsyncIterator[None]:
        self._deciding[key] = self._deciding.get(key, 0) + 1
        try:
            async with self._locks.of(key):
                yield
        finally:
            self._deciding[key] -= 1
            if not self._deciding[key]:
                del self._deciding[key]

    async def place(self, key: str, source: str) -> None:
        """On return a fork of `source` can be created by the name `key`. Called where the home of `key` is."""
        engine = self._engine
        async with self._decide(key):
            wanted = await engine.locate(source)
            home = engine.home(key)
            current = engine.serving(home).placements.get(key)
            if wanted == (home if current is None else current.group) or engine.serving(home).group.has(key):
                return
            # Where a stream of that name lives already, the creation is refused by what it finds.
            if current is None or await self._is_left(key, current):
                await self._log(key, None if wanted == home else wanted)

    def is_doubtful(self, group: int) -> bool:
        """Whether a creation that was sent to the group by a placement has to be confirmed. A group that has one owner
        while its process runs needs none."""
        owned = self._engine.owned.get(group)
        return owned is not None and owned.group.epoch > 0

    async def confirm(self, key: str, group: int) -> OwnedGroup:
        """On return the name was placed in `group`, which this process serves, at some time since the call: whoever
        places it elsewhere later asks whoever serves the group then. Valid as long as the returned is served here.

        Raises NotServedHere when the name was placed elsewhere, and what asking raises.
        """
        owned = self._engine.serving(group)
        home = self._engine.home(key)
        if not await self._engine.questions.ask_owner(home, "placement_confirm", key, group):
            raise NotServedHere(group)
        if self._engine.owned.get(group) is not owned:
            raise NotServedHere(group)
        return owned

    async def _is_left(self, key: str, current: Placement) -> bool:
        """True when no stream of that name lives where it was placed, and none will be created there by that."""
        questions = self._engine.questions
        answer = await questions.ask_owner(current.group, "placement_left", key, current.group, current.version)
        return bool(answer)

    async def _log(self, key: str, group: int | None) -> None:
        future = OutcomeFuture()
        home = self._engine.serving(self._engine.home(key)).group
        home.note(Placements.name, encode(Placed(key, group)), future)
        await future.success()

    # ---- answers --------------------------------------------------------------------------------------------------

    async def _answer_placement(self, key: str) -> int:
        return self._engine.place(key)

    async def _answer_confirm(self, key: str, group: int) -> bool:
        current = self._engine.serving(self._engine.home(key)).placements.get(key)
        if current is None or current.group != group:
            return False
        await self._log(key, group)
        return True

    async def _answer_left(self, key: str, number: int, version: int) -> bool:
        group = self._engine.serving(number).group
        if group.has(key):
            return False
        self._engine.bar(key, version)
        future = OutcomeFuture()
        group.after_pending(future)
        await future.success()
        return True

    async def _tidy(self, key: str) -> None:
        """A stream that lived elsewhere was deleted: its name goes back to its home."""
        async with self._decide(key):
            current = self._engine.serving(self._engine.home(key)).placements.get(key)
            if current is not None and key not in self._sent and await self._is_left(key, current):
                await self._log(key, None)

    # ---- as an Observer -------------------------------------------------------------------------------------------

    def grown(self, stream: LoadedStream, start: int) -> None:
        """Nothing changes where a stream lives."""

    def deleted(self, stream: LoadedStream) -> None:
        home = self._engine.home(stream.key)
        if home != stream.sid % self._engine.groups_count:
            task = asyncio.get_running_loop().create_task(self._tell(home, stream.key))
            self._tidying.add(task)
            task.add_done_callback(self._tidying.discard)

    async def _tell(self, home: int, key: str) -> None:
        try:
            await self._engine.questions.ask_owner(home, "placement_tidy", key)
        except Failure:
            pass  # the placement stays, and does no harm: see `placements`

    def pass_ended(self) -> None:
        """Nothing waits for the end of a pass."""

    def left(self) -> None:
        """Whoever serves the group now tells of its streams."""
