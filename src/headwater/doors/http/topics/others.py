"""Topics of other processes that a client of this one follows: their owner is asked, and answers when there is more.

Owns the question, on both sides. Never asks again before the client has taken what was answered.

    topics_diff(connection, [(group, key, from_seq, epoch), ...], limit, nodes, wait_ms)
        -> [(index, difference or None), ...]

None stands for a topic that is gone.

One question of a client's connection is under way to each process, about all topics that are followed there. When more
are followed it is asked again, and the question before is answered at once, by nothing.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any, NamedTuple

from headwater.doors.http.topics import diff as diffs
from headwater.doors.http.topics.diff import Diff, Wanted
from headwater.doors.http.topics.following import BATCH_BYTES_MAX, Filter, Outlet
from headwater.doors.http.topics.watchers import Watchers
from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.read_plan import shown_count
from headwater.errors import Failure, StreamNotFound, StreamSoftDeleted

QUESTION = "topics_diff"
WAIT_MS = 10_000
"""How long an owner waits before it answers that there is nothing. It does not hear that a client went away."""
ANSWER_BYTES_MAX = 1024 * 1024
NOW = -1
"""As a cursor: from now on. As an epoch: any."""


class Asked(NamedTuple):
    group: int
    key: str
    from_seq: int
    epoch: int


Answers = list[tuple[int, Diff | None]]
_numbers = count(1)
"""Of connections that ask, in this process."""


class Answering:
    """The owner's side."""

    def __init__(self, engine: Engine, watchers: Watchers) -> None:
        self._engine = engine
        self._watchers = watchers
        self._waiting: dict[str, _Waiting] = {}
        """By the connection that asks: its newest question."""
        engine.questions.register(QUESTION, self._answer)

    async def _answer(
        self, connection: str, asked: list[tuple[int, str, int, int]], limit: int, nodes: list[str], wait_ms: int
    ) -> Any:
        """With `wait_ms` 0 every topic is answered for, and none of them with records: that is how one begins."""
        topics = [Asked(*one) for one in asked]
        wanted = Filter(limit, frozenset(nodes))
        if not wait_ms:
            return await self._found(topics, wanted, begin=True)
        before, waiting = self._waiting.get(connection), _Waiting()
        if before is not None:
            before.end()
        self._waiting[connection] = waiting
        followed: list[LoadedStream] = []
        try:
            for one in topics:
                stream = self._find(one)
                if stream is not None:
                    followed.append(stream)
                    self._watchers.watch(stream, waiting)
            deadline_s = asyncio.get_running_loop().time() + wait_ms / 1000
            while True:
                waiting.event.clear()
                found = [] if waiting.ended else await self._found(topics, wanted, begin=False)
                left_s = deadline_s - asyncio.get_running_loop().time()
                if found or left_s <= 0 or waiting.ended:
                    return found
                try:
                    await asyncio.wait_for(waiting.event.wait(), left_s)
                except TimeoutError:
                    return []
        finally:
            if self._waiting.get(connection) is waiting:
                del self._waiting[connection]
            for stream in followed:
                self._watchers.unwatch(stream, waiting)

    async def _found(self, topics: list[Asked], wanted: Filter, begin: bool) -> Answers:
        found: Answers = []
        size = 0
        for index, one in enumerate(topics):
            stream = self._find(one)
            if stream is None or one.epoch not in (NOW, stream.epoch):
                found.append((index, None))
                continue
            head = shown_count(stream)
            from_seq = head if one.from_seq == NOW else min(one.from_seq, head) if begin else one.from_seq
            if begin:
                found.append((index, Diff([], from_seq, head, 0, 0, stream.epoch, False)))
                continue
            diff = await _read(self._engine, stream, Wanted(from_seq, wanted.limit, BATCH_BYTES_MAX, wanted.nodes))
            if diff.says_something or diff.next_seq != from_seq:
                self._watchers.priorities.consumed(stream)
                found.append((index, diff))
                size += diff.size
                if size >= ANSWER_BYTES_MAX:
                    break
        return found

    def _find(self, one: Asked) -> LoadedStream | None:
        """None: it is gone. Raises GroupMoved."""
        try:
            return self._engine.serving(one.group).group.find(one.key, True)
        except (StreamNotFound, StreamSoftDeleted):
            return None


