"""Topics of other processes that a client of this one follows: their owner is asked, and answers when there is more.

Owns the question, on both sides. Never asks again before the client has taken what was answered.

    topics_diff([(group, key, from_seq, epoch), ...], limit, nodes, wait_ms) -> [(index, difference or None), ...]

None stands for a topic that is gone.

One question of a client's connection is under way to each process, about all topics that are followed there.
"""

from __future__ import annotations

import asyncio
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


class Answering:
    """The owner's side."""

    def __init__(self, engine: Engine, watchers: Watchers) -> None:
        self._engine = engine
        self._watchers = watchers
        engine.questions.register(QUESTION, self._answer)

    async def _answer(self, asked: list[tuple[int, str, int, int]], limit: int, nodes: list[str], wait_ms: int) -> Any:
        """With `wait_ms` 0 every topic is answered for, and none of them with records: that is how one begins."""
        topics = [Asked(*one) for one in asked]
        wanted = Filter(limit, frozenset(nodes))
        waiting = _Waiting()
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
                found = await self._found(topics, wanted, begin=not wait_ms)
                left_s = deadline_s - asyncio.get_running_loop().time()
                if found or left_s <= 0:
                    return found
                try:
                    await asyncio.wait_for(waiting.event.wait(), left_s)
                except TimeoutError:
                    return []
        finally:
            for stream in followed:
                self._watchers.unwatch(stream, waiting)

    async def _found(self, topics: list[Asked], wanted: Filter, begin: bool) -> Answers:
        found: Answers = []
        size = 0
        for index, one in enumerate(topics):
            stream = self._find(one)
            if stream is None or one.epoch not in (NOW, stream.sid):
                found.append((index, None))
                continue
            from_seq = shown_count(stream) if one.from_seq == NOW else one.from_seq
            if begin:
                found.append((index, Diff([], from_seq, shown_count(stream), 0, 0, stream.sid, False)))
                continue
            diff = await _read(self._engine, stream, Wanted(from_seq, wanted.limit, BATCH_BYTES_MAX, wanted.nodes))
            if diff.says_something or diff.next_seq != from_seq:
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

    def grown(self, stream: LoadedStream) -> None:
        self.event.set()

    def gone(self, stream: LoadedStream) -> None:
        self.event.set()

    def left(self, stream: LoadedStream) -> None:
        self.event.set()


class _Followed:
    __slots__ = ("begun", "cursor", "epoch", "group", "key", "name")

    def __init__(self, name: str, group: int, key: str, cursor: int) -> None:
        self.name = name
        self.group = group
        self.key = key
        self.cursor = cursor
        self.epoch = NOW
        self.begun = False


class Others:
    """The client's side: topics of one other process."""

    def __init__(self, engine: Engine, member: int, outlet: Outlet, wanted: Filter) -> None:
        self._engine = engine
        self._member = member
        self._outlet = outlet
        self._wanted = wanted
        self._topics: dict[str, _Followed] = {}
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._topics)

    def add(self, name: str, group: int, key: str, from_seq: int | None) -> None:
        self._topics[name] = _Followed(name, group, key, NOW if from_seq is None else from_seq)

    async def begin(self) -> dict[str, int]:
        """Where each topic is followed from. Raises StreamNotFound, and what asking raises."""
        for topic, diff in await self._ask(0):
            if diff is None:
                raise StreamNotFound
            topic.cursor, topic.epoch = diff.next_seq, diff.epoch
        return {topic.name: topic.cursor for topic in self._topics.values()}

    def start(self) -> None:
        """Sends what comes from now on, until `close`."""
        self._task = asyncio.get_running_loop().create_task(self._follow())

    def pump(self) -> None:
        """The outlet takes more."""
        self._room.set()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _ask(self, wait_ms: int) -> list[tuple[_Followed, Diff | None]]:
        topics = list(self._topics.values())
        asked = [(topic.group, topic.key, topic.cursor, topic.epoch) for topic in topics]
        nodes = sorted(self._wanted.nodes)
        questions, limit = self._engine.questions, self._wanted.limit
        answers: Answers = await questions.ask(self._member, QUESTION, asked, limit, nodes, wait_ms, into=Answers)
        return [(topics[index], diff) for index, diff in answers]

    async def _follow(self) -> None:
        try:
            while self._topics:
                for topic, diff in await self._ask(WAIT_MS):
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
