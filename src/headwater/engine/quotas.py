"""How much a bucket may hold: streams and bytes, over all groups, judged where its streams are.

Owns the room that this process gives out in each bucket until it is looked again. Never counts what there is: buckets'
rows do that, with every checkpoint, and streams that changed since are looked at.

    room = (the limit - what all processes have) / how many processes there are

It is found out anew every LOOK_S for buckets that were written to lately, and at once, by what this process alone has,
for one that is written to for the first time. What is taken meanwhile is taken from the room. So

- one process lets in exactly as many streams as there may be, and at most one append beyond the bytes;
- of several each lets in its share, at least one stream and one append of it while there is any room: together at most
  one of each for every process beyond the limit, and what was taken of the same room twice because a process had not
  heard of it yet: that of LOOK_S, and of the time in which another process does not answer;
- of streams that changed since the last checkpoint LOOKED_MAX are looked at; what the others grew by in a group is
  counted when the checkpoint is taken.

Bounds: ROOMS_MAX buckets. Overflow, and idle for IDLE_LOOKS: forgotten, and looked at anew when they are written to.
The node's own bucket has no limit: what it writes there its clients have no part in.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice

import structlog

from headwater.engine.engine import Engine
from headwater.engine.owned_group import OwnedGroup
from headwater.errors import BucketFull, Failure
from headwater.model.events import Appended, Created
from headwater.model.names import bucket_of
from headwater.model.stream import CreatedAndAppended
from headwater.security.policy import NODE_BUCKET

LOOK_S = 1.0
LOOKED_MAX = 10_000
"""Streams looked at in each pass: about 4 ms of the event loop."""
ROOMS_MAX = 10_000
IDLE_LOOKS = 60
NAMES_MAX = 1_000
"""Buckets that another process is asked about at a time."""
_QUESTION = "bucket_use"
Use = tuple[int, int]
"""Streams and bytes."""

log = structlog.get_logger("headwater.quotas")


class Room:
    """What this process may still let into one bucket."""

    __slots__ = ("bytes_left", "elsewhere", "idle_looks", "streams_left")

    def __init__(self) -> None:
        self.streams_left = self.bytes_left = 0
        self.elsewhere: Use = (0, 0)
        """What other processes had when they were last asked."""
        self.idle_looks = 0


class Quotas:
    """Of one process. A listener of the engine."""

    def __init__(self, engine: Engine, streams_max: int, bytes_max: int) -> None:
        """0 is no limit."""
        self._engine = engine
        self._streams_max = streams_max
        self._bytes_max = bytes_max
        self._rooms: dict[str, Room] = {}
        self._growth: dict[str, int] = {}
        """What streams of a bucket grew by since checkpoints counted them. See LOOKED_MAX."""
        self._growth_at_s = -LOOK_S
        self._task: asyncio.Task[None] | None = None
        self.refused = {"bucket_streams": 0, "bucket_bytes": 0}
        """Since the start."""
        engine.questions.register(_QUESTION, self._answer)
        engine.listeners.append(self)
        for owned in engine.owned.values():
            self.entered(owned)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._look_again())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def entered(self, owned: OwnedGroup) -> None:
        owned.group.demand_room = self.demand
        self._rooms.clear()  # they were found without it

    def left(self, owned: OwnedGroup) -> None:
        owned.group.demand_room = None

    # ---- for groups ---------------------------------------------------------------------------------------------

    def demand(self, key: str, event: object) -> None:
        """Called with what was decided and is about to be logged. Raises BucketFull."""
        if type(event) is Appended:
            streams_count, size = 0, event.end - event.start
        elif type(event) is Created:
            streams_count, size = 1, sum(map(len, event.records))
        elif type(event) is CreatedAndAppended:
            streams_count, size = 1, event.appended.end - event.appended.start
        else:
            return
        name = bucket_of(key)
        room = self._rooms.get(name) or self._found(name)
        if room.streams_left < streams_count:
            self.refused["bucket_streams"] += 1
            raise BucketFull(name, "streams", self._streams_max)
        if size and room.bytes_left <= 0:
            self.refused["bucket_bytes"] += 1
            raise BucketFull(name, "bytes", self._bytes_max)
        room.streams_left -= streams_count
        room.bytes_left -= size
        room.idle_looks = 0

    # ---- what there is ------------------------------------------------------------------------------------------

    def _found(self, name: str) -> Room:
        if len(self._rooms) >= ROOMS_MAX:
            del self._rooms[next(iter(self._rooms))]
        room = self._rooms[name] = Room()
        self._open(name, room, self._here(name))
        return room

    def _open(self, name: str, room: Room, here: Use) -> None:
        """Gives out what is left, `here` being what this process has."""
        processes_count = max(1, len(self._engine.questions.everyone))
        used = here[0] + room.elsewhere[0], here[1] + room.elsewhere[1]
        limited = name != NODE_BUCKET
        room.streams_left = _share(self._streams_max, used[0], processes_count) if limited else _UNLIMITED
        room.bytes_left = _share(self._bytes_max, used[1], processes_count) if limited else _UNLIMITED

    def _here(self, name: str) -> Use:
        found = [owned.group.loaded.bucket(name) for owned in self._engine.owned.values()]
        buckets = [bucket for bucket in found if bucket is not None]
        stored = sum(bucket.stored for bucket in buckets) + self._growth.get(name, 0)
        return sum(bucket.count for bucket in buckets), stored

    def _count_growth(self) -> None:
        growth: dict[str, int] = {}
        share = LOOKED_MAX // max(1, len(self._engine.owned))
        for owned in self._engine.owned.values():
            for stream in islice(owned.group.loaded.dirty.values(), share):
                name = bucket_of(stream.key)
                growth[name] = growth.get(name, 0) + stream.own_bytes - stream.counted
        self._growth, self._growth_at_s = growth, self._engine.clock.monotonic_s()

    async def _answer(self, names: list[str]) -> list[Use]:
        if self._engine.clock.monotonic_s() - self._growth_at_s >= LOOK_S / 2:
            self._count_growth()
        return [self._here(name) for name in names]

    async def _look_again(self) -> None:
        while True:
            await self._engine.clock.sleep(LOOK_S)
            try:
                await self.look()
            except Exception:
                log.exception("quotas")

    async def look(self) -> None:
        """Finds out what room there is in buckets that were written to lately."""
        for name in [name for name, room in self._rooms.items() if room.idle_looks >= IDLE_LOOKS]:
            del self._rooms[name]
        rooms = dict(self._rooms)
        names = list(rooms)
        for at in range(0, len(names), NAMES_MAX):
            await self._ask_others(names[at : at + NAMES_MAX], rooms)
        # No await from here on: what was taken meanwhile is among what there is now.
        self._count_growth()
        for name, room in rooms.items():
            room.idle_looks += 1
            self._open(name, room, self._here(name))

    async def _ask_others(self, names: list[str], rooms: dict[str, Room]) -> None:
        """Those that do not answer are taken to have what they had, until all do."""
        questions = self._engine.questions
        others = [member for member in questions.everyone if member != questions.me]
        if not others:
            return
        try:
            asked = (questions.ask(member, _QUESTION, names, into=list[Use]) for member in others)
            answers = await asyncio.gather(*asked)
        except Failure:
            return
        for index, name in enumerate(names):
            found = [answer[index] for answer in answers]
            rooms[name].elsewhere = sum(use[0] for use in found), sum(use[1] for use in found)


_UNLIMITED = 1 << 62


def _share(limit: int, used: int, processes_count: int) -> int:
    """Of what is left; rounded up, so that the last of it can be used."""
    return -(-max(0, limit - used) // processes_count) if limit else _UNLIMITED