async def _read(engine: Engine, stream: LoadedStream, wanted: Wanted) -> Diff:
    future: asyncio.Future[Diff | Failure] = asyncio.get_running_loop().create_future()
    diffs.read(engine, stream, wanted, lambda found: None if future.done() else future.set_result(found))
    found = await future
    if isinstance(found, Failure):
        raise found
    return found


class _Waiting:
    """A Watcher of several topics at once."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.ended = False
        """Its connection has asked another question."""

    def end(self) -> None:
        self.ended = True
        self.event.set()

    def grown(self, stream: LoadedStream) -> None:
        self.event.set()

    def gone(self, stream: LoadedStream) -> None:
        self.event.set()

    def left(self, stream: LoadedStream) -> None:
        self.event.set()


class Place(NamedTuple):
    """Where a topic is followed from."""

    cursor: int
    epoch: int


async def places(engine: Engine, member: int, asked: list[tuple[int, str, int | None]]) -> list[Place | None]:
    """Of topics of another process, (group, key, cursor, or None: from now on) each, in their order; None: it is gone.

    Raises what asking raises.
    """
    topics = [(group, key, NOW if cursor is None else cursor, NOW) for group, key, cursor in asked]
    answers: Answers = await engine.questions.ask(member, QUESTION, "", topics, 1, [], 0, into=Answers)
    return [None if diff is None else Place(diff.next_seq, diff.epoch) for _, diff in answers]


class _Followed:
    __slots__ = ("begun", "cursor", "epoch", "group", "key", "name")

    def __init__(self, name: str, group: int, key: str, place: Place) -> None:
        self.name = name
        self.group = group
        self.key = key
        self.cursor, self.epoch = place
        self.begun = False


class Others:
    """The client's side: topics of one other process."""

    def __init__(self, engine: Engine, member: int, outlet: Outlet, wanted: Filter) -> None:
        self._engine = engine
        self._member = member
        self._outlet = outlet
        self._wanted = wanted
        self._connection = f"{engine.questions.me}:{next(_numbers)}"
        self._topics: dict[str, _Followed] = {}
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._topics)

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def add(self, name: str, group: int, key: str, place: Place) -> None:
        """`start` sends what comes of it."""
        self._topics[name] = _Followed(name, group, key, place)

    def remove(self, name: str) -> None:
        """What is being answered about it is not sent any more."""
        if self._topics.pop(name, None) is not None and not self._topics:
            self.close()

    def start(self) -> None:
        """Sends what comes from now on, until `close`. To be called again when topics were added."""
        self.close()
        self._task = asyncio.get_running_loop().create_task(self._follow())

    def pump(self) -> None:
        """The outlet takes more."""
        self._room.set()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _ask(self) -> list[tuple[_Followed, Diff | None]]:
        topics = list(self._topics.values())
        asked = [(topic.group, topic.key, topic.cursor, topic.epoch) for topic in topics]
        arguments = self._connection, asked, self._wanted.limit, sorted(self._wanted.nodes), WAIT_MS
        answers: Answers = await self._engine.questions.ask(self._member, QUESTION, *arguments, into=Answers)
        return [(topics[index], diff) for index, diff in answers]

    async def _follow(self) -> None:
        try:
            while self._topics:
                for topic, diff in await self._ask():
                    await self._until_room()
                    self._send(topic, diff)
        except Failure:
            self._outlet.interrupted()
        except Exception:
            self._outlet.broke()

    async def _until_room(self) -> None:
        while self._outlet.full:
            self._room.clear()
            await self._room.wait()

    def _send(self, topic: _Followed, diff: Diff | None) -> None:
        if self._topics.get(topic.name) is not topic:
            return  # it is not followed any more, or anew
        # The next question begins with the others: one that always has something leaves them their turn.
        del self._topics[topic.name]
        if diff is None:
            self._outlet.gone(topic.name)
            return
        self._topics[topic.name] = topic
        if diff.gap_to:
            topic.cursor = diff.gap_to
            self._outlet.tombstone(topic.name, diff.gap_from, diff.gap_to, topic.begun)
        topic.begun = True
        topic.cursor = diff.next_seq
        if diff.records:
            self._outlet.records(topic.name, diff.joined(), diff.next_seq)
