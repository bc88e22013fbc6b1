"""Records of jobs that the lake holds, read many at a time: a backlog is worked off out of memory.

Owns what was read ahead of claims, its bound over all queues, and reads under way. Never knows who gets a job, and
never says that one is there: what was deleted since may still be held here.

    begun |==========| newest |==========| under way |- - - - -|
               ^ jobs are handed out here; when one of `newest` is, what follows it is read

- The lake reads a thousand neighbours about as fast as one, so only the first claim of a stretch waits for it.
- Jobs that come back are read by themselves: nobody says which will be next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.read_plan import shown_count
from headwater.engine.record_reads import TopicRecord
from headwater.errors import Failure
from headwater.model import forks

STRETCH_COUNT = 2_000
STRETCH_BYTES = 1 << 20
"""What is read at once, beyond the first job."""
ROOM_BYTES = 64 << 20
"""What all queues of a process hold. Overflow: what was asked for the longest time ago is forgotten, and read again."""
RECORD_BYTES = 300
"""What a record held here takes beside its payload, about."""

Got = Callable[[list[TopicRecord] | Failure], None]


class Room:
    """What the queues of a process hold."""

    def __init__(self, bytes_max: int = ROOM_BYTES) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._held: OrderedDict[JobsAhead, int] = OrderedDict()
        """Whoever got something last is last."""

    def note(self, ahead: JobsAhead, size: int) -> None:
        """It holds `size` bytes now; others may have to forget theirs."""
        self.bytes += size - self._held.pop(ahead, 0)
        if size:
            self._held[ahead] = size
        while self.bytes > self._bytes_max and len(self._held) > 1:
            next(iter(self._held)).forget()


class _Under:
    """A read under way."""

    __slots__ = ("first", "waiting")

    def __init__(self, first: int, waiting: list[Got]) -> None:
        self.first = first
        self.waiting = waiting


class JobsAhead:
    """Of one queue."""

    def __init__(self, engine: Engine, stream: LoadedStream, room: Room) -> None:
        self.cursor = 1
        """Jobs from here on are handed out in their order: they are read ahead."""
        self._engine = engine
        self._stream = stream
        self._room = room
        self._begun: dict[int, TopicRecord] = {}
        self._newest: dict[int, TopicRecord] = {}
        self._sizes = (0, 0)
        self._end = 0
        """The last one of the newest; 0: what follows it is in memory, or asked for."""
        self._under_way: list[_Under] = []
        self._closed = False

    def get(self, seq: int) -> TopicRecord | None:
        found = self._newest.get(seq)
        if found is None:
            return self._begun.get(seq)
        if self._end:
            self._read_on()
        return found

    def read(self, seq: int, count: int, bytes_max: int, got: Got) -> None:
        """Calls `got` with jobs from `seq` on, which is live and not held here; `count` of them are wanted.

        There may be more, and those that were deleted meanwhile are not among them. A read that was under way may have
        ended before `seq`: then it is asked for again.
        """
        if seq < self.cursor:
            self._engine.read_records(self._stream, seq - 1, count, max(bytes_max, 1), got)
            return
        for under in self._under_way:
            if under.first <= seq < under.first + STRETCH_COUNT:
                under.waiting.append(got)
                return
        wanted_bytes = count * self._stream.live_bytes // max(self._stream.live_count, 1)
        size = STRETCH_BYTES if wanted_bytes <= STRETCH_BYTES else max(STRETCH_BYTES, bytes_max)
        self._begin(seq, size, [got])

    def forget(self) -> None:
        self._begun, self._newest = {}, {}
        self._sizes, self._end = (0, 0), 0
        self._room.note(self, 0)

    def close(self) -> None:
        """The queue is gone: what reads under way bring is not kept."""
        self._closed = True
        self.forget()

    def _read_on(self) -> None:
        number, self._end = self._end, 0
        stream = self._stream
        if number < shown_count(stream) and number < forks.holder_of(stream, number)[0].timeline.seq:
            self._begin(number + 1, STRETCH_BYTES, [])

    def _begin(self, seq: int, bytes_max: int, waiting: list[Got]) -> None:
        under = _Under(seq, waiting)
        self._under_way.append(under)
        try:
            self._engine.read_records(self._stream, seq - 1, STRETCH_COUNT, bytes_max, partial(self._ended, under))
        except Failure as failure:
            self._ended(under, failure)

    def _ended(self, under: _Under, found: list[TopicRecord] | Failure) -> None:
        self._under_way.remove(under)
        if found and not isinstance(found, Failure) and not self._closed:
            self._keep(found)
        for got in under.waiting:
            got(found)

    def _keep(self, found: list[TopicRecord]) -> None:
        size = sum([len(one.payload) for one in found]) + RECORD_BYTES * len(found)
        self._begun, self._newest = self._newest, {one.seq: one for one in found}
        self._sizes, self._end = (self._sizes[1], size), found[-1].seq
        self._room.note(self, sum(self._sizes))
